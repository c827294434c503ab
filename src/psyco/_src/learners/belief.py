"""The Bayesian belief about a satisfaction probability: Beta(s + 1, v + 1) after s satisfied, v violated episodes.

The belief about an expectation is Student's t, as for normal values with unknown mean and variance. Its prior counts as
one value with the largest variance that the range permits, as in `BayesMean`, which verifies expectations.

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
    """Enable float64 for code that is traced and compiled inside."""
    return jax.enable_x64(True)


def single_precision() -> AbstractContextManager[None]:
    """Restore JAX's default types inside `double_precision`, for domains, policies and everything else."""
    return jax.enable_x64(False)


class ExcessSums(NamedTuple):
    """Sums of the excess over episodes, per expectation; see `expectation_constraints`."""

    episodes: Array  # [M] float32, their number
    total: Array  # [M]
    squares: Array  # [M]


class Belief(NamedTuple):
    """Counts per probability and sums per expectation, together K constraints."""

    satisfied: Array  # [P] int32; float32 if counts fade
    violated: Array  # [P] likewise
    excess: ExcessSums | None = None  # None if M is 0
    recent: Array | None = None  # [W, M] latest values beyond their bounds; None unless a bound is on a CVaR
    violations: Array | None = None  # [] int32, of all training episodes; None unless their number is limited


def prior(probabilities: int, expectations: int = 0, dtype: DTypeLike = jnp.int32) -> Belief:
    """Return the belief before any episode: uniform, Beta(1, 1), for each probability, flat for each expectation."""
    zeros, sums = jnp.zeros(probabilities, dtype), jnp.zeros(expectations, jnp.float32)
    return Belief(zeros, zeros, ExcessSums(sums, sums, sums) if expectations else None)


def observe(belief: Belief, satisfied: Array, excess: Array | None = None) -> Belief:
    """Return the belief after outcomes `[B, P]` and excesses `[B, M]`.

    These are line 11 of Alg. SNES and line 12, corrected to count violations.
    """
    hits = jnp.sum(satisfied, axis=0, dtype=belief.satisfied.dtype)
    sums = belief.excess
    if sums is not None and excess is not None:
        sums = ExcessSums(
            sums.episodes + len(excess),
            sums.total + excess.sum(axis=0),
            sums.squares + (excess**2).sum(axis=0),
        )
    return Belief(belief.satisfied + hits, belief.violated + len(satisfied) - hits, sums, belief.recent)


def fade(belief: Belief, keep: float) -> Belief:
    """Return the belief with all counts and sums multiplied by `keep`."""
    faded: Belief = jax.tree.map(lambda count: keep * count, belief._replace(recent=None))
    return faded._replace(recent=belief.recent)


def confidence(belief: Belief, p_req: Array, limit: Array | float = 0.0) -> Array:
    """Return the posterior mass `[K]` float32 of each constraint.

    It is the mass above `p_req` `[P]`, c_sat of Eq. c_sat, and for mean excesses the mass below `limit` `[M]`.
    """
    a, b = _beta(belief)
    # 1 - I_p(a, b) = I_{1-p}(b, a): no cancellation when c_sat is small.
    mass = jax.lax.betainc(b, a, 1.0 - jnp.asarray(p_req, jnp.float64)).astype(jnp.float32)
    if belief.excess is None:
        return mass
    freedom, mean, scale = _student(belief.excess)
    return jnp.concatenate([mass, _student_cdf(freedom, (limit - mean) / scale).astype(jnp.float32)])


def shortfall(belief: Belief, p_req: Array, limit: Array | float = 0.0) -> Array:
    """Return the expected shortfall of each constraint `[K]` float32: E[max(0, p_req - p)] of a probability.

    Of a mean excess it is the expected distance above `limit` `[M]` over two root mean squares, as in
    `LambdaController`.
    """
    a, b = _beta(belief)
    p = jnp.asarray(p_req, jnp.float64)
    below, below_weighted = jax.lax.betainc(a, b, p), jax.lax.betainc(a + 1.0, b, p)
    falls = jnp.maximum(p * below - a / (a + b) * below_weighted, 0.0).astype(jnp.float32)
    if belief.excess is None:
        return falls
    freedom, mean, scale = _student(belief.excess)
    t = (mean - limit) / scale
    density = (freedom + t * t) / (freedom - 1.0) * jax.scipy.stats.t.pdf(t, freedom)
    above = scale * (t * _student_cdf(freedom, t) + density)
    return jnp.concatenate([falls, (above / (2.0 * rms(belief.excess))).astype(jnp.float32)])


def rms(sums: ExcessSums) -> Array:
    """Return the root mean square of the excess `[M]`, positive; no mean excess is larger."""
    return jnp.sqrt(jnp.maximum(sums.squares / sums.episodes, jnp.finfo(jnp.float32).tiny))


def _student(sums: ExcessSums) -> tuple[Array, Array, Array]:
    """Return degrees of freedom, location and scale `[M]` of Student's t for the mean excess."""
    count, total, squares = (column.astype(jnp.float64) for column in sums)
    mean = total / count
    # The largest variance is a quarter of the squared range, and an excess is a fraction of its range.
    variance = (0.25 + jnp.maximum(squares - total * mean, 0.0)) / count
    return count, mean, jnp.sqrt(variance / count)


def _student_cdf(freedom: Array, t: Array) -> Array:
    """Return the distribution function of Student's t."""
    inside = jax.lax.betainc(jnp.full_like(t, 0.5), freedom / 2.0, t * t / (freedom + t * t))
    return 0.5 + 0.5 * jnp.sign(t) * inside


def _beta(belief: Belief) -> tuple[Array, Array]:
    """Return the parameters of the Beta distributions `[P]`."""
    return belief.satisfied.astype(jnp.float64) + 1.0, belief.violated.astype(jnp.float64) + 1.0
