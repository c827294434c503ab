"""The Bayesian belief about a satisfaction probability: Beta(s + 1, v + 1) after s satisfied, v violated episodes.

About a mean it is Student's t, as for normal values of which neither mean nor variance are known, with one value's
worth of the largest variance in their range as a prior: what `BayesMean` believes, which verifies means.

JAX's incomplete beta function is wrong by up to 7e-2 in float32 for the counts of a training run. These functions
therefore compute in float64: call them under `double_precision()`, which leaves the user's process in float32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike


def double_precision() -> AbstractContextManager[None]:
    """Float64 is available to what is traced and compiled inside."""
    return jax.enable_x64(True)


def single_precision() -> AbstractContextManager[None]:
    """Inside `double_precision`: code written for JAX's default types (domains, policies) behaves as ever."""
    return jax.enable_x64(False)


class ExcessSums(NamedTuple):
    """Sums over the excess of episodes, per mean."""

    episodes: Array  # [M] float32, how many
    total: Array  # [M]
    squares: Array  # [M]


class Belief(NamedTuple):
    """Counts per probability, and sums per mean: together K demands."""

    satisfied: Array  # [P] int32; where counts fade, float32
    violated: Array  # [P] likewise
    means: ExcessSums | None = None  # None if there are none


def prior(probabilities: int, means: int = 0, dtype: DTypeLike = jnp.int32) -> Belief:
    """No episode seen: the uniform prior Beta(1, 1) for each probability, a flat one for each mean."""
    none, nothing = jnp.zeros(probabilities, dtype), jnp.zeros(means, jnp.float32)
    return Belief(none, none, ExcessSums(nothing, nothing, nothing) if means else None)


def observe(belief: Belief, satisfied: Array, excess: Array | None = None) -> Belief:
    """Count outcomes `[B, P]` (Alg. SNES, line 11 and, with the slip of line 12 mended, violations), add `[B, M]`."""
    hits = jnp.sum(satisfied, axis=0, dtype=belief.satisfied.dtype)
    means = belief.means
    if means is not None and excess is not None:
        means = ExcessSums(
            means.episodes + len(excess),
            means.total + excess.sum(axis=0),
            means.squares + (excess**2).sum(axis=0),
        )
    return Belief(belief.satisfied + hits, belief.violated + len(satisfied) - hits, means)


def fade(belief: Belief, keep: float) -> Belief:
    """The past counts by `keep` only."""
    return jax.tree.map(lambda seen: keep * seen, belief)


def confidence(belief: Belief, p_req: Array, allowed: Array | float = 0.0) -> Array:
    """Posterior mass above `p_req` `[P]`, c_sat of Eq. c_sat, and of means below `allowed` `[M]`: `[K]` float32."""
    a, b = _shape(belief)
    # 1 - I_p(a, b) = I_{1-p}(b, a): no cancellation when c_sat is small.
    mass = jax.lax.betainc(b, a, 1.0 - jnp.asarray(p_req, jnp.float64)).astype(jnp.float32)
    if belief.means is None:
        return mass
    freedom, mean, scale = _student(belief.means)
    return jnp.concatenate([mass, _student_mass(freedom, (allowed - mean) / scale).astype(jnp.float32)])


def shortfall(belief: Belief, p_req: Array, allowed: Array | float = 0.0) -> Array:
    """How far each probability is expected to fall below `p_req`: E[max(0, p_req - p)]; `[K]` float32.

    Of a mean, how far it is expected above `allowed` `[M]`, as a part of two spreads, as `Steering` has it.
    """
    a, b = _shape(belief)
    p = jnp.asarray(p_req, jnp.float64)
    below, below_weighted = jax.lax.betainc(a, b, p), jax.lax.betainc(a + 1.0, b, p)
    falls = jnp.maximum(p * below - a / (a + b) * below_weighted, 0.0).astype(jnp.float32)
    if belief.means is None:
        return falls
    freedom, mean, scale = _student(belief.means)
    t = (mean - allowed) / scale
    density = (freedom + t * t) / (freedom - 1.0) * jax.scipy.stats.t.pdf(t, freedom)
    above = scale * (t * _student_mass(freedom, t) + density)
    return jnp.concatenate([falls, (above / (2.0 * spread(belief.means))).astype(jnp.float32)])


def spread(moments: ExcessSums) -> Array:
    """The size of an excess, `[M]`, positive: the root of its mean square, so no mean of it is larger."""
    return jnp.sqrt(jnp.maximum(moments.squares / moments.episodes, jnp.finfo(jnp.float32).tiny))


def _student(moments: ExcessSums) -> tuple[Array, Array, Array]:
    """Degrees of freedom, location and scale `[M]` of Student's t, for the mean excess."""
    count, total, squares = (each.astype(jnp.float64) for each in moments)
    mean = total / count
    # A quarter of the squared range is the largest variance, and an excess is a part of its range.
    variance = (0.25 + jnp.maximum(squares - total * mean, 0.0)) / count
    return count, mean, jnp.sqrt(variance / count)


def _student_mass(freedom: Array, t: Array) -> Array:
    """The mass of Student's t below `t`."""
    inside = jax.lax.betainc(jnp.full_like(t, 0.5), freedom / 2.0, t * t / (freedom + t * t))
    return 0.5 + 0.5 * jnp.sign(t) * inside


def _shape(belief: Belief) -> tuple[Array, Array]:
    return belief.satisfied.astype(jnp.float64) + 1.0, belief.violated.astype(jnp.float64) + 1.0
