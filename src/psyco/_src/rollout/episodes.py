"""Episodes, the waist of the hourglass: all that learners and verifiers see of a domain."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco._src.rollout.obs_stats import ObsStats

# For programs that contain a simulator: they compile a third sooner than by default, and run as fast.
COMPILER = {"xla_backend_optimization_level": 1}


class Trace(NamedTuple):
    """What happened along B episodes, for learners that look into them; n is the horizon.

    After an episode's end everything but `obs` and `counters` is 0.
    """

    obs: Array  # [B, n, inputs] what the policy saw before each step
    disturbance: Array  # [B, n, outputs] what was added to the scores of the policy
    reward: Array  # [B, n]
    blame: Array  # [B, n, K] the part of the cost that arose with each step; sums to the cost
    alive: Array  # [B, n] float32, 1 for every step that was taken
    final: Array  # [B, inputs] what the policy would see after the last step
    terminated: Array  # [B] float32, 1 where the episode ended by itself, 0 where time ran out
    value: Array | None = None  # [B, n, M] the part of each value that arose with each step; None if M is 0
    counters: Array | None = (
        None  # [B, n+1, Q] of `Monitor.counters`: parts of budgets used up; None if Q is 0
    )
    grade: Array | None = None  # [B, n, K] what each step adds to the grade; None if no formula has one


class Episodes(NamedTuple):
    """B finished episodes, judged by the K demands of a requirement."""

    ret: Array  # [B] float32, the return
    cost: Array  # [B, K] float32, zero exactly where satisfied
    satisfied: Array  # [B, K] bool
    length: Array  # [B] int32, steps until the end
    trace: Trace | None = None  # of exploring episodes
    # [B] bool: it met NaN or infinity, so it means nothing; None where that is an error at once
    broken: Array | None = None
    # [B, I] float32, the part of the states without each `info.` signal of the formulas, by name; None if I is 0
    absent: Array | None = None
    # [B, M] the value of what the requirement measures, its expectations and then its questions; None if M is 0.
    # float32 where the domain is compiled, else float64; of a rate R{x} [ S ] it is the total
    value: Array | None = None
    # [B, M] bool: the state was reached up to which the value runs, for R{x} [ F φ ]
    reached: Array | None = None
    # [B] int32: in how many steps the fallback of a guard acted; None without a guard
    handed: Array | None = None
    # [B, M] int32: the first step that was worth something outside of the range of x, which is the value then; or 0
    stray: Array | None = None
    # [B] what the policy was shown before its steps, where a learner asks for it; who explores has a trace instead
    seen: ObsStats | None = None
    # [B, K] float32: distance from satisfying each constraint, for learning (`logic/shaping.py`). The cost where a
    # formula has no such measure; None if no formula has one.
    grade: Array | None = None


def joined(parts: Sequence[Episodes]) -> Episodes:
    """One after the other."""
    whole: Episodes = jax.tree.map(lambda *columns: np.concatenate(columns), *parts)
    return whole


class Stream(IntEnum):
    """Disjoint sources of randomness, so that no episode serves two purposes."""

    START = 0  # initial parameters
    TRAIN = 1
    CHECK = 2  # verification while learning
    SELECT = 3  # choosing among candidates
    CERTIFY = 4  # the looks of a run
    SHOW = 5  # pictures
    VERIFY = 6  # a policy by itself
    SCALE = 10  # what random policies observe
    RISK = 11  # what a risk is learned from
    PACE = 20  # how fast a simulator is


class Sampler(Protocol):
    """Makes episodes. `compiled` says whether it may be called inside `jax.jit`."""

    @property
    def compiled(self) -> bool:
        """Whether `__call__` can be traced."""

    def __call__(self, theta: Array, keys: Array) -> Episodes:
        """Run parameters `[B, D]` with episode keys `[B]`, one episode each."""

    def explore(self, theta: Array, std: Array, keys: Array) -> Episodes:
        """The same with Gaussian noise of standard deviation `[B, outputs]` on the scores, and with a trace.

        The noise of an episode comes from its key. Where `std` is 0 the episode is what it is without noise.
        """


def stream_key(seed: int | Array, stream: Stream, block: int | Array = 0) -> Array:
    """The key of one block (a generation, a verification) of a stream."""
    key = jax.random.key(seed) if isinstance(seed, int) else seed
    return jax.random.fold_in(jax.random.fold_in(key, int(stream)), block)


def episode_seeds(keys: Array) -> list[int]:
    """A number for each episode, the seed of its environment: 32 bits of its key, which `fold_in` has mixed well."""
    seeds: list[int] = np.asarray(jax.random.key_data(keys))[..., -1].tolist()
    return seeds


def episode_keys(key: Array, first: int | Array, count: int) -> Array:
    """Keys `[count]` of episodes first, first+1, ...: each depends on its index alone."""
    index = jnp.asarray(first, jnp.uint32) + jnp.arange(count, dtype=jnp.uint32)
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(index)
