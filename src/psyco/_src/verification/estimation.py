"""Estimates from further episodes of a look: answers to questions, and estimates without stopping bias.

An answer is an estimate of a mean with an interval. Without a wanted width it is the confidence sequence of `betting`,
from all episodes; with one, `fixed_width` says when to stop. Neither depends on what else the episodes decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RangeError, RunError
from psyco._src.envs.value_bounds import ValueRange
from psyco._src.logic.ast import Quantity, Question, Requirement
from psyco._src.rollout.episodes import Episodes, concatenate_episodes
from psyco._src.verification.base import MeanTask, MeanTest, Test, WeightedSums
from psyco._src.verification.betting import ValueStats, add_values, confidence_sequence
from psyco._src.verification.cvar import BettingCVaR, CVaRInterval
from psyco._src.verification.episode_stream import EpisodeStream, check_info_keys, episode_columns
from psyco._src.verification.findings import (
    Answer,
    Estimate,
    MeanEstimate,
    ShareEstimate,
    circumstances,
    standard_error,
)
from psyco._src.verification.fixed_width import WidthMean, WidthShare, has_width_rule, width_rule
from psyco._src.verification.methods import make_tests, mean_task
from psyco._src.verification.tally import MeanTally, Tally, observed_value, run_tests

Width = float | Sequence[float] | None  # of the intervals of answers, see `question_widths`

# ---- questions --------------------------------------------------------------------------------------------------


class QuestionAnswers(NamedTuple):
    """Answers to the questions of a requirement."""

    answers: tuple[Answer, ...] = ()
    notes: tuple[str, ...] = ()  # for the certificate
    played: Episodes | None = None  # the episodes behind them; None without a question


def answer_questions(
    source: EpisodeStream, sampled: Episodes, *, share: float, width: Width, max_episodes: int
) -> QuestionAnswers:
    """Answer the questions from the episodes of a look, and from as many more as are needed.

    Args:
        source: the stream of episodes.
        sampled: the first episodes of the stream, already sampled.
        share: fraction of the permitted error for this look: which policy is answered for may depend on all looks.
        width: as in `question_widths`; None: intervals are as narrow as `max_episodes` make them.
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
    played = concatenate_episodes(parts)
    return QuestionAnswers(answers, tuple(check_info_keys(requirement, source.domain, played.missing_info)), played)


def make_answers(
    requirement: Requirement,
    value_ranges: Sequence[ValueRange],
    batches: Iterable[list[NDArray[Any]]],
    reached: Callable[[], Any],
    *,
    share: float = 1.0,
    width: Width,
    max_episodes: int,
    horizon: int | None,
) -> tuple[Answer, ...]:
    """Return answers from batches of `episode_columns`; `reached` returns `Episodes.reached` of those consumed."""
    questions, widths = requirement.questions, question_widths(requirement, width)
    known_ranges = value_ranges[len(value_ranges) - len(questions) :]
    estimators = [
        make_estimator(question, known, share=share, width=wanted, max_episodes=max_episodes)
        for question, known, wanted in zip(questions, known_ranges, widths, strict=True)
    ]
    columns_asked = (columns[len(requirement.constraints) :] for columns in batches)
    answers = []
    answered = run_estimators(estimators, columns_asked, max_episodes=max_episodes)
    for question, found, wanted in zip(questions, answered, widths, strict=True):
        lower, upper = found.bounds
        unreached, restart = circumstances(requirement, question, reached(), found.episodes, horizon)
        answers.append(
            Answer(
                question=str(question),
                name=question.name,
                episodes=found.episodes,
                mean=found.mean,
                lower=lower,
                upper=upper,
                interval_level=1.0 - found.task.false_accept,
                kind=found.kind,
                range=(found.task.lo, found.task.hi),
                unreached=unreached,
                restart=restart,
                width=wanted,
            )
        )
    return tuple(answers)


class Estimator(Protocol):
    """Estimate and interval of one mean."""

    kind: ClassVar[str]  # of the interval, as in `Answer`

    @property
    def task(self) -> MeanTask:
        """The mean; its bounds are ignored, and both of its error rates are that of the interval."""

    @property
    def episodes(self) -> int:
        """Number of values consumed."""

    @property
    def mean(self) -> float:
        """The observed mean, or rate."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound of the true mean."""

    def feed(self, values: NDArray[np.float64]) -> tuple[Self, bool]:
        """Consume values until the interval is as narrow as wanted; return the estimate and whether it is."""


def make_estimator(
    question: Question, known: ValueRange, *, share: float, width: float | None, max_episodes: int
) -> Estimator:
    """Return the estimator of a question, for a fraction `share` of the error that it permits."""
    delta = share * (1.0 - question.confidence)
    task = mean_task(question, known, false_accept=delta, false_reject=delta)
    if task.cvar is not None:
        return CVaRInterval(BettingCVaR(task), width)
    if width is None:
        return MeanInterval(task)
    if isinstance(question.subject, Quantity) or not has_width_rule(delta, width):
        return WidthMean(task, width)
    return WidthShare(task, width_rule(delta, float(width), max_episodes))


