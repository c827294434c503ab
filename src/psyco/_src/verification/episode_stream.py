"""Where the episodes of a look come from, and how tests see them: a column for each constraint and each question."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import RangeError
from psyco._src.envs.base import Domain
from psyco._src.envs.value_bounds import ValueRange, spans
from psyco._src.logic.ast import Constraint, Expectation, LongRun, Quantity, Question, Requirement
from psyco._src.rollout.episodes import COMPILER, Episodes, Sampler, episode_keys
from psyco._src.rollout.jax_sampler import refuse_broken
from psyco._src.rollout.range_check import check_values

HOST_BATCH = 64  # where an episode takes long, few more than a test needs
FEWEST = 8  # at first; more at once as long as they are quick
QUICK = 1.0  # seconds
SIZES = 25, 250  # of compiled batches: two, so that little is compiled; a test consumes episodes one by one


class EpisodeStream(NamedTuple):
    """A stream of episodes: parameters in a domain, judged by a requirement."""

    sampler: Sampler
    theta: Array  # [D]
    key: Array  # episode i is a function of it and of i
    domain: Domain
    requirement: Requirement
    told: Callable[[int], None] | None = None  # called with how many episodes were made, batch by batch

    @property
    def spans(self) -> tuple[ValueRange, ...]:
        """Where the values of what is measured lie."""
        return spans(self.requirement, self.domain)

    def sample(self, count: int, *, first: int = 0) -> Iterator[Episodes]:
        """Episodes `first` to `first + count - 1`, batch by batch."""
        for episodes in sample(self.sampler, self.theta, self.key, count, first=first):
            if self.told is not None:
                self.told(len(episodes.ret))
            yield episodes

    def refuse(self, error: RangeError, episodes: Episodes, *, first: int = 0) -> None:
        """Name the one of the episodes from `first` on whose value lies outside of its range."""
        one = jax.tree.map(lambda each: each[error.position : error.position + 1], episodes)
        check_values(one, self.requirement, self.domain, episode_keys(self.key, first + error.position, 1))


def sample(sampler: Sampler, theta: Array, key: Array, count: int, *, first: int = 0) -> Iterator[Episodes]:
    """Episodes `first` to `first + count - 1` of a stream for one parameter vector `[D]`, batch by batch."""
    if not sampler.compiled:
        yield from _by_time(sampler, theta, key, count, first)
        return
    size = next((size for size in SIZES if size >= count), SIZES[-1])
    for start in range(first, first + count, size):
        wanted = slice(first + count - start)  # the last batch may hold more
        made = jax.device_get(_batch(sampler, size, theta, key, np.uint32(start)))
        episodes = jax.tree.map(lambda column, wanted=wanted: column[wanted], made)
        if np.any(episodes.broken):
            keys = episode_keys(key, start, size)
            refuse_broken(sampler, episodes.broken, theta[None].repeat(size, 0), keys)
        yield episodes


def _by_time(sampler: Sampler, theta: Array, key: Array, count: int, first: int) -> Iterator[Episodes]:
    """Small batches where episodes take long, so that whoever waits hears of them; the episodes are the same."""
    start, end, size = first, first + count, FEWEST
    while start < end:
        began = time.monotonic()
        keys = episode_keys(key, start, min(size, end - start))
        yield sampler(jnp.broadcast_to(theta, (len(keys), theta.size)), keys)
        start += len(keys)
        if time.monotonic() - began < QUICK:
            size = min(2 * size, HOST_BATCH)


@jax.jit(static_argnums=(0, 1), compiler_options=COMPILER)
def _batch(sampler: Sampler, count: int, theta: Array, key: Array, first: Array) -> Episodes:
    return sampler(jnp.broadcast_to(theta, (count, theta.size)), episode_keys(key, first, count))


# ---- columns ----------------------------------------------------------------------------------------------------


def columns_of(requirement: Requirement, episodes: Episodes) -> list[NDArray[Any]]:
    """For the constraints and then the questions: did it hold, bool `[B]`; the value `[B]`; of a rate `[B, 2]`."""
    held, values = constraint_outcomes(requirement, np.asarray(episodes.satisfied)), None
    if episodes.value is not None and episodes.stray is not None:
        values = np.where(episodes.stray, np.nan, episodes.value)  # outside of any range
    return make_columns(requirement, held, values, np.asarray(episodes.length))


def make_columns(
    requirement: Requirement, held: NDArray[np.bool_], values: Any, steps: NDArray[Any]
) -> list[NDArray[Any]]:
    """The same from outcomes `[B, P]` of the constraints on probabilities, values `[B, M]` and steps `[B]`."""
    outcomes = iter(held.T)
    measured = iter([] if values is None else np.asarray(values, np.float64).T)

    def column(stated: Constraint | Expectation | Question) -> NDArray[Any]:
        if isinstance(stated, Constraint):
            return next(outcomes)
        return np.stack([next(measured), steps], 1) if is_rate(stated) else next(measured)

    return [column(each) for each in (*requirement.constraints, *requirement.questions)]


def is_rate(stated: Expectation | Question) -> bool:
    """Is it about the long-run average of a step?"""
    return isinstance(stated.subject, Quantity) and isinstance(stated.subject.over, LongRun)


def constraint_outcomes(requirement: Requirement, satisfied: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """From demands `[B, demands]` to constraints on probabilities `[B, P]`: did the constraint's own formula hold?"""
    first = {d.constraint: (i, d.negated) for i, d in reversed(list(enumerate(requirement.demands)))}
    columns = [satisfied[:, i] ^ negated for _, (i, negated) in sorted(first.items())]
    return np.stack(columns, axis=1) if columns else satisfied[:, :0]
