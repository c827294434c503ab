"""Hypothesis tests of one constraint: task, test protocol and guarantee, over counts and over values.

A test of a probability (`Test`) judges by two counts: episodes that satisfied the formula, and episodes that violated
it. `decide` takes counts that may be arrays, so that one implementation serves a single episode, a million recorded
ones, and the exact dynamic programs that predict the behaviour of a test.

A test of a mean (`MeanTest`) judges by values. It keeps a state, which `feed` updates.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from psyco._src.core.errors import RangeError, RunError
from psyco._src.logic.ast import Constraint, Requirement


class Verdict(Enum):
    """The result of a verification."""

    SATISFIED = "the requirement holds at the stated confidence"
    VIOLATED = "the requirement fails at the stated confidence"
    UNDECIDED = "the episodes were spent before the evidence sufficed"
    ANSWERED = "nothing was to be shown; the questions are answered"


@dataclass(frozen=True)
class Guarantee:
    """The error rates of a verdict, and the guarantee in words."""

    kind: str  # for programs: posterior, anytime, capped, fixed, indifference or exact
    statement: str  # for people
    # Upper bounds on the probability of a wrong SATISFIED and of a wrong VIOLATED; None: no error rate is claimed.
    false_accept: float | None = None
    false_reject: float | None = None
    condition: str | None = None  # under which the error rates hold, for people; None: unconditional


ACCEPT, CONTINUE, REJECT = 1, 0, -1


def decisions(accept: ArrayLike, reject: ArrayLike) -> NDArray[np.int8]:
    """Return ACCEPT, REJECT or CONTINUE for each entry of two Boolean arrays."""
    return np.where(accept, ACCEPT, np.where(reject, REJECT, CONTINUE)).astype(np.int8)


def first_decision(codes: NDArray[np.int8]) -> int:
    """Return the index of the first code other than CONTINUE, or of the last code if there is none."""
    decided = codes != CONTINUE
    return int(np.argmax(decided)) if decided.any() else len(codes) - 1


# ---- probabilities: tests over counts -------------------------------------------------------------------------------


class Counts(NamedTuple):
    """Numbers of episodes by outcome; integers or arrays of equal shape."""

    satisfied: Any = 0
    violated: Any = 0

    @property
    def swapped(self) -> Counts:
        """Counts of the negated formula."""
        return Counts(self.violated, self.satisfied)


def add_outcome(counts: Counts, outcome: bool) -> Counts:
    """Return the counts after one more episode."""
    return Counts(counts.satisfied + bool(outcome), counts.violated + (not outcome))


class Side(NamedTuple):
    """One bound of a constraint, as "the probability is at least p_req"; an upper bound is that of the negation."""

    p_req: float
    negated: bool

    def counts(self, counts: Counts) -> Counts:
        """Return the counts of the formula that this side bounds."""
        return counts.swapped if self.negated else counts

    def bound(self, p: float) -> float:
        """Return a probability of that formula as a probability of the constraint's own formula."""
        return 1.0 - p if self.negated else p


@dataclass(frozen=True)
class Task:
    """A constraint on a probability and the permitted error rates.

    Args:
        constraint: the constraint under test.
        false_accept: maximum probability of accepting the constraint although it does not hold.
        false_reject: maximum probability of rejecting the constraint although it holds.
        max_episodes: maximum number of episodes; None if unknown.
    """

    constraint: Constraint
    false_accept: float
    false_reject: float
    max_episodes: int | None = None

    @cached_property
    def sides(self) -> tuple[Side, ...]:
        """The bounds to test; a bound that every probability meets is left out."""
        bounds = Requirement(constraints=(self.constraint,)).probability_bounds
        return tuple(Side(b.p_req, b.negated) for b in bounds if b.p_req > 0.0)


