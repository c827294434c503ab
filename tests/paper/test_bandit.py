import numpy as np
import pytest
from scipy import integrate, stats

from psyco._src.paper import experiments


def test_the_belief_is_the_beta_posterior_by_bayes_rule():
    """Prior times likelihood, normalised by numerical integration."""
    mu, (count, pulls) = np.linspace(0, 1, 11), (4, 10)
    evidence, _ = integrate.quad(lambda p: p**count * (1 - p) ** (pulls - count), 0, 1)
    assert experiments.density(count, pulls, mu) == pytest.approx(mu**count * (1 - mu) ** (pulls - count) / evidence)
    above, _ = integrate.quad(lambda p: p**count * (1 - p) ** (pulls - count) / evidence, 0.6, 1)
    assert experiments.confidence(count, pulls, 0.6) == pytest.approx(above)


def test_before_the_first_pull_the_belief_is_uniform():
    assert experiments.density(0, 0, np.linspace(0, 1, 5)) == pytest.approx(np.ones(5))
    assert experiments.deviations(seed=0)[0] == pytest.approx(np.sqrt(1 / 12))


def test_rewards_come_with_probability_mu():
    """Fails by chance with probability at most 1e-6; fixed seeds."""
    total = sum(int(experiments.rewards(seed)[-1]) for seed in range(100))
    low, high = stats.binom.ppf((5e-7, 1 - 5e-7), 100 * experiments.PULLS[-1], experiments.MU)
    assert low <= total <= high
