"""Observation scaling: mean and spread of what random policies see, fixed before learning begins.

Statistics that ran along with learning would make the meaning of parameters drift, and depend on how far each worker
is. These are a function of the seed alone, and become part of the network and so of the policy file.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco.domain.base import CompiledDomain, Domain
from psyco.domain.gym_env import GymDomain
from psyco.policy import Network
from psyco.rollout.device import record_batch
from psyco.rollout.episodes import episode_keys
from psyco.rollout.host import Chunk, Job, Runner, episode_seeds
from psyco.spec.monitor import compile_monitor

EPISODES = 32


def scaled(network: Network, domain: Domain, key: Array) -> Network:
    """The network with the shift and scale that make the observations of random policies standard."""
    theta = jax.vmap(network.init)(episode_keys(jax.random.fold_in(key, 0), 0, EPISODES))
    keys = episode_keys(jax.random.fold_in(key, 1), 0, EPISODES)
    if isinstance(domain, GymDomain):
        runner = Runner(Job(domain, network, compile_monitor([])))
        played = runner.play(Chunk(np.asarray(theta), episode_seeds(keys)), frozenset({"obs"}))
        runner.close()
        paths, length = played.signals["obs"], played.length
    else:
        assert isinstance(domain, CompiledDomain)
        signals, length = record_batch(domain, network, frozenset({"obs"}), theta, keys)
        paths = signals["obs"]
    seen = np.concatenate([path[: n + 1] for path, n in zip(paths, length, strict=True)])
    shift, scale = _standard(seen.astype(np.float64))
    return dataclasses.replace(network, shift=shift, scale=scale)


def _standard(seen: NDArray[np.float64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per column `[n, inputs]`, to six digits.

    Switches (columns of 0 and 1, as in a one-hot code) and constants stay as they are: a state that random policies
    hardly see would become a huge number.
    """
    mean, std = seen.mean(axis=0), seen.std(axis=0)
    leave = ((seen == 0) | (seen == 1)).all(axis=0) | (std <= 1e-6 * (1 + abs(mean)))
    shift, scale = np.where(leave, 0.0, mean), np.where(leave, 1.0, std)
    return tuple(float(f"{x:.6g}") for x in shift), tuple(float(f"{x:.6g}") for x in scale)
