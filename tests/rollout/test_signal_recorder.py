"""Recorded values: as they were in their state, in the environment's own precision, of the shape that formulas use."""

import importlib
import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import psyco
from psyco._src.api.coerce import find_policy
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.parser import parse, parse_formula
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.gym_sampler import Chunk, EpisodeRunner, Job
from psyco._src.rollout.record import record_episodes
from psyco._src.runs.sample_trajectories import sample_episodes
from tests.environments import Far
from tests.making import prepared

HORIZON = 4


class Given(gymnasium.Env[Any, Any]):
    """An environment whose `info["value"]` in state t is `values[t]`, the last one from there on."""

    observation_space: Any = spaces.Box(0.0, 9.0, (1,))
    action_space: Any = spaces.Discrete(2)

    def __init__(self, values: Any = (0.0,)) -> None:
        self.values = values

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observation(), self.info()

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observation(), 1.0, False, False, self.info()

    def observation(self) -> Any:
        return np.array([self.t], np.float32)

    def info(self) -> dict[str, Any]:
        return {"value": self.values[min(self.t, len(self.values) - 1)]}


class Tensor:
    """A vector of another library: NumPy reads it through `__array__`, without a copy."""

    def __init__(self) -> None:
        self.data = np.zeros(1)

    def __array__(self, dtype: Any = None) -> Any:
        return self.data

    def __setitem__(self, key: Any, value: Any) -> None:
        self.data[key] = value


class Reused(Given):
    """An environment with one object for all its values, equal to the step in each state."""

    def __init__(self, kind: str = "list") -> None:
        super().__init__()
        self.buffer = np.zeros(1, np.float32)
        makers: dict[str, Any] = {
            "list": lambda: [0.0],
            "vector": lambda: np.zeros(1),
            "number": lambda: np.zeros(()),
            "nested": lambda: {"deep": [[0.0]]},
            "tensor": Tensor,
            "torch": lambda: importlib.import_module("torch").zeros(1),
        }
        self.value = makers[kind]()

    def observation(self) -> Any:
        self.buffer[0] = self.t
        return self.buffer

    def info(self) -> dict[str, Any]:
        match self.value:
            case {"deep": [inner]}:
                inner[0] = float(self.t)
            case list():
                self.value[0] = float(self.t)
            case _:
                self.value[...] = self.t
        return {"value": self.value}


def constant(observation: Any) -> int:
    return 0


def reset_to_four(observation: Any) -> int:
    """Return an action, and write into the observation."""
    observation[0] = 4.0
    return 0


SIGNALS = {
    "of_info": lambda observation, info: info["value"],
    "inner": lambda observation, info: info["value"]["deep"][0],
    "of_observation": lambda observation, info: observation,
    "number_of_observation": lambda observation, info: observation[0, ...],
}


@pytest.mark.parametrize(
    ("kind", "signal"),
    [
        ("list", "info.value[0]"),
        ("vector", "info.value[0]"),
        ("number", "info.value"),
        ("tensor", "info.value[0]"),
        ("list", "of_info[0]"),
        ("number", "of_info"),
        ("tensor", "of_info[0]"),
        ("nested", "inner[0]"),
        ("list", "of_observation[0]"),
        ("list", "number_of_observation"),
        ("list", "obs[0]"),
        pytest.param("torch", "info.value[0]", marks=pytest.mark.extra("torch")),
    ],
)
@pytest.mark.parametrize("policy", [constant, reset_to_four])
def test_a_value_that_changes_in_place_counts_as_it_was(kind: str, signal: str, policy: Any) -> None:
    """Every state before the last violates; with the last value in all states, each episode would satisfy."""
    own = {name: f for name, f in SIGNALS.items() if signal.startswith(name)}
    domain = psyco.make(Reused, kind=kind, horizon=HORIZON, signals=own)
    formula = f"G ({signal} >= {HORIZON})"
    certificate = psyco.verify(policy, domain, f"P>=0.9 [ {formula} ] & C>=0.9")
    assert certificate.verdict is psyco.Verdict.VIOLATED
    recorded = psyco.record(policy, domain)
    assert np.ravel(recorded[signal.removesuffix("[0]")]).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("kind", "signal"), [("list", "info.value[0]"), ("tensor", "of_info[0]"), ("list", "obs[0]")])
