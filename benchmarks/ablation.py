"""What each part of safe-es is worth: every part changed alone, the rest as it is. `python -m benchmarks ablation`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from benchmarks.learners import CARTPOLE, FEW, FIRST_SEED, HEADER, PENDULUM, Row, line, run

# What is changed -> the options that change it.
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no curriculum": {"curriculum": 0.0},
    "the paper's soft rule instead of integral control": {"control": "soft"},
    "fast integral control (gain 0.1)": {"gain": 0.1},
    "population instead of pair shaping": {"shaping": "population"},
    "no mirrored pairs, no common random numbers": {"mirrored": False, "shaping": "population"},
    "momentum instead of Adam": {"optimizer": "sgd"},
    "no margin": {"margin": 0.0},
    "observations scaled (none on Gymnasium)": {"scaling": "sampled"},
    "biases fixed at one": {"bias": "one"},
    "severity instead of counts": {"severity": True},
    "no selection": {"candidates": 1},
}
DOMAINS = {
    "dance": Row("particle-dance", "safe-es", 60_000),
    "run": Row("obstacle-run", "safe-es", 20_000),
    "cartpole": Row("CartPole-v1", "safe-es", 1_200, CARTPOLE, FEW, 200),
    "pendulum": Row("Pendulum-v1", "safe-es", 1_200, PENDULUM, FEW, 200),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("domains", nargs="*", help=f"of {', '.join(DOMAINS)}; default: all")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("studies/ablation"), help="the study's folder")
    chosen = parser.parse_args(arguments)
    rows: list[tuple[str, Row]] = []
    for name in chosen.domains or DOMAINS:
        if name not in DOMAINS:
            parser.error(f"unknown domain {name}; there are: {', '.join(DOMAINS)}")
        row = DOMAINS[name]
        for change, options in CHANGES.items():
            if "scaling" in options and row.requirement:  # Gymnasium domains have it already
                options = {"scaling": "none"}
            changed = dataclasses.replace(row, settings={**row.settings, **options})
            rows.append((change, changed))
    seeds = range(FIRST_SEED, FIRST_SEED + chosen.seeds)
    outcomes = run(rows, seeds, chosen.out)
    print(HEADER.replace("| learner |", "| change |"))
    for (change, row), found in zip(rows, outcomes, strict=True):
        print(line(row, found, name=change))


if __name__ == "__main__":
    main()
