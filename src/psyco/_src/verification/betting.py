"""Anytime-valid test of a mean: an e-process, the wealth from bets against the boundary.

For values in [lo, hi] the evidence that their mean is above m is the mixed wealth of bets of size u,

    E(m) = Σ_u w_u Π_i (1 + u (x_i - m) / (m - lo)),    0 < u < 1,

and that it is below m the same with 1 + u (m - x_i) / (hi - m). No factor is negative, and none has a mean above 1 if
the mean of x is on the other side of m: so the chance that E(m) *ever* reaches 1/δ is then at most δ (Ville's
inequality), for any distribution on the range. Every factor decreases in m, so the m with E(m) = 1/δ is a time-uniform
lower confidence bound.

The weights w_u are those of a uniform u. For values 0 and 1 this is the evidence of `anytime`, with its integral as a
sum.

For a rate, the mean total T over the mean number of steps L <= n, lo L <= T <= hi L, the factors are

    1 + u (T_i - m L_i) / (n (m - lo)),

whose mean is above 1 exactly if E[T] > m E[L]. With a = (T - lo L) / n they are 1 + u (a_i / (m - lo) - L_i / n): they,
too, are not negative and decrease in m.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from psyco._src.verification.base import CONTINUE, Guarantee, MeanTask, decisions, first_decision
from psyco._src.verification.rounding import percent

# From one bet to the next the odds u/(1-u) grow by 44%: at least one is within 20% of the best bet for any mean that
# shows within 10^10 episodes, and with its neighbours it has all but a few percent of the integral.
_LOG_ODDS = np.linspace(-14.0, 9.0, 64)
BETS = special.expit(_LOG_ODDS)
WEIGHTS = BETS * (1.0 - BETS) / np.sum(BETS * (1.0 - BETS))  # du for equal steps of the log odds

CELLS = 2000  # of the grid that represents the values in `bounds`; integers of round ranges lie on it
SMALLEST = 1e-12  # resolution, as a fraction of the range: a bound nearer to the end of the range counts as the end


class ValueStats(NamedTuple):
    """Statistics of the values, sufficient for bounds on their mean."""

    grid: NDArray[np.float64] = np.zeros(CELLS + 1)  # number of values at each point of a grid over [lo, hi]
    pairs: tuple[NDArray[np.float64], ...] = ()  # for a rate instead: positions and weights [B, 2] of all values


class Wealth(NamedTuple):
    """State of the test; its size does not grow with the number of values, except for a rate."""

    stats: ValueStats
    # [S, 2, BETS] wealth / 2**exponent of each bet: that bound s is met, and that it is not
    bets: NDArray[np.float64]
    exponent: NDArray[np.int64]  # [S, 2]


@dataclass(frozen=True)
class Betting:
    """Accept, or reject, when the evidence for that reaches 1/δ; the sides of an interval combine as in `Anytime`."""

    task: MeanTask
    error_rate: ClassVar[bool] = True
    sequential: ClassVar[bool] = True
    open_ended: ClassVar[bool] = True

    def init(self) -> Wealth:
        """Return the initial wealth: the weight of each bet, in total 1."""
        sides = len(self.task.sides)
        bets = np.broadcast_to(WEIGHTS, (sides, 2, len(BETS)))
        return Wealth(ValueStats(), bets, np.zeros((sides, 2), np.int64))

    def feed(self, state: Wealth, values: NDArray[np.float64]) -> tuple[Wealth, int, int]:
        """Bet on one value after the other until the evidence suffices."""
        bets, exponent, used, decision = state.bets, state.exponent, 0, CONTINUE
        while used < len(values) and decision == CONTINUE:
            paths = self._paths(bets, values[used : used + self._batch_size])
            with np.errstate(over="ignore"):  # infinite evidence suffices, too
                evidence = np.ldexp(paths.sum(axis=2), exponent[..., None])  # [S, 2, B]
            accept = (evidence[:, 0] >= 1.0 / self.task.false_accept).all(axis=0)
            reject = evidence[:, 1].sum(axis=0) >= len(evidence) / self.task.false_reject
            codes = decisions(accept, reject)
            last = first_decision(codes)
            used, decision = used + last + 1, int(codes[last])
            # Powers of two are exact: where batches begin and end changes no bit of the wealth.
            bets = paths[..., last]
            _, shift = np.frexp(bets.max(axis=2))
            bets, exponent = np.ldexp(bets, -shift[..., None]), exponent + shift
        return Wealth(add_values(self.task, state.stats, values[:used]), bets, exponent), used, decision

    def _paths(self, bets: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the wealth of every bet after each value, `[S, 2, BETS, B]`."""
        bounds = np.array([side.bound for side in self.task.sides]).reshape(-1, 1, 1, 1)
        total, weight = self.task.totals_and_weights(values)
        paths: NDArray[np.float64] = self._stakes * (total - bounds * weight)
        paths += 1.0
        paths[..., 0] *= bets
        return np.multiply.accumulate(paths, axis=3, out=paths)

    @cached_property
    def _stakes(self) -> NDArray[np.float64]:
        """Stakes per unit that a value exceeds the bound, `[S, 2, BETS, 1]`; negative: per unit below it."""
        lo, hi, smallest = self.task.lo, self.task.hi, SMALLEST * (self.task.hi - self.task.lo)
        bets = BETS / (self.task.steps or 1)
        stakes = np.empty((len(self.task.sides), 2, len(BETS), 1))
        for s, side in enumerate(self.task.sides):
            above = bets / max(side.bound - lo, smallest)
            below = -bets / max(hi - side.bound, smallest)
            stakes[s, :, :, 0] = (above, below) if side.at_least else (below, above)
        return stakes

    @cached_property
    def _batch_size(self) -> int:
        """Number of values before the wealth is rescaled, such that no product reaches 1e300."""
        most = np.abs(self._stakes).max(initial=0.0) * (self.task.hi - self.task.lo) * (self.task.steps or 1)
        return int(690.0 / np.log(max(most + 1.0, 4.0)))

    def bounds(self, state: Wealth, delta: float) -> tuple[float, float]:
        """Return the current interval of the confidence sequence."""
        return confidence_sequence(self.task, state.stats, delta)

    @property
    def guarantee(self) -> Guarantee:
        """An error rate under optional stopping."""
        return anytime_guarantee(self.task)


