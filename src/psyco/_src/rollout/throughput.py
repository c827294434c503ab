"""Measured speed of a simulator: steps per second of random policies."""

from __future__ import annotations

import time
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from psyco._src.envs.base import Domain
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Sampler, episode_keys

LONG_ENOUGH = 1.0  # seconds of a batch that give a reliable rate
TOO_LONG = 20.0  # seconds: a batch that took longer is not followed by another
MAX_BATCH = 32  # episodes


class Throughput(NamedTuple):
    """Speed of a simulator.

    Episodes of random policies may end early, each at another step, so that a batch of them is slow towards its end.
    Those of good policies may have one length. `rate` is the geometric mean of both speeds, as `expected_length` is.
    """

    rate: float  # steps per second, of all workers together
    length: float  # mean steps of an episode of a random policy
    episodes: int  # number of measured episodes
    alone: float | None = None  # steps per second of one episode at a time, where that was measured
    random_rate: float | None = None  # steps per second of random policies, if another than `rate`

    def seconds(self, steps: float) -> float:
        """Return the time for this number of steps."""
        return steps / self.rate


def expected_length(domain: Domain, throughput: Throughput | None) -> float:
    """Return the geometric mean of a random policy's episode length and the horizon, or the horizon.

    Random policies may end early where good ones don't, or the other way round.
    """
    return float(domain.horizon) if throughput is None else (throughput.length * domain.horizon) ** 0.5


def measure_throughput(sampler: Sampler, network: Network, key: Array, *, workers: int = 1) -> Throughput:
    """Measure batches of episodes, each twice as large as the one before, until one takes `LONG_ENOUGH` seconds.

    The first batch of a size also makes environments and compiles, which may take long. Its time counts only if it is
    `TOO_LONG` for a repetition.

    Args:
        sampler: makes the episodes.
        network: of the random policies.
        key: of these episodes.
        workers: number of processes that share the work.
    """
    available = 4 * MAX_BATCH
    theta = jax.vmap(network.init)(episode_keys(jax.random.fold_in(key, 0), 0, available))
    keys = episode_keys(jax.random.fold_in(key, 1), 0, available)

    def run(first: int, count: int) -> tuple[int, int, float]:
        began = time.perf_counter()
        episodes = sampler(theta[first : first + count], keys[first : first + count])
        length = np.asarray(episodes.length)  # waits for a compiled sampler
        return max(int(length.sum()), 1), int(length.max(initial=1)), max(time.perf_counter() - began, 1e-6)

    size, alone = min(workers, MAX_BATCH), None
    steps, longest, seconds = run(0, size)
    episodes, total = size, steps
    # Steps of many episodes at a time cost less each, so the largest quick batch counts.
    is_first_of_size = True
    while (is_first_of_size and seconds < TOO_LONG) or (seconds < LONG_ENOUGH and 2 * size <= MAX_BATCH):
        size, is_first_of_size = (size, False) if is_first_of_size else (2 * size, True)
        steps, longest, seconds = run(episodes, size)
        episodes, total = episodes + size, total + steps
        if size == 1 and not is_first_of_size:
            alone = steps / seconds
    rate, even = steps / seconds, steps / seconds
    if alone is not None and steps > longest:
        # A turn, in which each running episode makes a step, takes a fixed time and a time for each of these steps.
        each = min(max((seconds - longest / alone) / (steps - longest), 0.0), 1.0 / alone)
        even = size / (1.0 / alone + (size - 1) * each)
    return Throughput((rate * max(even, rate)) ** 0.5, total / episodes, episodes, alone, rate)
