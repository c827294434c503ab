"""A constraint that all episodes violate with equal cost gives no signal: λ stays up, with a warning."""

import logging

import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.learners.base import Generation, UpdateInfo
from psyco._src.learners.lagrangian import MIN_LAMBDA_WITHOUT_SIGNAL, floor_lambda
from psyco._src.learners.loop import PATIENCE, SignalCheck
from psyco._src.rollout.episodes import Episodes


def generations(cost, lam=0.0, shaping_cost=None):
    """Generations with these costs `[G, B]` of one constraint."""
    cost = np.asarray(cost, np.float32)[..., None]
    count, size, _ = cost.shape
    zeros = np.zeros((count, size), np.float32)
    shaping_cost = None if shaping_cost is None else np.asarray(shaping_cost, np.float32)[..., None]
    episodes = Episodes(zeros, cost, cost == 0, zeros.astype(np.int32), shaping_cost=shaping_cost)
    return Generation(episodes, UpdateInfo(np.full(count, lam, np.float32), np.zeros((count, 1), np.float32)))


def test_lambda_falls_only_for_constraints_that_distinguish_episodes():
    costs = jnp.asarray([[1.0, 1.0, 0.0, 2.0], [1.0, 3.0, 0.0, 2.0]])
    each = jnp.asarray([0.1, 0.1, 0.1, 0.9])
    # The first is violated with equal cost; the second differs; the third is always satisfied, so its λ rises anyway.
    assert floor_lambda(each, costs).tolist() == pytest.approx([MIN_LAMBDA_WITHOUT_SIGNAL, 0.1, 0.1, 0.9])


def test_there_is_one_warning_when_no_cost_has_differed_for_long():
    check = SignalCheck(["F x > 1"], shaped=True)
    ones = np.ones((PATIENCE - 1, 4))
    assert check.warning(generations(ones)) is None
    assert check.warning(generations([[1, 1, 0, 1]])) is None  # begins anew
    assert check.warning(generations(ones)) is None
    text = check.warning(generations(np.ones((1, 4))))
    assert text is not None
    assert text.startswith("F x > 1 gives no learning signal") and "λ is 0" in text and "--severity" in text
    assert check.warning(generations(np.ones((99, 4)))) is None


def test_there_is_no_warning_where_all_satisfy_or_shaping_costs_differ():
    many = 3 * PATIENCE
    assert SignalCheck(["φ"], shaped=True).warning(generations(np.zeros((many, 4)))) is None
    shaped = generations(np.ones((many, 4)), shaping_cost=np.tile([1.0, 2.0, 3.0, 4.0], (many, 1)))
    assert SignalCheck(["φ"], shaped=True).warning(shaped) is None
    assert SignalCheck(["φ"], shaped=False).warning(shaped) is not None  # snes uses the cost of the paper


@pytest.mark.more
@pytest.mark.parametrize("learner", ["safe-es", "ppo"])
def test_a_constraint_that_never_holds_does_not_silence_the_return(learner, caplog):
    settings = psyco.Settings(
        learner=learner,
        options={"population": 4, "checks": 2, "curriculum": 0.0},
        verify_every=0,
        candidates=1,
        max_episodes=20,
    )
    with caplog.at_level(logging.WARNING):
        result = psyco.synthesize("obstacle-run", "P>=0.9 [ F distance > 99 ]", episodes=180, settings=settings)
    assert min(result.metrics["lambda"][5:]) == pytest.approx(MIN_LAMBDA_WITHOUT_SIGNAL)
    assert caplog.text.count("gives no learning signal") == 1


@pytest.mark.more
def test_a_constraint_on_a_return_is_learned_from_before_it_is_ever_met():
    """By the Boolean cost alone, λ would fall to 0 at once, and nothing would be learned."""
    options = {"population": 20, "curriculum": 0.0, "gain": 1.0}
    settings = psyco.Settings(options=options, verify_every=0, candidates=1, max_episodes=20)
    result = psyco.synthesize(
        "particle-dance", 'P>=0.9 [ F ("end" & return >= -20) ]', episodes=4400, settings=settings
    )
    returns = result.metrics["deployed_return"]
    assert (result.metrics["lambda"][5:50] == 0).all()
    assert returns[-20:].mean() > returns[:20].mean() + 20
