"""The Bernoulli bandit of section 2.4: how a belief about its probability μ evolves with the number of pulls."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

MU = 0.6
PULLS = (0, 1, 10, 50, 200, 1000)


def rewards(seed: int) -> NDArray[np.int64]:
    """How many of the first PULLS pulls gave a reward, `[len(PULLS)]`."""
    won = np.random.default_rng(seed).random(max(PULLS)) < MU
    return np.concatenate([[0], np.cumsum(won)])[list(PULLS)]


def density(count: int, pulls: int, mu: NDArray[np.float64]) -> NDArray[np.float64]:
    """The posterior Beta(s + 1, v + 1) after s rewards and v failures, at the points `mu` (Eq. beta)."""
    return np.asarray(stats.beta.pdf(mu, count + 1, pulls - count + 1))


def confidence(count: int, pulls: int, mu: float) -> float:
    """The posterior mass above `mu` (Eq. c_sat)."""
    return float(stats.beta.sf(mu, count + 1, pulls - count + 1))


def deviations(seed: int) -> NDArray[np.float64]:
    """The posterior's standard deviation after each of PULLS, `[len(PULLS)]`."""
    won, pulls = rewards(seed), np.array(PULLS)
    return np.asarray(stats.beta.std(won + 1, pulls - won + 1))
