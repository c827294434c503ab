"""Recorded episodes: signals along their paths, for pictures, statistics and risk estimates."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import Array

from psyco._src.core.checks import check_count, check_seed
from psyco._src.envs.base import CompiledDomain, Domain
from psyco._src.envs.gym_env import GymDomain
from psyco._src.logic.batch_monitor import BatchMonitor
from psyco._src.policies.base import Actor
from psyco._src.policies.external import AnyPolicy
from psyco._src.policies.network import Network
from psyco._src.rollout import external_sampler, jax_sampler
from psyco._src.rollout.episodes import Stream, environment_seeds, episode_keys, stream_key
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.gym_sampler import NO_MONITOR, EpisodeRunner, GymSampler, Job, Signals
from psyco._src.rollout.sampler import make_backend


def record_episodes(
    domain: Domain,
    policy: AnyPolicy,
    *,
    seed: int,
    count: int,
    first: int = 0,
    stream: Stream = Stream.RECORD,
    block: int = 0,
    execution: Execution = IN_PROCESS,
    monitor: BatchMonitor = NO_MONITOR,
) -> list[Signals]:
    """Return all signals along episodes first, first+1, ... of a stream, by default one that serves nothing else.

    Args:
        domain: where to act.
        policy: the policy that acts.
        seed: the episodes are a function of it.
        count: number of episodes.
        first: index of the first episode.
        stream: the random stream of the episodes.
        block: block of the stream: a certificate names that of its look.
        execution: where a Gymnasium environment is stepped.
        monitor: reads signals too; keys of `info` that appear late are recorded only if it names them.
    """
    seed, count, first = check_seed(seed), check_count("episodes", count), check_count("episode", first, 0)
    keys = episode_keys(stream_key(seed, stream, block), first, count)
    theta = np.broadcast_to(policy.theta, (count, policy.theta.size))
    return record_signals(domain, policy.network, theta, keys, None, execution, monitor)


def record_signals(
    domain: Domain,
    network: Actor,
    theta: Any,
    keys: Array,
    wanted: frozenset[str] | None,
    execution: Execution = IN_PROCESS,
    monitor: BatchMonitor = NO_MONITOR,
) -> list[Signals]:
    """Return the wanted signals (None: all) along one episode per parameter vector `[B, D]` and key `[B]`."""
    if isinstance(domain, GymDomain):
        job, seeds = Job(domain, network, monitor), environment_seeds(domain, keys)
        if execution.uses_workers or wanted is not None:
            return GymSampler(job, *make_backend(execution)).record(np.asarray(theta, np.float32), seeds, wanted)
        runner = EpisodeRunner()  # which closes its environments at once: those that render take much memory
        try:
            sampler = GymSampler(job, lambda job, chunks: enumerate(runner(job, chunk) for chunk in chunks))
            return sampler.record(np.asarray(theta, np.float32), seeds, wanted)
        finally:
            runner.close()
    assert isinstance(domain, CompiledDomain)
    if isinstance(network, Network):
        signals, length = jax_sampler.record_batch(domain, network, wanted, theta, keys)
    else:
        signals, length, *_ = external_sampler.rollout(domain, network, wanted, theta, keys)
    return [{name: values[i, : int(n) + 1] for name, values in signals.items()} for i, n in enumerate(length)]
