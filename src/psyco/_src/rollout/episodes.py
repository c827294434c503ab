"""Episodes: the only view of a domain that learners and verifiers have, and the random streams behind them."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import EpisodeError
from psyco._src.envs.base import Domain
from psyco._src.envs.family import MEMBERS
from psyco._src.envs.value_bounds import expression_range, value_ranges
from psyco._src.envs.variants import is_family
from psyco._src.logic.ast import Instant, Quantity, Requirement
from psyco._src.logic.batch_monitor import BatchMonitor

# For programs that contain a simulator: a third less compile time than by default, equal run time.
COMPILER_OPTIONS = {"xla_backend_optimization_level": 1}

OBS = frozenset({"obs"})
DIGESTED_NUMBERS = 2**16  # at a time
TRACE_SIGNALS = OBS | {"reward"}  # signals that a trace needs besides those of its monitor


class Trace(NamedTuple):
    """Step-by-step record of B exploring episodes; n is the horizon, and J the number of conjuncts of K formulas.

    After an episode's end everything but `obs` and `counters` is 0.
    """

    obs: Array  # [B, n, inputs] observation before each step; of images as bytes
    noise: Array  # [B, n, outputs] exploration noise added to the policy's scores
    reward: Array  # [B, n]
    cost: Array  # [B, n, J] cost that arose with each step; all of a formula sum to the episode's cost
    alive: Array  # [B, n] float32, 1 for every step that was taken
    final_obs: Array  # [B, inputs] observation after the last step
    terminated: Array  # [B] float32, 1 where the episode terminated, 0 where it was truncated
    value: Array | None = None  # [B, n, M] contribution of each step to each value; None if M is 0
    # [B, n+1, Q] used shares of budgets (`BatchMonitor.budget_use`); None if Q is 0
    counters: Array | None = None
    # [B, n, J] contribution of each step to the shaping cost; None if no formula has one
    shaping_cost: Array | None = None


class ObsStats(NamedTuple):
    """Statistics of rows with I columns, `[B]` of them where there are several parts, such as episodes."""

    rows: Array  # [] float32, number of rows
    mean: Array  # [I] float32, as the following
    variance: Array  # [I]
    switch: Array  # [I] bool: only the values 0 and 1 occur
    low: Array  # [I] minimum
    high: Array  # [I] maximum


class Episodes(NamedTuple):
    """B finished episodes, judged by the K probability constraints of a requirement."""

    returns: Array  # [B] float32
    cost: Array  # [B, K] float32, zero exactly where satisfied
    satisfied: Array  # [B, K] bool
    length: Array  # [B] int32, steps until the end
    trace: Trace | None = None  # of exploring episodes
    # [B] bool: NaN or infinity occurred, so the episode is invalid; None where that raises an error at once
    nonfinite: Array | None = None
    # [B, I] float32, fraction of the states without each `info.` signal of the formulas, by name; None if I is 0
    missing_info: Array | None = None
    # [B, M] value of each expectation and then each question of the requirement; None if M is 0.
    # float32 in compiled domains, else float64; for a rate R{x} [ S ] it is the total
    value: Array | None = None
    # [B, M] bool: the state that ends the accumulation of R{x} [ F φ ] was reached
    reached: Array | None = None
    # [B] int32: number of steps in which the fallback of a guard acted, or a shield changed a choice; None without
    fallback_steps: Array | None = None
    # [B, M] int32: first step whose reward left its declared range, else 0; `value` then holds that reward
    first_out_of_range: Array | None = None
    # [B] statistics of the observations before each step, where a learner asks for them; exploring episodes have a
    # trace instead
    obs_stats: ObsStats | None = None
    # [B, K] float32: distance from satisfying each constraint, for learning (`logic/shaping.py`). The cost where a
    # formula has no such measure; None if no formula has one.
    shaping_cost: Array | None = None
    # [B, S] uint64: hash of each judged signal along the episode, see `digest_path`; None where none was asked for
    digests: Array | None = None
    process: Array | None = None  # [B] uint64: `this_process` where each episode with digests was played


def concatenate_episodes(parts: Sequence[Episodes]) -> Episodes:
    """Return the episodes of all parts in one batch."""
    whole: Episodes = jax.tree.map(lambda *columns: np.concatenate(columns), *parts)
    return whole


class Sampler(Protocol):
    """Makes episodes. `compiled` says whether it may be called inside `jax.jit`."""

    @property
    def compiled(self) -> bool:
        """Whether `__call__` can be traced."""

    def __call__(self, theta: Array, keys: Array) -> Episodes:
        """Run one episode per parameter vector `[B, D]` and key `[B]`."""

    def explore(self, theta: Array, std: Array, keys: Array, hold: Array | None = None) -> Episodes:
        """Run episodes with Gaussian noise of standard deviation `[B, outputs]` on the scores, and record a trace.

        The noise of an episode comes from its key. Where `std` is 0 the episode equals the one without noise. A draw is
        held for `hold` `[B]` steps, by default for one.
        """


# ---- random streams ---------------------------------------------------------------------------------------------


class Stream(IntEnum):
    """Disjoint random streams, so that no episode serves two purposes."""

    INIT = 0  # initial parameters
    TRAIN = 1
    CHECK = 2  # verification during learning
    SELECT = 3  # comparison of candidates
    CERTIFY = 4  # the looks of a run
    RECORD = 5  # recorded trajectories
    VERIFY = 6  # verification of a given policy
    BASELINE = 7  # policies that a certified one is compared with
    NORMALIZE = 10  # observations of random policies
    RISK = 11  # training data of a risk estimate
    CLONE = 12  # demonstrations of external policies, and behaviour cloning
    CROSSPLAY = 13  # agents with partners of other policies
    THROUGHPUT = 20  # speed of a simulator


def stream_key(seed: int | Array, stream: Stream, block: int | Array = 0) -> Array:
    """Return the key of one block (a generation, a verification) of a stream."""
    if isinstance(seed, int) and isinstance(block, int):
        return _stream_key(np.uint32(seed), np.uint32(stream), np.uint32(block))
    key = jax.random.key(seed) if isinstance(seed, int) else seed
    return jax.random.fold_in(jax.random.fold_in(key, int(stream)), block)


# Compiled: called eagerly, operation by operation, it takes a millisecond.
@jax.jit
def _stream_key(seed: Array, stream: Array, block: Array) -> Array:
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), stream), block)


def episode_keys(key: Array, first: int | Array, count: int) -> Array:
    """Return the keys `[count]` of episodes first, first+1, ...; each depends on its index alone."""
    return _episode_keys(key, np.uint32(first) if isinstance(first, int) else first, count)


# Compiled, like `_stream_key`; inside of another program it leaves no trace.
@jax.jit(static_argnums=2, inline=True)
def _episode_keys(key: Array, first: Array, count: int) -> Array:
    index = jnp.asarray(first, jnp.uint32) + jnp.arange(count, dtype=jnp.uint32)
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(index)


def episode_seeds(keys: Array) -> list[int]:
    """Return the environment seed of each episode: 32 bits of its key, which `fold_in` has mixed well."""
    seeds: list[int] = np.asarray(jax.random.key_data(keys))[..., -1].tolist()
    return seeds


def environment_seeds(domain: Domain, keys: Array) -> list[int]:
    """Return the seed with which each episode resets its environment; that of a family also holds the member."""
    seeds = episode_seeds(keys)
    if not is_family(domain):
        return seeds
    return [number << 32 | seed for number, seed in zip(member_numbers(keys), seeds, strict=True)]


def member_numbers(keys: Array) -> list[int]:
    """Return the number of the member of a family in the episodes with these keys."""
    numbers: list[int] = (np.asarray(jax.random.key_data(keys))[..., 0] % MEMBERS).tolist()
    return numbers


def member_keys(key: Array, number: Array, index: Array) -> Array:
    """Return the keys `[B]` of episodes in given members of a family.

    Args:
        key: of the stream of all members.
        number: the members `[B]`.
        index: of the episodes of each member `[B]`.
    """
    return _member_keys(key, jnp.asarray(number, jnp.uint32), jnp.asarray(index, jnp.uint32))


@jax.jit
def _member_keys(key: Array, number: Array, index: Array) -> Array:
    own = jax.vmap(lambda m, i: jax.random.fold_in(jax.random.fold_in(key, m), i))(number, index)
    return in_members(own, number)


def in_members(keys: Array, number: Array) -> Array:
    """Return the keys `[B]` of episodes that take place in given members `[B]` of a family, with other chance alike."""
    return jax.random.wrap_key_data(jax.random.key_data(keys).at[:, 0].set(number))


# ---- columns computed from the signals of paths, with NumPy and JAX alike ---------------------------------------


def summarize_observations(x: Any, weight: Any) -> ObsStats:
    """Return statistics of the rows `[..., n, I]` with `weight` `[..., n]` 1; the others have weight 0."""
    xp: Any = jnp if isinstance(x, jax.Array) else np
    # Compiled code has float32 only; NumPy sums in double precision.
    x, counts = x.astype(xp.float32 if xp is jnp else np.float64), weight[..., None] != 0
    rows = weight.sum(axis=-1)
    share = counts / xp.maximum(rows, 1)[..., None, None]
    mean = (share * x).sum(axis=-2)
    stats = ObsStats(
        rows=rows,
        mean=mean,
        variance=(share * (x - mean[..., None, :]) ** 2).sum(axis=-2),
        switch=((x == 0) | (x == 1) | ~counts).all(axis=-2),
        low=xp.where(counts, x, xp.inf).min(axis=-2),
        high=xp.where(counts, x, -xp.inf).max(axis=-2),
    )
    return ObsStats(*(each.astype(bool if each.dtype == bool else xp.float32) for each in stats))


def digest_path(signals: Mapping[str, NDArray[Any]]) -> NDArray[np.uint64]:
    """Return a hash of each signal along one path, `[S]` by name; equal values in another number type hash alike."""
    return np.frombuffer(b"".join(_digest_values(np.asarray(signals[name])) for name in sorted(signals)), np.uint64)


def _digest_values(values: NDArray[Any]) -> bytes:
    """Return the hash of values in float64, which is computed part by part: images take much memory."""
    found, rows = hashlib.blake2b(digest_size=8), max(1, DIGESTED_NUMBERS // max(values[:1].size, 1))
    for first in range(0, len(values), rows):
        found.update(np.asarray(values[first : first + rows], np.float64).tobytes())
    return found.digest()


def this_process() -> np.uint64:
    """Return a hash that tells this process apart from others, also from those of other machines."""
    name = f"{platform.node()} {os.getpid()}".encode()
    return np.frombuffer(hashlib.blake2b(name, digest_size=8).digest(), np.uint64)[0]


def total_shaping_costs(monitor: BatchMonitor, signals: dict[str, Any], end: Any) -> Any:
    """Return the shaping costs of paths, float32 `[..., K]`; None if no formula has one."""
    by_state = monitor.step_shaping_costs(signals, end)
    return None if by_state is None else by_state.sum(axis=-2).astype(np.float32)


def make_trace(
    monitor: BatchMonitor, signals: dict[str, Any], length: Any, noise: Any, end: Any, terminated: Any
) -> Trace:
    """Return the trace of paths with signals `[..., n+1]` (or vectors), lengths `[...]` and noise `[..., n, outputs]`.

    Step t leads from state t to state t+1, so costs and values of state t+1 are attributed to it. The first step also
    gets those of the first state, and the last step those of the repetitions of the last state up to the horizon. There
    equal costs in a row count once: an episode that ends in a violation would cost as much as hundreds of violations,
    and those in other steps would not be learned. Paths that ended by themselves are `terminated` `[...]`.
    """
    xp: Any = jnp if isinstance(length, jax.Array) else np
    steps, states = np.arange(noise.shape[-2]), np.arange(noise.shape[-2] + 1)
    length = length[..., None]
    alive, last, beyond = (steps < length)[..., None], (steps == length - 1)[..., None], states > length

    def by_step(by_state: Any, first: bool = True, once: bool = True) -> Any:
        taken = xp.where(alive, by_state[..., 1:, :], 0.0)
        if first:
            taken += xp.where((steps == 0)[:, None], by_state[..., :1, :], 0.0)
        counts = beyond[..., None]
        if once:
            counts = counts & (by_state != xp.roll(by_state, 1, axis=-2))
        taken += xp.where(last, (by_state * counts).sum(axis=-2, keepdims=True), 0.0)
        return taken

    values, parts = monitor.step_values(signals, end), monitor.by_conjunct
    shaping_cost = parts.step_shaping_costs(signals, end)
    trace = Trace(
        obs=signals["obs"][..., :-1, :],
        noise=xp.where(alive, noise, 0.0),
        reward=xp.where(alive[..., 0], signals["reward"][..., 1:], 0.0),
        cost=by_step(parts.step_costs(signals, end)),
        alive=alive[..., 0],
        final_obs=signals["obs"][..., -1, :],
        terminated=terminated,
        value=None if values is None else by_step(values, once=False),
        counters=monitor.budget_use(signals, end),
        # No step has caused the distance of the first state from a bound.
        shaping_cost=None if shaping_cost is None else by_step(shaping_cost, first=False),
    )
    single: Trace = jax.tree.map(lambda x: x if x.dtype == np.uint8 else x.astype(np.float32), trace)
    return single


# ---- value ranges -----------------------------------------------------------------------------------------------


def check_value_ranges(episodes: Episodes, requirement: Requirement, domain: Domain, keys: Array) -> None:
    """Raise EpisodeError for the first episode with a value or a step outside of its range, with seed, step and value.

    A test of a mean is valid within the range only, so no value is clipped.

    Args:
        episodes: B of them, with their values.
        requirement: the requirement that they were measured by.
        domain: where they took place.
        keys: `[B]` of the episodes.
    """
    if episodes.value is None:
        return
    values, length = np.asarray(episodes.value, np.float64), np.asarray(episodes.length)
    violations = np.asarray(episodes.first_out_of_range)
    for stated, column, steps in zip(requirement.measured, values.T, violations.T, strict=True):
        for row in np.flatnonzero(steps)[:1].tolist():
            low, high = expression_range(stated.subject.x, domain)
            raise EpisodeError(
                domain.name,
                episode_seeds(keys)[row],
                int(steps[row]),
                f"{stated.subject.x} is {column[row]:.9g}, outside of its range [{low:.9g}, {high:.9g}]; correct the "
                "range, or give the range of an episode's value with `within [lo,hi]` after the property",
            )
    for stated, span, column in zip(requirement.measured, value_ranges(requirement, domain), values.T, strict=True):
        # For a rate, the range of the total is proportional to the length of the episode.
        weight, verb = (np.ones(len(length)), "comes to") if span.steps is None else (length, "has on average")
        outside = ~((span.lo * weight <= column) & (column <= span.hi * weight))  # true for NaN, too
        for row in np.flatnonzero(outside)[:1].tolist():
            step = int(length[row])
            match stated.subject:
                case Quantity(_, Instant(at)):
                    step = min(at, step)
            raise EpisodeError(
                domain.name,
                episode_seeds(keys)[row],
                step,
                f"{stated} {verb} {column[row] / weight[row]:.9g}, outside of its range "
                f"[{span.lo:.9g}, {span.hi:.9g}]; correct the range",
            )
