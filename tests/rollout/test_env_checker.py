"""The environment check finds what is wrong, and says what to do."""

from collections import UserDict
from typing import Any

import gymnasium
import numpy as np
import pytest

import psyco
from psyco._src.logic.parser import parse
from psyco._src.policies.network import network_for
from psyco._src.rollout.env_checker import CheckResult, check_environment, find_faults
from psyco._src.rollout.execution import Execution
from psyco._src.rollout.sampler import make_sampler
from tests.environments import Careless, Leaky, Local, Manufactured, Mixed, Walk


def checked(factory: object, requirement: str | None = None, **options: object) -> dict[str, CheckResult]:
    domain = psyco.make(factory, horizon=12, **options)  # type: ignore[arg-type]
    found = check_environment(domain, parse(requirement) if requirement else None)  # type: ignore[arg-type]
    return {each.name: each for each in found}


def test_a_sound_environment_passes() -> None:
    found = checked(Walk, "P>=0.9 [ G (info.cost <= 0) ]")
    assert all(each.passed for each in found.values()), found
    assert {
        "spaces",
        "signals",
        "episodes",
        "observations",
        "determinism",
        "fresh start",
        "seeds",
        "length",
    } == set(found)
    assert "reached the horizon of 12" in found["length"].message
    assert "steps per second in one process" in checked(Walk)["speed"].message


def test_an_environment_that_remembers_is_found() -> None:
    found = checked(Leaky)
    assert found["determinism"].passed is False
    assert "obs at step 0" in found["determinism"].message
    assert "np_random" in found["determinism"].message


def test_a_hazard_that_is_drawn_when_the_environment_is_made_is_found() -> None:
    found = checked(Manufactured)["fresh start"]
    assert found.passed is False
    assert "repeated alone in a new environment: obs at step 0" in found.message


class Secret(Walk):
    """Its cost is drawn from nowhere."""

    def step(self, action):
        *outcome, info = super().step(action)
        return *outcome, {**info, "cost": float(np.random.default_rng().normal())}


def test_chance_in_a_signal_of_the_requirement_is_found() -> None:
    assert all(each.passed for each in checked(Secret).values())  # nobody asked for the cost
    found = checked(Secret, "P>=0.9 [ G (info.cost <= 5) ]")["fresh start"]
    assert found.passed is False
    assert "info.cost at step 1" in found.message


@pytest.mark.parametrize(
    ("factory", "fault"),
    [(Walk, None), (Leaky, "determinism"), (Manufactured, "fresh start"), (Secret, "determinism")],
)
def test_a_synthesis_says_at_once_what_a_check_would_say(factory: object, fault: str | None) -> None:
    """Without a change of the run, and before anything is learned."""
    domain = psyco.make(factory, horizon=12)  # type: ignore[arg-type]
    sampler = make_sampler(domain, network_for(domain), parse("P>=0.9 [ G (info.cost <= 5) ]"))
    found = find_faults(sampler.job, sampler.job.network.size)  # type: ignore[attr-defined]
    assert [each.name for each in found][:1] == ([] if fault is None else [fault])


def test_a_fault_is_shown_before_learning(caplog: pytest.LogCaptureFixture) -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    settings = psyco.Settings(hidden=4, learner="safe-es", normalization="none", options={"population": 2, "checks": 1})
    for factory in (Leaky, Walk):
        caplog.clear()
        with pytest.raises(Stop):
            psyco.synthesize(
                psyco.make(factory, horizon=5), "P>=0.5 [ G obs[0] <= 9 ]", episodes=30, settings=settings,
                callbacks=[psyco.Callback(on_progress=stop)],
            )  # fmt: skip
        assert ("fails `psyco check`, determinism: the episode with seed" in caplog.text) == (factory is Leaky)


def test_what_cannot_repeat_by_declaration_passes_with_a_remark() -> None:
    found = checked(Careless, seeded=False)
    assert found["determinism"].passed is None
    assert "as declared (seeded=False)" in found["determinism"].message


