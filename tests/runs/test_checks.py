"""Checks while learning say what the episodes let one believe; a verdict is for tests."""

import numpy as np
import pytest

import psyco
from tests.making import learned, prepared

# One satisfying episode, and Alg. BV says VIOLATED: the uniform prior alone puts 99% below 0.99.
STRICT = "P>=0.99 [ G step >= 0 ] & C>=0.95"


def checks(**settings):
    problem = prepared(
        psyco.make("particle-dance", horizon=3), STRICT, episodes=100, verify_every=50, hidden=2, **settings
    )
    metrics = learned(problem).metrics
    return {name: column[~np.isnan(metrics["verified_share"])] for name, column in metrics.items()}


@pytest.mark.more
def test_the_paper_keeps_its_verdict_by_the_prior():
    found = checks(learner="snes", population=10)
    assert set(found["verdict"]) == {"VIOLATED"}
    assert set(found["verified_episodes"]) == {1}


@pytest.mark.parametrize("learner", ["safe-es", pytest.param("ppo", marks=pytest.mark.more)])
@pytest.mark.more
def test_other_learners_show_a_confidence_and_an_interval(learner):
    found = checks(learner=learner)
    assert set(found["verdict"]) == {""}
    assert set(found["verified_episodes"]) == {100}
    assert (found["verified_share"] == 1.0).all()
    # Beta(101, 1): P(p >= 0.99) = 1 - 0.99^101, and 2.5% lie below 0.025^(1/101).
    assert found["verified_confidence"] == pytest.approx(1 - 0.99**101)
    assert found["verified_lower"] == pytest.approx(0.025 ** (1 / 101))
    assert found["verified_upper"] == pytest.approx(0.975 ** (1 / 101))


def test_who_learns_until_satisfied_is_told_a_verdict():
    found = checks(learner="safe-es", until_satisfied=True)
    assert found["verdict"][-1] == "SATISFIED"
