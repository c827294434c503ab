"""Schedules over the part of learning that is done, whether the budget is in episodes or in steps."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from psyco._src.rollout.episodes import Episodes


@dataclass(frozen=True)
class LearningBudget:
    """The length of learning, in generations or in steps.

    Args:
        generations: the number of generations; with a step budget, the expected number.
        steps: the step budget; None: the budget is in generations.
    """

    generations: int
    steps: int | None = None

    def generations_done(self, generation: Array, steps: Array) -> Array:
        """Return the number of generations done `[]`; with a step budget, the equivalent of the steps, a fraction."""
        if not self.steps:
            return generation
        return jnp.asarray(steps).astype(jnp.float32) * (self.generations / self.steps)

    def fraction(self, generation: Array, steps: Array) -> Array:
        """Return the fraction of learning that is done `[]`, 0 to 1."""
        return jnp.minimum(self.generations_done(generation, steps) / self.generations, 1.0)


def zero_counters() -> tuple[Array, Array]:
    """Return the counters of generations and steps `[]` int32 before the first generation."""
    return jnp.int32(0), jnp.int32(0)


def count_steps(episodes: Episodes) -> Array:
    """Return the total number of steps of these episodes, `[]` int32."""
    return jnp.sum(jnp.asarray(episodes.length), dtype=jnp.int32)


def cosine(done: Array, of: float) -> Array:
    """Return the factor of a rate that decays from 1 to 0 along half a cosine."""
    return 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(done, float(of)) / float(of)))


def curriculum_fraction(done: Array, generations: int, curriculum: float) -> Array:
    """Return the fraction of a constraint that applies now: linear from 0 to 1 over the first part of learning.

    The paper proposes such a curriculum on the required probability.

    Args:
        done: the number of generations done.
        generations: of the whole run.
        curriculum: the length of the rise, as a fraction of learning; 0: the constraint applies in full at once.
    """
    if curriculum <= 0:
        return jnp.float32(1)
    return jnp.minimum(1.0, done.astype(jnp.float32) / (curriculum * generations))
