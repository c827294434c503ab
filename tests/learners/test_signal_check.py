"""Warnings while learning: a constraint without a signal, whose λ stays up, and a return lost to the constraints."""

import logging

import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.learners.base import Generation, UpdateInfo
from psyco._src.learners.lagrangian import MIN_LAMBDA_WITHOUT_SIGNAL, floor_lambda
from psyco._src.learners.loop import PATIENCE, ReturnCheck, SignalCheck
from psyco._src.learners.metrics import Metrics
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


# ---- a return lost to the constraints -------------------------------------------------------------------------


def warnings_of(returns, satisfied, lam, *, p_req=0.9, **settings):
    """Return the warnings of 100 generations with noisy returns, and the generation in which each comes."""
    returns = np.broadcast_to(returns, 100) + np.random.default_rng(0).normal(0, 0.1, 100)
    columns = {"return": returns, "satisfied": np.broadcast_to(satisfied, 100), "lambda": np.broadcast_to(lam, 100)}
    check = ReturnCheck(100, p_req=p_req, **{"from_start": True, "has_margin": True, **settings})
    rows = (Metrics({name: column[i : i + 1] for name, column in columns.items()}) for i in range(100))
    return [(i, text) for i, row in enumerate(rows) for text in check.warnings(row)]


RISE = np.linspace(-20.0, 0.0, 100)


def test_a_lambda_of_almost_nothing_for_a_fifth_of_learning_is_said_once() -> None:
    [(when, text)] = warnings_of(RISE, 0.5, np.where(np.arange(100) < 30, 1.0, 0.0))
    assert when == 49 and "for a fifth of learning" in text and "--from" in text
    assert not warnings_of(RISE, 0.5, np.where(np.arange(100) % 19, 0.0, 0.1)), "it comes back in time"
    assert "0.01 for a fifth" in warnings_of(RISE, 0.5, 0.01)[0][1]
    assert not warnings_of(RISE, 0.5, 0.05)


def test_a_return_that_stands_still_where_it_began_while_all_satisfy_is_said_once() -> None:
    [(when, text)] = warnings_of(-2.0, 1.0, 0.9)
    assert 39 <= when < 60 and "stands still at -" in text and "margin" in text
    assert not warnings_of(RISE, 1.0, 0.9)
    assert not warnings_of(np.minimum(RISE, -15.0), 1.0, 0.9), "it has improved, and is as good as it gets"
    steep = np.where(np.arange(100) < 1, -1000.0, 8.0)
    assert not warnings_of(steep, 1.0, 0.9), "it was learned in the first generation"
    seldom = np.where(np.arange(1, 101) % 6, np.minimum(RISE, -15.0), 900.0)
    assert not warnings_of(seldom, 1.0, 0.9), "it has improved, whatever the spread of single episodes is"
    assert not warnings_of(-2.0, 0.99, 0.9)
    assert not warnings_of(-2.0, 1.0, 0.9, from_start=False), "a policy to start from may be as good as it gets"
    assert not warnings_of(-2.0, 1.0, 1.0, p_req=None), "nothing is required"


def test_a_learner_without_a_margin_is_not_told_to_change_it() -> None:
    [(_, with_margin)] = warnings_of(-2.0, 1.0, 0.9)
    [(_, without)] = warnings_of(-2.0, 1.0, 0.9, has_margin=False)
    assert "--option margin=0.1" in with_margin and "margin" not in without and "To help: use another" in without


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_return_that_falls_while_there_is_room_to_spare_is_said_once(sign) -> None:
    falling = sign * np.where(np.arange(100) < 50, RISE, -10.0 - (np.arange(100) - 50.0) / 3.0)
    [(when, text)] = warnings_of(falling, 0.99, 0.5, sign=sign)
    assert when < 99 and "become worse" in text and "room to spare" in text
    assert not warnings_of(falling, 0.93, 0.5, sign=sign), "the constraints need what they take"
    assert not warnings_of(sign * RISE, 0.99, 0.5, sign=sign)
