"""Run K tests over a stream of episodes: a tally per test, and the loop that stops when the verdict is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RangeError
from psyco._src.verification.base import (
    ACCEPT,
    CONTINUE,
    REJECT,
    Counts,
    MeanTask,
    MeanTest,
    Test,
    Verdict,
    WeightedSums,
    first_decision,
)

_VERDICTS = {ACCEPT: Verdict.SATISFIED, REJECT: Verdict.VIOLATED, CONTINUE: Verdict.UNDECIDED}


class Tally(NamedTuple):
    """Counts and verdict of one test of a probability."""

    counts: Counts
    verdict: Verdict

    @property
    def episodes(self) -> int:
        """Number of outcomes consumed."""
        return int(self.counts.satisfied + self.counts.violated)

    @property
    def share(self) -> float:
        """Share of satisfying episodes; NaN before the first one."""
        return self.counts.satisfied / self.episodes if self.episodes else float("nan")

    def update(self, test: Any, outcomes: NDArray[Any]) -> Tally:
        """Return the tally after outcomes `[B]`, or after those up to a decision."""
        if self.verdict is not Verdict.UNDECIDED or not len(outcomes):
            return self
        hits = np.cumsum(outcomes, dtype=np.int64)
        misses = np.arange(1, len(outcomes) + 1) - hits
        s, v = self.counts.satisfied + hits, self.counts.violated + misses
        codes = np.asarray(test.decide(Counts(s, v)))
        last = first_decision(codes)
        return Tally(Counts(int(s[last]), int(v[last])), _VERDICTS[int(codes[last])])


class MeanTally(NamedTuple):
    """Sums, state and verdict of one test of a mean or rate."""

    sums: WeightedSums  # of the values consumed
    state: Any  # of the test
    verdict: Verdict

    @property
    def episodes(self) -> int:
        """Number of values consumed."""
        return int(self.sums.count)

    def update(self, test: Any, values: NDArray[Any]) -> MeanTally:
        """Return the tally after values `[B]`, or pairs `[B, 2]`, or after those up to a decision."""
        if self.verdict is not Verdict.UNDECIDED or not len(values):
            return self
        values = np.asarray(values, np.float64)
        state, used, code = test.feed(self.state, values)
        sums = test.task.cumulative_sums(self.sums, values[:used])
        return MeanTally(WeightedSums(*(float(column[-1]) for column in sums)), state, _VERDICTS[code])


Batch = NDArray[Any] | Sequence[NDArray[Any]]


def run_tests(tests: Sequence[Test | MeanTest], batches: Iterable[Batch], *, max_episodes: int | None) -> list[Any]:
    """Feed outcomes and values to K tests, episode by episode in their order, and return K tallies.

    Each test stops where it would have stopped alone. The loop stops when one constraint is violated, when all are
    decided, or after `max_episodes`. A value outside of the range of its test before that raises `RangeError`.

    Args:
        tests: one per constraint.
        batches: `[B, K]`, or K columns: outcomes or values `[B]`, for a rate totals and steps `[B, 2]`.
        max_episodes: maximum number of episodes.
    """
    tallies: list[Any] = [_start(test) for test in tests]
    used = 0
    for batch in batches:
        columns = list(batch.T) if isinstance(batch, np.ndarray) else list(batch)
        if max_episodes is not None:
            columns = [column[: max_episodes - used] for column in columns]
        size = len(columns[0]) if columns else 0
        in_range = min(map(_count_in_range, tests, columns), default=size)
        tallies = _update_all(tests, tallies, [column[:in_range] for column in columns])
        if overall_verdict(tallies) is not Verdict.UNDECIDED:
            break
        if in_range < size:
            _raise_range_error(tests, used + in_range, [column[in_range : in_range + 1] for column in columns])
        used += size
        if used == max_episodes:
            break
    return tallies


def observed_value(test: Any, tally: Tally | MeanTally) -> float:
    """Return the share, mean, rate or CVaR that a test has observed."""
    if isinstance(tally, Tally):
        return tally.share
    return float(test.task.mean(tally.sums) if test.task.cvar is None else test.observed(tally.state))


def overall_verdict(tallies: Sequence[Any]) -> Verdict:
    """Return SATISFIED if all constraints are, VIOLATED if one is, else UNDECIDED."""
    verdicts = {tally.verdict for tally in tallies}
    if Verdict.VIOLATED in verdicts:
        return Verdict.VIOLATED
    return Verdict.UNDECIDED if Verdict.UNDECIDED in verdicts else Verdict.SATISFIED


def _start(test: Any) -> Tally | MeanTally:
    if isinstance(test.task, MeanTask):
        return MeanTally(WeightedSums(), test.init(), Verdict.UNDECIDED)
    return Tally(Counts(), Verdict.UNDECIDED)


def _update_all(tests: Any, tallies: list[Any], columns: Sequence[NDArray[Any]]) -> list[Any]:
    updated = [tally.update(test, column) for test, tally, column in zip(tests, tallies, columns, strict=True)]
    used = [new.episodes - old.episodes for old, new in zip(tallies, updated, strict=True)]
    # A violated constraint ends the whole: the other tests see no episode after that one.
    ends = [n for n, new in zip(used, updated, strict=True) if new.verdict is Verdict.VIOLATED]
    if not ends:
        return updated
    limit = min(ends)
    return [
        new if n <= limit else old.update(test, column[:limit])
        for test, old, new, n, column in zip(tests, tallies, updated, used, columns, strict=True)
    ]


def _count_in_range(test: Any, column: NDArray[Any]) -> int:
    """Return the number of values before the first one outside of the test's range."""
    if not isinstance(test.task, MeanTask):
        return len(column)
    outside = ~test.task.in_range(column)
    return int(np.argmax(outside)) if outside.any() else len(column)


def _raise_range_error(tests: Any, position: int, row: Sequence[NDArray[Any]]) -> None:
    """Raise for the value outside of its range: clipping it would void the guarantee."""
    for test, value in zip(tests, row, strict=True):
        if not _count_in_range(test, value):
            total, weight = test.task.totals_and_weights(value)
            raise RangeError(position, float(total[0] / weight[0]), test.task.range_text)
