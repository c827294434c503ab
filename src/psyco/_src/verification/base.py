"""What every verification method is: init / update / decide over outcomes, and the guarantee it gives.

Tests of a probability judge by two counts, how many episodes satisfied the formula and how many violated it. So
`decide` takes counts that may be arrays, and one line serves a single episode, a million recorded ones and the exact
dynamic programs that predict how a test behaves. Tests of a mean judge by values, of which each keeps what it needs:
a state that `feed` moves on. `run_tests` sees a tally of either kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from psyco._src.core.errors import RangeError, RunError
from psyco._src.logic.ast import Constraint, Requirement


class Verdict(Enum):
    """How a verification ended."""

    SATISFIED = "the requirement holds at the stated confidence"
    VIOLATED = "the requirement fails at the stated confidence"
    UNDECIDED = "the episodes were spent before the evidence sufficed"
    ANSWERED = "nothing was to be shown; the questions are answered"


@dataclass(frozen=True)
class Guarantee:
    """What a verdict is worth."""

    kind: str  # a word for programs: posterior, anytime, capped, fixed, indifference, exact
    statement: str  # sentences for people
    wrongly_satisfied: float | None = (
        None  # at most so often SATISFIED although it is not; None: no error rate
    )
    wrongly_violated: float | None = None
    condition: str | None = None  # under which the error rates hold, for people; None: under any


class Counts(NamedTuple):
    """Outcomes so far; numbers or arrays of equal shape."""

    satisfied: Any
    violated: Any


def init() -> Counts:
    """No outcome yet."""
    return Counts(0, 0)


def update(counts: Counts, outcome: bool) -> Counts:
    """One more episode."""
    return Counts(counts.satisfied + bool(outcome), counts.violated + (not outcome))


ACCEPT, CONTINUE, REJECT = 1, 0, -1


class Side(NamedTuple):
    """One bound of a constraint as "the probability is at least p_req"; an upper bound is that of the negation."""

    p_req: float
    negated: bool

    def counts(self, counts: Counts) -> Counts:
        """Outcomes of the formula that this side speaks of."""
        return Counts(counts.violated, counts.satisfied) if self.negated else counts

    def bound(self, p: float) -> float:
        """A probability of that formula as one of the constraint's own."""
        return 1.0 - p if self.negated else p


@dataclass(frozen=True)
class Task:
    """What a test has to settle, and how often it may be wrong.

    Args:
        constraint: what is to be shown.
        false_accept: at most so often may it be accepted although it does not hold.
        false_reject: at most so often may it be rejected although it holds.
        max_episodes: there will be no more than so many; None if nobody knows.
    """

    constraint: Constraint
    false_accept: float
    false_reject: float
    max_episodes: int | None = None

    @property
    def sides(self) -> tuple[Side, ...]:
        """What is asked for; nothing for a bound that every probability meets."""
        demands = Requirement(constraints=(self.constraint,)).demands
        return tuple(Side(d.p_req, d.negated) for d in demands if d.p_req > 0.0)


class Test(Protocol):
    """One method, set up for one task."""

    error_rate: ClassVar[bool]  # does the method bound how often it is wrong?
    sequential: ClassVar[bool]  # does it stop by what it has seen?
    open_ended: ClassVar[bool]  # may it go on after the maximum of episodes, and keep what it promised?

    @property
    def task(self) -> Task:
        """What it has to settle."""

    def decide(self, counts: Counts) -> NDArray[np.int8]:
        """ACCEPT, REJECT or CONTINUE for each of the counts."""

    def bounds(self, counts: Counts, delta: float) -> tuple[float, float]:
        """Lower and upper bound for the true probability, each wrong with a chance (or belief) of at most `delta`."""

    @property
    def guarantee(self) -> Guarantee:
        """What its verdicts are worth."""


NARROWEST, WIDEST = 1e-100, 1e100  # range: its square must be a number


