"""The stream of episodes behind a look, and the columns that tests read: one per constraint and question."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import RangeError, RequirementError, SourceLocation, suggest
from psyco._src.envs.base import Domain, signal_table
from psyco._src.envs.gym_env import INFO_PREFIX, is_info
from psyco._src.envs.value_bounds import ValueRange, value_ranges
from psyco._src.logic.ast import (
    Constraint,
    Expectation,
    Label,
    LongRun,
    Quantity,
    Question,
    Requirement,
    Signal,
    roots,
    walk,
)
from psyco._src.logic.validate import subjects
from psyco._src.rollout.episodes import COMPILER_OPTIONS, Episodes, Sampler, check_value_ranges, episode_keys
from psyco._src.rollout.jax_sampler import raise_nonfinite

# Batches of environments stepped on the host start small and double while they are quick: where an episode takes long,
# few more are made than a test needs.
FIRST_HOST_BATCH, LARGEST_HOST_BATCH = 8, 64
QUICK_BATCH_SECONDS = 1.0
# Only two sizes, so that little is compiled; a test consumes the episodes of a batch one by one.
COMPILED_BATCH_SIZES = 25, 250


@dataclass(frozen=True, eq=False)
class EpisodeStream:
    """An endless stream of episodes: parameters in a domain, judged by a requirement.

    Args:
        sampler: makes the episodes.
        theta: parameters `[D]`.
        key: random key; episode i is a function of it and of i.
        domain: the domain of the sampler.
        requirement: the requirement of the sampler.
        progress: called with the number of episodes of each batch.
        on_batch: called with each batch and the index of its first episode.
        value_ranges: ranges of the measured values; computed from requirement and domain if not given.
    """

    sampler: Sampler
    theta: Array
    key: Array
    domain: Domain
    requirement: Requirement
    progress: Callable[[int], None] | None = None
    value_ranges: tuple[ValueRange, ...] = ()
    on_batch: Callable[[int, Episodes], None] | None = None

    def __post_init__(self) -> None:
        if not self.value_ranges:
            object.__setattr__(self, "value_ranges", value_ranges(self.requirement, self.domain))

    def sample(self, count: int, *, first: int = 0) -> Iterator[Episodes]:
        """Yield the episodes `first` to `first + count - 1` in batches."""
        for episodes in sample_episodes(self.sampler, self.theta, self.key, count, first=first):
            if self.progress is not None:
                self.progress(len(episodes.returns))
            if self.on_batch is not None:
                self.on_batch(first, episodes)
            first += len(episodes.returns)
            yield episodes

    def keys_at(self, index: NDArray[np.intp]) -> Array:
        """Return the keys of episodes by their index."""
        return episode_keys(self.key, jnp.array(index), 1)  # one for each

    def raise_range_error(self, error: RangeError, episodes: Episodes, *, first: int = 0) -> None:
        """Raise an error that names the episode, counted from `first`, whose value lies outside of its range."""
        one = jax.tree.map(lambda column: column[error.position : error.position + 1], episodes)
        check_value_ranges(one, self.requirement, self.domain, episode_keys(self.key, first + error.position, 1))


def sample_episodes(sampler: Sampler, theta: Array, key: Array, count: int, *, first: int = 0) -> Iterator[Episodes]:
    """Yield the episodes `first` to `first + count - 1` of a stream, for parameters `[D]`, in batches."""
    if not sampler.compiled:
        yield from _host_batches(sampler, theta, key, count, first)
        return
    size = next((size for size in COMPILED_BATCH_SIZES if size >= count), COMPILED_BATCH_SIZES[-1])
    for start in range(first, first + count, size):
        wanted = slice(first + count - start)  # the last batch may hold more
        made = jax.device_get(_compiled_batch(sampler, size, theta, key, np.uint32(start)))
        # Copies: views of JAX's buffers would take four times the memory while a test keeps its episodes.
        episodes = jax.tree.map(lambda column, wanted=wanted: column[wanted].copy(), made)
        if np.any(episodes.nonfinite):
            keys = episode_keys(key, start, size)
            raise_nonfinite(sampler, episodes.nonfinite, theta[None].repeat(size, 0), keys)
        yield episodes


def _host_batches(sampler: Sampler, theta: Array, key: Array, count: int, first: int) -> Iterator[Episodes]:
    """Yield batches whose size adapts to the speed of the environment; the episodes do not depend on the sizes."""
    parameters = np.asarray(theta)
    largest = getattr(sampler, "largest_batch", LARGEST_HOST_BATCH)
    start, end, size = first, first + count, FIRST_HOST_BATCH
    while start < end:
        began = time.monotonic()
        keys = episode_keys(key, start, min(size, end - start))
        batch: Any = np.broadcast_to(parameters, (len(keys), parameters.size))
        yield sampler(batch, keys)
        start += len(keys)
        if time.monotonic() - began < QUICK_BATCH_SECONDS:
            size = min(2 * size, largest)


@jax.jit(static_argnums=(0, 1), compiler_options=COMPILER_OPTIONS)
def _compiled_batch(sampler: Sampler, count: int, theta: Array, key: Array, first: Array) -> Episodes:
    return sampler(jnp.broadcast_to(theta, (count, theta.size)), episode_keys(key, first, count))


# ---- columns ----------------------------------------------------------------------------------------------------


def episode_columns(requirement: Requirement, episodes: Episodes) -> list[NDArray[Any]]:
    """Return a column per constraint, then per question: outcomes bool `[B]`, values `[B]`, for a rate `[B, 2]`."""
    held, values = constraint_outcomes(requirement, np.asarray(episodes.satisfied)), None
    if episodes.value is not None and episodes.first_out_of_range is not None:
        values = np.where(episodes.first_out_of_range, np.nan, episodes.value)  # NaN lies outside of any range
    return make_columns(requirement, held, values, np.asarray(episodes.length))


def make_columns(
    requirement: Requirement, held: NDArray[np.bool_], values: Any, steps: NDArray[Any]
) -> list[NDArray[Any]]:
    """Return these columns from the outcomes `[B, P]` of the P probabilities, values `[B, M]` and steps `[B]`."""
    outcomes = iter(held.T)
    measured = iter([] if values is None else np.asarray(values, np.float64).T)

    def column(stated: Constraint | Expectation | Question) -> NDArray[Any]:
        if isinstance(stated, Constraint):
            return next(outcomes)
        return np.stack([next(measured), steps], 1) if is_rate(stated) else next(measured)

    return [column(stated) for stated in (*requirement.constraints, *requirement.questions)]


def is_rate(stated: Expectation | Question) -> bool:
    """Return whether the subject is a long-run average per step."""
    return isinstance(stated.subject, Quantity) and isinstance(stated.subject.over, LongRun)


def constraint_outcomes(requirement: Requirement, satisfied: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether each constraint's own formula held, `[B, P]`, from the one-sided bounds `[B, K]`."""
    first = {b.constraint: (i, b.negated) for i, b in reversed(list(enumerate(requirement.probability_bounds)))}
    columns = [satisfied[:, i] ^ negated for _, (i, negated) in sorted(first.items())]
    return np.stack(columns, axis=1) if columns else satisfied[:, :0]


