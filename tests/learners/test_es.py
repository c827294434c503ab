"""Alg. ES: known by what it does on functions whose optimum is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from psyco._src.learners import es


def test_normalize_is_the_papers_and_flat_values_carry_no_signal():
    x = jnp.array([1.0, 2.0, 4.0, 9.0])
    expected = (np.array(x) - np.mean(x)) / np.std(x)
    np.testing.assert_allclose(es.normalize(x), expected, rtol=1e-6)
    for flat in (0.0, 0.1, -123.456, 1e30):
        assert es.normalize(jnp.full(20, flat)).tolist() == [0.0] * 20


def test_tell_is_line_9_of_the_algorithm():
    state = es.init(jnp.array([1.0, -2.0]))
    noise, score = jnp.array([[1.0, 0.5], [-1.0, 2.0], [0.0, 1.0]]), jnp.array([0.3, -1.0, 2.0])
    moved = es.tell(state, noise, score, learning_rate=0.01, sigma=0.1)
    step = 0.01 / (0.1 * 3) * sum(s * n for s, n in zip(np.array(score), np.array(noise), strict=True))
    np.testing.assert_allclose(moved.theta, np.array([1.0, -2.0]) + step, rtol=1e-6)
    assert int(moved.generation) == 1


@pytest.mark.parametrize("dimensions", [1, 5])
def test_it_climbs_a_hill(dimensions):
    target = jnp.arange(dimensions) - 1.5

    def generation(state, key):
        noise = es.ask(key, state, population=20)
        score = es.normalize(-jnp.sum((es.offspring(state, noise, sigma=0.1) - target) ** 2, axis=1))
        return es.tell(state, noise, score, learning_rate=0.01, sigma=0.1), None

    state, _ = jax.lax.scan(generation, es.init(jnp.zeros(dimensions)), jax.random.split(jax.random.key(0), 1500))
    assert np.linalg.norm(state.theta - target) < 0.25


@pytest.mark.parametrize("shape", [(20, 320), (3, 5), (1, 1)])
def test_noise_has_the_shape_and_is_symmetric_around_zero(shape):
    noise = np.asarray(es.unit_noise(jax.random.key(0), shape))
    assert noise.shape == shape
    assert noise.dtype == np.float32
    assert np.isfinite(noise).all()
    assert (noise != 0).all()


def test_noise_is_standard_normal_and_its_halves_are_independent():
    """Kolmogorov-Smirnov and correlation over 200,000 numbers; each fails by chance with probability 1e-6."""
    noise = np.asarray(es.unit_noise(jax.random.key(1), (200_000,)), np.float64)
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    first, second = noise[:100_000], noise[100_000:]  # from the same random words
    assert stats.pearsonr(first, second).pvalue > 1e-6
    assert stats.pearsonr(noise[:-1], noise[1:]).pvalue > 1e-6
