"""Bounds on expected values as learners see them: the mean excess of an episode must not be above 0.

The excess of an episode is the distance of its value beyond the bound; for a rate, the distance of its total beyond the
total of as many steps at the bound. Both are fractions of the range of possible values. An excess is negative where a
value keeps the bound: an expectation is met by all episodes together, so that one may compensate for another.

A CVaR, the mean of the worst fraction s, is at most 0 if s c + E[max(excess - c, 0)] is, for some c: that is the excess
of such a bound. Its c is the (1 - s)-quantile of earlier episodes, which makes it smallest; with that of the same
episodes its mean would be too small. As a cost to learn from, it has the (1 - 2s)-quantile of earlier episodes or of
these, whichever is less: so several episodes are beyond it, and differ, also if exploration avoids large values.
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

TAIL_VALUES = 10  # of the recent values beyond the threshold of a CVaR
MAX_RECENT = 2000
COST_TAIL = 2.0  # in units of s


class ExpectationBound(NamedTuple):
    """One bound on an expected value."""

    column: int  # of Episodes.value
    bound: float
    at_least: bool  # a lower bound, else an upper one
    rate: bool  # the bound is per step, not per episode
    width: float  # of the range of the value
    room: float  # distance from the bound to the best end of the range, as a fraction of its width
    confidence: float
    rest: float = 1.0  # the fraction s of episodes that count, those of a CVaR; 1: a mean


def expectation_bounds(requirement: Requirement, domain: Domain) -> tuple[ExpectationBound, ...]:
    """Return the bounds `[M]` of a requirement's expectations, lower ones first, without bounds that always hold."""
    expectations = [each for each in requirement.constraints if isinstance(each, Expectation)]
    sides = (
        _side(column, stated, at_least, domain)
        for column, stated in enumerate(expectations)
        for at_least in (True, False)
    )
    return tuple(side._replace(room=side.room * side.rest) for side in sides if side.room < 1.0)


def _side(column: int, stated: Expectation, at_least: bool, domain: Domain) -> ExpectationBound:
    bound, rate = stated.lower if at_least else stated.upper, isinstance(stated.subject.over, LongRun)
    if math.isinf(bound):
        return ExpectationBound(column, bound, at_least, rate, 1.0, math.inf, stated.confidence)
    low, high = episode_range(stated, domain, rate=bound if rate else 0.0)
    width = (high - low) or 1.0  # a constant has no range
    zero = 0.0 if rate else bound
    room = (high - zero if at_least else zero - low) / width
    rest = 1.0 - (stated.subject.cvar or 0.0)
    return ExpectationBound(column, bound, at_least, rate, width, max(room, 0.0), stated.confidence, rest)


def empty_recent(bounds: tuple[ExpectationBound, ...]) -> Array | None:
    """Return the `recent` of a belief before any episode, `[W, M]` zeros; None if no bound is on a CVaR."""
    rest = min((each.rest for each in bounds), default=1.0)
    return None if rest == 1.0 else jnp.zeros((min(math.ceil(TAIL_VALUES / rest), MAX_RECENT), len(bounds)))


def add_recent(bounds: tuple[ExpectationBound, ...], episodes: Episodes, recent: Array | None) -> Array | None:
    """Return `recent` `[W, M]` with the values of these episodes in place of the oldest ones."""
    if recent is None:
        return None
    return jnp.concatenate([recent, _values_beyond(bounds, episodes)])[-len(recent) :]


def _values_beyond(bounds: tuple[ExpectationBound, ...], episodes: Episodes) -> Array:
    """Return the distance of each value beyond each bound as a fraction of its range, `[B, M]`."""
    assert episodes.value is not None
    value = episodes.value.astype(jnp.float32)
    columns = [
        _signed(each, value[..., each.column] - each.bound * (episodes.length if each.rate else 1.0)) for each in bounds
    ]
    return jnp.stack(columns, axis=-1)


def excess(bounds: tuple[ExpectationBound, ...], episodes: Episodes, recent: Array | None = None) -> Array | None:
    """Return the excess of each episode over each bound, `[B, M]`; None if M is 0.

    Args:
        bounds: M bounds.
        episodes: B episodes.
        recent: of the belief, for the thresholds of CVaR.
    """
    if not bounds:
        return None
    beyond = _values_beyond(bounds, episodes)
    return beyond if recent is None else _tails(bounds, beyond, _quantiles(bounds, recent, 1.0))


def _tails(bounds: tuple[ExpectationBound, ...], beyond: Array, c: Array) -> Array:
    """Return values beyond their bounds `[B, M]`, those of a CVaR replaced by its excess for thresholds c `[M]`."""
    rest = jnp.asarray([each.rest for each in bounds], jnp.float32)
    return jnp.where(rest < 1.0, rest * c + jnp.maximum(beyond - c, 0.0), beyond)


def _quantiles(bounds: tuple[ExpectationBound, ...], beyond: Array, tail: float) -> Array:
    """Return the (1 - tail s)-quantiles `[M]` of values `[B, M]` beyond their bounds; unused for bounds on means."""
    parts = [min(tail * each.rest, 1.0) for each in bounds]
    return jnp.stack([jnp.quantile(beyond[:, i], 1.0 - part) for i, part in enumerate(parts)])


def _cost_thresholds(bounds: tuple[ExpectationBound, ...], beyond: Array, recent: Array) -> Array:
    return jnp.minimum(_quantiles(bounds, recent, COST_TAIL), _quantiles(bounds, beyond, COST_TAIL))


def learning_costs(
    bounds: tuple[ExpectationBound, ...], episodes: Episodes, recent: Array | None = None, *, shaped: bool = True
) -> Array:
    """Return the costs of each episode `[B, K]`: of the formulas, then the excesses.

    The cost of a formula is its shaping cost, where episodes have one; without `shaped` always the paper's cost.
    """
    beyond = _values_beyond(bounds, episodes) if bounds else None
    if beyond is not None and recent is not None:
        beyond = _tails(bounds, beyond, _cost_thresholds(bounds, beyond, recent))
    cost = episodes.shaping_cost if shaped and episodes.shaping_cost is not None else episodes.cost
    return cost if beyond is None else jnp.concatenate([cost, beyond], axis=-1)


def learning_step_costs(bounds: tuple[ExpectationBound, ...], trace: Trace, recent: Array | None = None) -> Array:
    """Return the costs of each step, `[B, n, K]`; bounds per episode, a constant, are not subtracted.

    That of a CVaR is the increase of max(total so far - c, 0).
    """
    cost = trace.cost if trace.shaping_cost is None else trace.shaping_cost
    if not bounds:
        return cost
    assert trace.value is not None
    columns = [_signed(each, trace.value[..., each.column] - each.bound * each.rate * trace.alive) for each in bounds]
    if recent is not None:
        steps = jnp.stack(columns, axis=-1)
        start = jnp.stack([_signed(each, jnp.asarray(-each.bound * (not each.rate))) for each in bounds])  # [M]
        so_far = jnp.concatenate([jnp.zeros_like(steps[:, :1]), jnp.cumsum(steps, axis=1)], axis=1) + start
        c = _cost_thresholds(bounds, so_far[:, -1], recent)
        increase = jnp.diff(jnp.maximum(so_far - c, 0.0), axis=1)
        columns = [increase[..., i] if each.rest < 1.0 else columns[i] for i, each in enumerate(bounds)]
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