@pytest.mark.more
def test_chance_that_is_drawn_per_process_is_found_with_workers() -> None:
    domain = psyco.make(Local, horizon=12)
    found = {each.name: each for each in check_environment(domain, execution=Execution(workers=2))}
    assert found["determinism"].passed
    assert found["fresh start"].passed is False
    assert "in another process" in found["fresh start"].message


def test_global_randomness_is_found() -> None:
    noise = np.random.default_rng()

    def factory() -> gymnasium.Env:
        space = Walk().observation_space
        return gymnasium.wrappers.TransformObservation(
            Walk(), lambda obs: obs + noise.normal(0, 0.01, 2).astype("f4"), space
        )

    assert checked(factory)["determinism"].passed is False


TIGHT = gymnasium.spaces.Box(-0.1, 0.1, (2,))


@pytest.mark.parametrize(
    ("space", "shown", "verdict", "where"),
    [
        (TIGHT, lambda obs: obs, None, "bounds"),  # as in LunarLander, which turns further than it says
        (TIGHT, lambda obs: obs.tolist(), None, "bounds"),  # a list is an observation for Gymnasium
        (gymnasium.spaces.Box(-10, 10, (2,), np.float16), lambda obs: obs, False, "shape and dtype"),
        (TIGHT, lambda obs: obs if obs[1] < 2 else obs.astype(np.float64), False, "shape and dtype"),  # after these
        (gymnasium.spaces.Box(0, 1, (2,), np.int8), lambda obs: np.array([3, 0], np.int8), None, "bounds"),
        (gymnasium.spaces.Dict(x=TIGHT), lambda obs: {"x": obs}, None, "bounds"),
        (gymnasium.spaces.Dict(x=TIGHT), lambda obs: UserDict(x=0 * obs), False, "shape and dtype"),
        (gymnasium.spaces.Tuple((TIGHT,)), lambda obs: (obs,), None, "bounds"),
    ],
)
def test_an_observation_outside_its_space_is_found(space: Any, shown: Any, verdict: bool | None, where: str) -> None:
    def factory() -> gymnasium.Env:
        return gymnasium.wrappers.TransformObservation(Walk(), shown, space)

    found = checked(factory)["observations"]
    assert found.passed is verdict
    assert f"is not in {space}: check {'the ' * (verdict is None)}{where} of the space" in found.message


@pytest.mark.parametrize(("fault", "message"), [("nan", "not finite"), ("raise", "fell over"), ("shape", "shape")])
def test_a_fault_is_found(fault: str, message: str) -> None:
    found = checked(Walk, fault=fault, at=1)
    assert found["episodes"].passed is False
    assert message in found["episodes"].message
    assert "at step 1" in found["episodes"].message


def test_a_signal_that_is_not_there_is_found() -> None:
    assert checked(Walk, "P>=0.9 [ G (hight <= 0) ]")["signals"].passed is False
    assert checked(Walk, "P>=0.9 [ G (info.kost <= 0) ]")["signals"].passed is None
    assert checked(Walk, "P>=0.9 [ F<=30 (obs[0] <= 0) ]")["signals"].passed is False


def test_a_requirement_that_hardly_means_the_intended_is_noted() -> None:
    domain = psyco.make(Walk, horizon=400)
    asked = "P>=0.9 [ abs(obs[0]) <= 2 ]; P>=0.9 [ G obs[0] >= -20 ]"
    found = [each for each in check_environment(domain, parse(asked)) if each.passed is None]
    assert [each.name for each in found] == ["requirement", "requirement", "early ends"]
    assert "first state" in found[0].message and "holds in every episode" in found[1].message
    assert "P>=0.9 [ F step >= 400 ]" in found[2].message
    assert not [each for each in check_environment(domain, parse("P>=0.9 [ F obs[0] > 2 ]")) if each.passed is None]


def test_the_parts_of_an_observation_are_listed() -> None:
    (found,) = (each for each in check_environment(psyco.make(Mixed, horizon=3)) if each.name == "observed")
    assert found.message == "obs.a is obs[0..2] as zeros and a one; obs.b[0..3] is obs[3..6]"
