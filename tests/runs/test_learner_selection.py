"""Where no learner is named, the one that fits is chosen, and the run says which and why."""

import tomllib
from pathlib import Path

import pytest

import psyco
from psyco._src.rollout.throughput import Throughput
from psyco._src.runs.store import load_about
from psyco._src.runs.learner_selection import FEW, SLOW, choose
from psyco._src.runs.budget import CONTROL, CONTROLLED, LEAST, PAPER
from psyco._src.runs.settings import AUTO, Settings
from tests.environments import Walk
from tests.making import prepared

REQUIREMENT = "P>=0.5 [ G (abs(obs[0]) <= 2.5) ] & C>=0.9"


def never() -> Throughput:
    raise AssertionError("nobody should measure")


@pytest.fixture(scope="module")
def walk() -> psyco.GymDomain:
    return psyco.make(Walk, horizon=100)  # type: ignore[return-value]


def test_what_is_named_stays(walk: psyco.GymDomain) -> None:
    assert choose(Settings(learner="snes"), walk, never) == ("snes", "")


def test_compiled_domains_and_fixed_biases_get_an_evolution_strategy(walk: psyco.GymDomain) -> None:
    assert choose(Settings(), psyco.make("particle-dance"), never).learner == "safe-es"
    assert choose(Settings(bias="one"), walk, never).learner == "safe-es"


def test_few_steps_and_slow_steps_are_learned_from_many_times(walk: psyco.GymDomain) -> None:
    assert choose(Settings(steps=FEW), walk, never).learner == "sac"
    assert choose(Settings(episodes=FEW // walk.horizon), walk, never).learner == "sac"
    for rate, learner in ((SLOW - 1, "sac"), (SLOW, "ppo")):
        found = choose(Settings(steps=10 * FEW), walk, lambda rate=rate: Throughput(rate, 50.0, 4))
        assert found.learner == learner
        assert f"{10 * FEW:,} steps at {rate:,.0f} per second" in found.reason


def test_defaults_fit_the_learner_and_the_domain(walk: psyco.GymDomain) -> None:
    control = prepared(walk, REQUIREMENT, learner="ppo", episodes=100)
    assert control.settings.hidden == control.network.hidden == CONTROL
    wanted = CONTROLLED | LEAST
    assert {name: getattr(control.learner, name) for name in wanted} == wanted
    repeating = prepared(walk, REQUIREMENT, learner="sac", episodes=100)
    assert {name: getattr(repeating.learner, name) for name in CONTROLLED} == CONTROLLED
    own = prepared(walk, REQUIREMENT, learner="ppo", episodes=100, hidden=8, margin=0.1)
    assert (own.network.hidden, own.learner.margin) == (8, 0.1)  # type: ignore[attr-defined]
    paper = prepared(psyco.make("particle-dance"), "P>=0.8 [ G distance >= 0.1 ] & C>=0.9", learner="ppo")
    assert (paper.network.hidden, paper.learner.margin) == (PAPER, 0.3)  # type: ignore[attr-defined]
    searching = prepared(walk, REQUIREMENT, learner="safe-es", episodes=100)
    assert (searching.network.hidden, searching.learner.margin) == (PAPER, 0.3)  # type: ignore[attr-defined]
    assert Settings().hidden == AUTO


def test_a_run_keeps_which_learner_it_was_and_why(tmp_path: Path) -> None:
    domain = psyco.make("tests.environments:Walk", horizon=5)
    run = psyco.start(domain, REQUIREMENT, tmp_path / "run", episodes=10, candidates=1, max_episodes=5)
    assert tomllib.loads((run.folder / "config.toml").read_text())["learner"]["name"] == "sac"
    assert (
        load_about(run.folder).learner
        == "learner sac: of at most 50 steps each must be learned from many times"
    )
    assert "learner sac: of at most 50 steps" in (run.folder / "run.log").read_text()
