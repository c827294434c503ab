"""A guard: the fallback acts when the slack is used up or the risk is high, in the simulator as in the field."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

import psyco
from psyco import Continuous, Discrete
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.policies.network import Network
from psyco._src.policies.risk import fit_risk, risk_inputs
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.gym_sampler import GymSampler, Job, in_process_backend
from tests.environments import Alternating, CompiledSteps, Steps, Walk
from tests.making import with_execution

DOMAINS = {"gymnasium": psyco.make(Steps, horizon=6), "compiled": CompiledSteps()}
# Alternating changes its action with every step but the first.
FEW = "P>=0.9 [ G (count(info.changed) <= 2) ] & C>=0.95"
HIT = "P>=0.5 [ G !hit ]"


def few(kind: str) -> str:
    return FEW if kind == "gymnasium" else FEW.replace("info.", "")


def same(observation: Any) -> int:
    return 1


def a_policy(actions: Any, inputs: int = 3) -> Policy:
    network = Network(inputs, actions.outputs, hidden=4)
    return Policy(np.ones(network.size, np.float32), network, actions, "nowhere", {})


@pytest.mark.parametrize("kind", DOMAINS)
def test_the_fallback_acts_from_where_the_slack_is_used_up(kind: str) -> None:
    domain, guard = DOMAINS[kind], psyco.Guard(Alternating, same, few(kind))
    recorded = psyco.record(guard, domain)
    # 1, 0, 1 changes twice, so from the fourth action on it is the fallback's; the first one is shown twice.
    assert recorded["action"].tolist() == [1, 1, 0, 1, 1, 1, 1]
    certificate = psyco.verify(guard, domain)
    assert certificate.verdict is psyco.Verdict.SATISFIED and certificate.findings[0].violated == 0
    count = certificate.episodes
    assert f"The fallback acted in {count} of {count} episodes, and in 50.0% of their steps." in str(certificate)
    assert psyco.replay(certificate, guard, domain=domain).matches
    assert psyco.verify(Alternating, domain, few(kind)).verdict is psyco.Verdict.VIOLATED


def test_episodes_side_by_side_are_guarded_each_by_itself() -> None:
    guard = psyco.Guard(lambda observation: 1, lambda observation: 0, "P>=0.5 [ G (count(obs[0] > 0) <= 2) ]")
    sampler = GymSampler(Job(psyco.make(Walk, horizon=30), guard, compile_monitor([])), in_process_backend())
    seeds = list(range(1, 13))
    together = sampler.run(np.zeros((12, 0), np.float32), seeds)
    assert len(set(together.length.tolist())) > 3 and len(set(together.fallback_steps.tolist())) > 3
    for row, seed in enumerate(seeds):
        alone = sampler.run(np.zeros((1, 0), np.float32), [seed])
        assert (alone.length[0], alone.fallback_steps[0]) == (
            together.length[row],
            together.fallback_steps[row],
        )


@pytest.mark.more
def test_workers_count_the_fallback_too() -> None:
    def certified(**where: Any) -> str:
        guard = psyco.Guard(Alternating(), same, FEW)
        return psyco.verify(guard, psyco.make(Steps, horizon=6), **with_execution(issued="now", **where)).to_json()

    assert certified() == certified(workers=2)


def test_in_the_field_it_acts_as_in_the_simulator() -> None:
    guard = psyco.Guard(Alternating(), same, FEW)
    recorded = psyco.record(guard, DOMAINS["gymnasium"])
    for _ in "ab":  # a new episode forgets the old one
        guard.reset()
        acted = [
            (guard.act(recorded["obs"][t], {"info.changed": recorded["info.changed"][t]}), guard.handed_over)
            for t in range(6)
        ]
        assert [action for action, _ in acted] == recorded["action"][1:].tolist()
        assert [handed for _, handed in acted] == [False] * 3 + [True] * 3
    with pytest.raises(psyco.RequirementError, match=r"no value for the signal 'info.changed'"):
        guard.act(recorded["obs"][0])


def test_in_the_field_a_memory_comes_first_too() -> None:
    class Callable(Alternating):
        def __call__(self, observation: Any) -> int:
            return 7

    guard = psyco.Guard(Callable(), Callable(), FEW)
    for _ in "ab":
        guard.reset()
        acted = [int(guard.act(np.zeros(1), {"info.changed": False})) for _ in range(3)]
        assert acted == [1, 0, 1] == psyco.record(guard, DOMAINS["gymnasium"])["action"][1:4].tolist()
    # A class, of which verification makes one for every episode.
    in_the_field = psyco.Guard(Callable, same, FEW)
    with pytest.raises(psyco.RunError, match="can't be asked for a single action"):
        in_the_field.act(np.zeros(1), {"info.changed": False})


def test_a_guard_can_be_guarded() -> None:
    inner = psyco.Guard(Alternating, same, FEW)
    outer = psyco.Guard(inner, lambda observation: 0, "P>=0.9 [ G (count(step > 0) <= 4) ]")
    assert psyco.record(outer, DOMAINS["gymnasium"])["action"].tolist() == [1, 1, 0, 1, 1, 0, 0]


def test_its_identity_is_that_of_its_parts() -> None:
    risk = fit_risk(psyco.Monitor(HIT), coins(100))
    one, other = a_policy(Discrete(2)), a_policy(Discrete(2), inputs=3)
    other = dataclasses.replace(other, theta=other.theta * 2)
    count = "P>=0.9 [ G (count(hit) <= 1) ]"
    guards = [
        psyco.Guard(one, other, count),
        psyco.Guard(other, one, count),
        psyco.Guard(one, other, count.replace("0.9", "0.8")),
        psyco.Guard(one, other, count, horizon=9),
        psyco.Guard(one, other, HIT, when=risk),
        psyco.Guard(one, other, HIT, when=risk.with_limit(0.3)),
        psyco.Guard(one, same, count),
    ]
    assert len({guard.digest for guard in guards}) == len(guards)
    assert guards[0].digest == psyco.Guard(one, other, count).digest
    assert [guard.kind for guard in guards] == ["file"] * 6 + ["name"]
    assert guards[-1].with_version("2").digest != guards[-1].digest


# ---- what cannot be -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requirement", "arguments", "words"),
    [
        ("P>=0.9 [ G a ]", {}, "no slack to use up"),
        ("P>=0.9 [ G collisions <= 1 ]", {}, "name in counters"),
        ("P>=0.9 [ G collisions <= 0 ]", {"counters": ["collisions"]}, "no slack"),
        ("P>=0.9 [ G (count(action > 0) <= 1) ]", {}, "cannot use the signal"),
        ("R{x}<=1 [ C ] within [0,2]", {}, "needs a bound on a probability"),
        (FEW, {"when": "never"}, "got 'never'"),
        (FEW, {"when": ()}, "say when"),
    ],
)
def test_what_cannot_be_guarded_is_said_so(requirement: str, arguments: Any, words: str) -> None:
    with pytest.raises(psyco.RunError, match=words):
        psyco.Guard(Alternating, same, requirement, **arguments)


def test_a_fallback_with_other_spaces_is_refused() -> None:
    policy, narrow = a_policy(Discrete(2)), a_policy(Discrete(2), inputs=2)
    for other in (narrow, a_policy(Discrete(3)), a_policy(Continuous((-1.0,), (1.0,)))):
        with pytest.raises(psyco.RunError, match="the fallback has other spaces than the policy"):
            psyco.Guard(policy, other, FEW)
    with pytest.raises(psyco.RunError, match="made for nowhere"):
        psyco.verify(psyco.Guard(Alternating, narrow, FEW), DOMAINS["gymnasium"])
    beyond = psyco.Guard(Alternating, lambda observation: 7, FEW.replace("info.", ""))
    with pytest.raises(psyco.RunError, match="gives the action 7"):
        psyco.verify(beyond, DOMAINS["compiled"])


def test_a_guard_that_does_not_fit_a_domain_or_a_verb_says_why(tmp_path: Any) -> None:
    guard = psyco.Guard(Alternating, same, FEW, horizon=5)
    with pytest.raises(psyco.RunError, match="make it with horizon=6"):
        psyco.verify(guard, DOMAINS["gymnasium"])
    with pytest.raises(psyco.RequirementError, match=r"info\.changed"):
        psyco.verify(psyco.Guard(Alternating, same, FEW), DOMAINS["compiled"])
    with pytest.raises(psyco.RunError, match="is a guard, with a memory and two policies: export each"):
        psyco.export(guard, tmp_path / "guard.onnx")
    with pytest.raises(psyco.RunError, match="is a guard"):
        psyco.export_c(guard, tmp_path)
    with pytest.raises(psyco.RunError, match="is stateful; exact answers"):
        psyco.exact(psyco.Guard(same, same, "P>=0.9 [ G (count(caught) <= 1) ]"), "obstacle-run")
    with pytest.raises(psyco.RunError, match="can't be asked for a single action"):
        psyco.Guard("a.onnx", same, FEW).act([0.0], {"info.changed": False})


# ---- risk -----------------------------------------------------------------------------------------------------------


def coins(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Episodes of 4 steps that show x all the time; the last state is a hit with probability x."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, count)
    hits = rng.random(count) < x
    return [
        {"obs": np.full((5, 1), p, np.float32), "hit": np.array([False] * 4 + [hit])}
        for p, hit in zip(x, hits, strict=True)
    ]


def inputs(x: float, step: int) -> np.ndarray:
    monitor = psyco.Monitor(HIT)
    signals = {"hit": False}
    status = [monitor.update(signals) for _ in range(step + 1)][-1]
    return np.array([risk_inputs([x], signals, status)])


def test_a_risk_is_the_probability_of_a_violation() -> None:
    """4,000 episodes: an estimate is off by more than 0.1 with a chance of less than 1e-6; fixed seed."""
    risk = fit_risk(psyco.Monitor(HIT), coins(4000))
    for x in (0.1, 0.3, 0.5, 0.7, 0.9):
        assert risk(inputs(x, 1))[0] == pytest.approx(x, abs=0.1)
    assert sum(each.states for each in risk.calibration) == 4 * 1000
    for each in risk.calibration:
        if each.states > 400:
            assert each.observed == pytest.approx(each.estimated, abs=0.1)
    assert "of them violated\n" in str(risk) and len(str(risk).splitlines()) == 2 + len(risk.calibration)


def test_a_risk_may_look_only_a_few_steps_ahead() -> None:
    risk = fit_risk(psyco.Monitor(HIT), coins(2000), within=2)
    assert risk(inputs(0.8, 0))[0] == risk(inputs(0.8, 1))[0] == 0.0
    assert risk(inputs(0.8, 2))[0] == pytest.approx(0.8, abs=0.1)


def test_a_guard_hands_over_where_the_risk_reaches_its_limit() -> None:
    risk = fit_risk(psyco.Monitor(HIT), coins(2000))
    guard = psyco.Guard(lambda x: "go", lambda x: "stop", HIT, when=risk.with_limit(0.5))
    acted = {}
    for x in (0.2, 0.8):
        guard.reset()
        acted[x] = guard.act([x], {"hit": False})
    assert acted == {0.2: "go", 0.8: "stop"}
    assert guard.act([0.2], {"hit": True}) == "stop"  # violated: there is nothing left to lose, and none to gain
    with pytest.raises(psyco.RunError, match="learned for another requirement"):
        psyco.Guard(same, same, "P>=0.6 [ G !hit ]", when=risk)
    with pytest.raises(psyco.RunError, match=r"a guard hands over when='slack'.* got None"):
        psyco.Guard(same, same, HIT, when=None)
    guard.reset()
    with pytest.raises(psyco.RunError, match="learned from 3 inputs per state, got 4"):
        guard.act([0.2, 0.3], {"hit": False})


def test_a_risk_survives_its_file_and_a_damaged_one_is_refused(tmp_path: Any) -> None:
    risk = fit_risk(psyco.Monitor(HIT), coins(100)).with_limit(0.25)
    file = tmp_path / "risk.json"
    file.write_text(risk.to_json())
    assert psyco.Risk.load(file) == risk
    content = json.loads(risk.to_json())
    for damage in (
        {"format": "x"},
        {"weights": [1.0]},
        {"mean": "many"},
        {"limit": "high"},
        {"calibration": [1]},
    ):
        with pytest.raises(psyco.RunError, match="damaged"):
            psyco.Risk.from_json(json.dumps(content | damage))


def test_what_no_risk_can_be_learned_from_is_refused() -> None:
    never = [each | {"hit": np.zeros(5, bool)} for each in coins(30)]
    for paths, words in ((coins(3), "at least 20"), (never, "0 of 30 recorded episodes violate")):
        with pytest.raises(psyco.RunError, match=words):
            fit_risk(psyco.Monitor(HIT), paths)
    with pytest.raises(psyco.RunError, match="0 of 30 recorded episodes violate"):
        fit_risk(psyco.Monitor(HIT), never, within=2)
    at_once = [each | {"hit": np.ones(5, bool)} for each in coins(30)]
    with pytest.raises(psyco.RunError, match="violated from the start"):
        fit_risk(psyco.Monitor(HIT), at_once, within=2)
    risk = fit_risk(psyco.Monitor(HIT), coins(100))
    for limit in (0.0, 1.5, True, "high", float("nan")):
        with pytest.raises(psyco.RunError, match="a probability above 0"):
            risk.with_limit(limit)  # type: ignore[arg-type]


def test_a_risk_is_learned_from_episodes_of_a_policy() -> None:
    risk = psyco.learn_risk(Alternating, DOMAINS["gymnasium"], "P>=0.9 [ G (!info.lucky | step <= 3) ]", episodes=200)
    assert (risk.episodes, risk.within) == (200, None) and 0 < risk.violated < 30
