"""The belief is what the product stands on: right against SciPy, also inside a compiled loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from psyco._src.learners import belief as beliefs
from psyco._src.learners.belief import Belief, double_precision, single_precision

# Counts from none to a million, around each boundary, where float32 is off by percents.
CASES = [
    (p, n, round(n * p) + shift)
    for p in (0.01, 0.5, 0.85, 0.9, 0.999)
    for n in (0, 1, 20, 1000, 60_000, 1_000_000)
    for shift in (-2000, -200, -20, -3, -1, 0, 1, 3, 20, 200, 2000)
    if 0 <= round(n * p) + shift <= n
]


def counts():
    p, n, s = (np.array(column) for column in zip(*CASES, strict=True))
    return p, Belief(jnp.asarray(s, jnp.int32), jnp.asarray(n - s, jnp.int32)), s, n - s


def test_confidence_is_right_to_1e_6_inside_a_compiled_loop():
    p, belief, s, v = counts()

    @jax.jit
    def loop(belief):
        def step(carry, _):
            return carry, beliefs.confidence(carry, p)

        return jax.lax.scan(step, belief, None, length=2)[1][-1]

    with double_precision():
        inside = loop(belief)
    assert inside.dtype == jnp.float32
    np.testing.assert_allclose(inside, stats.beta.sf(p, s + 1, v + 1), atol=1e-6, rtol=0)


def test_shortfall_is_the_expected_distance_below():
    cases = [(0, 0, 0.85), (17, 3, 0.85), (850, 150, 0.85), (99, 1, 0.9), (2, 50, 0.5)]
    for s, v, p in cases:
        expected, _ = integrate.quad(lambda x, s=s, v=v, p=p: (p - x) * stats.beta.pdf(x, s + 1, v + 1), 0, p)
        with double_precision():
            got = beliefs.shortfall(Belief(jnp.array([s], jnp.int32), jnp.array([v], jnp.int32)), np.array([p]))
        assert float(got[0]) == pytest.approx(expected, abs=1e-7)


def test_counting_adds_up():
    belief = beliefs.prior(2)
    belief = beliefs.observe(belief, jnp.array([[True, False], [True, True], [False, False]]))
    belief = beliefs.observe(belief, jnp.array([[False, True]]))
    assert (belief.satisfied.tolist(), belief.violated.tolist()) == ([2, 2], [2, 2])


def test_the_users_process_stays_in_single_precision():
    with double_precision():
        assert jnp.zeros(1).dtype == jnp.float64
        with single_precision():
            assert jnp.zeros(1).dtype == jnp.float32
    assert jnp.zeros(1).dtype == jnp.float32
