"""Gymnasium environments as domains: what they are made of, and how they are made again."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

import psyco
from psyco._src.envs.actions import ACTIONS, Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.envs.base import parameters, signal_table
from psyco._src.envs.registry import DomainDescription, make_from_description
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import load_policy, policy_for
from tests.environments import Mixed, Walk, height

HERE = "tests.environments"


@pytest.mark.parametrize(
    ("kind", "actions"),
    [
        ("multi", MultiDiscrete((2, 3))),
        ("binary", MultiBinary(3)),
        ("discrete", Discrete(3)),
        (
            "box",
            Continuous(
                (float(np.float32(-0.3)), float(np.float32(0.1))),
                (float(np.float32(0.7)), float(np.float32(0.4))),
            ),
        ),
        ("whole", Continuous((-2.0, -2.0), (2.0, 2.0))),
    ],
)
def test_every_network_output_becomes_an_action_of_the_space(kind: str, actions: object) -> None:
    domain = psyco.make(Mixed, actions=kind, horizon=5)
    assert domain.actions == actions
    rng = np.random.default_rng(0)
    y = np.tanh(rng.normal(0, 3, (200, domain.actions.outputs))).astype(np.float32)
    y[:2] = [[-1.0], [1.0]]  # the corners
    for action in domain.to_env_actions(domain.actions.decode(y)):
        assert Mixed(actions=kind).action_space.contains(action)


def test_both_ends_of_a_box_in_double_precision_are_kept() -> None:
    class Precise(Walk):
        action_space = gymnasium.spaces.Box(np.array([0.7, -0.7]), np.array([0.9, -0.1]), dtype=np.float64)

        def step(self, action: object) -> object:
            return super().step(True)

    domain = psyco.make(Precise, horizon=5)
    for action in domain.to_env_actions(domain.actions.decode(np.array([[-1, -1], [1, 1]], np.float32))):
        assert Precise.action_space.contains(action)


@pytest.mark.parametrize("kind", list(ACTIONS))
def test_numpy_and_jax_decode_alike(kind: str) -> None:
    import jax.numpy as jnp

    actions = {
        "Continuous": Continuous((-1.0, 0.0), (2.0, 3.0)),
        "Discrete": Discrete(4),
        "MultiDiscrete": MultiDiscrete((2, 3)),
        "MultiBinary": MultiBinary(3),
    }[kind]
    y = np.random.default_rng(0).uniform(-1, 1, (50, actions.outputs)).astype(np.float32)
    np.testing.assert_allclose(actions.decode(y), np.asarray(actions.decode(jnp.asarray(y))), rtol=1e-6)


@pytest.mark.parametrize(("kind", "size"), [("dict", 3 + 4), ("tuple", 2 + 1), ("discrete", 4), ("image", 6)])
def test_observations_are_flattened_as_gymnasium_does(kind: str, size: int) -> None:
    domain = psyco.make(Mixed, observations=kind, horizon=5)
    assert domain.observation_size == size
    env = Mixed(observations=kind)
    observation, _ = env.reset(seed=3)
    expected = gymnasium.spaces.flatten(env.observation_space, observation)
    np.testing.assert_array_equal(domain.flatten(observation), np.float32(expected))


def test_an_infinite_action_range_needs_a_bound() -> None:
    with pytest.raises(psyco.DomainError, match="action_bound"):
        psyco.make(Mixed, actions="endless", horizon=5)
    assert psyco.make(Mixed, actions="endless", horizon=5, action_bound=2.0).actions == Continuous((-2.0,), (1.0,))


def test_other_action_spaces_are_refused() -> None:
    with pytest.raises(psyco.DomainError, match="Text"):
        psyco.make(Mixed, actions="text", horizon=5)


def test_the_horizon_is_the_time_limit_or_what_is_given() -> None:
    assert psyco.make("CartPole-v1").horizon == 500
    assert psyco.make("CartPole-v1", horizon=700).horizon == 700
    assert psyco.make(lambda: gymnasium.wrappers.TimeLimit(Walk(), 12)).horizon == 12
    with pytest.raises(psyco.DomainError, match="no time limit"):
        psyco.make(Walk)


@pytest.mark.parametrize(
    "name",
    ["PsycoTestWalk-v0", "PsycoTestWalk", f"{HERE}:PsycoTestWalk-v0", f"{HERE}:Walk", f"{HERE}:slow_walk"],
)
def test_an_environment_has_many_names(name: str) -> None:
    domain = psyco.make(name, horizon=9)
    assert (domain.observation_size, domain.actions, domain.horizon, domain.name) == (2, Discrete(2), 9, name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPol-v1", "did you mean 'CartPole-v1'"),
        ("no.such.module:Id-v0", "cannot import"),
        (f"{HERE}:Wolk", "did you mean 'Walk'"),
        (f"{HERE}:HERE", "has no"),
        ("os:sep", "not a function or class"),
        ("builtins:list", "not a gymnasium.Env"),
    ],
)
def test_a_wrong_name_is_explained(name: str, message: str) -> None:
    with pytest.raises(psyco.DomainError, match=message):
        psyco.make(name)


def test_arguments_wrappers_and_signals_reach_the_environment() -> None:
    domain = psyco.make(
        "FrozenLake-v1",
        is_slippery=False,
        wrappers=[lambda env: gymnasium.wrappers.TransformReward(env, lambda r: 2 * r)],
        signals={"goal": lambda obs, info: obs == 15},
        horizon=10,
    )
    table = signal_table(domain)
    assert table["goal"].boolean
    assert {"terminated", "truncated", "info.prob", "obs", "action"} <= table.keys()
    assert not domain.make_env().unwrapped.spec.kwargs["is_slippery"]


@pytest.mark.parametrize("name", ["obs", "reward", "info.x", "end"])
def test_a_signal_of_ones_own_has_a_name_of_its_own(name: str) -> None:
    with pytest.raises(psyco.DomainError, match=name):
        psyco.make("CartPole-v1", signals={name: height})


def test_an_unknown_signal_lists_what_there_is() -> None:
    with pytest.raises(psyco.RequirementError, match=r"info\.\*"):
        psyco.synthesize(psyco.make("CartPole-v1"), "P>=0.9 [ G (position <= 1) ]", episodes=20)


def test_a_key_of_info_that_never_appears_is_a_warning_at_first_and_gets_no_certificate() -> None:
    with (
        pytest.warns(UserWarning, match=r"info\.kost did not appear"),
        pytest.raises(psyco.RequirementError, match=r"info\.kost in none of the .* \(did you mean 'info\.cost'"),
    ):
        psyco.synthesize(
            psyco.make(Walk, horizon=5),
            "P>=0.5 [ G (info.kost <= 1) ]",
            learner="snes",
            episodes=20,
            settings=psyco.Settings(verify_every=0, max_episodes=10),
        )


def test_a_policy_file_makes_its_environment_again(tmp_path: Path) -> None:
    domain = psyco.make("FrozenLake-v1", is_slippery=False, map_name="8x8", horizon=30)
    network = network_for(domain)
    policy_for(domain, network, np.zeros(network.size)).save(tmp_path / "p.safetensors")
    policy = load_policy(tmp_path / "p.safetensors")
    again = make_from_description(DomainDescription(policy.domain, policy.parameters))
    policy.check(again)
    assert parameters(again) == parameters(domain) == {"is_slippery": False, "map_name": "8x8", "horizon": 30}


def test_a_file_cannot_choose_code_to_run() -> None:
    for name, values in {
        "os:system": {},
        "CartPole-v1": {"wrappers": ["os:system"]},
        "CartPole": {"signals": {"x": "os:system"}},
        "brax:ant": {"wrappers": ["os:system"]},
    }.items():
        with pytest.raises(psyco.DomainError, match="--trust os:system"):
            make_from_description(DomainDescription(name, values))
    with pytest.raises(psyco.DomainError, match="--trust brax:envs"):
        make_from_description(
            DomainDescription("CartPole-v1", {"wrappers": ["brax:envs.create"]})
        )  # here it is a module
    walk = DomainDescription(f"{HERE}:Walk", {"horizon": 4})
    assert make_from_description(walk, [f"{HERE}:Walk"]).horizon == 4
    assert make_from_description(walk, [HERE]).horizon == 4, "a whole module may be trusted"
    with pytest.raises(psyco.DomainError, match="--trust"):
        make_from_description(walk)  # trust is given once, for one call
