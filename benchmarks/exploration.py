"""Returns of `ppo` and `sac` with and without held noise: unconstrained, and MountainCar below a speed.

python -m benchmarks.exploration MountainCarContinuous-v0 --seeds 10 11 12 13 14
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import numpy as np

import psyco

RETURN = "Rmax=? [ C ]"
SLOWLY = "P>=0.9 [ (F terminated) & G (abs(obs[1]) <= 0.05) ]"


class Task(NamedTuple):
    """An environment, a learner and its budget."""

    name: str
    learner: str
    budget: dict[str, int]  # steps or episodes
    require: str = RETURN


ROWS: tuple[dict[str, Any], ...] = ({}, {"hold": 1})  # options: the default, and white noise
TASKS = (
    Task("MountainCarContinuous-v0", "sac", {"steps": 20_000}),
    Task("MountainCarContinuous-v0", "ppo", {"steps": 200_000}),
    Task("MountainCarContinuous-v0", "ppo", {"episodes": 2_000}, SLOWLY),
    Task("HalfCheetah-v5", "sac", {"steps": 30_000}),
    Task("HalfCheetah-v5", "ppo", {"steps": 100_000}),
    Task("Hopper-v5", "ppo", {"steps": 200_000}),
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="environments; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14])
    chosen = parser.parse_args(arguments)
    print(f"| task | learner | budget | options | return of seeds {chosen.seeds} | satisfied | mean | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for task in (each for each in TASKS if not chosen.tasks or each.name in chosen.tasks):
        for options in ROWS:
            began, found, satisfied = time.process_time(), [], 0
            for seed in chosen.seeds:
                settings = psyco.Settings(learner=task.learner, options=options)
                result = psyco.synthesize(task.name, task.require, seed=seed, settings=settings, **task.budget)
                found.append(float(result.certificate.mean_return))
                satisfied += result.certificate.verdict is psyco.Verdict.SATISFIED
            seconds = (time.process_time() - began) / len(found)
            stated = ", ".join(f"{name}={value}" for name, value in options.items()) or "default"
            shown = ", ".join(f"{value:.4g}" for value in found)
            budget = ", ".join(f"{number:,} {name}" for name, number in task.budget.items())
            held = f"{satisfied} of {len(found)}" if task.require != RETURN else "-"
            print(f"| {task.name} | {task.learner} | {budget} | {stated} | {shown} | {held} | {np.mean(found):.4g} | "
                  f"{seconds:.0f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
