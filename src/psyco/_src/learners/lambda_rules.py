"""From belief to λ, the weight of return against cost: 0 is all safety, 1 is all return.

Each rule maps the evidence about K demands to λ `[K]`; the learner follows the weakest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Evidence(NamedTuple):
    """What is known about each demand."""

    c_sat: Array  # [K] posterior confidence
    c_req: Array  # [K] required confidence
    p_req: Array  # [K] required probability
    share: Array  # [K] satisfied share of this generation
    share_all: Array  # [K] satisfied share of all episodes so far


def soft(e: Evidence) -> Array:
    """The paper's rule (Eq. λ): return counts as far as confidence exceeds what is required."""
    return _excess(e.c_sat, e.c_req)


def hard(e: Evidence) -> Array:
    """All or nothing: only return while confident, only cost otherwise."""
    return jnp.where(e.c_sat >= e.c_req, 1.0, 0.0)


def direct(e: Evidence) -> Array:
    """λ is the confidence itself; the required confidence plays no part."""
    return e.c_sat


def naive(e: Evidence) -> Array:
    """Maximum likelihood over this generation (Eq. MLE): no account of uncertainty."""
    return _excess(e.share, e.p_req)


def naive_all(e: Evidence) -> Array:
    """Maximum likelihood over all episodes so far."""
    return _excess(e.share_all, e.p_req)


def none(e: Evidence) -> Array:
    """Constraints are watched but do not steer: plain ES."""
    return jnp.ones_like(e.c_sat)


CALIBRATIONS: dict[str, Callable[[Evidence], Array]] = {
    "soft": soft,
    "hard": hard,
    "direct": direct,
    "naive": naive,
    "naive-all": naive_all,
    "none": none,
}


def _excess(value: Array, required: Array) -> Array:
    room = 1.0 - required
    return jnp.where(room > 0, jnp.maximum(0.0, value - required) / jnp.where(room > 0, room, 1.0), 0.0)
