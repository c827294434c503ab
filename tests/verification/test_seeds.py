"""Where chance does not come from the seed, episodes may not be what the tests assume: the certificate says so."""

import os

import pytest

import psyco
from tests.environments import Careless, Deaf, Leaky, Walk, to_the_left
from tests.making import with_execution

REQUIRE = "P>=0.5 [ G (obs[0] <= 1) ] & C>=0.9"


def notes(environment, **execution):
    domain = psyco.make(environment, horizon=6)
    return " ".join(
        psyco.verify(to_the_left, domain, REQUIRE, **with_execution(method="fixed", max_episodes=20, **execution)).notes
    )


def test_an_environment_with_chance_from_its_seed_needs_no_note():
    assert "seed" not in notes(Walk)


@pytest.mark.parametrize("environment", [Careless, Leaky])
def test_the_same_seed_with_two_outcomes_is_noted(environment):
    said = notes(environment)
    assert "two different episodes" in said
    assert "independent is in doubt" in said


def test_chance_in_what_is_judged_alone_is_noted():
    class Secret(Walk):
        """What it reports comes from nowhere; what it shows comes from its seed."""

        def step(self, action):
            *outcome, info = super().step(action)
            return *outcome, {**info, "cost": float.fromhex(os.urandom(4).hex())}

    domain = psyco.make(Secret, horizon=6)
    found = psyco.verify(to_the_left, domain, "P>=0.5 [ G (info.cost >= 0) ] & C>=0.9", max_episodes=20)
    assert "two different episodes" in " ".join(found.notes)


def test_a_seed_that_makes_no_difference_is_noted():
    said = notes(Deaf)
    assert "the same episode: it may ignore its seed" in said
    assert "independent is in doubt" in said


@pytest.mark.slow  # a process
def test_an_environment_that_is_otherwise_in_another_process_is_noted():
    assert "two different episodes" in notes(Deaf, workers=2)
