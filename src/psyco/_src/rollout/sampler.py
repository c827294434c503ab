"""A domain, a network and a requirement -> the Sampler that runs them."""

from __future__ import annotations

import dataclasses
import warnings

import jax

from psyco._src.domain.base import CompiledDomain, Domain, signal_table
from psyco._src.domain.gym_env import INFO, GymDomain, Workers
from psyco._src.errors import DomainError, RunError
from psyco._src.policy.foreign import ForeignPolicy
from psyco._src.policy.network import Network
from psyco._src.rollout.device import DeviceSampler
from psyco._src.rollout.episodes import Sampler
from psyco._src.rollout.host import Backend, HostSampler, Job, in_process
from psyco._src.spec.check import check_bounds, check_signals
from psyco._src.spec.formula import Requirement
from psyco._src.spec.monitor import Monitor, compile_monitor


def make_sampler(
    domain: Domain,
    network: Network | ForeignPolicy,
    requirement: Requirement,
    *,
    devices: int = 1,
    severity: bool = False,
) -> Sampler:
    """Check that the requirement fits the domain, and compile it; Episodes have one column per demand.

    With `severity` their cost is how far a formula is from holding; whether it holds is the same either way.
    """
    check_signals(requirement, signal_table(domain), domain.name)
    check_bounds(requirement, domain.horizon, domain.name)
    monitor = compile_monitor([demand.formula for demand in requirement.demands], severity=severity)
    if isinstance(domain, GymDomain):
        _warn_of_unseen(domain, monitor)
        backend, workers = _backend(domain.workers)
        return HostSampler(Job(domain, network, monitor), backend, workers)
    if not isinstance(domain, CompiledDomain):
        raise DomainError(f"{domain!r} is no domain; psyco.make makes one of a name, a class or a function")
    if not 1 <= devices <= len(jax.devices()):
        raise RunError(f"asked for {devices} devices, JAX has {len(jax.devices())} here")
    return DeviceSampler(domain, network, monitor, tuple(jax.devices()[:devices]) if devices > 1 else ())


def on_workers(
    domain: Domain, *, workers: int = 1, ray: str | None = None, step_timeout: float | None = None
) -> Domain:
    """The same domain, its episodes made by so many processes or on a Ray cluster; see `Workers`."""
    wanted = Workers(workers, ray, step_timeout)
    if wanted == Workers():
        return domain
    if not isinstance(domain, GymDomain):
        raise RunError(
            f"{domain.name} is compiled, so it runs on JAX devices; workers, Ray and a step timeout are for "
            "Gymnasium environments"
        )
    return dataclasses.replace(domain, workers=wanted)


def _backend(workers: Workers) -> tuple[Backend, int]:
    """What runs the episodes, and how many of it work at a time."""
    if workers.ray is not None:
        from psyco._src.rollout.cluster import on_ray

        return on_ray(workers.ray, workers.step_timeout)
    if workers.processes > 1 or workers.step_timeout is not None:
        from psyco._src.rollout.pool import in_processes

        return in_processes(workers.processes, workers.step_timeout), workers.processes
    return in_process(), 1


def _warn_of_unseen(domain: GymDomain, monitor: Monitor) -> None:
    """Environments may report a key now and then, so an unknown one is no error; but it may well be misspelt."""
    for name in sorted(monitor.signals):
        if name.startswith(INFO) and name not in domain.table:
            seen = ", ".join(key for key in domain.table if key.startswith(INFO) and key != INFO) or "none"
            warnings.warn(
                f"{name} did not appear when {domain.name} was tried out (keys seen: {seen}); "
                "where it is missing it counts as 0",
                stacklevel=4,
            )