class Test(Protocol):
    """A verification method, set up for one task."""

    error_rate: ClassVar[bool]  # whether the method bounds its error rate
    sequential: ClassVar[bool]  # whether the stopping time depends on the outcomes
    open_ended: ClassVar[bool]  # whether the guarantee survives more episodes than the maximum

    @property
    def task(self) -> Task:
        """The constraint and the permitted error rates."""

    def decide(self, counts: Counts) -> NDArray[np.int8]:
        """Return ACCEPT, REJECT or CONTINUE for each of the counts."""

    def bounds(self, counts: Counts, delta: float) -> tuple[float, float]:
        """Return bounds on the true probability, each wrong with probability (or belief) at most `delta`.

        The counts are two numbers, which may both be 0: then the bounds are 0 and 1.
        """

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the verdicts."""


# ---- means and rates: tests over values -----------------------------------------------------------------------------

MIN_RANGE_WIDTH, MAX_RANGE_WIDTH = 1e-100, 1e100  # the square must be a finite, positive number


class WeightedSums(NamedTuple):
    """Sums over episodes; numbers or arrays. The excess of an episode is its total minus the least possible total."""

    count: Any = 0.0
    weight: Any = 0.0
    excess: Any = 0.0
    excess_squared: Any = 0.0
    excess_times_weight: Any = 0.0
    weight_squared: Any = 0.0


class MeanSide(NamedTuple):
    """One bound of a mean."""

    bound: float
    at_least: bool  # a lower bound on the mean; else an upper bound


@dataclass(frozen=True)
class MeanTask:
    """Bounds on the mean value of an episode and the permitted error rates, for values in a known range.

    With `steps` the subject is a rate: mean total of an episode over mean number of steps. Then a value is a pair
    (total, steps), and range and bounds are those of the average per step. A mean is the rate of episodes of one step,
    so tests treat both alike, by the weight of an episode: 1, or its number of steps.

    Args:
        lo: smallest possible value.
        hi: largest possible value.
        lower: lower bound on the mean; tests do not distinguish > from >=.
        upper: upper bound on the mean.
        steps: for a rate, the maximum length of an episode.
        cvar: for a CVaR, its level: the bounds are on the mean of the worst values; see `cvar`.
        false_accept: as in `Task`.
        false_reject: as in `Task`.
        max_episodes: as in `Task`.
    """

    lo: float
    hi: float
    lower: float = -np.inf
    upper: float = np.inf
    _: KW_ONLY
    steps: int | None = None
    cvar: float | None = None
    false_accept: float
    false_reject: float
    max_episodes: int | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite([self.lo, self.hi]).all() and self.lo < self.hi):
            raise RunError(f"a range is two finite numbers, the smaller one first; got {self.range_text}")
        if not MIN_RANGE_WIDTH <= (self.hi - self.lo) * (self.steps or 1) <= MAX_RANGE_WIDTH:
            raise RunError(
                f"a range is no narrower than {MIN_RANGE_WIDTH:g} and no wider than {MAX_RANGE_WIDTH:g}, "
                f"got {self.range_text}; take another unit"
            )
        if not self.lower <= self.upper or self.lower > self.hi or self.upper < self.lo:
            raise RunError(
                f"no mean of values in {self.range_text} lies between {self.lower:g} and {self.upper:g}; "
                "correct the bounds or the range"
            )

    @cached_property
    def sides(self) -> tuple[MeanSide, ...]:
        """The bounds to test; a bound that every mean meets is left out."""
        below = (MeanSide(self.lower, True),) * (self.lower > self.lo)
        return below + (MeanSide(self.upper, False),) * (self.upper < self.hi)

    @property
    def largest(self) -> bool:
        """Whether the largest values are the worst ones of a CVaR, as everywhere but under a lower bound."""
        return self.lower == -np.inf

    @property
    def range_text(self) -> str:
        """The range as text."""
        return f"[{self.lo:.12g}, {self.hi:.12g}]"

    @property
    def condition(self) -> str:
        """The assumption behind every test of this task, as text."""
        if self.steps is None:
            return f"no episode can have a value outside of {self.range_text}"
        return f"no episode can have more than {self.steps:,} steps, or an average of them outside of {self.range_text}"

    def totals_and_weights(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the totals `[B]` and weights `[B]` of values `[B]`, or of pairs `[B, 2]`."""
        values = np.asarray(values, np.float64)
        return (values, np.ones(len(values))) if self.steps is None else (values[:, 0], values[:, 1])

    def normalize(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return excess totals and weights, both `[B]`, as fractions of the largest possible ones."""
        total, weight = self.totals_and_weights(values)
        heaviest = float(self.steps or 1)
        return (total - self.lo * weight) / (heaviest * (self.hi - self.lo)), weight / heaviest

    def in_range(self, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which values lie in the range, `[B]`; NaN does not."""
        total, weight = self.totals_and_weights(values)
        fits = (weight >= 1.0) & (weight <= (self.steps or 1))
        return fits & (total >= self.lo * weight) & (total <= self.hi * weight)

    def cumulative_sums(self, start: WeightedSums, values: NDArray[np.float64]) -> WeightedSums:
        """Return the sums before the first value and after each one, `[B+1]`."""
        total, weight = self.totals_and_weights(values)
        excess = total - self.lo * weight
        added = (np.ones(len(excess)), weight, excess, excess**2, excess * weight, weight**2)
        # One after the other, so that the sums don't depend on how the values were batched.
        return WeightedSums(*(np.cumsum(np.append(old, new)) for old, new in zip(start, added, strict=True)))

    def add_checked(self, sums: WeightedSums, values: NDArray[np.float64]) -> WeightedSums:
        """Return the sums after further values; raise `RangeError` for one outside of the range."""
        in_range = self.in_range(values)
        if not in_range.all():
            at = int(np.argmin(in_range))
            total, weight = self.totals_and_weights(values[at : at + 1])
            raise RangeError(int(sums.count) + at, float(total[0] / weight[0]), self.range_text)
        return WeightedSums(*(float(column[-1]) for column in self.cumulative_sums(sums, values)))

    def mean(self, sums: WeightedSums) -> float:
        """Return the observed mean, or rate; NaN before the first episode."""
        return self.lo + sums.excess / sums.weight if sums.count else float("nan")


class MeanTest(Protocol):
    """A verification method, set up for one task about a mean: `Test`, but over values."""

    error_rate: ClassVar[bool]
    sequential: ClassVar[bool]
    open_ended: ClassVar[bool]

    @property
    def task(self) -> MeanTask:
        """The bounds on the mean and the permitted error rates."""

    def init(self) -> Any:
        """Return the state before the first value."""

    def feed(self, state: Any, values: NDArray[np.float64]) -> tuple[Any, int, int]:
        """Consume values `[B]`, or pairs `[B, 2]`, until a decision; return state, number consumed and decision."""

    def bounds(self, state: Any, delta: float) -> tuple[float, float]:
        """Return bounds on the true mean, each wrong with probability (or belief) at most `delta`."""

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the verdicts."""
