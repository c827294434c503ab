"""Tests with a fixed sample size: the exact interval of Clopper and Pearson, and a betting bound for means."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from psyco._src.core.errors import RunError
from psyco._src.verification.base import CONTINUE, Counts, Guarantee, MeanTask, Task, decisions
from psyco._src.verification.betting import SMALLEST, solve_lower_bound
from psyco._src.verification.rounding import percent


def clopper_pearson(counts: Counts, delta: float) -> tuple[float, float]:
    """Return exact bounds for a sample size fixed in advance, each wrong with probability at most δ."""
    s, v = counts.satisfied, counts.violated
    low = float(special.betaincinv(s, v + 1.0, delta)) if s else 0.0
    high = float(special.betainccinv(s + 1.0, v, delta)) if v else 1.0
    return low, high


@dataclass(frozen=True)
class Fixed:
    """Wait for all episodes; then accept if the lower bound meets the requirement, reject if the upper bound fails it.

    Args:
        task: the constraint and the permitted error rates; its `max_episodes` is the sample size.
    """

    task: Task
    error_rate: ClassVar[bool] = True
    sequential: ClassVar[bool] = False
    open_ended: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_sample_size(self.task)

    def decide(self, counts: Counts) -> NDArray[np.int8]:
        """Return CONTINUE before the last episode; then compare the tail under the other hypothesis with δ."""
        s, v = np.broadcast_arrays(*counts)
        accept, reject = np.ones(s.shape, bool), np.zeros(s.shape, bool)
        last = s + v >= self.task.max_episodes
        if not last.any():  # tails take long, and an operating characteristic asks after every episode
            return decisions(last, last)
        sides = self.task.sides
        for side in sides:
            own = side.counts(Counts(s, v))
            accept &= _tail(own, side.p_req) <= self.task.false_accept
            reject |= _tail(own.swapped, 1.0 - side.p_req) <= self.task.false_reject / len(sides)
        return decisions(accept & last, reject & last)

    def bounds(self, counts: Counts, delta: float) -> tuple[float, float]:
        """Return the interval of Clopper and Pearson."""
        return clopper_pearson(counts, delta)

    @property
    def guarantee(self) -> Guarantee:
        """An error rate for exactly this sample size."""
        return fixed_guarantee(self.task)


def fixed_guarantee(task: Task | MeanTask) -> Guarantee:
    """Return the guarantee of a test with a fixed sample size."""
    accept, reject = task.false_accept, task.false_reject
    condition = f"with exactly {task.max_episodes:,} episodes, a number fixed in advance"
    if isinstance(task, MeanTask):
        condition += f", provided that {task.condition}"
    return Guarantee(
        "fixed",
        f"If the constraint does not hold, the chance that this test calls it satisfied is at most "
        f"{percent(accept)}; if it holds, the chance that it calls it violated is at most {percent(reject)}. "
        f"This is so {condition}; it is void if the number was chosen by looking.",
        accept,
        reject,
        condition,
    )


def _tail(counts: Counts, p: float) -> NDArray[np.float64]:
    """Return the probability of at least `counts.satisfied` satisfying episodes at probability p."""
    s = np.asarray(counts.satisfied, np.float64)
    return np.where(s > 0, special.betainc(np.maximum(s, 1.0), counts.violated + 1.0, p), 1.0)


def check_sample_size(task: Task | MeanTask) -> None:
    """Raise unless the sample size is given."""
    if task.max_episodes is None:
        raise RunError("a test of a fixed size needs a number of episodes; give max_episodes")


# ---- means ----------------------------------------------------------------------------------------------------------

_MAX_BET = 0.9  # fraction of the largest bet that cannot ruin; 0.5 is slow where values have little spread


def variance_before(position: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the variance of the values before each one, smoothed towards 1/4; positions, weights `[N]` in [0, 1]."""
    n = np.arange(1, len(position) + 1)
    mean = (0.5 + np.cumsum(position)) / (1.0 + np.cumsum(weight))
    variance = (0.25 + np.cumsum((position - mean * weight) ** 2)) / (n + 1)
    return np.append(0.25, variance[:-1])


