"""Estimates from further episodes of a look: answers to questions, and estimates without stopping bias.

An answer is an estimate of a mean with the confidence sequence of `betting`. The interval is valid at all times, so the
sampling may stop as soon as the interval is narrow enough, and the same episodes may also have decided the constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RangeError, RunError
from psyco._src.envs.value_bounds import ValueRange
from psyco._src.logic.ast import Requirement
from psyco._src.rollout.episodes import Episodes, concatenate_episodes
from psyco._src.verification.base import MeanTask, MeanTest, Test, WeightedSums
from psyco._src.verification.betting import ValueStats, add_values, confidence_sequence
from psyco._src.verification.episode_stream import EpisodeStream, check_info_keys, episode_columns
from psyco._src.verification.findings import (
    Answer,
    Estimate,
    MeanEstimate,
    ShareEstimate,
    circumstances,
    standard_error,
)
from psyco._src.verification.methods import make_tests, mean_task
from psyco._src.verification.tally import MeanTally, Tally, observed_value, run_tests

# Episodes between checks of the width: computing an interval takes longer than an episode of a fast simulator.
FIRST_WIDTH_CHECK, WIDTH_CHECK_GROWTH = 100, 1.1

# ---- questions --------------------------------------------------------------------------------------------------


class QuestionAnswers(NamedTuple):
    """Answers to the questions of a requirement."""

    answers: tuple[Answer, ...] = ()
    notes: tuple[str, ...] = ()  # for the certificate


def answer_questions(
    source: EpisodeStream, sampled: Episodes, *, share: float, width: float | None, max_episodes: int
) -> QuestionAnswers:
    """Answer the questions from the episodes of a look, and from as many more as are needed.

    Args:
        source: the stream of episodes.
        sampled: the first episodes of the stream, already sampled.
        share: fraction of the permitted error for this look: which policy is answered for may depend on all looks.
        width: width of the intervals at which to stop; None: as narrow as `max_episodes` make them.
        max_episodes: maximum number of episodes.
    """
    requirement = source.requirement
    if not requirement.questions:
        return QuestionAnswers()
    parts = [sampled]

    def batches() -> Iterator[list[NDArray[Any]]]:
        yield episode_columns(requirement, sampled)
        there = len(sampled.returns)
        if there < max_episodes:
            for episodes in source.sample(max_episodes - there, first=there):
                parts.append(episodes)
                yield episode_columns(requirement, episodes)

    try:
        answers = make_answers(
            requirement, source.value_ranges, batches(), lambda: concatenate_episodes(parts).reached,
            share=share, width=width, max_episodes=max_episodes, horizon=source.domain.horizon,
        )  # fmt: skip
    except RangeError as error:
        source.raise_range_error(error, concatenate_episodes(parts))
        raise
    missing = concatenate_episodes(parts).missing_info
    return QuestionAnswers(answers, tuple(check_info_keys(requirement, source.domain, missing)))


def make_answers(
    requirement: Requirement,
    value_ranges: Sequence[ValueRange],
    batches: Iterable[list[NDArray[Any]]],
    reached: Callable[[], Any],
    *,
    share: float = 1.0,
    width: float | None,
    max_episodes: int,
    horizon: int | None,
) -> tuple[Answer, ...]:
    """Return answers from batches of `episode_columns`; `reached` returns `Episodes.reached` of those consumed."""
    questions = requirement.questions
    tasks = []
    for question, known in zip(questions, value_ranges[len(value_ranges) - len(questions) :], strict=True):
        delta = share * (1.0 - question.confidence)
        tasks.append(mean_task(question, known, false_accept=delta, false_reject=delta))
    columns_asked = (columns[len(requirement.constraints) :] for columns in batches)
    answers = []
    for question, interval in zip(
        questions, estimate_means(tasks, columns_asked, width=width, max_episodes=max_episodes), strict=True
    ):
        lower, upper = interval.bounds
        unreached, restart = circumstances(requirement, question, reached(), interval.episodes, horizon)
        answers.append(
            Answer(
                question=str(question),
                name=question.name,
                episodes=interval.episodes,
                mean=interval.mean,
                lower=lower,
                upper=upper,
                interval_level=1.0 - interval.task.false_accept,
                range=(interval.task.lo, interval.task.hi),
                unreached=unreached,
                restart=restart,
                width=width,
            )
        )
    return tuple(answers)


class MeanInterval(NamedTuple):
    """Estimate and confidence sequence of one mean."""

    task: MeanTask  # its bounds are ignored; both of its error rates are that of the interval
    sums: WeightedSums = WeightedSums()
    stats: ValueStats = ValueStats()

    @property
    def episodes(self) -> int:
        """Number of values consumed."""
        return int(self.sums.count)

    @property
    def mean(self) -> float:
        """The observed mean, or rate."""
        return self.task.mean(self.sums)

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound of the true mean, half of the error for either."""
        return confidence_sequence(self.task, self.stats, self.task.false_accept / 2.0)

    def update(self, values: NDArray[np.float64]) -> MeanInterval:
        """Return the estimate after further values `[B]`, or pairs `[B, 2]`."""
        in_range = self.task.in_range(values)
        if not in_range.all():
            at = int(np.argmin(in_range))
            total, weight = self.task.totals_and_weights(values[at : at + 1])
            raise RangeError(self.episodes + at, float(total[0] / weight[0]), self.task.range_text)
        sums = WeightedSums(*(float(column[-1]) for column in self.task.cumulative_sums(self.sums, values)))
        return MeanInterval(self.task, sums, add_values(self.task, self.stats, values))

    def is_narrow(self, width: float) -> bool:
        """Return whether the interval is at most `width` wide."""
        lower, upper = self.bounds
        return upper - lower <= width


