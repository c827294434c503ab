"""Bounds on expected values as learners see them: the mean excess of an episode must not be above 0.

The excess of an episode is the distance of its value beyond the bound; for a rate, the distance of its total beyond the
total of as many steps at the bound. Both are fractions of the range of possible values. An excess is negative where a
value keeps the bound: an expectation is met by all episodes together, so that one may compensate for another.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from psyco._src.envs.base import Domain
from psyco._src.envs.value_bounds import episode_range
from psyco._src.learners.belief import ExcessSums, rms
from psyco._src.logic.ast import Expectation, LongRun, Requirement
from psyco._src.rollout.episodes import Episodes, Trace


class ExpectationBound(NamedTuple):
    """One bound on an expected value."""

    column: int  # of Episodes.value
    bound: float
    at_least: bool  # a lower bound, else an upper one
    rate: bool  # the bound is per step, not per episode
    width: float  # of the range of the value
    room: float  # distance from the bound to the best end of the range, as a fraction of its width
    confidence: float


def expectation_bounds(requirement: Requirement, domain: Domain) -> tuple[ExpectationBound, ...]:
    """Return the bounds `[M]` of a requirement's expectations, lower ones first, without bounds that always hold."""
    expectations = [each for each in requirement.constraints if isinstance(each, Expectation)]
    sides = (
        _side(column, stated, at_least, domain)
        for column, stated in enumerate(expectations)
        for at_least in (True, False)
    )
    return tuple(side for side in sides if side.room < 1.0)


def _side(column: int, stated: Expectation, at_least: bool, domain: Domain) -> ExpectationBound:
    bound, rate = stated.lower if at_least else stated.upper, isinstance(stated.subject.over, LongRun)
    if math.isinf(bound):
        return ExpectationBound(column, bound, at_least, rate, 1.0, math.inf, stated.confidence)
    low, high = episode_range(stated, domain, rate=bound if rate else 0.0)
    width = (high - low) or 1.0  # a constant has no range
    zero = 0.0 if rate else bound
    room = (high - zero if at_least else zero - low) / width
    return ExpectationBound(column, bound, at_least, rate, width, max(room, 0.0), stated.confidence)


def excess(bounds: tuple[ExpectationBound, ...], episodes: Episodes) -> Array | None:
    """Return the excess of each episode over each bound, `[B, M]`; None if M is 0."""
    if not bounds:
        return None
    assert episodes.value is not None
    value = episodes.value.astype(jnp.float32)
    columns = [
        _signed(each, value[..., each.column] - each.bound * (episodes.length if each.rate else 1.0)) for each in bounds
    ]
    return jnp.stack(columns, axis=-1)


def costs(bounds: tuple[ExpectationBound, ...], episodes: Episodes, *, shaped: bool = True) -> Array:
    """Return the costs of each episode `[B, K]`: of the formulas, then the excesses.

    The cost of a formula is its shaping cost, where episodes have one; without `shaped` always the paper's cost.
    """
    beyond = excess(bounds, episodes)
    cost = episodes.shaping_cost if shaped and episodes.shaping_cost is not None else episodes.cost
    return cost if beyond is None else jnp.concatenate([cost, beyond], axis=-1)


def step_costs(bounds: tuple[ExpectationBound, ...], trace: Trace) -> Array:
    """Return the costs of each step, `[B, n, K]`; bounds per episode, a constant, are not subtracted."""
    cost = trace.cost if trace.shaping_cost is None else trace.shaping_cost
    if not bounds:
        return cost
    assert trace.value is not None
    columns = [_signed(each, trace.value[..., each.column] - each.bound * each.rate * trace.alive) for each in bounds]
    return jnp.concatenate([cost, jnp.stack(columns, axis=-1)], axis=-1)


def _signed(bound: ExpectationBound, above: Array) -> Array:
    return (-above if bound.at_least else above) / bound.width


def target_excess(
    bounds: tuple[ExpectationBound, ...], sums: ExcessSums, fraction: Array, margin: float = 0.0
) -> Array:
    """Return the mean excess `[M]` to reach now: from the root mean square, which always holds, to bound and margin.

    Args:
        bounds: M bounds.
        sums: of the excess so far.
        fraction: of the constraint that applies now, from 0 to 1.
        margin: aim below the bound by this part of its distance to the best end of the range, or of the root mean
            square if that is less. For values 0 and 1 it means the same as for probabilities.
    """
    size = rms(sums)
    room = jnp.minimum(jnp.asarray([each.room for each in bounds], jnp.float32), size)
    return (1.0 - fraction) * size - fraction * margin * room
