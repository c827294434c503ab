"""Verify recorded outcomes and values: the same tests, without a policy or a domain."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from psyco._src.core.errors import RunError
from psyco._src.core.wording import plural
from psyco._src.logic.ast import Requirement
from psyco._src.verification.certificate import Certificate, EpisodeOrigin, certify
from psyco._src.verification.environments import refuse_environments
from psyco._src.verification.episode_notes import note_episodes
from psyco._src.verification.estimation import Width, make_answers, question_widths
from psyco._src.verification.methods import DEFAULT_METHOD, METHODS, make_tests
from psyco._src.verification.recorded_columns import INDEX, STARTED, describe_missing
from psyco._src.verification.recordings import RecordedEpisodes, Stated, is_value, outcome_ranges, properties
from psyco._src.verification.tally import run_tests
from psyco._src.verification.verifier import NO_OPTIONS, check_decidable


def verify_outcomes(
    outcomes: RecordedEpisodes | ArrayLike,
    requirement: Requirement,
    *,
    method: str = DEFAULT_METHOD,
    options: Mapping[str, Any] = NO_OPTIONS,
    max_episodes: int | None = None,
    issued: str | None = None,
    width: Width = None,
) -> Certificate:
    """Test recorded outcomes and values, in the order in which episodes began and only as far as needed.

    Then answer the questions.

    Args:
        outcomes: recorded episodes; or outcomes `[B]`, or `[B, N]` for N constraints and questions: Booleans or 0 and
            1, for an expected value numbers; in the order in which the episodes began.
        requirement: constraints and questions; see `outcome_requirement` for those without a formula.
        method: name of the verification method, one of `METHODS`.
        options: options of the method.
        max_episodes: maximum number of episodes, chosen without looking at them; None: all.
        issued: time of issue; None: now.
        width: width of the intervals at which answers stop, as in `question_widths`; None: use all outcomes.
    """
    question_widths(requirement, width)
    recorded = outcomes if isinstance(outcomes, RecordedEpisodes) else _as_recorded(outcomes, requirement)
    check_decidable(requirement, recorded.value_ranges)
    count = len(recorded.columns[0])
    if max_episodes is not None and max_episodes < 1:
        raise RunError(f"the maximum number of episodes must be at least 1, got {max_episodes}")
    cap = count if max_episodes is None else max_episodes
    if cap > count:
        raise RunError(f"there are {count:,} outcomes; a maximum of {cap:,} episodes needs as many")
    _check_complete(recorded, cap, method, width)
    columns = [column[:cap] for column in recorded.columns]
    refuse_environments(requirement, "a recording does not say which environment an episode took place in")
    tests = make_tests(method, requirement, value_ranges=recorded.value_ranges, max_episodes=cap, **options)
    tallies = run_tests(tests, _growing_batches(columns[: len(tests)]), max_episodes=cap)
    answered = make_answers(
        requirement, recorded.value_ranges, [columns], lambda: recorded.reached,
        width=width, max_episodes=cap, horizon=recorded.horizon,
    )  # fmt: skip
    return certify(
        requirement, EpisodeOrigin(outcomes=outcomes_digest(columns), horizon=recorded.horizon), tests, tallies,
        reached=recorded.reached, method=method, options=options, max_episodes=cap, issued=issued, answers=answered,
        notes=list(_notes(recorded)), episode_notes=note_episodes(requirement, columns, tallies),
    )  # fmt: skip


def _check_complete(recorded: RecordedEpisodes, cap: int, method: str, width: Width) -> None:
    """Raise where one of the first `cap` episodes is missing: those that still run are not like those that ended."""
    order = recorded.order
    if not order.missing or (ready := order.missing[0][0] - order.first_index) >= cap:
        return
    # The number of episodes before the gap depends on the outcomes, so it must not be the maximum of every test, nor of
    # an answer with a width.
    valid = ready > 0 and width is None and method in METHODS and METHODS[method].open_ended
    before = f", or test only the episodes before (max_episodes={ready}, --max-episodes {ready})"
    raise RunError(
        f"{describe_missing(order.missing)} missing: an episode that is left out may still run, and without it short "
        f"episodes would count too often. Add every episode as soon as it has ended"
        f"{before * valid}"
    )


def _notes(recorded: RecordedEpisodes) -> Iterator[str]:
    """Yield warnings about the requirement, and notes on the order of the episodes and on those without an end."""
    yield from recorded.warnings
    if recorded.order.column == INDEX:
        yield "The episodes were tested in the order in which they began (index), with none left out."
    elif recorded.order.column == STARTED:
        yield (
            "The episodes were tested in the order in which they began (started). It is assumed that none was left out "
            "because it still ran."
        )
    else:
        yield (
            "The order of the recording is assumed to be the order in which the episodes began, with none left out "
            "because it still ran."
        )
    if recorded.cut:
        yield f"{plural(recorded.cut, 'episode')} without an end count as violated."


def _as_recorded(outcomes: ArrayLike, requirement: Requirement) -> RecordedEpisodes:
    stated = properties(requirement)
    array = np.asarray(outcomes)
    if array.ndim == 1:
        array = array[:, None]
    if array.size == 0:
        raise RunError("there are no outcomes")
    if array.ndim != 2 or array.shape[1] != len(stated):
        raise RunError(
            f"outcomes of shape {np.shape(outcomes)} do not fit {len(stated)} constraints; give [B, {len(stated)}]"
        )
    return RecordedEpisodes(list(map(_as_column, stated, array.T)), outcome_ranges(requirement))


def _as_column(stated: Stated, values: NDArray[Any]) -> NDArray[Any]:
    """Return a column of Booleans, or of numbers; a number outside of its range raises when a test consumes it."""
    if is_value(stated):
        if values.dtype.kind not in "biuf":
            raise RunError(f"a value of {stated} is a number; the one at index 0 is {values[0]!r}")
        return values.astype(np.float64)
    if values.dtype != bool:
        wrong = ~np.isin(values, (0, 1))
        if values.dtype.kind not in "iuf" or wrong.any():
            at = int(np.argmax(wrong)) if wrong.any() else 0
            raise RunError(f"an outcome is 0 or 1; the one at index {at} is {values[at].tolist()!r}")
    return values.astype(bool, copy=False)


def outcomes_digest(columns: Sequence[NDArray[Any]]) -> str:
    """Return the SHA-256 of one byte per outcome, or of eight bytes per number where there are values."""
    kind = np.uint8 if all(column.dtype == bool for column in columns) else np.float64
    whole = np.column_stack([column.astype(kind) for column in columns])
    return hashlib.sha256(np.ascontiguousarray(whole).tobytes()).hexdigest()


def _growing_batches(columns: Sequence[NDArray[Any]]) -> Iterator[list[NDArray[Any]]]:
    """Yield batches of doubling size: an early decision is found early, a late one with few calls."""
    start, size = 0, 1024
    while columns and start < len(columns[0]):
        yield [column[start : start + size] for column in columns]
        start, size = start + size, 2 * size
