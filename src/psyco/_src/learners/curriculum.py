"""Curriculum: the required probability rises over the first part of learning, as the paper proposes."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def risen(done: Array, generations: int, curriculum: float) -> Array:
    """How much of a demand is made after so many generations: a line from 0 to 1 over the first part of learning."""
    if curriculum <= 0:
        return jnp.float32(1)
    return jnp.minimum(1.0, done.astype(jnp.float32) / (curriculum * generations))