def test_a_runtime_monitor_reads_the_first_state_before_it_changes(kind: str, signal: str) -> None:
    """The first state is judged with the first action, after the environment has changed its value."""
    own = {name: f for name, f in SIGNALS.items() if signal.startswith(name)}
    env = psyco.MonitorWrapper(Reused(kind), f"P>=0.9 [ {signal} <= 0 & action < 2 ]", horizon=HORIZON, signals=own)
    env.reset(seed=0)
    assert env.step(0)[-1]["psyco"].outlook is psyco.Outlook.SATISFIED


# ---- precision --------------------------------------------------------------------------------------------------

GAPS = {
    "declared": "obs[1] - obs[0]",
    "returned": "obs[1] - obs[0]",
    "list": "obs[1] - obs[0]",
    "dict": "obs[1] - obs[0]",
    "matrix": "obs[1] - obs[0]",
    "integers": "(obs[1] - obs[0]) / 100",
    "info": "info.place[1] - info.place[0]",
}
FAR = [
    "P>=0.9 [ G {gap} >= 0.3 ]",
    "P<=0.1 [ F (least({gap}) < 0.3) ]",
    'P<=0.1 [ F ("end" & sum({gap}) < 1.5) ]',
    'P<=0.1 [ F ("end" & mean({gap}) < 0.3) ]',
]


@pytest.mark.parametrize("kind", GAPS)
@pytest.mark.parametrize("text", FAR)
def test_double_precision_is_judged_as_such(kind: str, text: str) -> None:
    """At 5,000 km a gap of 0.24 m is 0.5 m in float32."""
    requirement = text.format(gap=GAPS[kind])
    domain = psyco.make(Far, kind=kind, horizon=HORIZON)
    certificate = psyco.verify(constant, domain, f"{requirement} & C>=0.9")
    assert certificate.verdict is psyco.Verdict.VIOLATED
    env = psyco.MonitorWrapper(domain.make_env(), requirement)  # type: ignore[attr-defined]
    env.reset(seed=1)
    statuses = [env.step(0)[-1]["psyco"] for _ in range(HORIZON)]
    assert statuses[-1].outlook is psyco.Outlook.VIOLATED


def test_measured_values_have_double_precision() -> None:
    domain = psyco.make(Far, horizon=HORIZON)
    network, question = network_for(domain), parse("R{obs[1] - obs[0]}=? [ C ]").questions[0]
    job = Job(domain, network, compile_monitor([], measured=[question.subject]))
    episodes = EpisodeRunner()(job, Chunk(np.zeros((2, network.size), np.float32), [1, 2]))
    assert episodes.value == pytest.approx(HORIZON * 0.24, abs=1e-6)


@pytest.mark.more
def test_workers_keep_double_precision() -> None:
    domain = psyco.make(Far, horizon=HORIZON)
    execution = psyco.Execution(workers=2)
    certificate = psyco.verify(constant, domain, "P>=0.9 [ G obs[1] - obs[0] >= 0.3 ] & C>=0.9", execution=execution)
    assert certificate.verdict is psyco.Verdict.VIOLATED
    (there,) = record_episodes(domain, find_policy(constant)[0], seed=0, count=1, execution=execution)
    assert there["obs"].dtype == np.float64
    np.testing.assert_array_equal(there["obs"], psyco.record(constant, domain)["obs"])


def test_samples_on_the_page_of_a_run_are_judged_in_double_precision() -> None:
    problem = prepared(psyco.make(Far, horizon=HORIZON), "P>=0.9 [ G obs[1] - obs[0] >= 0.3 ]", normalization="none")
    network = problem.network
    samples = json.loads(sample_episodes(problem, policy_for(problem.domain, network, np.zeros(network.size))))
    assert [episode["satisfied"] for episode in samples["episodes"]] == [[False]] * len(samples["episodes"])
    assert samples["violating"] == samples["looked_at"] > 0


def test_a_network_sees_single_precision() -> None:
    """Learning has the same numbers as before: inputs, traces and statistics are float32."""
    domain = psyco.make(Far, horizon=HORIZON)
    network = network_for(domain)
    job = Job(domain, network, compile_monitor([parse_formula("G obs[1] - obs[0] >= 0.3")]))
    theta, std = np.zeros((2, network.size), np.float32), np.ones((2, network.outputs), np.float32)
    trace = EpisodeRunner()(job, Chunk(theta, [1, 2], std)).trace
    assert trace.obs.dtype == trace.final_obs.dtype == np.float32
    statistics = EpisodeRunner()(job, Chunk(theta, [1, 2], with_obs_stats=True)).obs_stats
    assert statistics.mean.tolist() == np.float32([[5_000_000.02, 5_000_000.26]] * 2).tolist()


