"""What every verification method is: init / update / decide over outcomes, and the guarantee it gives.

All methods judge by two counts, how many episodes satisfied the formula and how many violated it. So `decide`
takes counts that may be arrays, and one line serves a single episode, a million recorded ones and the exact
dynamic programs that predict how a test behaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from psyco._src.spec.formula import Constraint, Requirement


class Verdict(Enum):
    """How a verification ended."""

    SATISFIED = "the requirement holds at the stated confidence"
    VIOLATED = "the requirement fails at the stated confidence"
    UNDECIDED = "the episodes were spent before the evidence sufficed"


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


def decisions(accept: ArrayLike, reject: ArrayLike) -> NDArray[np.int8]:
    """Two Boolean arrays as one of decisions."""
    return np.where(accept, ACCEPT, np.where(reject, REJECT, CONTINUE)).astype(np.int8)


# Numbers are rounded outward: what is printed must never claim more than what was shown.


def percent(rate: float) -> str:
    """An error rate as a reader would say it, at most a little too large: 2%, 0.1%."""
    return f"{_percentage(rate).normalize():f}%"


def confidence_percent(level: float) -> str:
    """The confidence 1 - δ in the same way, at most a little too small: 98.66%."""
    return f"{(100 - _percentage(1.0 - level)).normalize():f}%"


def rounded_down(p: float, digits: int = 4) -> str:
    """A lower bound in print."""
    return str(Decimal(str(p)).quantize(Decimal(10) ** -digits, ROUND_FLOOR))


def rounded_up(p: float, digits: int = 4) -> str:
    """An upper bound in print."""
    return str(Decimal(str(p)).quantize(Decimal(10) ** -digits, ROUND_CEILING))


def _percentage(rate: float) -> Decimal:
    # Seven digits first: 1 - 0.98 is a little more than 0.02.
    return Context(prec=3, rounding=ROUND_CEILING).create_decimal(f"{100 * rate:.7g}")


class Tally(NamedTuple):
    """Where the test of one constraint stands."""

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


def run_tests(
    tests: Sequence[Test], batches: Iterable[NDArray[np.bool_]], *, max_episodes: int | None
) -> list[Tally]:
    """Feed outcomes `[B, K]` to K tests, one episode at a time in their order, until all is known.

    A test stops where it would have stopped alone. The whole stops when one constraint is violated, when all are
    decided, or when `max_episodes` are spent.
    """
    progress = [Tally(init(), Verdict.UNDECIDED) for _ in tests]
    used = 0
    for outcomes in batches:
        if max_episodes is not None:
            outcomes = outcomes[: max_episodes - used]
        stops = [
            len(outcomes) if p.verdict is not Verdict.UNDECIDED else _first_decision(test, p.counts, column)
            for test, p, column in zip(tests, progress, outcomes.T, strict=True)
        ]
        # A violated constraint ends the whole: the others are not fed beyond that episode.
        ends = [
            stop + 1
            for test, p, column, stop in zip(tests, progress, outcomes.T, stops, strict=True)
            if stop < len(outcomes) and test.decide(_count(p.counts, column[: stop + 1])) == REJECT
        ]
        limit = min(ends, default=len(outcomes))
        progress = [
            p if p.verdict is not Verdict.UNDECIDED else _advance(test, p, column[: min(limit, stop + 1)])
            for test, p, column, stop in zip(tests, progress, outcomes.T, stops, strict=True)
        ]
        used += len(outcomes)
        if overall(progress) is not Verdict.UNDECIDED or used == max_episodes:
            break
    return progress


def overall(progress: Sequence[Tally]) -> Verdict:
    """SATISFIED if all constraints are, VIOLATED if one is, else UNDECIDED."""
    verdicts = {p.verdict for p in progress}
    if Verdict.VIOLATED in verdicts:
        return Verdict.VIOLATED
    return Verdict.UNDECIDED if Verdict.UNDECIDED in verdicts else Verdict.SATISFIED


def _first_decision(test: Test, start: Counts, outcomes: NDArray[np.bool_]) -> int:
    """The index of the outcome after which the test decides; `len(outcomes)` if it does not."""
    hits = np.cumsum(outcomes, dtype=np.int64)
    misses = np.arange(1, len(outcomes) + 1) - hits
    decided = np.asarray(test.decide(Counts(start.satisfied + hits, start.violated + misses))) != CONTINUE
    return int(np.argmax(decided)) if decided.any() else len(outcomes)


def _count(counts: Counts, outcomes: ArrayLike) -> Counts:
    hits = int(np.count_nonzero(outcomes))
    return Counts(counts.satisfied + hits, counts.violated + np.size(outcomes) - hits)


def _advance(test: Test, progress: Tally, outcomes: NDArray[np.bool_]) -> Tally:
    counts = _count(progress.counts, outcomes)
    if counts == progress.counts:
        return progress
    verdicts = {ACCEPT: Verdict.SATISFIED, REJECT: Verdict.VIOLATED, CONTINUE: Verdict.UNDECIDED}
    return Tally(counts, verdicts[int(test.decide(counts))])
