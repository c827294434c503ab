"""Rules from belief to λ, the weight of return against cost: 0 is all cost, 1 is all return.

Each rule maps the evidence about K constraints to λ_k `[K]`; the learner uses the smallest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Evidence(NamedTuple):
    """The evidence about each constraint."""

    c_sat: Array  # [K] posterior confidence
    c_req: Array  # [K] required confidence
    p_req: Array  # [K] required probability
    share: Array  # [K] satisfied share of this generation
    share_all: Array  # [K] satisfied share of all episodes so far


def soft(e: Evidence) -> Array:
    """Weigh the return by the surplus of confidence: the paper's rule (Eq. λ)."""
    return _surplus(e.c_sat, e.c_req)


def hard(e: Evidence) -> Array:
    """Use the return alone while the confidence suffices, the cost alone otherwise."""
    return jnp.where(e.c_sat >= e.c_req, 1.0, 0.0)


def direct(e: Evidence) -> Array:
    """Use the confidence itself as λ; the required confidence is ignored."""
    return e.c_sat


def naive(e: Evidence) -> Array:
    """Use the maximum-likelihood estimate of this generation (Eq. MLE), which ignores uncertainty."""
    return _surplus(e.share, e.p_req)


def naive_all(e: Evidence) -> Array:
    """Use the maximum-likelihood estimate of all episodes so far."""
    return _surplus(e.share_all, e.p_req)


def none(e: Evidence) -> Array:
    """Use the return alone: plain ES, whose constraints are only monitored."""
    return jnp.ones_like(e.c_sat)


CALIBRATIONS: dict[str, Callable[[Evidence], Array]] = {
    "soft": soft,
    "hard": hard,
    "direct": direct,
    "naive": naive,
    "naive-all": naive_all,
    "none": none,
}


def _surplus(value: Array, required: Array) -> Array:
    """Return how far a value exceeds its requirement, as a fraction of the distance to 1; at least 0."""
    room = 1.0 - required
    return jnp.where(room > 0, jnp.maximum(0.0, value - required) / jnp.where(room > 0, room, 1.0), 0.0)