# ---- `info` keys that an environment did not report -------------------------------------------------------------


def check_info_keys(requirement: Requirement, domain: Domain, missing: Any) -> list[str]:
    """Return notes for the certificate on keys that were missing in some states; raise for a key never reported.

    A missing key counts as 0, which must not go unnoticed.

    Args:
        requirement: the requirement with the `info.` signals.
        domain: the domain of the episodes.
        missing: `Episodes.missing_info` `[B, I]`; None if no formula names a key.
    """
    if missing is None:
        return []
    named = {
        node.name: node
        for subject in subjects(requirement)
        for tree in roots(subject)
        for node in walk(tree)
        if isinstance(node, Signal | Label) and is_info(node.name)
    }
    notes = []
    for key, fraction in zip(sorted(named), missing.T, strict=True):
        count = len(fraction)
        nowhere, sometimes = int((fraction == 1).sum()), int(((fraction > 0) & (fraction < 1)).sum())
        if nowhere == count:
            raise unknown_key_error(domain, key, f"in none of the {count:,} episodes", named[key].location)
        where = [f"all states of {nowhere:,}"] * bool(nowhere) + [f"some states of {sometimes:,}"] * bool(sometimes)
        if where:
            notes.append(
                f"{key} was missing in {' and '.join(where)} of the {count:,} episodes; where it is missing it "
                "counts as 0, or false."
            )
    return notes


def unknown_key_error(domain: Domain, key: str, where: str, place: SourceLocation | None = None) -> RequirementError:
    """Return the error for a key that was never reported, with its place in the requirement."""
    known = [name for name in signal_table(domain) if is_info(name) and not name.endswith(INFO_PREFIX)]
    return RequirementError(
        f"{domain.name} reported {key} {where}{suggest(key, known)}",
        place,
        f"keys seen when it was tried out: {', '.join(known) or 'none'}; correct the name, or let the environment "
        "report the key: where it is missing it would count as 0, and nothing would be shown",
    )
