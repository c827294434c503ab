"""Gymnasium environments as domains: what they are made of, and how they are made again."""

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import psyco
from psyco._src.envs.actions import ACTIONS, Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.envs.base import parameters, signal_table
from psyco._src.envs.registry import DomainDescription, make_from_description
from psyco._src.envs.value_bounds import expression_range
from psyco._src.logic.ast import Signal, walk
from psyco._src.logic.parser import parse
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


def test_discrete_observations_are_one_hot_codes_and_others_are_refused() -> None:
    space = spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 3])])
    domain = dataclasses.replace(psyco.make(Mixed, observations="discrete", horizon=5), observation_space=space)
    assert domain.one_hot == (3, 2, 3)
    assert domain.flatten((3, np.array([0, 2]))).tolist() == [0, 0, 1, 1, 0, 0, 0, 1]
    for wrong in ((0, np.array([0, 2])), (1, np.array([2, 0])), (1, np.array([0, -1]))):
        with pytest.raises(ValueError, match="an observation outside of"):
            domain.flatten(wrong)
    assert psyco.make(Mixed, observations="tuple", horizon=5).one_hot == ()
    with pytest.raises(psyco.DomainError, match="discrete observations with 5,000 alternatives"):
        network_for(dataclasses.replace(domain, observation_space=spaces.Discrete(5000)))


class Nested(gymnasium.Env[Any, Any]):
    """Nested observations that say which entry they are; it truncates its episodes, by `kind`."""

    observation_space: Any = spaces.Dict(
        {
            "goal": spaces.Box(-9.0, 9.0, ()),
            "mode": spaces.Discrete(3, start=2),
            "robot": spaces.Dict({"arms": spaces.Tuple((spaces.Box(-1.0, 9.0, (2, 2)), spaces.MultiBinary(2)))}),
            "two words": spaces.Box(0.0, 1.0, (1,)),
            "position": spaces.Box(0.0, np.array([2.0, 3.0], np.float32)),
        }
    )
    action_space: Any = spaces.Discrete(2)

    def __init__(self, kind: str = "fixed") -> None:
        self.kind = kind

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.t, self.limit = 0, 7 + (seed or 0) * (self.kind == "other")
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        terminated = self.kind == "never" and self.t >= 4
        return self._observe(), 1.0, terminated, self.kind != "never" and self.t >= self.limit, {}

    def _observe(self) -> Any:
        arms = np.arange(4, dtype=np.float32).reshape(2, 2), np.array([0, 1], np.int8)
        single = np.array(self.t, np.float32), np.array([0.5], np.float32)
        position = np.array([1.0, 2.0], np.float32)
        return {"goal": single[0], "mode": 3, "robot": {"arms": arms}, "two words": single[1], "position": position}


def test_parts_of_nested_observations_are_signals() -> None:
    domain = psyco.make(Nested)
    sizes = {name: info.size for name, info in signal_table(domain).items() if name.startswith("obs")}
    parts = {"obs.goal": None, "obs.mode": None, "obs.robot.arms.0": 4, "obs.robot.arms.1": 2, "obs.position": 2}
    assert sizes == {"obs": 13, **parts}
    formula = "obs.mode = 3 & obs.robot.arms.0[3] = 3 & obs.robot.arms.1[1] = 1 & obs.position[1] = 2 & obs[5] = 2"
    requirement = f"P>=0.5 [ (G ({formula})) & F obs.goal = 7 ] & C>=0.9"
    certificate = psyco.verify(lambda observation: 0, domain, requirement, max_episodes=20)
    assert certificate.findings[0].satisfied == certificate.episodes
    with pytest.raises(psyco.RequirementError, match=r"obs.position\[0..1\]"):
        psyco.verify(lambda observation: 0, domain, "P>=0.5 [ G obs.positions[0] > 0 ]")


def test_the_ranges_of_parts_of_an_observation_are_known() -> None:
    domain = psyco.make(Nested)
    wanted = {"goal": (-9, 9), "mode": (2, 4), "robot.arms.0[3]": (-1, 9), "robot.arms.1[0]": (0, 1)}
    for text, expected in {**wanted, "position[1]": (0, 3)}.items():
        formula = parse(f"P>=0.5 [ F obs.{text} > 1 ]").probability_constraints[0].formula
        (signal,) = (node for node in walk(formula) if isinstance(node, Signal))
        assert expression_range(signal, domain) == expected


def test_an_environment_that_truncates_its_episodes_needs_no_stated_horizon() -> None:
    assert psyco.make(Nested).horizon == 7
    assert psyco.make(Nested, horizon=5).horizon == 5
    with pytest.raises(psyco.DomainError, match=r"truncated some after 8, 9, 10\).*--horizon"):
        psyco.make(Nested, kind="other")
    with pytest.raises(psyco.DomainError, match=r"does not state .* had up to 4 steps\).*--horizon"):
        psyco.make(Nested, kind="never")


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
    with pytest.raises(psyco.DomainError, match="does not state after how many steps"):
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