def test_single_precision_stays_as_it_is() -> None:
    """0.7 in float32 is below 0.7, and yet it satisfies >= 0.7: the constant is rounded as the signal is."""
    domain = psyco.make(Far, kind="single", horizon=HORIZON)
    assert psyco.record(constant, domain)["obs"].dtype == np.float32
    certificate = psyco.verify(constant, domain, "P>=0.9 [ G obs[1] >= 0.7 ] & C>=0.9")
    assert certificate.verdict is psyco.Verdict.SATISFIED


# ---- shapes -----------------------------------------------------------------------------------------------------


def run_with(values: Any, formula: str, episodes: int, signals: Any = None) -> Any:
    """Return judged episodes in which `info["value"]` takes these values, played side by side."""
    domain = psyco.make(Given, values=values, horizon=HORIZON, signals=signals)
    network = network_for(domain)
    job = Job(domain, network, compile_monitor([parse_formula(formula)]))
    theta = np.zeros((episodes, network.size), np.float32)
    return EpisodeRunner()(job, Chunk(theta, list(range(1, episodes + 1))))


@pytest.mark.parametrize("episodes", [1, 2, HORIZON + 1])
@pytest.mark.parametrize(
    ("values", "formula", "problem"),
    [
        ([np.zeros(1), np.full(1, 2.0)], "F info.value > 1", r"(?s)'info.value' has 1 entry .*write info.value\[0\]"),
        ([None, [2.0]], "F info.value > 1", r"(?s)has 1 entry .*write info.value\[0\]"),
        ([np.zeros(5)], "F info.value > 1", r"(?s)has 5 entries .*choose one: info.value\[0\] to info.value\[4\]"),
        ([np.ones(2, bool)], "G info.value", r"(?s)has 2 entries .*choose one"),
        ([[]], "G info.value > 0", "has no entries"),
        ([0.0], "G info.value[0] < 1", "(?s)is a single value .*write info.value without an index"),
        ([np.zeros(())], "G info.value[0] < 1", "(?s)is a single value .*write info.value without an index"),
        ([np.zeros(2)], "G info.value[2] < 1", r"(?s)index 2 .* out of range .*info.value\[0\] to info.value\[1\]"),
        ([0.0], "G (info.value < 1 & info.value[0] < 1)", "is a single value"),
        ([np.zeros(1)], "G (info.value < 1 & info.value[0] < 1)", "has 1 entry"),
    ],
)
def test_a_shape_that_does_not_fit_its_use_is_named_with_the_remedy(
    values: Any, formula: str, problem: str, episodes: int
) -> None:
    """Played alone, and where lengths of paths, batches and vectors agree, arrays would broadcast silently."""
    with pytest.raises(psyco.RequirementError, match=problem):
        run_with(values, formula, episodes)


@pytest.mark.parametrize("episodes", [1, 3])
@pytest.mark.parametrize(
    ("values", "formula"),
    [
        ([0.0, 0.0, np.zeros(1)], "G info.value < 1"),
        ([0.0, 0.0, [0.0]], "G info.value < 1"),
        ([np.zeros(2), np.zeros(2), np.zeros(3)], "G info.value[0] < 1"),
        ([np.zeros(2), np.zeros(2), 0.0], "G info.value[0] < 1"),
        ([[0.0], [0.0], [[0.0], [1.0, 2.0]]], "G info.value[0] < 1"),
        ([0.0, 0.0, np.zeros((1, 1))], "G info.value < 1"),
        ([0.0, 0.0, "fast"], "G info.value < 1"),
        ([0.0, 0.0, object()], "G info.value < 1"),
        ([0.0, 0.0, {"x": 1.0}], "G info.value < 1"),
        ([0.0, 0.0, 10**400], "G info.value < 1"),
        ([0.0, 0.0, 1j], "G info.value < 1"),
        ([[0.0], [0.0], [None]], "G info.value[0] < 1"),
    ],
)
def test_a_value_of_another_kind_is_named_with_its_state(values: Any, formula: str, episodes: int) -> None:
    with pytest.raises(psyco.EpisodeError, match=r"at step 2: the signal info.value") as caught:
        run_with(values, formula, episodes)
    assert caught.value.seed == 1


