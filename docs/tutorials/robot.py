"""Tutorial 3: your own compiled domain: a robot in wind, two zones, a goal."""

# --8<-- [start:domain]
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

import psyco

GOAL, SLOPE, POND = jnp.array([1.8, 1.0]), jnp.array([0.8, 1.35]), jnp.array([1.1, 0.75])


@dataclass(frozen=True)
class Delivery:
    """A robot drives from the left to the goal on the right; a slope and a pond lie near the direct path."""

    wind: float = 0.03
    horizon: int = 60

    name: ClassVar[str] = "delivery"
    actions: ClassVar[psyco.Continuous] = psyco.Continuous((-0.1, -0.1), (0.1, 0.1))
    observation_size: ClassVar[int] = 2

    def reset(self, key):
        """Start near the left edge."""
        return jnp.array([0.2, 1.0]) + 0.1 * jax.random.normal(key, (2,))

    def step(self, key, position, action):
        """Move in wind; the reward is minus the distance to the goal, which ends the episode."""
        position = jnp.clip(position + action + self.wind * jax.random.normal(key, (2,)), 0.0, 2.0)
        left = jnp.linalg.norm(position - GOAL)
        return position, -left, left < 0.15

    def observe(self, position):
        """Return the position relative to the centre."""
        return position - 1.0

    # --8<-- [end:domain]
    # --8<-- [start:signals]
    def signals(self, position):
        """Return the quantities that requirements may refer to."""
        return {
            "robot": position,
            "goal": GOAL,
            "slope": SLOPE,
            "pond": POND,
            "in_slope": jnp.linalg.norm(position - SLOPE) < 0.3,
            "in_pond": jnp.linalg.norm(position - POND) < 0.25,
            "at_goal": jnp.linalg.norm(position - GOAL) < 0.15,
        }

    @property
    def scene(self):
        """The positions to draw, and the frame around them."""
        return psyco.Scene(("goal", "slope", "pond", "robot"), low=(0.0, 0.0), high=(2.0, 2.0))


# --8<-- [end:signals]

# --8<-- [start:learn]
requirement = """
    "dry":   P>=0.9 [ G !in_pond ] & C>=0.95;
    "slope": P>=0.7 [ G (count(in_slope) <= 2) ] & C>=0.95;
    "there": P>=0.9 [ F at_goal ] & C>=0.95;
"""
result = psyco.synthesize(Delivery(), requirement, episodes=40_000)
print(result.certificate)
# --8<-- [end:learn]

# --8<-- [start:storm]
stormy = psyco.verify(result.policy, Delivery(wind=0.08), requirement)
print(stormy)
# --8<-- [end:storm]

# --8<-- [start:picture]
print(psyco.render(result.policy, "delivery", domain=Delivery()))
# --8<-- [end:picture]
