"""Bayesian verification (Alg. BV): threshold the posterior after every episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from psyco._src.errors import RunError
from psyco._src.smc.base import Counts, Guarantee, Task, decisions


def posterior_mass(
    counts: Counts, lower: float, upper: float, prior: tuple[float, float] = (1.0, 1.0)
) -> NDArray[np.float64]:
    """The posterior probability that p lies in [lower, upper]: c_sat of Eq. c_sat where upper is 1."""
    a, b = counts.satisfied + prior[0], counts.violated + prior[1]
    # I_{1-p}(b, a) = 1 - I_p(a, b): each tail is computed where it is small.
    if upper >= 1.0:
        return np.asarray(special.betainc(b, a, 1.0 - lower))
    if lower <= 0.0:
        return np.asarray(special.betainc(a, b, upper))
    below, above = special.betainc(a, b, lower), special.betainc(b, a, 1.0 - upper)
    return np.asarray(np.maximum(1.0 - below - above, 0.0))


@dataclass(frozen=True)
class Bayes:
    """Accept when c_sat reaches the required confidence, reject when 1 - c_sat does.

    Args:
        task: what is to be settled.
        prior: Beta(a, b) before any episode; the paper's is uniform.
    """

    task: Task
    prior: tuple[float, float] = (1.0, 1.0)
    error_rate: ClassVar[bool] = False
    sequential: ClassVar[bool] = True
    open_ended: ClassVar[bool] = True

    def __post_init__(self) -> None:
        try:
            a, b = map(float, self.prior)
        except (TypeError, ValueError):
            a = b = 0.0
        if not (0 < a < np.inf and 0 < b < np.inf):
            raise RunError(f"a Beta prior is two positive numbers, as in prior=(1, 1); got {self.prior!r}")
        object.__setattr__(self, "prior", (a, b))

    def decide(self, counts: Counts) -> NDArray[np.int8]:
        """Alg. BV, lines 7-9."""
        constraint = self.task.constraint
        c_sat = posterior_mass(counts, constraint.lower, constraint.upper, self.prior)
        return decisions(c_sat >= 1.0 - self.task.false_accept, 1.0 - c_sat >= 1.0 - self.task.false_reject)

    def bounds(self, counts: Counts, delta: float) -> tuple[float, float]:
        """The central credible interval: it is believed with `delta` that p lies below it, and so above."""
        a, b = counts.satisfied + self.prior[0], counts.violated + self.prior[1]
        return float(special.betaincinv(a, b, delta)), float(special.betainccinv(a, b, delta))

    @property
    def guarantee(self) -> Guarantee:
        """A statement of belief, not an error rate."""
        return Guarantee(
            "posterior",
            f"Starting from a Beta({self.prior[0]:g}, {self.prior[1]:g}) prior, SATISFIED or VIOLATED is said as soon "
            f"as the observed episodes put the belief in it at {1 - self.task.false_accept:g} or more. Because the "
            "belief is looked at after every episode, wrong verdicts can be more frequent than that number suggests.",
        )
