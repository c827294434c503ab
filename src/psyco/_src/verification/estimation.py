"""What further episodes of a look say, after its decision and without any part in it: answers, and estimates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RangeError, RunError
from psyco._src.envs.value_bounds import ValueRange
from psyco._src.logic.ast import Requirement
from psyco._src.rollout.episodes import Episodes, joined
from psyco._src.verification.base import MeanTally, MeanTest, Tally, Test, observed, run_tests
from psyco._src.verification.certificate import circumstances, standard_error
from psyco._src.verification.episode_stream import EpisodeStream, columns_of
from psyco._src.verification.findings import Answer, Estimate, MeanEstimate, ShareEstimate
from psyco._src.verification.info_keys import check_keys
from psyco._src.verification.methods import make_tests, mean_task
from psyco._src.verification.width_rule import estimate

# ---- questions --------------------------------------------------------------------------------------------------


class QuestionAnswers(NamedTuple):
    """What came of the questions."""

    answers: tuple[Answer, ...] = ()
    notes: tuple[str, ...] = ()  # for the certificate


def answer_questions(
    source: EpisodeStream, sampled: Episodes, *, share: float, width: float | None, max_episodes: int
) -> QuestionAnswers:
    """Answers from the episodes of a look, from its first one on, and as many more as are needed.

    The intervals hold at all times. So that the decision about the constraints came from the same episodes, and that a
    width ends the sampling, does no harm to them.

    Args:
        source: of the episodes.
        sampled: those that there are, the first ones.
        share: of the permitted error that this look may use: which policy is answered for may depend on all looks.
        width: of the intervals; None: as narrow as `max_episodes` make them.
        max_episodes: no more than so many.
    """
    requirement = source.requirement
    if not requirement.questions:
        return QuestionAnswers()
    parts = [sampled]

    def batches() -> Iterator[list[NDArray[Any]]]:
        yield columns_of(requirement, sampled)
        there = len(sampled.ret)
        if there < max_episodes:
            for episodes in source.sample(max_episodes - there, first=there):
                parts.append(episodes)
                yield columns_of(requirement, episodes)

    try:
        made = answers(
            requirement, source.spans, batches(), lambda: joined(parts).reached,
            share=share, width=width, max_episodes=max_episodes, horizon=source.domain.horizon,
        )  # fmt: skip
    except RangeError as error:
        source.refuse(error, joined(parts))
        raise
    return QuestionAnswers(made, tuple(check_keys(requirement, source.domain, joined(parts).absent)))


def answers(
    requirement: Requirement,
    spans: Sequence[ValueRange],
    batches: Iterable[list[NDArray[Any]]],
    reached: Any,
    *,
    share: float = 1.0,
    width: float | None,
    max_episodes: int,
    horizon: int | None,
) -> tuple[Answer, ...]:
    """Answers from columns of all constraints and questions; `reached()` is as in Episodes, once they are consumed."""
    questions = requirement.questions
    tasks = []
    for question, span in zip(questions, spans[len(spans) - len(questions) :], strict=True):
        delta = share * (1.0 - question.confidence)
        tasks.append(mean_task(question, span, false_accept=delta, false_reject=delta))
    asked = (columns[len(requirement.constraints) :] for columns in batches)
    found = estimate(tasks, asked, width=width, max_episodes=max_episodes)
    made = []
    for question, each in zip(questions, found, strict=True):
        lower, upper = each.bounds
        unreached, restart = circumstances(requirement, question, reached(), each.episodes, horizon)
        made.append(
            Answer(
                question=str(question),
                name=question.name,
                episodes=each.episodes,
                mean=each.mean,
                lower=lower,
                upper=upper,
                level=1.0 - each.task.false_accept,
                range=(each.task.lo, each.task.hi),
                unreached=unreached,
                restart=restart,
                width=width,
            )
        )
    return tuple(made)


def check_width(width: float | None) -> None:
    """Refuse what is no width of an interval."""
    if width is not None and not (isinstance(width, int | float) and 0.0 < width < np.inf):
        raise RunError(
            f"width is how narrow an interval should be, a number above 0 as in width=0.02; got {width!r}"
        )


# ---- estimates --------------------------------------------------------------------------------------------------


class ExtraEpisodes(NamedTuple):
    """So many episodes as were asked for, judged by the method `fixed`."""

    tests: list[Test | MeanTest]  # one per constraint
    progress: list[Tally | MeanTally]
    returns: NDArray[np.float64]  # [episodes]


def play(source: EpisodeStream, count: int, *, first: int = 0) -> ExtraEpisodes:
    """The episodes `first` to `first + count - 1`, whatever they show."""
    requirement, episodes = source.requirement, joined(list(source.sample(count, first=first)))
    tests = make_tests("fixed", requirement, spans=source.spans, max_episodes=count)
    try:
        progress = run_tests(tests, [columns_of(requirement, episodes)[: len(tests)]], max_episodes=count)
    except RangeError as error:
        source.refuse(error, episodes, first=first)
        raise
    return ExtraEpisodes(tests, progress, np.asarray(episodes.ret[:count], np.float64))


def estimate_further(source: EpisodeStream, first: int, count: int) -> Estimate:
    """Shares, means and return of the episodes `first` to `first + count - 1` of a look, those after its decision."""
    tests, progress, returns = play(source, count, first=first)
    shares: list[ShareEstimate | MeanEstimate] = []
    for stated, test, tally in zip(source.requirement.constraints, tests, progress, strict=True):
        beside = (1.0 - stated.confidence) / 2.0
        if isinstance(tally, Tally):
            bounds = test.bounds(tally.counts, beside)
            shares.append(ShareEstimate(tally.counts.satisfied, *bounds, stated.confidence))
        else:
            bounds = test.bounds(tally.state, beside)
            shares.append(MeanEstimate(observed(test, tally), *bounds, stated.confidence))
    return Estimate(count, tuple(shares), float(returns.mean()), standard_error(returns))
