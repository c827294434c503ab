"""Exploration that is shared by actor-critics: held noise, and how its share of the episodes follows its success."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.learners.actor_critic import HELD_SHARES
from psyco._src.learners.base import Proposal
from psyco._src.learners.ppo import PPO
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Episodes
from tests.learners.bind import bind

BOX = psyco.Continuous((-1.0, -1.0), (1.0, 1.0))
FREE: dict[str, Any] = {"network": Network(3, 2), "actions": BOX, "horizon": 50, "population": 4, "checks": 2}
BOUND = FREE | {"p_req": (0.9,), "c_req": (0.95,)}


def share_after(task: dict[str, Any], returns: list[float], costs: list[float], lam: float, held: int = 1) -> float:
    """Return the share after 4 exploring episodes, of which the first `held` hold their noise, and 2 checks."""
    learner, bounds = bind(PPO, **task, hold=20), len(task.get("p_req", ()))
    cost = jnp.asarray(costs, jnp.float32)[:, None][:, :bounds]
    episodes = Episodes(jnp.asarray(returns), cost, cost <= 0, jnp.full(6, 50, jnp.int32))
    proposal = Proposal(jnp.zeros((6, 1)), None, hold=jnp.where(jnp.arange(6) < held, 20, 1))
    share, is_best = learner.updated_held(jnp.float32(0.2), proposal, episodes, jnp.full(bounds, lam), None)
    assert bool(is_best) == (float(share) > 0.3)
    return float(share)


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ([9, 1, 2, 3, 4, 5], 0.4),
        ([4, 1, 2, 3, 4, 5], 0.1),  # better than white noise, but not than the policy without noise
        ([4, 1, 9, 9, 3, 3], 0.1),  # the other way round
        ([7, 7, 7, 7, 7, 7], 0.2),  # nothing is known
    ],
)
def test_the_share_of_held_noise_follows_its_success(returns: list[float], expected: float) -> None:
    assert share_after(FREE, returns, [0.0] * 6, 1.0) == pytest.approx(expected)
    turned = [-each for each in returns]
    assert share_after(FREE | {"sign": -1.0}, turned, [0.0] * 6, 1.0) == pytest.approx(expected)
    assert share_after(FREE, returns, [0.0] * 6, 1.0, held=0) == pytest.approx(0.2), "there was none to judge"


def test_costs_count_by_lambda() -> None:
    returns, costs = [9.0, 1.0, 2.0, 3.0, 4.0, 5.0], [8.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert [share_after(BOUND, returns, costs, lam) for lam in (1.0, 0.0)] == pytest.approx([0.4, 0.1])
    assert share_after(BOUND, returns[::-1], [0.0, *[8.0] * 5], 0.0) == pytest.approx(0.4)


def test_the_share_of_held_noise_has_limits_and_begins_with_one_episode() -> None:
    begin = [float(bind(PPO, **(FREE | {"population": count})).initial_held()) for count in (1, 2, 8, 100)]
    assert begin == pytest.approx([0.5, 0.5, 0.125, 0.05])
    learner = bind(PPO, **FREE, hold=20)
    row, share = jnp.arange(6), jnp.float32(0.3)
    for returns, limit in (((row == 0) * 1.0, HELD_SHARES[1]), ((row > 0) * 1.0, HELD_SHARES[0])):
        episodes = Episodes(returns, jnp.zeros((6, 0)), jnp.ones((6, 0), bool), jnp.full(6, 50, jnp.int32))
        proposal = Proposal(jnp.zeros((6, 1)), None, hold=jnp.where(row < 1, 20, 1))
        for _ in range(6):
            share, _ = learner.updated_held(share, proposal, episodes, jnp.ones(0), None)
        assert float(share) == pytest.approx(limit)


def test_the_number_of_episodes_with_held_noise_is_their_share_on_average() -> None:
    """Of 4 exploring episodes 1.2 hold their noise: off by more than 0.1 in 2,000 generations by chance below 1e-6."""
    learner = bind(PPO, **FREE, hold=20)

    def counts(share: float) -> Any:
        def one(key: Any) -> Any:
            hold = learner._episodes(key, jnp.zeros(1), jnp.ones(2), jnp.float32(share)).hold
            assert hold is not None
            return hold

        return np.asarray(jax.vmap(one)(jax.random.split(jax.random.key(0), 2000)))

    hold = counts(0.3)
    assert set(np.unique(hold)) == {1, 20}
    number = (hold > 1).sum(axis=1)
    assert set(number) == {1, 2}
    assert number.mean() == pytest.approx(1.2, abs=0.1)
    assert not (hold[:, 4:] > 1).any(), "checks have no noise"
    assert (counts(0.25) > 1).sum(axis=1).tolist() == [1] * 2000
    louder = learner._episodes(jax.random.key(0), jnp.zeros(1), jnp.array([0.5, 2.0]), jnp.float32(0.25), least=1.0)
    assert np.asarray(louder.std).tolist() == [[1.0, 2.0], *[[0.5, 2.0]] * 3, *[[0.0, 0.0]] * 2]
    assert bind(PPO, **FREE)._episodes(jax.random.key(0), jnp.zeros(1), jnp.ones(2), jnp.float32(0.3)).hold is None


def test_noise_is_held_on_gymnasium_environments() -> None:
    holds = [PPO.gymnasium_options(BOX, horizon, False)["hold"] for horizon in (1000, 100, 5)]
    assert (holds, PPO().hold) == ([20, 10, 1], 1)