def estimate_means(
    tasks: Sequence[MeanTask],
    batches: Iterable[Sequence[NDArray[np.float64]]],
    *,
    width: float | None,
    max_episodes: int,
) -> list[MeanInterval]:
    """Feed values to each estimate, in their order, until its interval is narrow enough or the episodes are spent.

    Args:
        tasks: means to estimate.
        batches: one column per task: values `[B]`, for a rate totals and steps `[B, 2]`.
        width: width of the interval at which to stop; None: use all episodes.
        max_episodes: maximum number of episodes.
    """
    intervals, active = [MeanInterval(task) for task in tasks], set(range(len(tasks)))
    used, next_check = 0, FIRST_WIDTH_CHECK
    for columns in batches:
        start = 0
        while active and start < len(columns[0]) and used < max_episodes:
            taken = min(len(columns[0]) - start, max_episodes - used, next_check - used)
            for k in active:
                intervals[k] = intervals[k].update(columns[k][start : start + taken])
            start, used = start + taken, used + taken
            if used == next_check:
                next_check = int(np.ceil(WIDTH_CHECK_GROWTH * next_check))
                active = {k for k in active if width is None or not intervals[k].is_narrow(width)}
        if not active or used == max_episodes:
            break
    return intervals


def check_width(width: float | None) -> None:
    """Raise unless `width` is None or a valid width of an interval."""
    if width is not None and not (isinstance(width, int | float) and 0.0 < width < np.inf):
        raise RunError(f"width is how narrow an interval should be, a number above 0 as in width=0.02; got {width!r}")


# ---- estimates without stopping bias ----------------------------------------------------------------------------


class FixedSample(NamedTuple):
    """A number of episodes fixed in advance, tested by the method `fixed`."""

    tests: list[Test | MeanTest]  # one per constraint
    tallies: list[Tally | MeanTally]
    returns: NDArray[np.float64]  # [episodes]


def run_fixed_sample(source: EpisodeStream, count: int, *, first: int = 0) -> FixedSample:
    """Sample the episodes `first` to `first + count - 1` and test them by the method `fixed`."""
    requirement, episodes = source.requirement, concatenate_episodes(list(source.sample(count, first=first)))
    tests = make_tests("fixed", requirement, value_ranges=source.value_ranges, max_episodes=count)
    try:
        tallies = run_tests(tests, [episode_columns(requirement, episodes)[: len(tests)]], max_episodes=count)
    except RangeError as error:
        source.raise_range_error(error, episodes, first=first)
        raise
    return FixedSample(tests, tallies, np.asarray(episodes.returns[:count], np.float64))


def estimate_after_decision(source: EpisodeStream, first: int, count: int) -> Estimate:
    """Estimate shares, means and return from the episodes `first` to `first + count - 1`, those after the decision."""
    tests, tallies, returns = run_fixed_sample(source, count, first=first)
    estimates: list[ShareEstimate | MeanEstimate] = []
    for stated, test, tally in zip(source.requirement.constraints, tests, tallies, strict=True):
        delta = (1.0 - stated.confidence) / 2.0  # half of the error for either side
        if isinstance(tally, Tally):
            bounds = test.bounds(tally.counts, delta)
            estimates.append(ShareEstimate(tally.counts.satisfied, *bounds, stated.confidence))
        else:
            bounds = test.bounds(tally.state, delta)
            estimates.append(MeanEstimate(observed_value(test, tally), *bounds, stated.confidence))
    return Estimate(count, tuple(estimates), float(returns.mean()), standard_error(returns))