@pytest.mark.parametrize("episodes", [1, 3])
@pytest.mark.parametrize(
    ("values", "formula"),
    [
        ([np.float32(2), 2, 2.0, np.int8(2), np.array(2)], "G info.value = 2"),
        ([True, np.True_, np.array(True)], "G info.value"),
        ([np.array([False, True]), [False, True], (False, True)], "G info.value[1]"),
        ([None, 3.0, None], "!info.value & X info.value = 3 & F G info.value = 0"),
        ([None], "G (info.value[2] = 0 & info.other = 0)"),
        ([None, [1.0, 2.0, 3.0]], "info.value[2] = 0 & X G info.value[2] = 3"),
    ],
)
def test_numbers_of_all_types_count_and_a_missing_one_is_0(values: Any, formula: str, episodes: int) -> None:
    assert run_with(values, formula, episodes).satisfied.all()


def test_a_certificate_does_not_come_from_broadcasting() -> None:
    """True P(F cost > 1) is 1; paths of large observations are played one at a time."""
    domain = psyco.make(Given, values=[np.zeros(1), np.zeros(1), np.full(1, 2.0)], horizon=HORIZON)
    with pytest.raises(psyco.RequirementError, match=r"write info.value\[0\]"):
        psyco.verify(constant, domain, "P<=0.3 [ F info.value > 1 ] & C>=0.9")
    certificate = psyco.verify(constant, domain, "P<=0.3 [ F info.value[0] > 1 ] & C>=0.9")
    assert certificate.verdict is psyco.Verdict.VIOLATED


def test_a_recording_of_everything_leaves_out_what_is_no_number() -> None:
    for values in (["slow"], [0.0, [1.0]], [{"x": 1}], [np.zeros((2, 2))], [[[1.0], [1.0, 2.0]]]):
        recorded = psyco.record(constant, psyco.make(Given, values=values, horizon=HORIZON))
        assert "info.value" not in recorded and "obs" in recorded


class Seldom(Given):
    """An environment that reports `late` in half of its episodes, and not where it is tried out."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.reports = bool(seed and seed % 2)
        return super().reset(seed=seed)

    def info(self) -> dict[str, Any]:
        return {"late": 1.0} if self.reports else {}


@pytest.mark.filterwarnings("ignore:info.late did not appear")
def test_a_key_that_only_some_episodes_report_is_in_samples_and_counterexamples() -> None:
    domain, requirement = psyco.make(Seldom, horizon=HORIZON), "P<=0.1 [ F info.late > 0.5 ] & C>=0.9"
    problem = prepared(domain, requirement)
    theta = np.zeros(problem.network.size, np.float32)
    samples = json.loads(sample_episodes(problem, policy_for(domain, problem.network, theta)))
    assert 0 < samples["violating"] < samples["looked_at"]
    assert {tuple(episode["signals"].get("info.late", [])[:1]) for episode in samples["episodes"]} == {(0.0,), (1.0,)}
    certificate = psyco.verify(constant, domain, requirement)
    (found,) = psyco.counterexamples(constant, certificate=certificate, domain=domain, worst=1, film=False)
    assert found.violates
    assert found.seed is not None and found.seed % 2 == 1


@pytest.mark.parametrize("reward", [np.ones(1), [1.0], "1"])
def test_a_reward_is_a_single_number(reward: Any) -> None:
    class Rewarded(Given):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, reward, *rest

    with pytest.raises(psyco.EpisodeError, match=r"at step 1: reward is .*; Gymnasium wants a number"):
        psyco.verify(constant, psyco.make(Rewarded, horizon=HORIZON), "P>=0.9 [ G return < 9 ] & C>=0.9")


def test_a_return_is_summed_in_double_precision() -> None:
    """In float32, 2^24 + 1 is 2^24."""

    class Rewarded(Given):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, np.float32(1 if self.t > 1 else 2**24), *rest

    assert psyco.record(constant, psyco.make(Rewarded, horizon=HORIZON))["return"][-1] == 2**24 + HORIZON - 1