@dataclass(frozen=True)
class MeanInterval:
    """Estimate and confidence sequence of one mean, without a wanted width."""

    task: MeanTask
    sums: WeightedSums = field(default_factory=WeightedSums)
    stats: ValueStats = field(default_factory=ValueStats)

    kind: ClassVar[str] = "anytime"

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

    def feed(self, values: NDArray[np.float64]) -> tuple[MeanInterval, bool]:
        """Consume all values `[B]`, or pairs `[B, 2]`."""
        sums = self.task.add_checked(self.sums, values)
        return MeanInterval(self.task, sums, add_values(self.task, self.stats, values)), False


def run_estimators(
    estimators: Sequence[Estimator], batches: Iterable[Sequence[NDArray[np.float64]]], *, max_episodes: int
) -> list[Estimator]:
    """Feed values to each estimator, in their order, until it has finished or the episodes are spent.

    Args:
        estimators: one per mean.
        batches: one column per estimator: values `[B]`, for a rate totals and steps `[B, 2]`.
        max_episodes: maximum number of episodes.
    """
    found, active, used = list(estimators), list(range(len(estimators))), 0
    for columns in batches if active else ():
        taken = min(len(columns[0]), max_episodes - used)
        for k in tuple(active) if taken else ():
            found[k], finished = found[k].feed(columns[k][:taken])
            if finished:
                active.remove(k)
        used += taken
        if not active or used == max_episodes:
            break
    return found


def question_widths(requirement: Requirement, width: Width) -> list[float | None]:
    """Return the wanted width of each question's interval; raise RunError for one that does not fit.

    Args:
        requirement: the requirement with the questions.
        width: a width per question, in their order; one for a single question, or for several probabilities; None: no
            question has one.
    """
    questions = requirement.questions
    if width is None:
        return [None] * len(questions)
    widths = list(width) if isinstance(width, Sequence) and not isinstance(width, str) else [width]
    for each in widths:
        if not (isinstance(each, int | float) and 0.0 < each < np.inf):
            raise RunError(
                f"width is how narrow an interval should be, a number above 0 as in width=0.02; got {each!r}"
            )
    if not questions:
        raise RunError("a width is for questions (P=?), and the requirement has none")
    if len(widths) == 1 and not any(isinstance(question.subject, Quantity) for question in questions):
        widths *= len(questions)
    if len(widths) != len(questions):
        raise RunError(
            f"{len(questions)} questions have {len(widths)} {'width' if len(widths) == 1 else 'widths'}; only "
            "probabilities can share one. Give one for each, in their order: width=[0.02, 1.5] (--width 0.02 --width "
            "1.5)"
        )
    return list(map(float, widths))


# ---- estimates without stopping bias ----------------------------------------------------------------------------


class FixedSample(NamedTuple):
    """A number of episodes fixed in advance, tested by the method `fixed`."""

    tests: list[Test | MeanTest]  # one per constraint
    tallies: list[Tally | MeanTally]
    episodes: Episodes

    @property
    def returns(self) -> NDArray[np.float64]:
        """Returns of the episodes."""
        return np.asarray(self.episodes.returns, np.float64)


def run_fixed_sample(source: EpisodeStream, count: int, *, first: int = 0) -> FixedSample:
    """Sample the episodes `first` to `first + count - 1` and test them by the method `fixed`."""
    requirement, episodes = source.requirement, concatenate_episodes(list(source.sample(count, first=first)))
    tests = make_tests("fixed", requirement, value_ranges=source.value_ranges, max_episodes=count)
    try:
        tallies = run_tests(tests, [episode_columns(requirement, episodes)[: len(tests)]], max_episodes=count)
    except RangeError as error:
        source.raise_range_error(error, episodes, first=first)
        raise
    return FixedSample(tests, tallies, episodes)


def estimate_after_decision(source: EpisodeStream, first: int, count: int) -> tuple[Estimate, Episodes]:
    """Estimate shares, means and return from the episodes `first` to `first + count - 1`, those after the decision."""
    made = run_fixed_sample(source, count, first=first)
    estimates: list[ShareEstimate | MeanEstimate] = []
    for stated, test, tally in zip(source.requirement.constraints, made.tests, made.tallies, strict=True):
        delta = (1.0 - stated.confidence) / 2.0  # half of the error for either side
        if isinstance(tally, Tally):
            bounds = test.bounds(tally.counts, delta)
            estimates.append(ShareEstimate(tally.counts.satisfied, *bounds, stated.confidence))
        else:
            bounds = test.bounds(tally.state, delta)
            estimates.append(MeanEstimate(observed_value(test, tally), *bounds, stated.confidence))
    returns = made.returns
    return Estimate(count, tuple(estimates), float(returns.mean()), standard_error(returns)), made.episodes