def log_wealth(
    position: NDArray[np.float64], weight: NDArray[np.float64], bets: NDArray[np.float64], q: float
) -> float:
    """Return the running maximum of the log wealth from bets on a mean above q; positions, weights `[N]` in [0, 1].

    A bet depends on the values before it only, so the wealth reaches 1/δ with probability at most δ if the mean is at
    most q. It decreases in q, and is 0 from the observed mean on.
    """
    if not len(position) or position.sum() <= q * weight.sum():
        return 0.0
    bets = np.minimum(bets, _MAX_BET / q)
    return float(np.cumsum(np.log1p(bets * (position - q * weight))).max(initial=0.0))


def bets_for_sample(position: NDArray[np.float64], weight: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """Return the bets of Waudby-Smith and Ramdas for a known N: sqrt(2 log(1/δ) / (N var))."""
    return np.sqrt(2.0 * np.log(1.0 / delta) / (len(position) * variance_before(position, weight)))


@dataclass(frozen=True)
class FixedMean:
    """Wait for all episodes; then test their mean by betting on them in their order.

    Betting adapts to the variance of the values. So does the bound of Maurer and Pontil, but it needs more than twice
    as many episodes where the values use a small part of their range.

    Args:
        task: the constraint and the permitted error rates; its `max_episodes` is the sample size.
    """

    task: MeanTask
    error_rate: ClassVar[bool] = True
    sequential: ClassVar[bool] = False
    open_ended: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_sample_size(self.task)

    def init(self) -> tuple[NDArray[np.float64], ...]:
        """Return the empty list of batches."""
        return ()

    def feed(
        self, state: tuple[NDArray[np.float64], ...], values: NDArray[np.float64]
    ) -> tuple[tuple[NDArray[np.float64], ...], int, int]:
        """Collect the values; decide at the last episode."""
        missing = (self.task.max_episodes or 0) - sum(map(len, state))
        taken = values[:missing].copy()  # the caller may reuse its batch
        state = (*state, taken)
        if len(taken) < missing or not missing:
            return state, len(taken), CONTINUE
        return state, len(taken), int(self._decide(np.concatenate(state)))

    def _decide(self, values: NDArray[np.float64]) -> NDArray[np.int8]:
        task, sides = self.task, self.task.sides
        accept = all(self._is_shown(values, side.bound, side.at_least, task.false_accept) for side in sides)
        reject = any(
            self._is_shown(values, side.bound, not side.at_least, task.false_reject / len(sides)) for side in sides
        )
        return decisions(accept, reject)

    def _is_shown(self, values: NDArray[np.float64], bound: float, above: bool, delta: float) -> bool:
        """Return whether the values show that their mean is above, or below, the bound."""
        distance = bound - self.task.lo if above else self.task.hi - bound
        q = max(distance / (self.task.hi - self.task.lo), SMALLEST)
        placed = self._positions_from(values, below=above)
        return log_wealth(*placed, bets_for_sample(*placed, delta), q) >= np.log(1.0 / delta)

    def _positions_from(
        self, values: NDArray[np.float64], below: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return positions and weights, measured from the lower or the upper end of the range."""
        position, weight = self.task.normalize(values)
        return position if below else np.maximum(weight - position, 0.0), weight

    def bounds(self, state: tuple[NDArray[np.float64], ...], delta: float) -> tuple[float, float]:
        """Return the means at which the wealth is 1/δ."""
        if not state:
            return self.task.lo, self.task.hi
        values = np.concatenate(state)
        above, below = (
            solve_lower_bound(partial(log_wealth, *placed, bets_for_sample(*placed, delta)), delta)
            for placed in (self._positions_from(values, below) for below in (True, False))
        )
        width = self.task.hi - self.task.lo
        return self.task.lo + width * above, self.task.hi - width * below

    @property
    def guarantee(self) -> Guarantee:
        """An error rate for exactly this sample size."""
        return fixed_guarantee(self.task)
