"""Running statistics equal those of all rows together, and folding them into a network keeps its scores."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psyco._src.learners.running_stats import empty_stats, fold, normalize_obs, observe_rows
from psyco._src.policies.network import Network

RNG = np.random.default_rng(0)
ROWS = RNG.normal([3.0, -1000.0, 0.0, 0.0, 2.0], [0.01, 50.0, 1e-3, 0.0, 0.0], (600, 5)).astype(np.float32)
ROWS[:, 3] = RNG.random(600) < 0.01  # a switch that is hardly ever on


@pytest.mark.more
def test_statistics_of_parts_are_those_of_the_whole() -> None:
    stats = empty_stats(5)
    weight = (RNG.random(600) < 0.7).astype(np.float32)
    for part in np.split(np.arange(600), [1, 50, 350]):
        stats = observe_rows(stats, jnp.asarray(ROWS[part]), jnp.asarray(weight[part]))
    counted = ROWS[weight == 1].astype(np.float64)
    assert stats.rows == weight.sum()
    np.testing.assert_allclose(stats.mean, counted.mean(axis=0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(stats.variance, counted.var(axis=0), rtol=1e-3, atol=1e-9)
    x = np.asarray(normalize_obs(stats, jnp.asarray(counted, jnp.float32)))
    np.testing.assert_allclose(x[:, :3].std(axis=0), 1.0, rtol=1e-3)
    np.testing.assert_array_equal(x[:, 3:], counted[:, 3:])  # a switch and a constant
    before = empty_stats(5)
    np.testing.assert_array_equal(normalize_obs(before, jnp.asarray(ROWS)), ROWS)


@pytest.mark.parametrize("own", [(), (1.0, 2.0, -3.0)])
@pytest.mark.more
def test_a_folded_network_has_the_same_scores(own: tuple[float, ...]) -> None:
    network = Network(3, 2, 16, "learned", own, tuple(2.0 + abs(x) for x in own))
    theta = network.init(jax.random.key(0))
    obs = jnp.asarray(RNG.normal([5.0, 0.1, -20.0], [2.0, 0.1, 30.0], (40, 3)), jnp.float32)
    stats = observe_rows(empty_stats(3), obs, jnp.ones(40))
    bare = dataclasses.replace(network, shift=(), scale=())
    scores = jax.vmap(lambda x: bare.scores(theta, x))(normalize_obs(stats, obs))
    folded = jax.vmap(lambda o: network.scores(fold(network, theta, stats), o))(obs)
    np.testing.assert_allclose(folded, scores, rtol=1e-4, atol=1e-5)
    assert np.abs(scores).max() > 0.1
