"""Bayesian verification (Alg. BV): threshold the posterior after every episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from psyco._src.core.errors import RunError
from psyco._src.verification.base import (
    Counts,
    Guarantee,
    MeanTask,
    Task,
    WeightedSums,
    decisions,
    first_decision,
)
from psyco._src.verification.tally import MeanTally, Tally


def posterior_mass(
    counts: Counts, lower: float, upper: float, prior: tuple[float, float] = (1.0, 1.0)
) -> NDArray[np.float64]:
    """Return the posterior probability that p lies in [lower, upper]: c_sat of Eq. c_sat where upper is 1."""
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
        task: the constraint and the required confidence.
        prior: parameters of the Beta(a, b) prior; uniform in the paper.
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
        """Return the central credible interval, with posterior mass `delta` on either side of it."""
        a, b = counts.satisfied + self.prior[0], counts.violated + self.prior[1]
        return float(special.betaincinv(a, b, delta)), float(special.betainccinv(a, b, delta))

    @property
    def guarantee(self) -> Guarantee:
        """A posterior probability, not an error rate."""
        return Guarantee(
            "posterior",
            f"Starting from a Beta({self.prior[0]:g}, {self.prior[1]:g}) prior, SATISFIED or VIOLATED is said as soon "
            f"as the observed episodes put the belief in it at {1 - self.task.false_accept:g} or more. Because the "
            "belief is looked at after every episode, wrong verdicts can be more frequent than that number suggests.",
        )


# ---- means ----------------------------------------------------------------------------------------------------------


def mean_belief(task: MeanTask, sums: WeightedSums, prior: float = 1.0) -> NDArray[np.float64]:
    """Return the posterior probability that the mean meets its bounds, after one value or more; see `BayesMean`."""
    freedom, mean, scale = _posterior(task, sums, prior)
    belief = np.ones(np.shape(mean))
    for side in task.sides:
        short = (side.bound - mean) / scale
        belief -= special.stdtr(freedom, short if side.at_least else -short)
    return np.maximum(belief, 0.0)


def mean_credible(task: MeanTask, sums: WeightedSums, delta: float, prior: float = 1.0) -> tuple[float, float]:
    """Return the central credible interval of the mean, clipped to the range."""
    if not sums.count:
        return task.lo, task.hi
    freedom, mean, scale = _posterior(task, sums, prior)
    reach = -scale * special.stdtrit(freedom, delta)
    return max(task.lo, float(mean - reach)), min(task.hi, float(mean + reach))


def _posterior(task: MeanTask, sums: WeightedSums, prior: float) -> tuple[Any, Any, Any]:
    """Return degrees of freedom, location and scale of Student's t."""
    count, weight, excess, excess_squared, product, weight_squared = sums
    mean, freedom = excess / weight, prior + count - 1.0
    # A quarter of the squared range is the largest variance; rounding must not make the other term negative.
    largest = ((task.steps or 1) * (task.hi - task.lo)) ** 2 / 4.0
    spread = prior * largest + np.maximum(excess_squared - 2.0 * mean * product + mean**2 * weight_squared, 0.0)
    return freedom, task.lo + mean, np.sqrt(spread / freedom * count) / weight


def belief(test: Any, tally: Tally | MeanTally) -> float:
    """Return the posterior probability of a constraint (c_sat) after a test, under the default priors of `bayes`."""
    if isinstance(tally, MeanTally):
        return float(mean_belief(test.task, tally.sums) if test.task.cvar is None else test.belief(tally.state))
    return float(posterior_mass(tally.counts, test.task.constraint.lower, test.task.constraint.upper))


@dataclass(frozen=True)
class BayesMean:
    """Accept when the posterior probability that the mean meets its bounds reaches the confidence; reject likewise.

    The posterior is that of normal values with unknown mean and variance: Student's t around the observed mean; for a
    rate, with the variance of the totals' residuals. A few values without variance prove nothing, so the prior contains
    the largest variance that the range permits. A uniform prior, as for probabilities, would dominate the first
    thousand values of a wide range.

    Args:
        task: the bounds on the mean and the required confidence.
        prior: weight of the largest variance in the prior, as a number of values.
    """

    task: MeanTask
    prior: float = 1.0
    error_rate: ClassVar[bool] = False
    sequential: ClassVar[bool] = True
    open_ended: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.prior, int | float) or not 0 < self.prior < np.inf:
            raise RunError(f"the prior of a mean is a positive number of values, got {self.prior!r}")

    def init(self) -> WeightedSums:
        """Return empty sums."""
        return WeightedSums()

    def feed(self, state: WeightedSums, values: NDArray[np.float64]) -> tuple[WeightedSums, int, int]:
        """Threshold the posterior after every value, as Alg. BV does after every outcome."""
        after = WeightedSums(*(sums[1:] for sums in self.task.cumulative_sums(state, values)))
        belief = mean_belief(self.task, after, self.prior)
        codes = decisions(belief >= 1.0 - self.task.false_accept, 1.0 - belief >= 1.0 - self.task.false_reject)
        last = first_decision(codes)
        return WeightedSums(*(float(sums[last]) for sums in after)), last + 1, int(codes[last])

    def bounds(self, state: WeightedSums, delta: float) -> tuple[float, float]:
        """Return the central credible interval, clipped to the range."""
        return mean_credible(self.task, state, delta, self.prior)

    @property
    def guarantee(self) -> Guarantee:
        """A posterior probability, not an error rate."""
        return Guarantee(
            "posterior",
            f"Starting from a flat prior for the mean and {self.prior:g} values' worth of the largest variance in "
            f"{self.task.range_text}, SATISFIED or VIOLATED is said as soon as the episodes, taken as normally "
            f"distributed, put the belief in it at {1 - self.task.false_accept:g} or more. Because the belief is "
            "looked at after every episode, wrong verdicts can be more frequent than that number suggests.",
        )
