"""Violations while learning, with and without a shield: Obstacle Run, and two models of QVBS (`QVBS=FOLDER`)."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import psyco
from psyco._src.envs.base import Domain
from psyco._src.learners.metrics import Metrics
from psyco._src.logic.ast import Requirement
from psyco._src.logic.parser import parse
from psyco._src.runs.budget import fit_model
from psyco._src.runs.problem import prepare
from psyco._src.runs.settings import Settings
from psyco._src.runs.train import Callback, learn

SEEDS = range(3)
EPISODES = 1000
HORIZON = 50
MODELS = {  # file, its property `goal`, and the bound on its probability, below the optimum
    "cdrive.2": ("mdp/cdrive/cdrive.2.jani", "F (var6=0 & var5=0)", 0.8),
    "triangle-tireworld.9": ("mdp/triangle-tireworld/triangle-tireworld.9.jani", "F var5=2", 0.9),
}


class Problem(NamedTuple):
    """A domain, its requirement, and the level of its shield."""

    name: str
    domain: Domain
    requirement: Requirement
    level: float


def problems() -> Iterator[Problem]:
    """Yield the domains with their requirements."""
    text = "P>=0.9 [ G (!caught | collisions <= 1) ] & C>=0.98"
    yield Problem("obstacle-run", psyco.make("obstacle-run"), parse(text), 0.95)
    folder = os.environ.get("QVBS")
    if folder is None:
        print("QVBS=FOLDER adds two of its models")
        return
    for name, (file, formula, bound) in MODELS.items():
        made = psyco.make(str(Path(folder) / file), horizon=HORIZON)
        yield Problem(name, made, parse(f"P>={bound} [ {formula} ] & C>=0.95"), bound)


def violations(problem: Problem, level: float | None, seed: int) -> tuple[int, int, float]:
    """Return violating and all episodes of learning, and the satisfied share of the last tenth."""
    settings = Settings(episodes=EPISODES, seed=seed, shield=level, verify_every=0)
    domain = fit_model(problem.domain, problem.requirement, settings)
    parts: list[Metrics] = []
    learn(prepare(domain, problem.requirement, settings), [Callback(on_metrics=lambda _, rows: parts.append(rows))])
    share = np.concatenate([np.asarray(part["satisfied"]) for part in parts])
    return round((1.0 - share.mean()) * EPISODES), EPISODES, float(share[-max(1, len(share) // 10) :].mean())


def main() -> None:
    """Print the table."""
    print("| domain | level | violations in 1,000 episodes of learning | with the shield | last tenth satisfied |")
    print("|---|---|---|---|---|")
    for problem in problems():
        rows = [[violations(problem, level, seed) for seed in SEEDS] for level in (None, problem.level)]
        bad = [", ".join(str(each[0]) for each in row) for row in rows]
        last = [f"{statistics.mean(each[2] for each in row):.3f}" for row in rows]
        print(
            f"| {problem.name} | {problem.level} | {bad[0]} | {bad[1]} | {last[0]} without, {last[1]} with |",
            flush=True,
        )


if __name__ == "__main__":
    main()
