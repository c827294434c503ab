"""What each term of the Lagrangian controller is worth to `ppo`: each left out alone. `python -m benchmarks terms`.

Options are those of Gymnasium environments. Glide is a compiled domain in which standing still satisfies the limit.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import psyco
from benchmarks.learners import CARTPOLE, FIRST_SEED, PENDULUM

Motion = tuple[jax.Array, jax.Array]  # speed and wind


@dataclass(frozen=True)
class Glide:
    """The speed follows the motor slowly, and is the reward. Standing still satisfies every speed limit."""

    horizon: int = 50
    name: ClassVar[str] = "glide"
    actions: ClassVar[psyco.Continuous] = psyco.Continuous((-1.0,), (1.0,))
    observation_size: ClassVar[int] = 2

    def reset(self, key: jax.Array) -> Motion:
        return jnp.float32(0), jax.random.normal(key)

    def step(self, key: jax.Array, state: Motion, action: jax.Array) -> tuple[Motion, jax.Array, jax.Array]:
        wind = 0.7 * state[1] + 0.7 * jax.random.normal(key)
        speed = 0.9 * state[0] + 0.1 * action[0] + 0.02 * wind
        return (speed, wind), speed, jnp.bool_(False)

    def observe(self, state: Motion) -> jax.Array:
        return jnp.stack(state)

    def signals(self, state: Motion) -> dict[str, jax.Array]:
        return {"speed": state[0]}


SPEED = "P>=0.9 [ G (speed <= 0.5) ] & C>=0.95"
TERMS = {"margin": 0.5, "control": "multiplier", "proportional_gain": 2.0, "curriculum": 0.25}
# The term that is left out -> the options that do so.
LEFT_OUT: dict[str, dict[str, Any]] = {
    "none": {},
    "proportional": {"proportional_gain": 0.0},
    "multiplier: the integral of λ instead": {"control": "integral"},
    "both": {"control": "integral", "proportional_gain": 0.0},
    "curriculum": {"curriculum": 0.0},
}
TASKS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "glide": (Glide(), SPEED, TERMS | {"std_end": 0.1}),
    "cartpole": ("CartPole-v1", CARTPOLE, {}),
    "pendulum": ("Pendulum-v1", PENDULUM, {}),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(TASKS)}; default: all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--episodes", type=int, default=2000)
    chosen = parser.parse_args(arguments)
    print("| task | term left out | certified | return of each seed | mean |\n|---|---|---|---|---|")
    for task in chosen.tasks or TASKS:
        domain, requirement, options = TASKS[task]
        for term, changes in LEFT_OUT.items():
            certified, returns = 0, []
            for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
                learner = psyco.PPO(**options | changes)
                result = psyco.synthesize(domain, requirement, episodes=chosen.episodes, seed=seed, learner=learner)
                certified += result.certificate.verdict is psyco.Verdict.SATISFIED
                returns.append(float(result.certificate.mean_return))
            listed = ", ".join(f"{value:.1f}" for value in returns)
            print(
                f"| {task} | {term} | {certified} of {chosen.seeds} | {listed} | {np.mean(returns):.1f} |", flush=True
            )


if __name__ == "__main__":
    main()
