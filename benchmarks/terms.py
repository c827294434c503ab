"""What each term of the Lagrangian controller is worth to `ppo`: each left out alone. `python -m benchmarks terms`."""

from __future__ import annotations

import argparse
from typing import Any
from unittest import mock

import jax
import numpy as np

import psyco
from benchmarks.learners import CARTPOLE, FIRST_SEED, PENDULUM
from psyco._src.learners import lagrangian

# The term that is left out -> the options that do so; anti-windup has none of its own.
LEFT_OUT: dict[str, dict[str, Any]] = {
    "none": {},
    "anti-windup": {},
    "recovery": {"recovery_gain": 1e-9},
    "proportional": {"proportional_gain": 0.0},
    "floor": {"lambda_min": 0.0},
    "all but the integral": {"recovery_gain": 0.0, "proportional_gain": 0.0, "lambda_min": 0.0},
}
TASKS = {"cartpole": ("CartPole-v1", CARTPOLE), "pendulum": ("Pendulum-v1", PENDULUM)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(TASKS)}; default: all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=2000)
    chosen = parser.parse_args(arguments)
    print("| task | term left out | certified | return of each seed | mean |\n|---|---|---|---|---|")
    for task in chosen.tasks or TASKS:
        domain, requirement = TASKS[task]
        for term, options in LEFT_OUT.items():
            certified, returns = 0, []
            for seed in range(FIRST_SEED, FIRST_SEED + chosen.seeds):
                with mock.patch.object(lagrangian, "_anti_windup", _windup if term == "anti-windup" else _ANTI_WINDUP):
                    jax.clear_caches()  # the patched term is part of a compiled program
                    result = psyco.synthesize(
                        domain, requirement, episodes=chosen.episodes, seed=seed, learner=psyco.PPO(**options)
                    )
                certified += result.certificate.verdict is psyco.Verdict.SATISFIED
                returns.append(float(result.certificate.mean_return))
            listed = ", ".join(f"{value:.0f}" for value in returns)
            print(
                f"| {task} | {term} | {certified} of {chosen.seeds} | {listed} | {np.mean(returns):.1f} |", flush=True
            )


_ANTI_WINDUP = lagrangian._anti_windup


def _windup(lam: Any, *_: Any) -> Any:
    """Let λ fall as the integral says."""
    return lam


if __name__ == "__main__":
    main()
