"""The Bayesian belief about a satisfaction probability: Beta(s + 1, v + 1) after s satisfied, v violated episodes.

JAX's incomplete beta function is wrong by up to 7e-2 in float32 for the counts of a training run. These functions
therefore compute in float64: call them under `double_precision()`, which leaves the user's process in float32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


def double_precision() -> AbstractContextManager[None]:
    """Float64 is available to what is traced and compiled inside."""
    return jax.enable_x64(True)


def single_precision() -> AbstractContextManager[None]:
    """Inside `double_precision`: code written for JAX's default types (domains, policies) behaves as ever."""
    return jax.enable_x64(False)


class Belief(NamedTuple):
    """Counts per demand."""

    satisfied: Array  # [K] int32
    violated: Array  # [K] int32


def prior(demands: int) -> Belief:
    """No episode seen: the uniform prior Beta(1, 1) for each demand."""
    return Belief(jnp.zeros(demands, jnp.int32), jnp.zeros(demands, jnp.int32))


def observe(belief: Belief, satisfied: Array) -> Belief:
    """Count outcomes `[B, K]` (Alg. SNES, line 11 and, with the slip of line 12 mended, violations)."""
    hits = jnp.sum(satisfied, axis=0, dtype=jnp.int32)
    return Belief(belief.satisfied + hits, belief.violated + jnp.int32(len(satisfied)) - hits)


def confidence(belief: Belief, p_req: Array) -> Array:
    """Posterior mass above `p_req`, `[K]` float32: c_sat of Eq. c_sat."""
    a, b = _shape(belief)
    # 1 - I_p(a, b) = I_{1-p}(b, a): no cancellation when c_sat is small.
    return jax.lax.betainc(b, a, 1.0 - jnp.asarray(p_req, jnp.float64)).astype(jnp.float32)


def shortfall(belief: Belief, p_req: Array) -> Array:
    """How far each probability is expected to fall below `p_req`: E[max(0, p_req - p)], `[K]` float32."""
    a, b = _shape(belief)
    p = jnp.asarray(p_req, jnp.float64)
    below, below_weighted = jax.lax.betainc(a, b, p), jax.lax.betainc(a + 1.0, b, p)
    return jnp.maximum(p * below - a / (a + b) * below_weighted, 0.0).astype(jnp.float32)


def _shape(belief: Belief) -> tuple[Array, Array]:
    return belief.satisfied.astype(jnp.float64) + 1.0, belief.violated.astype(jnp.float64) + 1.0
