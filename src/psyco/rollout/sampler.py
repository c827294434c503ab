"""A domain, a network and a requirement -> the Sampler that runs them."""

from __future__ import annotations

import jax

from psyco.domain.base import Domain, signal_table
from psyco.errors import RunError
from psyco.policy import Network
from psyco.rollout.device import DeviceSampler
from psyco.rollout.episodes import Sampler
from psyco.spec.check import check_bounds, check_signals
from psyco.spec.formula import Requirement
from psyco.spec.monitor import compile_monitor


def make_sampler(domain: Domain, network: Network, requirement: Requirement, *, devices: int = 1) -> Sampler:
    """Check that the requirement fits the domain, and compile it; Episodes have one column per demand."""
    check_signals(requirement, signal_table(domain), domain.name)
    check_bounds(requirement, domain.horizon, domain.name)
    monitor = compile_monitor([demand.formula for demand in requirement.demands])
    if not 1 <= devices <= len(jax.devices()):
        raise RunError(f"asked for {devices} devices, JAX has {len(jax.devices())} here")
    return DeviceSampler(domain, network, monitor, tuple(jax.devices()[:devices]) if devices > 1 else ())
