"""A domain, a network and a requirement -> the Sampler that runs them."""

from __future__ import annotations

import warnings

import jax

from psyco._src.core.errors import DomainError, RunError
from psyco._src.envs.base import CompiledDomain, Domain, signal_table
from psyco._src.envs.gym_env import INFO, GymDomain
from psyco._src.envs.value_bounds import known_range
from psyco._src.logic.ast import Requirement
from psyco._src.logic.batch_monitor import BatchMonitor, compile_monitor
from psyco._src.logic.validate import check_bounds, check_signals
from psyco._src.policies.base import Actor
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Sampler
from psyco._src.rollout.execution import HERE, Execution
from psyco._src.rollout.external_sampler import ExternalSampler
from psyco._src.rollout.gym_sampler import Backend, GymSampler, Job, in_process
from psyco._src.rollout.jax_sampler import JaxSampler


def make_sampler(
    domain: Domain,
    network: Actor,
    requirement: Requirement,
    *,
    execution: Execution = HERE,
    severity: bool = False,
    observed: bool = False,
) -> Sampler:
    """Check that the requirement fits the domain, and compile it; Episodes have a column per demand, and per value.

    Args:
        domain: where to act.
        network: what acts.
        requirement: what to judge episodes by.
        execution: where the episodes are made.
        severity: their cost is how far a formula is from holding; whether it holds is the same either way.
        observed: whether Episodes say what a network was shown.
    """
    check_signals(requirement, signal_table(domain), domain.name)
    check_bounds(requirement, domain.horizon, domain.name)
    monitor = compile_monitor(
        [demand.formula for demand in requirement.demands],
        severity=severity,
        measured=[each.subject for each in requirement.measured],
        ranges=[known_range(each, domain) for each in requirement.measured],
    )
    if isinstance(domain, GymDomain):
        _warn_of_unseen(domain, monitor)
        backend, workers = host_backend(execution)
        return GymSampler(Job(domain, network, monitor), backend, workers, observed, execution.memory)
    if not isinstance(domain, CompiledDomain):
        raise DomainError(f"{domain!r} is no domain; psyco.make makes one of a name, a class or a function")
    if execution.elsewhere:
        raise RunError(
            f"{domain.name} is compiled, so it runs on JAX devices; workers, Ray and a step timeout are for "
            "Gymnasium environments"
        )
    devices = jax.devices() if execution.devices > 1 else []
    if len(devices) < execution.devices > 1:
        raise RunError(f"asked for {execution.devices} devices, JAX has {len(devices)} here")
    if isinstance(network, Network):
        return JaxSampler(domain, network, monitor, tuple(devices[: execution.devices]), observed)
    return ExternalSampler(domain, network, monitor)


def host_backend(execution: Execution) -> tuple[Backend, int]:
    """What makes the episodes of a Gymnasium environment, and how many of it work at a time."""
    if execution.ray is not None:
        from psyco._src.rollout.ray_backend import on_ray

        return on_ray(execution.ray, execution.step_timeout)
    if execution.elsewhere:
        from psyco._src.rollout.process_pool import in_processes

        return in_processes(execution.workers, execution.step_timeout), execution.workers
    return in_process(), 1


def _warn_of_unseen(domain: GymDomain, monitor: BatchMonitor) -> None:
    """Environments may report a key now and then, so an unknown one is no error; but it may well be misspelt."""
    for name in sorted(monitor.signals):
        if name.startswith(INFO) and name not in domain.table:
            seen = ", ".join(key for key in domain.table if key.startswith(INFO) and key != INFO) or "none"
            warnings.warn(
                f"{name} did not appear when {domain.name} was tried out (keys seen: {seen}); "
                "where it is missing it counts as 0",
                stacklevel=4,
            )
