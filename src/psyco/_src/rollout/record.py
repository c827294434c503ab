"""Episodes to be looked at: every signal along their paths."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from psyco._src.core.checks import check_count, check_seed
from psyco._src.envs.base import CompiledDomain, Domain
from psyco._src.envs.gym_env import GymDomain
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.policies.external import AnyPolicy
from psyco._src.policies.network import Network
from psyco._src.rollout import external_sampler, jax_sampler
from psyco._src.rollout.episodes import Stream, episode_keys, episode_seeds, stream_key
from psyco._src.rollout.execution import HERE, Execution
from psyco._src.rollout.gym_sampler import Chunk, EpisodeRunner, GymSampler, Job
from psyco._src.rollout.sampler import host_backend

Signals = dict[str, NDArray[Any]]  # [n+1] or [n+1, size] each, where n is the episode's own length


def record_many(
    domain: Domain,
    policy: AnyPolicy,
    *,
    seed: int,
    count: int,
    first: int = 0,
    stream: Stream = Stream.SHOW,
    execution: Execution = HERE,
) -> list[Signals]:
    """All signals along episodes first, first+1, ... of a stream, by default one that nothing else uses.

    Args:
        domain: where to act.
        policy: what acts.
        seed: the episodes are a function of it.
        count: how many.
        first: the number of the first.
        stream: which episodes these are.
        execution: where an environment that hangs or crashes can be ended.
    """
    seed, count, first = check_seed(seed), check_count("episodes", count), check_count("episode", first, 0)
    keys = episode_keys(stream_key(seed, stream), first, count)
    theta = np.broadcast_to(policy.theta, (count, policy.theta.size))
    if isinstance(domain, GymDomain):
        runner, job = EpisodeRunner(), Job(domain, policy.network, compile_monitor([]))
        if execution.elsewhere:  # what hangs or crashes does so there first, and is named
            GymSampler(job, *host_backend(execution)).run(theta, episode_seeds(keys))
        try:
            played = runner.play(job, Chunk(theta, episode_seeds(keys)), None)
        finally:
            runner.close()
        signals, length = played.signals, played.length
    else:
        assert isinstance(domain, CompiledDomain)
        if isinstance(policy.network, Network):
            signals, length = jax_sampler.record_batch(domain, policy.network, None, jnp.asarray(theta), keys)
        else:
            signals, length, *_ = external_sampler.play(domain, policy.network, None, theta, keys)
    return [{name: values[i, : int(n) + 1] for name, values in signals.items()} for i, n in enumerate(length)]