def anytime_guarantee(task: MeanTask) -> Guarantee:
    """Return the guarantee of a test by bets."""
    accept, reject = task.false_accept, task.false_reject
    condition = f"provided that {task.condition}"
    return Guarantee(
        "anytime",
        f"If the constraint does not hold, the chance that this test ever calls it satisfied is at most "
        f"{percent(accept)}; if it holds, the chance that it ever calls it violated is at most {percent(reject)}. "
        f"That is true however many episodes are looked at and whenever one stops, {condition}.",
        accept,
        reject,
        condition,
    )


# ---- bounds ---------------------------------------------------------------------------------------------------------


class ValuePoints(NamedTuple):
    """Distinct values: positions in the range and weights, both in [0, 1], and multiplicities; each `[P]`."""

    position: NDArray[np.float64]
    weight: NDArray[np.float64]
    number: NDArray[np.float64]

    @property
    def mirrored(self) -> ValuePoints:
        """The points measured from the upper end of the range."""
        return self._replace(position=np.maximum(self.weight - self.position, 0.0))


def add_values(task: MeanTask, stats: ValueStats, values: NDArray[np.float64]) -> ValueStats:
    """Return the statistics after further values."""
    position, weight = task.normalize(values)
    if task.steps is None:
        return ValueStats(_add_to_grid(stats.grid, position))
    return ValueStats(pairs=(*stats.pairs, np.stack([position, weight], 1)))


def confidence_sequence(task: MeanTask, stats: ValueStats, delta: float) -> tuple[float, float]:
    """Return time-uniform lower and upper bounds, each wrong at any time with probability at most δ."""
    if task.steps is None:
        points = grid_points(stats.grid)
    else:
        pairs, count = np.unique(np.concatenate([np.empty((0, 2)), *stats.pairs]), axis=0, return_counts=True)
        points = ValuePoints(pairs[:, 0], pairs[:, 1], count.astype(np.float64))
    above, below = (solve_lower_bound(partial(log_evidence, side), delta) for side in (points, points.mirrored))
    width = task.hi - task.lo
    return task.lo + width * above, task.hi - width * below


def _add_to_grid(grid: NDArray[np.float64], position: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add values at `position` `[B]` in [0, 1] to the grid; a value between two points is split, preserving the mean.

    The log of a factor is concave in the value, so splitting can only lower the evidence, for either side: bounds from
    the grid are sound. They are hardly wider: the variance grows by at most a quarter of a squared cell.
    """
    place = position * CELLS
    left = np.minimum(place.astype(np.int64), CELLS - 1)
    grid = grid.copy()
    # Left, right, left, right: in the order of the values, the sums don't depend on how they were batched.
    np.add.at(grid, np.stack([left, left + 1], 1), np.stack([left + 1 - place, place - left], 1))
    return grid


def grid_points(grid: NDArray[np.float64]) -> ValuePoints:
    """Return the values that a grid represents."""
    (at,) = np.nonzero(grid)
    return ValuePoints(at / CELLS, np.ones(len(at)), grid[at])


def log_evidence(points: ValuePoints, q: float) -> float:
    """Return log E at the position q in (0, 1] of the range."""
    gain = points.position / q - points.weight
    # One bet at a time: a rate may have a million points.
    gains = [np.log1p(bet * gain) @ points.number for bet in BETS]
    return float(np.logaddexp.reduce(gains + np.log(WEIGHTS)))


def solve_lower_bound(evidence: Callable[[float], float], delta: float) -> float:
    """Return the lower bound q in [0, 1] at which the log evidence, decreasing in q, is log 1/δ; 0 if there is none."""
    from scipy.optimize import brentq  # takes long to import

    def excess(log_q: float) -> float:
        return evidence(np.exp(log_q)) + np.log(delta)

    start = np.log(SMALLEST)
    if delta >= 1.0 or excess(start) <= 0.0:
        return 0.0
    return float(np.exp(brentq(excess, start, 0.0, xtol=1e-14)))
