"""Unconstrained returns of `ppo` and `sac` with and without held noise.

python -m benchmarks.exploration MountainCarContinuous-v0 --seeds 10 11 12 13 14
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import numpy as np

import psyco

RETURN = "Rmax=? [ C ]"


class Task(NamedTuple):
    """An environment, a learner and its budget."""

    name: str
    learner: str
    steps: int


ROWS: tuple[dict[str, Any], ...] = ({}, {"hold": 1})  # options: the default, and white noise
TASKS = (
    Task("MountainCarContinuous-v0", "sac", 20_000),
    Task("MountainCarContinuous-v0", "ppo", 200_000),
    Task("HalfCheetah-v5", "sac", 30_000),
    Task("HalfCheetah-v5", "ppo", 100_000),
    Task("Hopper-v5", "ppo", 200_000),
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="environments; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14])
    chosen = parser.parse_args(arguments)
    print(f"| task | learner | steps | options | return of seeds {chosen.seeds} | mean | seconds |")
    print("|---|---|---|---|---|---|---|")
    for task in (each for each in TASKS if not chosen.tasks or each.name in chosen.tasks):
        for options in ROWS:
            began, found = time.process_time(), []
            for seed in chosen.seeds:
                settings = psyco.Settings(learner=task.learner, options=options)
                result = psyco.synthesize(task.name, RETURN, steps=task.steps, seed=seed, settings=settings)
                found.append(float(result.certificate.mean_return))
            seconds = (time.process_time() - began) / len(found)
            stated = ", ".join(f"{name}={value}" for name, value in options.items()) or "default"
            shown = ", ".join(f"{value:.4g}" for value in found)
            print(f"| {task.name} | {task.learner} | {task.steps:,} | {stated} | {shown} | {np.mean(found):.4g} | "
                  f"{seconds:.0f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
