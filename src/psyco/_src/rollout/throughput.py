"""How fast a simulator is: a few episodes of random policies, by the clock."""

from __future__ import annotations

import time
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from psyco._src.envs.base import Domain
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Sampler, episode_keys

LONG = 1.0  # seconds of playing that tell enough
PATIENCE = 20.0  # seconds: episodes that take longer are not played a second time
MOST = 32  # episodes at a time


class Throughput(NamedTuple):
    """What steps take."""

    rate: float  # steps per second, of all workers together
    length: float  # steps of an episode of a random policy, on average
    episodes: int  # that were played to find out

    def seconds(self, steps: float) -> float:
        """How long so many steps take."""
        return steps / self.rate


def expected_length(domain: Domain, pace: Throughput | None) -> float:
    """Random policies may end early where good ones don't, or the other way round: a mean between both."""
    return float(domain.horizon) if pace is None else (pace.length * domain.horizon) ** 0.5


def measure(sampler: Sampler, network: Network, key: Array, *, workers: int = 1) -> Throughput:
    """Play until the clock tells enough; an episode that takes long is enough by itself.

    The first episodes of a size also make environments and compile, which may take long, so they count only where
    nobody would wait for others.

    Args:
        sampler: makes the episodes.
        network: of the policies that act.
        key: of these episodes.
        workers: that share the work.
    """
    many = 4 * MOST
    theta = jax.vmap(network.init)(episode_keys(jax.random.fold_in(key, 0), 0, many))
    keys = episode_keys(jax.random.fold_in(key, 1), 0, many)

    def play(first: int, count: int) -> tuple[int, float]:
        began = time.perf_counter()
        episodes = sampler(theta[first : first + count], keys[first : first + count])
        steps = int(np.sum(np.asarray(episodes.length)))  # waits for a compiled sampler
        return steps, time.perf_counter() - began

    size = min(workers, MOST)
    steps, seconds = play(0, size)
    played, total = size, steps
    # Steps of many episodes at a time cost less each, so what counts is the largest batch that is quick.
    fresh = True
    while (fresh and seconds < PATIENCE) or (seconds < LONG and 2 * size <= MOST):
        size, fresh = (size, False) if fresh else (2 * size, True)
        steps, seconds = play(played, size)
        played, total = played + size, total + steps
    return Throughput(max(steps, 1) / max(seconds, 1e-6), max(total, 1) / played, played)
