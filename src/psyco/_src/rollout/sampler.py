"""The Sampler for a domain, a network and a requirement."""

from __future__ import annotations

import warnings

import jax

from psyco._src.core.errors import DomainError, RequirementError, RunError, suggest
from psyco._src.envs.base import CompiledDomain, Domain, signal_table
from psyco._src.envs.gym_env import INFO_PREFIX, GymDomain, is_info
from psyco._src.envs.model_file import ModelFile
from psyco._src.envs.value_bounds import declared_step_range, warn_about
from psyco._src.logic.ast import Requirement
from psyco._src.logic.batch_monitor import BatchMonitor, compile_monitor
from psyco._src.logic.validate import check_bounds, check_precision, check_signals
from psyco._src.policies.base import Actor
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Sampler
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.external_sampler import ExternalSampler
from psyco._src.rollout.gym_sampler import Backend, GymSampler, Job, in_process_backend
from psyco._src.rollout.jax_sampler import JaxSampler
from psyco._src.rollout.model_sampler import ModelSampler


def make_monitor(domain: Domain, requirement: Requirement, *, severity: bool = False) -> BatchMonitor:
    """Check that the requirement fits the domain, and compile it.

    Args:
        domain: the domain, with its signals and horizon.
        requirement: the requirement.
        severity: whether costs are distances from satisfaction; they are zero exactly where satisfied either way.
    """
    check_signals(requirement, signal_table(domain), domain.name)
    check_bounds(requirement, domain.horizon, domain.name)
    if isinstance(domain, CompiledDomain):
        check_precision(requirement, signal_table(domain))
    warn_about(requirement, domain)
    monitor = compile_monitor(
        [bound.formula for bound in requirement.probability_bounds],
        severity=severity,
        measured=[each.subject for each in requirement.measured],
        ranges=[declared_step_range(each, domain) for each in requirement.measured],
    )
    if isinstance(domain, GymDomain):
        _warn_of_unknown_info(domain, monitor)
    return monitor


def make_sampler(
    domain: Domain,
    network: Actor,
    requirement: Requirement,
    *,
    execution: Execution = IN_PROCESS,
    severity: bool = False,
    with_obs_stats: bool = False,
    monitor: BatchMonitor | None = None,
) -> Sampler:
    """Return the sampler of episodes, which have a column per probability constraint and per value.

    Args:
        domain: where to act.
        network: the actor, with parameters per episode.
        requirement: its constraints and values become columns of Episodes.
        execution: where the episodes are made.
        severity: as in `make_monitor`.
        with_obs_stats: whether Episodes have observation statistics.
        monitor: the compiled requirement, from `make_monitor`; None: compile it here.
    """
    if monitor is None:
        monitor = make_monitor(domain, requirement, severity=severity)
    if isinstance(domain, GymDomain):
        backend, workers = make_backend(execution)
        return GymSampler(Job(domain, network, monitor), backend, workers, with_obs_stats, execution.episode_cache)
    if not isinstance(domain, CompiledDomain):
        raise DomainError(f"{domain!r} is not a domain; psyco.make makes one of a name, a class or a function")
    if execution.uses_workers:
        raise RunError(
            f"{domain.name} is compiled and runs on JAX devices; workers, Ray and a step timeout are for "
            "Gymnasium environments"
        )
    if isinstance(domain, ModelFile) and domain.open_ended:
        if not isinstance(network, Network):
            raise RunError(f"{domain.name} has no horizon, and a policy from elsewhere needs one: --horizon N")
        if network.recurrent:
            raise RunError(f"{domain.name} has no horizon, and a policy with a memory needs one: --horizon N")
        return ModelSampler(domain, network, monitor)
    devices = jax.devices() if execution.devices > 1 else []
    if len(devices) < execution.devices > 1:
        raise RunError(f"asked for {execution.devices} devices, JAX has {len(devices)} here")
    if isinstance(network, Network):
        return JaxSampler(domain, network, monitor, tuple(devices[: execution.devices]), with_obs_stats)
    return ExternalSampler(domain, network, monitor)


def make_backend(execution: Execution) -> tuple[Backend, int]:
    """Return what makes the episodes of a Gymnasium environment, and its number of workers."""
    if execution.ray is not None:
        from psyco._src.rollout.ray_backend import ray_backend

        return ray_backend(execution.ray, execution.step_timeout)
    if execution.uses_workers:
        from psyco._src.rollout.process_pool import shared_pool

        return shared_pool(execution.workers, execution.step_timeout), execution.workers
    return in_process_backend(), 1


def _warn_of_unknown_info(domain: GymDomain, monitor: BatchMonitor) -> None:
    """Warn of keys of `info` that were never seen: a key may be rare, so this is no error, but it may be misspelt."""
    for name in sorted(monitor.signals & getattr(domain, "partial_signals", frozenset())):
        raise RequirementError(
            f"{domain.name} reports {name} only with some of its parameters, so it is no signal of the family",
            advice="let every member report it, or vary the parameters less",
        )
    for name in sorted(monitor.signals):
        if is_info(name) and name not in domain.table:
            known = [key for key in domain.table if is_info(key) and not key.endswith(INFO_PREFIX)]
            warnings.warn(
                f"{name} did not appear when {domain.name} was inspected{suggest(name, known)} (keys seen: "
                f"{', '.join(known) or 'none'}); "
                "where it is missing it counts as 0",
                stacklevel=4,
            )
