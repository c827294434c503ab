"""A domain of your own in one short file: a walker in a slippery corridor, with a pit at one end.

Run it: python examples/corridor.py
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

import psyco


@dataclass(frozen=True)
class Corridor:
    """Stand as close to the edge (position 0) as you dare: the floor slips, and below 0 is the pit."""

    horizon: int = 20
    slip: float = 0.2

    name: ClassVar[str] = "corridor"
    actions: ClassVar[psyco.Continuous] = psyco.Continuous((-0.5,), (0.5,))
    observation_size: ClassVar[int] = 1

    def reset(self, key):
        """Somewhere safe."""
        return jax.random.uniform(key, (), minval=1.0, maxval=2.0)

    def step(self, key, position, action):
        """Move, slip; falling ends the episode."""
        position = position + action[0] + self.slip * jax.random.normal(key)
        return position, -jnp.abs(position), position < 0

    def observe(self, position):
        return position[None]

    def signals(self, position):
        return {"position": position, "fallen": position < 0}


if __name__ == "__main__":
    result = psyco.synthesize(
        Corridor(),
        "P>=0.9 [ G !fallen ] & C>=0.98",
        episodes=20_000,
        learner="snes",
        settings=psyco.Settings(max_episodes=20_000),
    )
    print(result.certificate)
    raise SystemExit(result.certificate.verdict is not psyco.Verdict.SATISFIED)
