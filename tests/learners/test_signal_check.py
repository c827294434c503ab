"""A demand that all episodes fail alike tells learning nothing: the return keeps its weight, and one is told."""

import logging

import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.learners.base import Generation, UpdateInfo
from psyco._src.learners.lagrangian import FLOOR, heard
from psyco._src.learners.signal_check import PATIENCE, SignalCheck
from psyco._src.rollout.episodes import Episodes


def generations(cost, lam=0.0, grade=None):
    """Generations with these costs `[G, B]` of one demand."""
    cost = np.asarray(cost, np.float32)[..., None]
    count, size, _ = cost.shape
    zeros = np.zeros((count, size), np.float32)
    grade = None if grade is None else np.asarray(grade, np.float32)[..., None]
    episodes = Episodes(zeros, cost, cost == 0, zeros.astype(np.int32), grade=grade)
    return Generation(episodes, UpdateInfo(np.full(count, lam, np.float32), np.zeros((count, 1), np.float32)))


def test_lambda_falls_only_for_demands_that_distinguish_episodes():
    costs = jnp.asarray([[1.0, 1.0, 0.0, 2.0], [1.0, 3.0, 0.0, 2.0]])
    each = jnp.asarray([0.1, 0.1, 0.1, 0.9])
    # The first is failed alike; the second differs; the third is met by all, so its λ rises by itself.
    assert heard(each, costs).tolist() == pytest.approx([FLOOR, 0.1, 0.1, 0.9])


def test_one_is_told_once_when_no_cost_has_differed_for_long():
    silence = SignalCheck(["F x > 1"], graded=True)
    ones = np.ones((PATIENCE - 1, 4))
    assert silence.heard(generations(ones)) is None
    assert silence.heard(generations([[1, 1, 0, 1]])) is None  # begins anew
    assert silence.heard(generations(ones)) is None
    said = silence.heard(generations(np.ones((1, 4))))
    assert said is not None
    assert (
        said.startswith("λ is 0 and no episode's cost differs") and "F x > 1" in said and "--severity" in said
    )
    assert silence.heard(generations(np.ones((99, 4)))) is None


def test_nothing_is_said_where_all_satisfy_or_grades_differ():
    many = 3 * PATIENCE
    assert SignalCheck(["φ"], graded=True).heard(generations(np.zeros((many, 4)))) is None
    graded = generations(np.ones((many, 4)), grade=np.tile([1.0, 2.0, 3.0, 4.0], (many, 1)))
    assert SignalCheck(["φ"], graded=True).heard(graded) is None
    assert SignalCheck(["φ"], graded=False).heard(graded) is not None  # snes goes by the cost of the paper


@pytest.mark.slow  # as the next one, it compiles a run
@pytest.mark.parametrize("learner", ["safe-es", "ppo"])
def test_a_demand_that_never_holds_does_not_silence_the_return(learner, caplog):
    options = {"population": 4, "checks": 2, "curriculum": 0.0}
    with caplog.at_level(logging.WARNING):
        result = psyco.synthesize(
            "obstacle-run", "P>=0.9 [ F distance > 99 ]",
            learner=learner, learner_options=options, episodes=180, verify_every=0, candidates=1, max_episodes=20,
        )  # fmt: skip
    assert min(result.metrics["lambda"][5:]) == pytest.approx(FLOOR)
    assert caplog.text.count("no episode's cost differs") == 1


@pytest.mark.slow
def test_a_demand_for_a_return_is_learned_from_before_it_is_ever_met():
    """By the Boolean cost alone, λ would fall to 0 at once, and nothing would be learned."""
    options = {"population": 20, "curriculum": 0.0, "gain": 1.0}
    result = psyco.synthesize(
        "particle-dance", 'P>=0.9 [ F ("end" & return >= -20) ]', learner_options=options, episodes=4400,
        verify_every=0, candidates=1, max_episodes=20,
    )  # fmt: skip
    returns = result.metrics["deployed_return"]
    assert (result.metrics["lambda"][5:50] == 0).all()
    assert returns[-20:].mean() > returns[:20].mean() + 20
