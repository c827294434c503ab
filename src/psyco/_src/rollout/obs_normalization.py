"""Observation normalization that is fixed before learning: mean and spread under random policies, or under one policy.

It is a function of the seed alone, and becomes part of the network and so of the policy file. Running statistics are in
`learners/running_stats.py`.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.envs.base import Domain
from psyco._src.envs.gym_env import GymDomain
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import OBS, environment_seeds, episode_keys
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.gym_sampler import seen_observations
from psyco._src.rollout.record import record_signals

RANDOM_EPISODES = 32
POLICY_EPISODES = 8  # of a given policy
MAX_NORMALIZED = 10.0  # absolute value, as in `learners/running_stats.py`


def with_obs_normalization(
    network: Network,
    domain: Domain,
    key: Array,
    execution: Execution = IN_PROCESS,
    *,
    policy: NDArray[np.float32] | None = None,
) -> Network:
    """Return the network with the shift and scale that standardize observations.

    The statistics are those of random policies, or with parameters `[D]` of a `policy`, of its episodes. An input that
    hardly changes in those may change later in learning, so none of them exceeds `MAX_NORMALIZED` after scaling.
    """
    if policy is None:
        theta = jax.vmap(network.init)(episode_keys(jax.random.fold_in(key, 0), 0, RANDOM_EPISODES))
    else:
        theta = jnp.broadcast_to(policy, (POLICY_EPISODES, policy.size))
    keys = episode_keys(jax.random.fold_in(key, 1), 0, len(theta))
    paths = record_signals(domain, network, theta, keys, OBS, execution)
    single = [path["obs"].astype(np.float32, copy=False) for path in paths]  # as the network sees them
    if isinstance(domain, GymDomain):
        seeds = environment_seeds(domain, keys)
        single = [seen_observations(domain, x[None], [seed])[0] for x, seed in zip(single, seeds, strict=True)]
    observations = np.concatenate(single).astype(np.float64)
    shift, scale = standardization(observations, np.inf if policy is None else MAX_NORMALIZED)
    return dataclasses.replace(network, shift=shift, scale=scale)


def standardization(observations: NDArray[np.float64], limit: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per column of `[n, inputs]`, to six digits.

    Switches (columns of 0 and 1, as in a one-hot code) and constants are left unscaled: a state that is rare under
    random policies would become a huge number.
    """
    mean, std = observations.mean(axis=0), observations.std(axis=0)
    leave = ((observations == 0) | (observations == 1)).all(axis=0) | (std <= 1e-6 * (1 + abs(mean)))
    shift = np.where(leave, 0.0, mean)
    scale = np.where(leave, 1.0, np.maximum(std, abs(observations - mean).max(axis=0) / limit))
    return tuple(float(f"{x:.6g}") for x in shift), tuple(float(f"{x:.6g}") for x in scale)