@dataclass(frozen=True)
class MeanTask:
    """Is the mean of an episode's value between `lower` and `upper`? As `Task`, for values in a known range.

    With `steps` it is a rate, the mean total of an episode over the mean number of its steps. Then a value is a pair,
    the total and the steps, and range and bounds are those of the average of a step. A mean is the rate of episodes of
    one step: tests treat both alike, by the weight of an episode, which is 1 or its steps.

    Args:
        lo: no value can be smaller.
        hi: no value can be larger.
        lower: the least mean that is allowed; strict or not makes no difference to a test.
        upper: the largest one.
        steps: of a rate, no episode can have more.
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
    false_accept: float
    false_reject: float
    max_episodes: int | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite([self.lo, self.hi]).all() and self.lo < self.hi):
            raise RunError(f"a range is two finite numbers, the smaller one first; got {self.range_text}")
        if not NARROWEST <= (self.hi - self.lo) * (self.steps or 1) <= WIDEST:
            raise RunError(
                f"a range is no narrower than {NARROWEST:g} and no wider than {WIDEST:g}, got {self.range_text}; "
                "take another unit"
            )
        if not self.lower <= self.upper or self.lower > self.hi or self.upper < self.lo:
            raise RunError(
                f"no mean of values in {self.range_text} lies between {self.lower:g} and {self.upper:g}; "
                "correct the bounds or the range"
            )

    @property
    def range_text(self) -> str:
        """The range for people."""
        return f"[{self.lo:.12g}, {self.hi:.12g}]"

    @property
    def condition(self) -> str:
        """What must be so for a test to mean anything, for people."""
        if self.steps is None:
            return f"no episode can have a value outside of {self.range_text}"
        return f"no episode can have more than {self.steps:,} steps, or an average of them outside of {self.range_text}"

    def weighed(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The totals `[B]` and weights `[B]` of values `[B]`, or of pairs `[B, 2]`."""
        values = np.asarray(values, np.float64)
        return (values, np.ones(len(values))) if self.steps is None else (values[:, 0], values[:, 1])

    def positions(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """How far totals lie above what they must be, and weights: both `[B]`, as parts of the largest, from 0 to 1."""
        total, weight = self.weighed(values)
        heaviest = float(self.steps or 1)
        return (total - self.lo * weight) / (heaviest * (self.hi - self.lo)), weight / heaviest

    def inside(self, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which values lie in the range, `[B]`; NaN does not."""
        total, weight = self.weighed(values)
        fits = (weight >= 1.0) & (weight <= (self.steps or 1))
        return fits & (total >= self.lo * weight) & (total <= self.hi * weight)

    def running(self, start: WeightedSums, values: NDArray[np.float64]) -> WeightedSums:
        """The moments before and after each of further values, `[B+1]`."""
        total, weight = self.weighed(values)
        above = total - self.lo * weight
        added = (np.ones(len(above)), weight, above, above**2, above * weight, weight**2)
        # One after the other, so that the sums don't depend on how the values were batched.
        return WeightedSums(*(np.cumsum(np.append(old, new)) for old, new in zip(start, added, strict=True)))

    def mean(self, moments: WeightedSums) -> float:
        """The mean, or the rate, of what was seen."""
        return self.lo + moments.above / moments.weight if moments.count else float("nan")

    @property
    def sides(self) -> tuple[MeanSide, ...]:
        """What is asked for; nothing for a bound that every mean meets."""
        below = (MeanSide(self.lower, True),) * (self.lower > self.lo)
        return below + (MeanSide(self.upper, False),) * (self.upper < self.hi)


class WeightedSums(NamedTuple):
    """Sums over episodes, of their weights and of what their totals lie above the least ones; numbers or arrays."""

    count: Any = 0.0
    weight: Any = 0.0
    above: Any = 0.0
    squares: Any = 0.0  # of what they lie above
    products: Any = 0.0  # of that and the weight
    weights: Any = 0.0  # squared


class MeanSide(NamedTuple):
    """One bound of a mean."""

    bound: float
    at_least: bool  # the mean should be at least that, else at most


class MeanTest(Protocol):
    """One method, set up for the task about a mean: `Test`, but for values in place of outcomes."""

    error_rate: ClassVar[bool]
    sequential: ClassVar[bool]
    open_ended: ClassVar[bool]

    @property
    def task(self) -> MeanTask:
        """What it has to settle."""

    def init(self) -> Any:
        """What it knows before the first value."""

    def feed(self, state: Any, values: NDArray[np.float64]) -> tuple[Any, int, int]:
        """Consume values `[B]`, or pairs, until a decision: the new state, how many were consumed, the decision."""

    def bounds(self, state: Any, delta: float) -> tuple[float, float]:
        """Lower and upper bound for the true mean, each wrong with a chance (or belief) of at most `delta`."""

    @property
    def guarantee(self) -> Guarantee:
        """What its verdicts are worth."""


def first_decision(codes: NDArray[np.int8]) -> int:
    """The index of the first decision among `codes`, one per episode; of the last code if there is none."""
    decided = codes != CONTINUE
    return int(np.argmax(decided)) if decided.any() else len(codes) - 1


def decisions(accept: ArrayLike, reject: ArrayLike) -> NDArray[np.int8]:
    """Two Boolean arrays as one of decisions."""
    return np.where(accept, ACCEPT, np.where(reject, REJECT, CONTINUE)).astype(np.int8)


# Numbers are rounded outward: what is printed must never claim more than what was shown.

WIDE = Context(prec=400)  # for every finite number, with some digits behind the point


def percent(rate: float) -> str:
    """An error rate as a reader would say it, at most a little too large: 2%, 0.1%."""
    return f"{_percentage(rate).normalize():f}%"


def confidence_percent(level: float) -> str:
    """The confidence 1 - δ in the same way, at most a little too small: 98.66%."""
    return f"{(100 - _percentage(1.0 - level)).normalize():f}%"


def rounded_down(p: float, digits: int = 4) -> str:
    """A lower bound in print."""
    return _rounded(p, digits, ROUND_FLOOR)


def rounded_up(p: float, digits: int = 4) -> str:
    """An upper bound in print."""
    return _rounded(p, digits, ROUND_CEILING)


def _rounded(p: float, digits: int, way: str) -> str:
    if not math.isfinite(p):
        return str(p)
    return format(Decimal(str(p)).quantize(Decimal(10) ** -digits, way, WIDE), "f")


def _percentage(rate: float) -> Decimal:
    # Seven digits first: 1 - 0.98 is a little more than 0.02.
    return Context(prec=3, rounding=ROUND_CEILING).create_decimal(f"{100 * rate:.7g}")


_VERDICTS = {ACCEPT: Verdict.SATISFIED, REJECT: Verdict.VIOLATED, CONTINUE: Verdict.UNDECIDED}


class Tally(NamedTuple):
    """Where the test of one probability stands."""

    counts: Counts
    verdict: Verdict

    @property
    def episodes(self) -> int:
        """How many outcomes it has consumed."""
        return int(self.counts.satisfied + self.counts.violated)

    @property
    def share(self) -> float:
        """The share of satisfying episodes among them."""
        return self.counts.satisfied / self.episodes if self.episodes else float("nan")

    def fed(self, test: Any, outcomes: NDArray[Any]) -> Tally:
        """After outcomes `[B]`, or those of them up to a decision."""
        if self.verdict is not Verdict.UNDECIDED or not len(outcomes):
            return self
        hits = np.cumsum(outcomes, dtype=np.int64)
        misses = np.arange(1, len(outcomes) + 1) - hits
        s, v = self.counts.satisfied + hits, self.counts.violated + misses
        codes = np.asarray(test.decide(Counts(s, v)))
        last = first_decision(codes)
        return Tally(Counts(int(s[last]), int(v[last])), _VERDICTS[int(codes[last])])


class MeanTally(NamedTuple):
    """Where the test of one mean, or rate, stands."""

    moments: WeightedSums  # of the values that it has consumed
    state: Any  # what the test keeps of them
    verdict: Verdict

    @property
    def episodes(self) -> int:
        """How many values it has consumed."""
        return int(self.moments.count)

    def fed(self, test: Any, values: NDArray[Any]) -> MeanTally:
        """After values `[B]`, or pairs `[B, 2]`, or those of them up to a decision."""
        if self.verdict is not Verdict.UNDECIDED or not len(values):
            return self
        values = np.asarray(values, np.float64)
        state, used, code = test.feed(self.state, values)
        sums = test.task.running(self.moments, values[:used])
        return MeanTally(WeightedSums(*(float(each[-1]) for each in sums)), state, _VERDICTS[code])


Batch = NDArray[Any] | Sequence[NDArray[Any]]


@overload
def run_tests(
    tests: Sequence[Test], batches: Iterable[Batch], *, max_episodes: int | None
) -> list[Tally]: ...


@overload
def run_tests(
    tests: Sequence[Test | MeanTest], batches: Iterable[Batch], *, max_episodes: int | None
) -> list[Tally | MeanTally]: ...


def run_tests(tests: Any, batches: Iterable[Batch], *, max_episodes: int | None) -> list[Any]:
    """Feed outcomes and values to K tests, one episode at a time in their order, until all is known.

    A test stops where it would have stopped alone. The whole stops when one constraint is violated, when all are
    decided, or when `max_episodes` are spent. A value outside of the range of its test before that is an error.

    Args:
        tests: one per constraint.
        batches: `[B, K]`, or K columns: outcomes or values `[B]`, of a rate totals and steps `[B, 2]`.
        max_episodes: no more than so many.
    """
    progress: list[Any] = [_start(test) for test in tests]
    used = 0
    for batch in batches:
        columns = list(batch.T) if isinstance(batch, np.ndarray) else list(batch)
        if max_episodes is not None:
            columns = [column[: max_episodes - used] for column in columns]
        size = len(columns[0]) if columns else 0
        inside = min(map(_inside, tests, columns), default=size)
        progress = _fed(tests, progress, [column[:inside] for column in columns])
        if overall(progress) is not Verdict.UNDECIDED:
            break
        if inside < size:
            _refuse(tests, used + inside, [column[inside : inside + 1] for column in columns])
        used += size
        if used == max_episodes:
            break
    return progress


def observed(test: Any, tally: Tally | MeanTally) -> float:
    """The share, the mean or the rate of what a test has consumed."""
    return tally.share if isinstance(tally, Tally) else float(test.task.mean(tally.moments))


def overall(progress: Sequence[Tally | MeanTally]) -> Verdict:
    """SATISFIED if all constraints are, VIOLATED if one is, else UNDECIDED."""
    verdicts = {p.verdict for p in progress}
    if Verdict.VIOLATED in verdicts:
        return Verdict.VIOLATED
    return Verdict.UNDECIDED if Verdict.UNDECIDED in verdicts else Verdict.SATISFIED


def _start(test: Any) -> Tally | MeanTally:
    if isinstance(test.task, MeanTask):
        return MeanTally(WeightedSums(), test.init(), Verdict.UNDECIDED)
    return Tally(init(), Verdict.UNDECIDED)


def _fed(tests: Any, progress: list[Any], columns: Sequence[NDArray[Any]]) -> list[Any]:
    ahead = [p.fed(test, column) for test, p, column in zip(tests, progress, columns, strict=True)]
    # A violated constraint ends the whole: the others are not fed beyond that episode.
    ends = [
        a.episodes - p.episodes for p, a in zip(progress, ahead, strict=True) if a.verdict is Verdict.VIOLATED
    ]
    if not ends:
        return ahead
    limit = min(ends)
    return [
        a if a.episodes - p.episodes <= limit else p.fed(test, column[:limit])
        for test, p, a, column in zip(tests, progress, ahead, columns, strict=True)
    ]


def _inside(test: Any, column: NDArray[Any]) -> int:
    """How many values come before the first one outside of the test's range."""
    if not isinstance(test.task, MeanTask):
        return len(column)
    outside = ~test.task.inside(column)
    return int(np.argmax(outside)) if outside.any() else len(column)


def _refuse(tests: Any, position: int, row: Sequence[NDArray[Any]]) -> None:
    """Name the value that ended the whole: clipping it would void what is promised."""
    for test, value in zip(tests, row, strict=True):
        if not _inside(test, value):
            total, weight = test.task.weighed(value)
            raise RangeError(position, float(total[0] / weight[0]), test.task.range_text)
