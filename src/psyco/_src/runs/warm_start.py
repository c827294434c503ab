"""Warm start: learning that goes on from a policy of ours, for another requirement or in another domain."""

from __future__ import annotations

import dataclasses

import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.envs.base import Domain
from psyco._src.core.errors import RunError
from psyco._src.policies.serialization import Policy
from psyco._src.policies.network import Network
from psyco._src.rollout.execution import Execution
from psyco._src.rollout.obs_normalization import scaled
from psyco._src.runs.settings import Settings


def named(policy: Policy) -> str:
    """How settings name the policy that learning starts from."""
    return f"sha256:{policy.digest}"


def started_from(settings: Settings, policy: Policy | None) -> Settings:
    """Settings that name the policy, and have its network; what they say otherwise is refused."""
    if policy is None:
        return settings
    network, default = policy.network, Settings()
    for name in ("hidden", "bias"):
        asked, has = getattr(settings, name), getattr(network, name)
        if asked not in (getattr(default, name), has):
            raise RunError(
                f"{name} = {asked!r} does not fit the policy to start from, whose network has {has!r}; leave it out"
            )
    if settings.learner == "sac" and network.bias == "one":
        raise RunError(
            "sac needs learned biases, and those of the policy to start from are 1 (as snes has them): start from "
            "another policy, or learn with ppo or safe-es"
        )
    return dataclasses.replace(settings, start_from=named(policy), hidden=network.hidden, bias=network.bias)


def check_start(settings: Settings, policy: Policy | None, domain: Domain) -> None:
    """Refuse a policy that is not the one which the settings name, or does not fit the domain."""
    if settings.start_from != (named(policy) if policy else ""):
        given = f"{named(policy)} was given" if policy else "that is missing"
        raise RunError(
            f"learning starts from the policy {settings.start_from or '(none)'}, but {given}; "
            "give its file with start_from (--from)"
        )
    if policy is not None:
        policy.check(domain)


def first_network(policy: Policy, domain: Domain, scaling: str, key: Array, execution: Execution) -> Network:
    """The policy's network. If it has no scaling of its own, and one is wanted, by what this policy sees here."""
    network = policy.network
    if network.scale or scaling == "none" or network.bias == "one":
        return network
    return scaled(network, domain, key, execution, policy=policy.theta)


def first_parameters(policy: Policy, network: Network) -> NDArray[np.float32]:
    """Parameters `[D]` with which this network, which may scale otherwise, says what the policy says."""
    own = policy.network
    if (own.shift, own.scale) == (network.shift, network.scale):
        return policy.theta
    parts = own.parts(policy.theta.astype(np.float64))
    first = len(parts) // 2  # its biases follow the weights of all layers
    shift, scale = (np.array(network.shift), np.array(network.scale)) if network.scale else (0.0, 1.0)
    own_shift, own_scale = (np.array(own.shift), np.array(own.scale)) if own.scale else (0.0, 1.0)
    wide = np.ones(own.inputs)
    parts[first] = parts[first] + (wide * (shift - own_shift) / own_scale) @ parts[0]
    parts[0] = parts[0] * (wide * scale / own_scale)[:, None]
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)
