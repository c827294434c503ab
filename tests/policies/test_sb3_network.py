"""A Stable-Baselines3 policy becomes a network of ours, with the same actions, where ours can represent it."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import psyco
from psyco._src.policies.external import as_policy
from tests.environments import Walk

pytestmark = [pytest.mark.extra("stable_baselines3"), pytest.mark.slow]

RELU = {"net_arch": [16, 8]}


def model(algorithm: str, env: Any, **policy: Any) -> Any:
    import stable_baselines3
    from torch import nn

    if "activation" in policy:
        policy["activation_fn"] = getattr(nn, policy.pop("activation"))
    return getattr(stable_baselines3, algorithm)("MlpPolicy", env, seed=3, device="cpu", policy_kwargs=policy)


@pytest.mark.parametrize(
    ("algorithm", "env", "policy"),
    [
        ("SAC", "Pendulum-v1", RELU),
        ("TD3", "Pendulum-v1", RELU),
        ("DDPG", "Pendulum-v1", RELU),
        ("PPO", "CartPole-v1", {**RELU, "activation": "ReLU"}),
        ("PPO", "FrozenLake-v1", {"net_arch": [32], "activation": "ReLU"}),
        ("A2C", "multi", {**RELU, "activation": "ReLU"}),
    ],
)
def test_weights_give_the_same_actions(algorithm: str, env: str, policy: dict[str, Any]) -> None:
    domain = psyco.make(MultiWalk, horizon=5) if env == "multi" else psyco.make(env)
    learned = model(algorithm, domain.make_env(), **policy)
    draw_parameters(learned)
    ours = as_policy(learned).as_network(domain)
    space = learned.observation_space
    raw = [space.sample() for _ in range(300)] if isinstance(space, spaces.Discrete) else scattered(space)
    theirs, _ = learned.predict(np.array(raw), deterministic=True)
    mine = ours(np.array([domain.flatten(x) for x in raw]))
    if isinstance(domain.actions, psyco.Continuous):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)
        assert np.ptp(mine) > 0.01, "actions that are all alike would show nothing"
    else:
        np.testing.assert_array_equal(mine, theirs)
        assert len(np.unique(mine)) > 1
    assert ours.network.layers == tuple(policy["net_arch"]) and "weights of" in ours.origin


class MultiWalk(Walk):
    """Two discrete actions of 3 and 2 alternatives."""

    action_space = spaces.MultiDiscrete([3, 2])

    def step(self, action: Any) -> Any:
        return super().step(int(action[1]))


def draw_parameters(learned: Any) -> None:
    """Fresh models have biases of 0, and actions that hardly change: mistakes would not show."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in learned.policy.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * (0.2 if tensor.ndim == 1 else 0.7))


def scattered(space: spaces.Space[Any]) -> Any:
    return np.random.default_rng(0).normal(0, 2, (300, *space.shape)).astype(np.float32)


@pytest.mark.parametrize(
    ("algorithm", "env", "policy"),
    [
        ("PPO", "CartPole-v1", {}),  # tanh
        ("PPO", "Pendulum-v1", {"activation": "ReLU"}),  # its mean is clipped, ours goes through tanh
        ("PPO", "CartPole-v1", {"net_arch": [], "activation": "ReLU"}),  # no hidden layer
        ("DQN", "CartPole-v1", RELU),  # sums of rewards are no scores
        ("SAC", "Pendulum-v1", {"activation": "ELU", "net_arch": [8]}),
    ],
)
def test_other_architectures_are_not_taken_for_ours(algorithm: str, env: str, policy: dict[str, Any]) -> None:
    assert as_policy(model(algorithm, env, **policy)).as_network(psyco.make(env)) is None


def test_another_range_of_actions_is_not_the_same_network() -> None:
    learned = model("SAC", "Pendulum-v1", **RELU)
    wider = psyco.make("Pendulum-v1", wrappers=[wide])
    assert as_policy(learned).as_network(wider) is None


def wide(env: Any) -> Any:
    return gymnasium.wrappers.RescaleAction(env, -4.0, 4.0)


def test_a_model_for_other_spaces_is_refused() -> None:
    with pytest.raises(psyco.RunError, match=r"takes Box.* gives Box.*; CartPole-v1 has 4 observations and Discrete"):
        as_policy(model("SAC", "Pendulum-v1", **RELU)).as_network(psyco.make("CartPole-v1"))
    with pytest.raises(psyco.RunError, match=r"gives Discrete\(2\); .* has 2 observations"):
        as_policy(model("PPO", "CartPole-v1")).as_network(psyco.make(Walk, horizon=5))


def test_normalization_of_observations_becomes_shift_and_scale() -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]), clip_obs=1e6)
    env.obs_rms.mean, env.obs_rms.var = np.array([0.5, -1.0, 2.0]), np.array([0.25, 4.0, 9.0])
    learned = model("SAC", env, **RELU)
    x = scattered(learned.observation_space)
    theirs, _ = learned.predict(env.normalize_obs(x), deterministic=True)
    ours = as_policy(learned).as_network(psyco.make("Pendulum-v1"))
    np.testing.assert_allclose(ours(x), theirs, rtol=0, atol=1e-5)
