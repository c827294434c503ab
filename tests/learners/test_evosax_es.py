"""Strategies of evosax climb, and their λ follows the constraints as in safe-es."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psyco._src.core.errors import RunError
from psyco._src.learners.evosax_es import EvosaxES
from psyco._src.learners.learner_registry import make_learner, make_options
from psyco._src.learners.loop import train
from psyco._src.logic.parser import parse
from psyco._src.rollout.episodes import Episodes

pytestmark = pytest.mark.extra("evosax")


class Bowl:
    """The return is highest at 1, and every episode violates."""

    compiled = True

    def __call__(self, theta, keys):
        ret = -jnp.mean((theta - 1.0) ** 2, axis=1)
        cost = jnp.abs(theta).mean(axis=1, keepdims=True)
        return Episodes(ret, cost, jnp.zeros(cost.shape, bool), jnp.ones(len(keys), jnp.int32))


@pytest.mark.parametrize("strategy", ["CMA_ES", "Sep_CMA_ES", "SNES", "PGPE"])
def test_each_strategy_climbs_while_return_counts_and_follows_cost_once_it_must(strategy: str) -> None:
    learner = make_learner(
        EvosaxES(strategy=strategy, gain=0.02, sigma=0.2, curriculum=0.2),
        parse("P>=0.9 [ F goal ] & C>=0.9"),
        episode_budget=4400,
    )
    assert learner.episodes_per_generation == 22
    start = learner.init(jnp.full(4, 0.3))
    state, rows = train(learner, Bowl(), jax.random.key(0), start, first=0, generations=200)
    ret, lam = np.asarray(rows.episodes.returns).mean(axis=1), np.asarray(rows.info.lam)
    assert ret[12:18].mean() > ret[:3].mean() + 0.05  # the constraint has hardly risen yet
    assert lam[0] == 1.0
    assert lam[-1] == 0.0  # nothing ever satisfies
    cost = np.asarray(rows.episodes.cost)[:, :, 0].mean(axis=1)
    assert cost[-5:].mean() < cost[12:18].mean() - 0.05
    assert np.isfinite(np.asarray(learner.deployed(state))).all()


def test_unknown_strategies_and_bad_options_are_named() -> None:
    with pytest.raises(RunError, match="did you mean 'CMA_ES'"):
        make_options("evosax", {"strategy": "CMAES"})
    assert EvosaxES(strategy="CMA_ES", population=7).population == 7
    with pytest.raises(RunError, match="must be even"):
        EvosaxES(strategy="PGPE", population=7)
    with pytest.raises(RunError, match="gain must be a number above 0"):
        EvosaxES(gain=-1.0)
