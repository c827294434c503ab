"""The Bernoulli bandit of section 2.4: the posterior of its probability μ after a growing number of pulls."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

MU = 0.6
PULLS = (0, 1, 10, 50, 200, 1000)


def rewards(seed: int) -> NDArray[np.int64]:
    """Return the number of rewards among the first pulls, for each number in PULLS: `[len(PULLS)]`."""
    successes = np.random.default_rng(seed).random(max(PULLS)) < MU
    return np.concatenate([[0], np.cumsum(successes)])[list(PULLS)]


def density(count: int, pulls: int, mu: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the density of Beta(s + 1, v + 1), the posterior after s rewards and v failures, at `mu` (Eq. beta)."""
    return np.asarray(stats.beta.pdf(mu, count + 1, pulls - count + 1))


def confidence(count: int, pulls: int, mu: float) -> float:
    """Return the posterior mass above `mu` (Eq. c_sat)."""
    return float(stats.beta.sf(mu, count + 1, pulls - count + 1))


def deviations(seed: int) -> NDArray[np.float64]:
    """Return the standard deviation of the posterior after each of PULLS, `[len(PULLS)]`."""
    counts, pulls = rewards(seed), np.array(PULLS)
    return np.asarray(stats.beta.std(counts + 1, pulls - counts + 1))
