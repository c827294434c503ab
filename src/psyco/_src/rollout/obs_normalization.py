"""Observation scaling, fixed before learning begins: mean and spread of what random policies, or one policy, see.

It is a function of the seed alone, and becomes part of the network and so of the policy file. Statistics that run along
with learning are in `learn.normal`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.envs.base import CompiledDomain, Domain
from psyco._src.envs.gym_env import GymDomain
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import episode_keys, episode_seeds
from psyco._src.rollout.execution import HERE, Execution
from psyco._src.rollout.gym_sampler import Chunk, EpisodeRunner, GymSampler, Job, side_by_side
from psyco._src.rollout.jax_sampler import record_batch
from psyco._src.rollout.sampler import host_backend

EPISODES = 32
OF_ONE = 8  # episodes, of a policy that is known
FAR = 10.0  # as in `learn.normal`


def scaled(
    network: Network,
    domain: Domain,
    key: Array,
    execution: Execution = HERE,
    *,
    policy: NDArray[np.float32] | None = None,
) -> Network:
    """The network with the shift and scale that make observations standard: those of random policies.

    With parameters `[D]` of a `policy`, those of its episodes. What hardly ever moves among them may well do so while
    learning goes on, so nothing of it becomes larger than `FAR`.
    """
    if policy is None:
        theta = jax.vmap(network.init)(episode_keys(jax.random.fold_in(key, 0), 0, EPISODES))
    else:
        theta = jnp.broadcast_to(policy, (OF_ONE, policy.size))
    keys = episode_keys(jax.random.fold_in(key, 1), 0, len(theta))
    if isinstance(domain, GymDomain):
        job = Job(domain, network, compile_monitor([]))
        seen = _play(job, np.asarray(theta), episode_seeds(keys), execution)
    else:
        assert isinstance(domain, CompiledDomain)
        signals, length = record_batch(domain, network, frozenset({"obs"}), theta, keys)
        seen = _until_end(signals["obs"], length)
    shift, scale = _standard(np.concatenate(seen).astype(np.float64), np.inf if policy is None else FAR)
    return dataclasses.replace(network, shift=shift, scale=scale)


def _play(
    job: Job, theta: NDArray[np.float32], seeds: list[int], execution: Execution
) -> list[NDArray[np.float32]]:
    """The observations of each episode, `[n, inputs]`."""
    if (
        execution.elsewhere
    ):  # observations stay there; but what hangs or crashes does so there first, and is named
        GymSampler(job, *host_backend(execution)).run(theta, seeds)
    runner, size = EpisodeRunner(), side_by_side(job.domain)
    seen: list[NDArray[np.float32]] = []
    for i in range(0, len(seeds), size):
        played = runner.play(job, Chunk(theta[i : i + size], seeds[i : i + size]), frozenset({"obs"}))
        seen += _until_end(played.signals["obs"], played.length)
    runner.close()
    return seen


def _until_end(paths: Any, length: Any) -> list[NDArray[np.float32]]:
    return [np.array(path[: n + 1]) for path, n in zip(paths, length, strict=True)]


def _standard(seen: NDArray[np.float64], far: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per column `[n, inputs]`, to six digits.

    Switches (columns of 0 and 1, as in a one-hot code) and constants stay as they are: a state that random policies
    hardly see would become a huge number.
    """
    mean, std = seen.mean(axis=0), seen.std(axis=0)
    leave = ((seen == 0) | (seen == 1)).all(axis=0) | (std <= 1e-6 * (1 + abs(mean)))
    shift, scale = (
        np.where(leave, 0.0, mean),
        np.where(leave, 1.0, np.maximum(std, abs(seen - mean).max(axis=0) / far)),
    )
    return tuple(float(f"{x:.6g}") for x in shift), tuple(float(f"{x:.6g}") for x in scale)
