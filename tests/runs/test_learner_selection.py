"""The automatic choice of a learner, which the run reports with its reason."""

import tomllib
from pathlib import Path

import pytest

import psyco
from psyco._src.rollout.throughput import Throughput
from psyco._src.runs.budget import (
    CONTROL_HIDDEN,
    MAX_OFF_POLICY_STEPS,
    PAPER_HIDDEN,
    SLOW_SIMULATOR,
    select_learner,
)
from psyco._src.runs.settings import Settings
from psyco._src.runs.store import load_run_info
from tests.environments import Walk
from tests.making import prepared

REQUIREMENT = "P>=0.5 [ G (abs(obs[0]) <= 2.5) ] & C>=0.9"


def never() -> Throughput:
    raise AssertionError("the simulator is measured")


@pytest.fixture(scope="module")
def walk() -> psyco.GymDomain:
    return psyco.make(Walk, horizon=100)  # type: ignore[return-value]


def test_a_named_learner_stays(walk: psyco.GymDomain) -> None:
    assert select_learner(Settings(learner="snes"), walk, never) == ("snes", "")


def test_compiled_domains_and_fixed_biases_get_an_evolution_strategy(walk: psyco.GymDomain) -> None:
    assert select_learner(Settings(), psyco.make("particle-dance"), never).learner == "safe-es"
    assert select_learner(Settings(bias="one"), walk, never).learner == "safe-es"


def test_few_or_slow_steps_get_an_off_policy_learner(walk: psyco.GymDomain) -> None:
    assert select_learner(Settings(steps=MAX_OFF_POLICY_STEPS), walk, never).learner == "sac"
    assert select_learner(Settings(episodes=MAX_OFF_POLICY_STEPS // walk.horizon), walk, never).learner == "sac"
    for rate, learner in ((SLOW_SIMULATOR - 1, "sac"), (SLOW_SIMULATOR, "ppo")):
        found = select_learner(
            Settings(steps=10 * MAX_OFF_POLICY_STEPS), walk, lambda rate=rate: Throughput(rate, 50.0, 4)
        )
        assert found.learner == learner
        assert f"{10 * MAX_OFF_POLICY_STEPS:,} steps at {rate:,.0f} per second" in found.reason


def test_defaults_fit_the_learner_and_the_domain(walk: psyco.GymDomain) -> None:
    control = prepared(walk, REQUIREMENT, learner="ppo", episodes=100)
    assert control.settings.hidden == control.network.hidden == CONTROL_HIDDEN
    wanted = {"margin": 0.5, "control": "multiplier", "proportional_gain": 2.0, "curriculum": 0.25}
    assert {name: getattr(control.learner, name) for name in wanted} == wanted
    repeating = prepared(walk, REQUIREMENT, learner="sac", episodes=100)
    assert {name: getattr(repeating.learner, name) for name in wanted} == wanted
    own = prepared(walk, REQUIREMENT, learner="ppo", episodes=100, hidden=8, margin=0.1)
    assert (own.network.hidden, own.learner.margin) == (8, 0.1)  # type: ignore[attr-defined]
    paper = prepared(psyco.make("particle-dance"), "P>=0.8 [ G distance >= 0.1 ] & C>=0.9", learner="ppo")
    assert (paper.network.hidden, paper.learner.margin) == (PAPER_HIDDEN, 0.3)  # type: ignore[attr-defined]
    searching = prepared(walk, REQUIREMENT, learner="safe-es", episodes=100)
    assert (searching.network.hidden, searching.learner.margin) == (PAPER_HIDDEN, 0.3)  # type: ignore[attr-defined]
    assert Settings().hidden is None


@pytest.mark.more
def test_a_run_stores_its_learner_and_the_reason(tmp_path: Path) -> None:
    domain = psyco.make("tests.environments:Walk", horizon=5)
    run = psyco.start(
        domain,
        REQUIREMENT,
        tmp_path / "run",
        episodes=10,
        settings=psyco.Settings(candidates=1, max_episodes=5),
    )
    assert tomllib.loads((run.folder / "config.toml").read_text())["learner"]["name"] == "sac"
    assert load_run_info(run.folder).learner == "learner sac: of at most 50 steps each must be learned from many times"
    assert "learner sac: of at most 50 steps" in (run.folder / "run.log").read_text()
