"""How much of learning is done: the schedules of all learners follow it, whatever the budget is measured in."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from psyco._src.rollout.episodes import Episodes


@dataclass(frozen=True)
class LearningBudget:
    """A number of generations; or of steps, and the generations that they are expected to make.

    Args:
        generations: how many there will be, or are expected.
        steps: how many there will be; 0: the generations count.
    """

    generations: int
    steps: int = 0

    def done(self, generation: Array, steps: Array) -> Array:
        """How many of the generations are done `[]`, after so many of both; of steps it is their part, in between."""
        if not self.steps:
            return generation
        return jnp.asarray(steps).astype(jnp.float32) * (self.generations / self.steps)

    def part(self, generation: Array, steps: Array) -> Array:
        """The part of learning that is done `[]`, 0 to 1."""
        return jnp.minimum(self.done(generation, steps) / self.generations, 1.0)


def nothing_spent() -> tuple[Array, Array]:
    """Generations and steps `[]` int32 before the first."""
    return jnp.int32(0), jnp.int32(0)


def steps_of(episodes: Episodes) -> Array:
    """How many steps were taken in all of these episodes, `[]` int32."""
    return jnp.sum(jnp.asarray(episodes.length), dtype=jnp.int32)


def cosine(done: Array, of: float) -> Array:
    """What is left of a rate: from 1 to 0 along half a cosine."""
    return 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(done, float(of)) / float(of)))
