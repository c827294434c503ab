"""Options objects of learners: names, defaults, errors, and the task that makes them learners."""

import dataclasses

import jax.numpy as jnp
import pytest

import psyco
from psyco._src.core.options import changed
from psyco._src.learners.lagrangian import LagrangianLearner
from psyco._src.learners.learner_registry import (
    LEARNERS,
    learner_class,
    learner_name,
    learner_options,
    make_learner,
    make_options,
    make_task,
)
from psyco._src.learners.ppo import PPO
from psyco._src.learners.safe_es import SafeES
from psyco._src.logic.parser import parse

REQUIREMENT = parse("P>=0.9 [ F goal ] & C>=0.95; P>=0.5 [ G goal ]")


@pytest.mark.parametrize("name", [name for name in LEARNERS if name != "evosax"])
def test_a_name_means_the_default_options(name: str) -> None:
    options = make_options(name, {})
    assert options == learner_class(name)() and hash(options) == hash(learner_class(name)())
    assert learner_name(options) == name
    assert changed(options) == {}
    assert {field.name for field in dataclasses.fields(options)} == {"task", *learner_options(name)}
    assert all(declaration.help.endswith(".") for declaration in learner_options(name).values())


def test_given_options_differ_from_the_defaults_and_wrong_ones_are_named() -> None:
    assert changed(make_options("ppo", {"clip": 0.1, "std": 0.5})) == {"clip": 0.1}
    with pytest.raises(psyco.RunError, match=r"ppo has no option 'cilp'.*did you mean 'clip'"):
        make_options("ppo", {"cilp": 0.1})
    with pytest.raises(psyco.RunError, match=r"clip must be a number above 0, got '0\.1'"):
        make_options("ppo", {"clip": "0.1"})


def test_automatic_options_are_none_until_the_task_is_known() -> None:
    options = SafeES(sigma=0.2)
    assert options.population is None
    learner = make_learner(options, REQUIREMENT, episode_budget=600_000)
    assert isinstance(learner, SafeES)
    assert (learner.population, learner.sigma, learner.known_task.p_req) == (200, 0.2, (0.9, 0.5))
    assert learner == make_learner(options, REQUIREMENT, episode_budget=600_000)
    assert "task" not in repr(learner)


def test_a_learner_with_the_controller_of_lambda_needs_no_more_than_a_population() -> None:
    """Only what `Learner` asks for is missing then, and it is named."""
    with pytest.raises(psyco.RunError, match="LagrangianLearner lacks init, propose, update, deployed"):
        make_learner(LagrangianLearner(population=40), REQUIREMENT)
    with pytest.raises(psyco.RunError, match="LagrangianLearner must give population a default"):
        make_learner(LagrangianLearner(), REQUIREMENT)
    learner = LagrangianLearner(population=40, task=make_task(REQUIREMENT, [], episode_budget=4400))
    assert (learner.checks, learner.generations, learner.gain) == (4, 100, 0.1)


def test_options_without_a_task_do_not_learn() -> None:
    with pytest.raises(psyco.RunError, match="SafeES has options but no task"):
        SafeES(population=4, checks=1, gain=0.1).init(jnp.zeros(3))
    with pytest.raises(psyco.RunError, match="PPO has options but no task"):
        PPO(std=0.5).init(jnp.zeros(3))
