"""Warm start: learning starts from a policy: of an earlier run, of another library, or cloned from demonstrations."""

from __future__ import annotations

import dataclasses

import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.base import Domain
from psyco._src.learners.learner_registry import AUTO_LEARNER, learner_class
from psyco._src.policies.joint_network import JointNetwork, joint_network_for
from psyco._src.policies.network import Network
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.execution import Execution
from psyco._src.rollout.obs_normalization import with_obs_normalization
from psyco._src.runs.settings import Settings


def policy_reference(policy: Policy) -> str:
    """Return the value of `start_from` in settings that refers to this policy."""
    return f"sha256:{policy.digest}"


def describe_initial_policy(policy: Policy) -> str:
    """Return what learning starts from, in words."""
    return policy.origin or f"the policy {policy_reference(policy)} for {policy.domain}"


def with_initial_policy(settings: Settings, policy: Policy | None) -> Settings:
    """Return settings that start from the policy and have its network; raise an error if they ask for another."""
    if policy is None:
        return settings
    network, default, learner = policy.network, Settings(), settings.learner
    if network.one_hot:
        raise RunError("learning cannot start from a table: it has no hidden layers; leave out --from")
    for name in ("hidden", "bias", "memory", "encoder"):
        given, own = getattr(settings, name), getattr(network, name)
        if given not in (getattr(default, name), own):
            raise RunError(
                f"{name} = {given!r} does not fit the policy to start from, whose network has {own!r}; leave it out"
            )
    if learner != AUTO_LEARNER and learner_class(learner).needs_learned_bias and network.bias == "one":
        raise RunError(
            f"{learner} needs learned biases, and those of the policy to start from are 1 (as snes has them): start "
            "from another policy, or learn with ppo or safe-es"
        )
    return dataclasses.replace(
        settings,
        start_from=policy_reference(policy),
        hidden=network.hidden,
        bias=network.bias,
        memory=network.memory,
        encoder=network.encoder,
    )


def check_initial_policy(settings: Settings, policy: Policy | None, domain: Domain) -> None:
    """Raise an error unless the policy is the one that the settings refer to and fits the domain."""
    if settings.start_from != (policy_reference(policy) if policy else ""):
        given = f"{policy_reference(policy)} was given" if policy else "that is missing"
        raise RunError(
            f"learning starts from the policy {settings.start_from or '(none)'}, but {given}; "
            "give its file with start_from (--from)"
        )
    if policy is None:
        return
    policy.check_spaces(domain)
    own = policy.network
    if isinstance(own, JointNetwork) and settings.learning == "independent" and len(own.policies) < len(own.members):
        raise RunError(
            f"independent learning starts from a policy for each agent: {policy.notes[0].partition('.')[0].lower()}; "
            "start from one that was learned with --policies separate, or leave out --learning independent"
        )
    if isinstance(own, JointNetwork) and settings.policies is not None:
        asked = joint_network_for(domain, hidden=own.hidden, bias=own.bias, policies=settings.policies)
        if getattr(asked, "sharers", None) != own.sharers:
            raise RunError(
                f"policies = {settings.policies!r} does not fit the joint policy to start from: "
                f"{policy.notes[0].partition('.')[0].lower()}; leave it out"
            )


def initial_normalization(policy: Policy, normalization: str, asked: str) -> str:
    """Return the observation normalization of learning that starts from a policy; several agents keep what they have.

    Args:
        policy: the policy to start from.
        normalization: what fits learner and domain.
        asked: what the settings ask for, which may be "auto".
    """
    has_own = bool(policy.network.scale)
    if not policy.agents or (normalization, has_own) not in (("running", True), ("sampled", False)):
        return normalization
    if asked != "auto":
        raise RunError(
            f"normalization = {asked!r} does not fit the joint policy to start from, whose network "
            f"{'normalizes observations itself' if has_own else 'takes observations as they are'}; leave it out"
        )
    return "none"


def initial_network(policy: Policy, domain: Domain, normalization: str, key: Array, execution: Execution) -> Network:
    """Return the policy's network; if it has no normalization and needs one, that of the policy's own episodes."""
    network = policy.network
    if network.scale or normalization == "none" or network.bias == "one":
        return network
    return with_obs_normalization(network, domain, key, execution, policy=policy.theta)


def initial_parameters(policy: Policy, network: Network) -> NDArray[np.float32]:
    """Return parameters `[D]` of `network`, whose normalization may differ, that compute the policy's function."""
    own = policy.network
    if (own.shift, own.scale) == (network.shift, network.scale):
        return policy.theta
    parts = own.unflatten(policy.theta.astype(np.float64))
    first_bias = own.first_bias
    shift, scale = (np.array(network.shift), np.array(network.scale)) if network.scale else (0.0, 1.0)
    own_shift, own_scale = (np.array(own.shift), np.array(own.scale)) if own.scale else (0.0, 1.0)
    ones, x = np.ones(own.inputs), slice(own.observed)
    parts[first_bias] = parts[first_bias] + (ones * (shift - own_shift) / own_scale)[x] @ parts[0]
    parts[0] = parts[0] * (ones * scale / own_scale)[x, None]
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)
