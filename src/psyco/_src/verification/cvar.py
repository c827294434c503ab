"""Tests of CVaR, the mean of the worst fraction s = 1 - a of all values, by bets as in `betting`.

Let x lie in [0, 1], with the largest values the worst; other ranges are scaled, and mirrored for the smallest. For any
threshold c, the mean of Y_c = c + max(x - c, 0) / s is at least CVaR; at the a-quantile it is CVaR (Rockafellar and
Uryasev). So both verdicts are tests of means:

- CVaR < b is shown by one threshold with E[Y_c] < b. If CVaR >= b, bets on Y_c < b lose on average for every c, so each
  episode may have its own, chosen from the episodes before it: the a-quantile of their values, taken anew whenever
  their number has doubled. There is no bet on the first 1/s episodes.
- CVaR > b needs E[Y_c] > b for all thresholds: the evidence is the least wealth of all c in [0, b]. If CVaR <= b, the
  wealth of the a-quantile does not grow on average, and the least is not larger. A bet u has the factor 1 - u + u r_c,
  r_c = max(x - c, 0) / (s (b - c)). As c grows, r_c grows for x > b and falls for x < b. So the wealth of every c
  between two points of a grid is at least that of r at the left point for x > b, and at the right one for other x. At
  the right end, c = b, CVaR <= b means that no x is above b.

The chance that the evidence for a wrong verdict *ever* reaches 1/δ is at most δ, for any distribution on the range.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

from psyco._src.verification.base import CONTINUE, Guarantee, MeanTask, WeightedSums, decisions, first_decision
from psyco._src.verification.bayes import BayesMean, mean_belief, mean_credible
from psyco._src.verification.betting import BETS, CELLS, SMALLEST, WEIGHTS, anytime_guarantee, solve_lower_bound
from psyco._src.verification.fixed_sample import check_sample_size, fixed_guarantee

Column: TypeAlias = NDArray[np.float64]

GRID = np.linspace(0.0, 1.0, 65)  # of c / b
# Every second bet of `betting`, without the smallest: more of them, and of thresholds, save 5% of the episodes.
STAKES = BETS[11::2]
SHARES = WEIGHTS[11::2] / WEIGHTS[11::2].sum()
FIRST_CHECK, CHECK_GROWTH = 50, 1.1  # episodes at which a width or a belief is computed


class TailWealth(NamedTuple):
    """State of a test."""

    values: tuple[Column, ...]  # all values, in batches
    bets: Column  # [1 + C, U] wealth / 2**exponent of each bet: that the bound is met, then per c that it is not
    exponent: NDArray[np.int64]  # [1 + C]
    threshold: float | None = None  # c of the bets that the bound is met
    next_threshold: int = 0  # number of values at which it is taken anew


@dataclass(frozen=True)
class TailTest:
    """The base of all tests: values as positions in [0, 1], of which large ones are bad."""

    task: MeanTask

    @cached_property
    def rest(self) -> float:
        """The fraction s of the episodes that are the worst."""
        return 1.0 - (self.task.cvar or 0.0)

    @cached_property
    def bound(self) -> float:
        """The position of the bound; far above the range if there is none."""
        bound = self.task.upper if self.task.largest else self.task.lower
        return max(float(self._mirrored(np.array([bound]))[0]), SMALLEST)

    def positions(self, state: Any) -> Column:
        """Return the positions of all values."""
        return np.clip(self._mirrored(np.concatenate([np.empty(0), *state.values])), 0.0, 1.0)

    def _mirrored(self, values: Column) -> Column:
        position = (values - self.task.lo) / (self.task.hi - self.task.lo)
        return position if self.task.largest else 1.0 - position

    def value(self, position: float) -> float:
        """Return the value at a position."""
        lo, hi = self.task.lo, self.task.hi
        return lo + (hi - lo) * position if self.task.largest else hi - (hi - lo) * position

    def interval(self, below: float, above: float) -> tuple[float, float]:
        """Return the values at two positions, the smaller one first."""
        ends = self.value(below), self.value(above)
        return min(ends), max(ends)

    def observed(self, state: Any) -> float:
        """Return the mean of the worst values; NaN before the first one."""
        x = self.positions(state)
        return self.value(float(self.excess_at_quantile(x).mean())) if len(x) else math.nan

    def excess_at_quantile(self, x: Column) -> Column:
        """Return Y_c at the a-quantile of all positions x."""
        return excess(x, float(np.quantile(x, 1.0 - self.rest, method="inverted_cdf")), self.rest)

    def _posterior(self, state: Any) -> tuple[MeanTask, WeightedSums]:
        """Return the task about the mean of Y_c, and its sums."""
        most = 1.0 / self.rest
        task = MeanTask(0.0, most, upper=min(self.bound, most), false_accept=1.0, false_reject=1.0)
        y = np.minimum(self.excess_at_quantile(self.positions(state)), most)
        return task, task.add_checked(WeightedSums(), y)

    def belief(self, state: Any) -> float:
        """Return the posterior probability that the bound is met, as in `BayesMean`."""
        return float(mean_belief(*self._posterior(state))) if self.task.sides else 1.0


def excess(x: Column, c: float, rest: float) -> Column:
    """Return Y_c at positions x."""
    return c + np.maximum(x - c, 0.0) / rest


@dataclass(frozen=True)
class BettingCVaR(TailTest):
    """Accept, or reject, when the evidence for that reaches 1/δ."""

    error_rate: ClassVar[bool] = True
    sequential: ClassVar[bool] = True
    open_ended: ClassVar[bool] = True

    def init(self) -> TailWealth:
        """Return the initial wealth: the weight of each bet, in total 1."""
        bets = np.broadcast_to(SHARES, (len(GRID), len(STAKES)))
        return TailWealth((), bets, np.zeros(len(GRID), np.int64), None, math.ceil(1.0 / self.rest))

    def feed(self, state: TailWealth, values: Column) -> tuple[TailWealth, int, int]:
        """Bet on one value after the other until the evidence suffices."""
        values = values.copy()  # the caller may reuse its batch
        count, used, decision = sum(map(len, state.values)), 0, CONTINUE
        end = math.inf if self.sequential else self.task.max_episodes or 0
        _, bets, exponent, threshold, due = state
        while used < len(values) and decision == CONTINUE and count < end:
            if count == due:
                before = self.positions(state._replace(values=(*state.values, values[:used])))
                threshold, due = float(np.quantile(before, 1.0 - self.rest, method="higher")), 2 * due
            part = values[used : used + int(min(self._batch_size, due - count, end - count))]
            paths = STAKES[:, None] * self._gains(np.clip(self._mirrored(part), 0.0, 1.0), threshold)[:, None]
            paths += 1.0
            paths[..., 0] *= bets
            np.multiply.accumulate(paths, axis=2, out=paths)  # [1 + C, U, B]
            with np.errstate(over="ignore"):  # infinite evidence suffices, too
                evidence = np.ldexp(paths.sum(axis=1), exponent[:, None])
            codes = self._decide(evidence[0], evidence[1:].min(axis=0))
            if not self.sequential:
                codes[: int(end) - count - 1] = CONTINUE
            last = first_decision(codes)
            used, count, decision = used + last + 1, count + last + 1, int(codes[last])
            # Powers of two are exact: where batches begin and end changes no bit of the wealth.
            _, shift = np.frexp(paths[..., last].max(axis=1))
            bets, exponent = np.ldexp(paths[..., last], -shift[:, None]), exponent + shift
        return TailWealth((*state.values, values[:used]), bets, exponent, threshold, due), used, decision

    def _decide(self, met: Column, not_met: Column) -> NDArray[np.int8]:
        """Return a decision for each pair of evidence; a bound that every CVaR meets is accepted at once."""
        if not self.task.sides:
            return decisions(np.ones(len(met), bool), False)
        return decisions(met >= 1.0 / self.task.false_accept, not_met >= 1.0 / self.task.false_reject)

    def _gains(self, x: Column, threshold: float | None) -> Column:
        """Return the gain of a bet of size 1 on each value, `[1 + C, B]`."""
        b = min(self.bound, 1.0 - SMALLEST)
        met = np.zeros((1, len(x))) if threshold is None else gain_if_met(x, threshold, self.rest, 1.0 - b)[None]
        return np.concatenate([met, gain_if_not_met(x, self.rest, b)])

    @cached_property
    def _batch_size(self) -> int:
        """Number of values before the wealth is rescaled, such that no product reaches 1e300."""
        b = min(self.bound, 1.0 - SMALLEST)
        return max(int(690.0 / np.log(1.0 + len(GRID) / (self.rest * b) + 1.0 / (1.0 - b))), 1)

    def bounds(self, state: Any, delta: float) -> tuple[float, float]:
        """Return the current interval of the confidence sequence."""
        x = self.positions(state)
        return self.interval(self.lowest(x, delta), self.highest(x, delta))

    def lowest(self, x: Column, delta: float) -> float:
        """Return a lower bound of the position of CVaR."""
        points, number = _rounded(x, np.floor)

        def not_met(b: float) -> float:
            """Return the log evidence that CVaR is above b."""
            return float(_log_wealth(gain_if_not_met(points, self.rest, b), number).min())

        return solve_lower_bound(not_met, delta)

    def highest(self, x: Column, delta: float) -> float:
        """Return an upper bound of the position of CVaR."""
        parts, start = [], math.ceil(1.0 / self.rest)
        while start < len(x):
            c = float(np.quantile(x[:start], 1.0 - self.rest, method="higher"))
            parts.append((c, *_rounded(x[start : 2 * start], np.ceil)))
            start *= 2
        numbers = np.concatenate([np.empty(0), *(number for *_, number in parts)])

        def met(distance: float) -> float:
            """Return the log evidence that CVaR is below 1 - distance."""
            gains = (gain_if_met(points, c, self.rest, distance) for c, points, _ in parts)
            return float(_log_wealth(np.concatenate([np.empty(0), *gains]), numbers))

        return 1.0 - solve_lower_bound(met, delta)

    @property
    def guarantee(self) -> Guarantee:
        """An error rate under optional stopping."""
        return anytime_guarantee(self.task)


def gain_if_met(x: Column, c: float, rest: float, distance: float) -> Column:
    """Return the gain `[B]` of a bet of size 1 on CVaR < b at positions x, for the distance 1 - b."""
    return (1.0 - excess(x, c, rest) - distance) / ((1.0 - c) * (1.0 / rest - 1.0) + distance)


def gain_if_not_met(x: Column, rest: float, b: float) -> Column:
    """Return a lower bound of the gain of a bet of size 1 on CVaR > b for each interval of thresholds, `[C, B]`."""
    z = x / b
    left, right = GRID[:-1, None], GRID[1:-1, None]
    inside = np.concatenate([np.maximum(z - right, 0.0) / (1.0 - right), np.zeros((1, len(z)))])
    gain: Column = np.where(z > 1.0, (z - left) / (1.0 - left), inside) / rest - 1.0
    return gain


def _log_wealth(gain: Column, number: Column) -> Any:
    """Return the log of the mixed wealth for gains `[..., P]` of values that occurred `number` `[P]` times."""
    logs = [np.log1p(bet * gain) @ number + np.log(weight) for bet, weight in zip(STAKES, SHARES, strict=True)]
    return np.logaddexp.reduce(logs)


def _rounded(x: Column, rounding: Callable[[Column], Column]) -> tuple[Column, Column]:
    """Return distinct positions on a grid, and their numbers; rounded to the side that lowers the evidence."""
    slack = 1e-6 if rounding is np.floor else -1e-6  # integers of round ranges lie on the grid
    points, number = np.unique(rounding(x * CELLS + slack) / CELLS, return_counts=True)
    return points, number.astype(np.float64)


@dataclass(frozen=True)
class FixedCVaR(BettingCVaR):
    """Wait for all episodes; then decide by the evidence of `BettingCVaR`."""

    sequential: ClassVar[bool] = False
    open_ended: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_sample_size(self.task)

    @property
    def guarantee(self) -> Guarantee:
        """An error rate for exactly this sample size."""
        return fixed_guarantee(self.task)


def beta_cvar(task: MeanTask, centre: float, size: float) -> float:
    """Return the CVaR of Beta-distributed values with mean `centre` in positions and a + b = `size`, 0 or inf too."""
    rest = 1.0 - (task.cvar or 0.0)
    mean = centre if task.largest else 1.0 - centre
    if size in (0.0, np.inf):
        tail = mean if size else min(mean / rest, 1.0)
    else:
        a, b = mean * size, (1.0 - mean) * size
        tail = mean * float(special.betaincc(a + 1.0, b, special.betainccinv(a, b, rest))) / rest
    return TailTest(task).value(tail)


class TailValues(NamedTuple):
    """State of `BayesCVaR`."""

    values: tuple[Column, ...] = ()


@dataclass(frozen=True)
class BayesCVaR(TailTest):
    """Accept or reject by the posterior of the mean of Y_c, as `BayesMean`; looked at with every 10% more values."""

    error_rate: ClassVar[bool] = False
    sequential: ClassVar[bool] = True
    open_ended: ClassVar[bool] = True

    def init(self) -> TailValues:
        """Return no values."""
        return TailValues()

    def feed(self, state: TailValues, values: Column) -> tuple[TailValues, int, int]:
        """Threshold the posterior."""
        values, count = values.copy(), sum(map(len, state.values))
        for due in _checks(count, count + len(values)):
            now = TailValues((*state.values, values[: due - count]))
            belief = self.belief(now)
            code = decisions(belief >= 1.0 - self.task.false_accept, 1.0 - belief >= 1.0 - self.task.false_reject)
            if code != CONTINUE:
                return now, due - count, int(code)
        return TailValues((*state.values, values)), len(values), CONTINUE

    def bounds(self, state: TailValues, delta: float) -> tuple[float, float]:
        """Return the central credible interval, clipped to the range."""
        if not state.values:
            return self.task.lo, self.task.hi
        below, above = mean_credible(*self._posterior(state), delta)
        return self.interval(below, min(above, 1.0))

    @property
    def guarantee(self) -> Guarantee:
        """A posterior probability, not an error rate."""
        return BayesMean(self.task).guarantee


def _checks(first: int, last: int) -> list[int]:
    """Return the numbers of values above `first` and up to `last` at which something expensive is computed."""
    due, found = 1, []
    while due <= last:
        found += [due] * (due > first)
        due = max(due + 1, int(CHECK_GROWTH * due))
    return found


@dataclass(frozen=True)
class CVaRInterval:
    """Estimate and confidence sequence of a CVaR, until it is as narrow as wanted."""

    test: BettingCVaR
    width: float | None
    sums: WeightedSums = field(default_factory=WeightedSums)
    values: tuple[Column, ...] = ()

    kind: ClassVar[str] = "anytime"

    @property
    def task(self) -> MeanTask:
        """The range and the level."""
        return self.test.task

    @property
    def episodes(self) -> int:
        """Number of values consumed."""
        return int(self.sums.count)

    @property
    def mean(self) -> float:
        """The mean of the worst values."""
        return self.test.observed(self)

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound of the true CVaR, half of the error for either."""
        return self.test.bounds(self, self.task.false_accept / 2.0)

    def feed(self, values: Column) -> tuple[CVaRInterval, bool]:
        """Consume values `[B]` until the interval is narrow; return the estimate and whether so."""
        checks = [] if self.width is None else _checks(max(self.episodes, FIRST_CHECK), self.episodes + len(values))
        estimate, start = self, 0
        for due in (*checks, self.episodes + len(values)):
            part = values[start : due - self.episodes].copy()
            sums = self.task.add_checked(estimate.sums, part)
            estimate, start = replace(estimate, sums=sums, values=(*estimate.values, part)), due - self.episodes
            if due in checks and estimate._is_narrow():
                return estimate, True
        return estimate, False

    def _is_narrow(self) -> bool:
        # The upper end of positions is the farther one, and the quicker to compute.
        x, delta, width = self.test.positions(self), self.task.false_accept / 2.0, self.width or 0.0
        wanted = width / (self.task.hi - self.task.lo)
        highest = self.test.highest(x, delta)
        if highest - self.test.excess_at_quantile(x).mean() > wanted:
            return False
        return bool(highest - self.test.lowest(x, delta) <= wanted)
