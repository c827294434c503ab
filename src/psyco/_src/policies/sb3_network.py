"""The network of a Stable-Baselines3 policy as a PSyCo `Network`, where that computes the same function."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.actions import Actions, Continuous
from psyco._src.envs.base import Domain
from psyco._src.policies.network import Network, network_for


def same_network(policy: Any, statistics: Any, domain: Domain) -> tuple[Network, NDArray[np.float32]] | None:
    """Return the network and parameters `[D]` with the actions of a Stable-Baselines3 policy; None if there are none.

    There are some for perceptrons with relu of SAC, TD3 and DDPG, and of PPO and A2C with discrete actions: a Gaussian
    policy clips its mean, our continuous actions are scaled by tanh. The values of DQN are sums of rewards, from which
    learning of scores could not go on. `statistics` (VecNormalize) become shift and scale, without their clipping.
    """
    _check_spaces(policy, domain)
    layers = _linear_layers(policy)
    if not layers or not _same_range(policy.action_space, domain.actions):
        return None
    weights, biases = ([layer[name].detach().cpu().numpy() for layer in layers] for name in ("weight", "bias"))
    network = network_for(domain, hidden=tuple(len(bias) for bias in biases[:-1]), bias="learned")
    if statistics is not None:
        scale = np.sqrt(statistics.obs_rms.var + statistics.epsilon)
        network = dataclasses.replace(
            network, shift=tuple(statistics.obs_rms.mean.ravel().tolist()), scale=tuple(scale.ravel().tolist())
        )
    # `Network.shapes`: the first layer is transposed, biases follow the weights of all layers.
    parts = [weights[0].T, *weights[1:], *biases]
    return network, np.concatenate([part.ravel() for part in parts]).astype(np.float32)


def _check_spaces(policy: Any, domain: Domain) -> None:
    """Raise RunError unless observations and actions of the policy have the size and kind of the domain's."""
    takes, gives = policy.observation_space, policy.action_space
    continuous = isinstance(gives, spaces.Box), isinstance(domain.actions, Continuous)
    fits = spaces.flatdim(takes) == domain.observation_size and spaces.flatdim(gives) == domain.actions.outputs
    if not fits or continuous[0] != continuous[1]:
        raise RunError(
            f"the policy to start from takes {takes} and gives {gives}; {domain.name} has {domain.observation_size} "
            f"observations and {domain.actions}"
        )


def _linear_layers(policy: Any) -> list[dict[str, Any]]:
    """Return the parameters of each linear layer; empty unless relu, and nothing else, stands between them."""
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.common.torch_layers import FlattenExtractor
    from stable_baselines3.sac.policies import SACPolicy
    from stable_baselines3.td3.policies import TD3Policy
    from torch import nn

    # Exact types: a subclass may compute anything.
    if type(policy) is SACPolicy:
        extractor, modules = policy.actor.features_extractor, [*policy.actor.latent_pi, policy.actor.mu]
    elif type(policy) is TD3Policy:
        extractor, modules = policy.actor.features_extractor, [*policy.actor.mu][:-1]  # without tanh
    elif type(policy) is ActorCriticPolicy and not isinstance(policy.action_space, spaces.Box):
        extractor = policy.pi_features_extractor
        modules = [*policy.mlp_extractor.policy_net, policy.action_net]
    else:
        return []
    expected = [nn.Linear, nn.ReLU] * (len(modules) // 2) + [nn.Linear]
    image = len(policy.observation_space.shape or ()) == 3  # divided by 255
    if type(extractor) is not FlattenExtractor or image or [*map(type, modules)] != expected or len(modules) < 3:
        return []
    return [dict(module.named_parameters()) for module in modules[::2]]


def _same_range(space: Any, actions: Actions) -> bool:
    """Return whether continuous actions have the same range; others have none."""
    if not isinstance(actions, Continuous):
        return True
    ends = zip((space.low, space.high), (actions.low, actions.high), strict=True)
    return all(np.array_equal(np.ravel(theirs), np.array(ours, np.float32)) for theirs, ours in ends)
