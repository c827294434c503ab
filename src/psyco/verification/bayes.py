"""Bayesian verification (Alg. BV): threshold the posterior after every episode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from psyco.errors import RunError
from psyco.spec.formula import Constraint
from psyco.verification.base import ACCEPT, CONTINUE, REJECT, Counts, Guarantee


def posterior_mass(
    counts: Counts, lower: float, upper: float, prior: tuple[float, float] = (1.0, 1.0)
) -> NDArray[np.float64]:
    """The posterior probability that p lies in [lower, upper]: c_sat of Eq. c_sat where upper is 1."""
    a, b = counts.satisfied + prior[0], counts.violated + prior[1]
    # I_{1-p}(b, a) = 1 - I_p(a, b): each tail is computed where it is small.
    below = special.betainc(a, b, lower)
    above = special.betainc(b, a, 1.0 - upper)
    if upper >= 1.0:
        return np.asarray(special.betainc(b, a, 1.0 - lower))
    if lower <= 0.0:
        return np.asarray(special.betainc(a, b, upper))
    return np.asarray(np.maximum(1.0 - below - above, 0.0))


@dataclass(frozen=True)
class Bayes:
    """Accept when c_sat reaches the required confidence, reject when 1 - c_sat does.

    Args:
        constraint: what is to be shown.
        prior: Beta(a, b) before any episode; the paper's is uniform.
    """

    constraint: Constraint
    prior: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        if not all(x > 0 for x in self.prior):
            raise RunError(f"a Beta prior needs two positive numbers, got {self.prior}")

    def decide(self, counts: Counts) -> NDArray[np.int8]:
        """Alg. BV, lines 7-9."""
        c_req = self.constraint.confidence
        c_sat = posterior_mass(counts, self.constraint.lower, self.constraint.upper, self.prior)
        return np.where(c_sat >= c_req, ACCEPT, np.where(1.0 - c_sat >= c_req, REJECT, CONTINUE)).astype(
            np.int8
        )

    def bounds(self, counts: Counts) -> tuple[float, float]:
        """The central credible interval at the required confidence."""
        a, b = counts.satisfied + self.prior[0], counts.violated + self.prior[1]
        tail = (1.0 - self.constraint.confidence) / 2.0
        return float(special.betaincinv(a, b, tail)), float(special.betaincinv(a, b, 1.0 - tail))

    @property
    def guarantee(self) -> Guarantee:
        """A statement of belief, not an error rate."""
        return Guarantee(
            "posterior",
            f"Starting from a Beta({self.prior[0]:g}, {self.prior[1]:g}) prior, the observed episodes put the belief "
            f"in the verdict at {self.constraint.confidence:g} or more. Because the belief is looked at after every "
            "episode, wrong verdicts can be more frequent than that number suggests.",
        )
