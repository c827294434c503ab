"""The environment check finds what is wrong, and says what to do."""

import gymnasium
import numpy as np
import pytest

import psyco
from psyco._src.logic.parser import parse
from psyco._src.rollout.env_checker import CheckResult, check_environment
from psyco._src.rollout.execution import Execution
from tests.environments import Careless, Leaky, Local, Manufactured, Walk


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
        "speed",
    } == set(found)
    assert "reached the horizon of 12" in found["length"].message
    assert "60,000 training episodes" in found["speed"].message


def test_an_environment_that_remembers_is_found() -> None:
    found = checked(Leaky)
    assert found["determinism"].passed is False
    assert "obs at step 0" in found["determinism"].message
    assert "np_random" in found["determinism"].message


def test_a_hazard_that_is_drawn_when_the_environment_is_made_is_found() -> None:
    found = checked(Manufactured)["fresh start"]
    assert found.passed is False
    assert "repeated alone in a new environment: obs at step 0" in found.message


def test_chance_in_a_signal_of_the_requirement_is_found() -> None:
    class Secret(Walk):
        def step(self, action):
            *outcome, info = super().step(action)
            return *outcome, {**info, "cost": float(np.random.default_rng().normal())}

    assert all(each.passed for each in checked(Secret).values())  # nobody asked for the cost
    found = checked(Secret, "P>=0.9 [ G (info.cost <= 5) ]")["fresh start"]
    assert found.passed is False
    assert "info.cost at step 1" in found.message


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


def test_an_observation_outside_its_space_is_found() -> None:
    def factory() -> gymnasium.Env:
        space = gymnasium.spaces.Box(-0.1, 0.1, (2,))
        return gymnasium.wrappers.TransformObservation(Walk(), lambda obs: obs, space)

    found = checked(factory)["observations"]
    assert found.passed is False
    assert "is not in Box(-0.1, 0.1" in found.message


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
