"""The preview of a plan agrees with `psyco plan`."""

import time

import numpy as np
import pytest

from psyco._src.logic.requirement import outcome_requirement
from psyco._src.studio.plan_preview import MAX_PREVIEW, characteristics, plan_preview
from psyco._src.verification.methods import make_tests
from psyco._src.verification.operating_characteristics import operating_characteristics


@pytest.mark.parametrize(("p_req", "confidence", "episodes"), [(0.85, 0.98, 300), (0.5, 0.9, 200), (0.95, 0.95, 250)])
def test_the_preview_agrees_with_the_exact_plan(p_req, confidence, episodes):
    (test,) = make_tests(
        "anytime",
        outcome_requirement(f"P>={p_req} & C>={confidence}"),
        value_ranges=[],
        max_episodes=episodes,
        share=0.5,
    )
    p = np.array([p_req - 0.2, p_req, p_req + 0.5 * (1 - p_req), p_req + 0.8 * (1 - p_req), 1.0])
    exact = operating_characteristics(test, p, episodes)
    accepted, rejected, expected = characteristics(test, p, episodes)
    assert exact.satisfied.max() > 0.9 and exact.violated.max() > 0.3  # the comparison is not about nothing
    np.testing.assert_allclose(accepted, exact.satisfied, atol=0.02)
    np.testing.assert_allclose(rejected, exact.violated, atol=0.02)
    np.testing.assert_allclose(expected, exact.episodes, rtol=0.02)


def test_a_move_of_a_slider_takes_less_than_200_milliseconds_of_computing():
    def seconds(*asked):
        began = time.process_time()
        plan_preview(*asked)
        return time.process_time() - began

    for asked in ((0.85, 0.98, MAX_PREVIEW), (0.5, 0.8, MAX_PREVIEW), (0.99, 0.999, MAX_PREVIEW)):
        assert min(seconds(*asked) for _ in range(3)) < 0.2


def test_the_shortest_certificate():
    # If all satisfy, the evidence is ((1/a)^(n+1) - 1) / ((n+1)(1/a - 1)), and it has to reach 1/0.01 (half of 2%).
    def evidence(n, a=0.85):
        return (a ** -(n + 1) - 1) / ((n + 1) * (1 / a - 1))

    shortest = next(n for n in range(1, 1000) if evidence(n) >= 100)
    assert plan_preview(0.85, 0.98, 500)["shortest"] == shortest
    assert plan_preview(0.85, 0.98, shortest - 1)["shortest"] is None
