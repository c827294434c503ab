"""Bounds on expected values as learners see them: the mean of an episode's excess must not be above 0.

An excess is how far a value is beyond its bound, of a rate how far the total is beyond that of as many steps at the
bound; both as a part of the range in which it can lie. It is negative where a value has room left: a mean is met by all
episodes together, so what one has too little another may have too much.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from psyco._src.envs.base import Domain
from psyco._src.envs.value_bounds import value_range
from psyco._src.learners.belief import ExcessSums, spread
from psyco._src.logic.ast import Expectation, LongRun, Requirement
from psyco._src.rollout.episodes import Episodes, Trace


class ExpectationBound(NamedTuple):
    """One bound of an expected value."""

    column: int  # of Episodes.value
    bound: float
    at_least: bool  # the mean should be at least that, else at most
    rate: bool  # the bound is that of a step, not of an episode
    width: float  # of the range of the value
    room: float  # from the bound to the best end of the range, as a part of its width
    confidence: float


def means_of(requirement: Requirement, domain: Domain) -> tuple[ExpectationBound, ...]:
    """The bounds `[M]` of a requirement's expectations, an interval's lower one first; but none that always holds."""
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
    low, high = value_range(stated, domain, rate=bound if rate else 0.0)
    width = (high - low) or 1.0  # a constant has no range
    zero = 0.0 if rate else bound
    room = (high - zero if at_least else zero - low) / width
    return ExpectationBound(column, bound, at_least, rate, width, max(room, 0.0), stated.confidence)


def excess(means: tuple[ExpectationBound, ...], episodes: Episodes) -> Array | None:
    """How far each episode is beyond each bound, `[B, M]`; None if M is 0."""
    if not means:
        return None
    assert episodes.value is not None
    value = episodes.value.astype(jnp.float32)
    columns = [
        _signed(mean, value[..., mean.column] - mean.bound * (episodes.length if mean.rate else 1.0))
        for mean in means
    ]
    return jnp.stack(columns, axis=-1)


def costs(means: tuple[ExpectationBound, ...], episodes: Episodes, *, graded: bool = True) -> Array:
    """What each episode costs in the eyes of each demand, `[B, K]`: by its formulas, then its excess.

    A formula costs its grade where it has one; or, if not `graded`, what it costs in the paper.
    """
    beyond = excess(means, episodes)
    paid = episodes.grade if graded and episodes.grade is not None else episodes.cost
    return paid if beyond is None else jnp.concatenate([paid, beyond], axis=-1)


def step_costs(means: tuple[ExpectationBound, ...], trace: Trace) -> Array:
    """The same step by step, `[B, n, K]`, but for bounds of whole episodes: they are the same for all."""
    blame = trace.blame if trace.grade is None else trace.grade
    if not means:
        return blame
    assert trace.value is not None
    columns = [
        _signed(mean, trace.value[..., mean.column] - mean.bound * mean.rate * trace.alive) for mean in means
    ]
    return jnp.concatenate([blame, jnp.stack(columns, axis=-1)], axis=-1)


def _signed(mean: ExpectationBound, above: Array) -> Array:
    return (-above if mean.at_least else above) / mean.width


def allowed(
    means: tuple[ExpectationBound, ...], moments: ExcessSums, part: Array, margin: float = 0.0
) -> Array:
    """The mean excess `[M]` to reach now: from what is always met, the size of an excess, to the bound and a margin.

    Args:
        means: M bounds.
        moments: what is known of the excess.
        part: of the demand that is made now, from 0 to 1.
        margin: aim below the bound by this part of the room up to the end of the range, or of the size of an excess
            where that is less. For values 0 and 1 that is what it means for probabilities.
    """
    size = spread(moments)
    room = jnp.minimum(jnp.asarray([mean.room for mean in means], jnp.float32), size)
    return (1.0 - part) * size - part * margin * room
