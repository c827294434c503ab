"""Running statistics are those of all rows together; a folded network says what it said of standard observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psyco._src.learners.running_stats import bare, fold, look, nothing_seen, standard
from psyco._src.policies.network import Network

RNG = np.random.default_rng(0)
ROWS = RNG.normal([3.0, -1000.0, 0.0, 0.0, 2.0], [0.01, 50.0, 1e-3, 0.0, 0.0], (600, 5)).astype(np.float32)
ROWS[:, 3] = RNG.random(600) < 0.01  # a switch that is hardly ever on


def test_statistics_of_parts_are_those_of_the_whole() -> None:
    seen = nothing_seen(5)
    weight = (RNG.random(600) < 0.7).astype(np.float32)
    for part in np.split(np.arange(600), [1, 50, 350]):
        seen = look(seen, jnp.asarray(ROWS[part]), jnp.asarray(weight[part]))
    counted = ROWS[weight == 1].astype(np.float64)
    assert seen.rows == weight.sum()
    np.testing.assert_allclose(seen.mean, counted.mean(axis=0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(seen.variance, counted.var(axis=0), rtol=1e-3, atol=1e-9)
    x = np.asarray(standard(seen, jnp.asarray(counted, jnp.float32)))
    np.testing.assert_allclose(x[:, :3].std(axis=0), 1.0, rtol=1e-3)
    np.testing.assert_array_equal(x[:, 3:], counted[:, 3:])  # a switch and a constant
    before = nothing_seen(5)
    np.testing.assert_array_equal(standard(before, jnp.asarray(ROWS)), ROWS)


@pytest.mark.parametrize("own", [(), (1.0, 2.0, -3.0)])
def test_a_folded_network_says_the_same(own: tuple[float, ...]) -> None:
    network = Network(3, 2, 16, "learned", own, tuple(2.0 + abs(x) for x in own))
    theta = network.init(jax.random.key(0))
    obs = jnp.asarray(RNG.normal([5.0, 0.1, -20.0], [2.0, 0.1, 30.0], (40, 3)), jnp.float32)
    seen = look(nothing_seen(3), obs, jnp.ones(40))
    said = jax.vmap(lambda x: bare(network).scores(theta, x))(standard(seen, obs))
    folded = jax.vmap(lambda o: network.scores(fold(network, theta, seen), o))(obs)
    np.testing.assert_allclose(folded, said, rtol=1e-4, atol=1e-5)
    assert np.abs(said).max() > 0.1
