"""Read recorded outcomes and values from CSV; `recorded_traces` reads signals.

A misread row may hide a violation. So nothing is skipped, repaired or guessed: an ambiguous file is an error that names
the line and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RequirementError, RunError
from psyco._src.envs.value_bounds import RecordedSystem, ValueRange, value_ranges
from psyco._src.logic.ast import Constraint, Expectation, Quantity, Question, Requirement
from psyco._src.verification.episode_stream import is_rate
from psyco._src.verification.methods import mean_task
from psyco._src.verification.recorded_columns import (
    EPISODE,
    FALSE_WORDS,
    INDEX,
    OUTCOME_NAMES,
    STARTED,
    TRUE_WORDS,
    VALUE_NAMES,
    EpisodeOrder,
    order_by_beginning,
    parse_start,
)
from psyco._src.verification.recorded_rows import (
    RecordedRow,
    check_header,
    csv_rows,
    decode_text,
    parse_cell,
    rows_of_episodes,
)

Stated: TypeAlias = Constraint | Expectation | Question


class RecordedEpisodes(NamedTuple):
    """Columns of recorded episodes for tests, in the order in which the episodes began."""

    columns: list[NDArray[Any]]  # per constraint, then per question: outcomes or values [B], for a rate [B, 2]
    value_ranges: tuple[ValueRange, ...]  # of the measured values
    reached: NDArray[np.bool_] | None = None  # as in Episodes; None if unknown
    horizon: int | None = None  # maximum length of an episode; None if unknown
    order: EpisodeOrder = EpisodeOrder()
    cut: int = 0  # number of episodes without an end, which count as violated
    warnings: tuple[str, ...] = ()  # about the requirement, for the certificate

    def sort(self, order: EpisodeOrder) -> RecordedEpisodes:
        """Return the episodes in the order of their beginning, if a column states it."""
        if order.column is None:
            return self
        positions = np.array(order.positions)
        return self._replace(
            columns=[column[positions] for column in self.columns],
            reached=None if self.reached is None else self.reached[positions],
            order=order,
        )


def read_outcomes(data: bytes, requirement: Requirement, *, origin: str, first_index: int = 0) -> RecordedEpisodes:
    """Read outcomes and values: one per line, or CSV with one column per constraint and question.

    An outcome of a probability is 0 or 1, the value of an expected value is a number. Without a header the columns are
    in the order of the constraints, then of the questions. A header contains all their names; for a single one,
    `satisfied`, `outcome` or `success` is accepted, for values `value` or `total`. `index` and `started` state the
    order in which the episodes began. Further columns are ignored, except that an `episode` must have one row.
    """
    stated, known = properties(requirement), outcome_ranges(requirement)
    if not data.strip():
        raise RunError(f"{origin} is empty; it should hold one {_named(stated, 'outcome, 0 or 1,', 'value')} per line")
    if len(stated) == 1 and not is_value(stated[0]) and (digits := _parse_digits(data)) is not None:
        return RecordedEpisodes([digits], known)
    rows = csv_rows(decode_text(data, origin), origin)
    first = rows[0]
    columns, names = list(range(len(stated))), []
    numbers = any(map(is_value, stated))
    if not all(_outcome(cell) is not None or (numbers and _number(cell) is not None) for cell in first.cells):
        columns, rows, names = _outcome_columns(first, stated, origin), rows[1:], first.cells
        check_header(first, rows, origin)
        if EPISODE in first.cells:
            _check_single(rows_of_episodes(first.cells, rows, origin), rows, origin)
    elif len(first.cells) != len(stated):
        raise RunError(
            f"{origin} has {len(first.cells)} columns, the requirement {len(stated)} constraints; give one column for "
            "each, or a header with the constraints' names"
        )
    parsed = [_parse_column(prop, rows, column, origin) for prop, column in zip(stated, columns, strict=True)]
    for prop, value_range, values in measured_columns(requirement, known, parsed):
        check_in_range(prop, value_range, values, [row.line for row in rows], origin)
    free = [name if column not in columns else "" for column, name in enumerate(names)]
    return RecordedEpisodes(parsed, known).sort(order_of_rows(free, rows, origin, first_index))


def order_of_rows(names: Sequence[str], rows: Sequence[RecordedRow], origin: str, first_index: int) -> EpisodeOrder:
    """Return the order in which the episodes of these rows began."""
    columns = {name: names.index(name) for name in (INDEX, STARTED) if name in names}
    if first_index and INDEX not in columns:
        raise RunError(f"{origin} has no column {INDEX!r}; leave out the first index, {first_index:,}")
    if not columns:
        return EpisodeOrder()
    starts = [
        parse_start({name: cells[at] for name, at in columns.items()}, f"line {line} of {origin}")
        for line, cells in rows
    ]
    return order_by_beginning(starts, [row.line for row in rows], origin, first_index=first_index)


def outcome_ranges(requirement: Requirement) -> tuple[ValueRange, ...]:
    """Return the ranges of the measured values, as far as the requirement states them."""
    for stated in requirement.measured:
        if is_rate(stated):
            raise RequirementError(
                f"a rate needs the steps of every episode, which outcomes do not have: {stated}",
                advice="give the signals of the episodes instead, traces=True (--traces)",
            )
    return value_ranges(requirement, RecordedSystem())


def measured_columns(
    requirement: Requirement, known: Sequence[ValueRange], columns: Sequence[NDArray[Any]]
) -> Iterator[tuple[Expectation | Question, ValueRange, NDArray[Any]]]:
    """Yield each measured expectation and question with its value range and its column."""
    ranges = iter(known)
    for stated, column in zip(properties(requirement), columns, strict=True):
        if not isinstance(stated, Constraint):
            yield stated, next(ranges), column


def properties(requirement: Requirement) -> tuple[Stated, ...]:
    """Return the constraints and questions, one per column of a file."""
    stated = (*requirement.constraints, *requirement.questions)
    if not stated:
        raise RunError(
            "there is nothing to say of recorded episodes: the requirement has no constraint and no question"
        )
    return stated


def is_value(stated: Stated) -> bool:
    """Return whether an episode has a number for it, rather than an outcome."""
    return not isinstance(stated, Constraint) and isinstance(stated.subject, Quantity)


def _named(stated: Sequence[Stated], outcome: str, value: str) -> str:
    """Return the expected content of a file, in words for each kind of property."""
    kinds = {is_value(prop) for prop in stated}
    return " and ".join([outcome] * (False in kinds) + [value] * (True in kinds))


def _parse_column(stated: Stated, rows: Sequence[RecordedRow], column: int, origin: str) -> NDArray[Any]:
    """Return the column of one constraint or question."""
    read, what = (
        (_number, "a value is a number") if is_value(stated) else (_outcome, "an outcome is 0 or 1, true or false")
    )
    values = [read(cells[column]) for _, cells in rows]
    for row, found in zip(rows, values, strict=True):
        if found is None:
            raise RunError(f"line {row.line} of {origin}: {what}; got {row.cells[column]!r}")
    return np.array(values)


def check_in_range(
    stated: Expectation | Question,
    value_range: ValueRange,
    values: NDArray[Any],
    lines: Sequence[int],
    origin: str,
) -> None:
    """Raise for a value outside of its range; values `[B]`, or pairs `[B, 2]`, of episodes that begin at `lines`."""
    task = mean_task(stated, value_range, false_accept=1.0, false_reject=1.0)
    for at in np.flatnonzero(~task.in_range(values))[:1]:
        total, steps = (float(column[at]) for column in task.totals_and_weights(values))
        if not steps:
            raise RunError(f"line {lines[at]} of {origin}: the episode has no step; a rate needs one, so leave it out")
        what = "is" if value_range.steps is None else "has on average"
        raise RunError(
            f"line {lines[at]} of {origin}: {stated} {what} {total / steps:.9g}, outside of its range "
            f"{task.range_text}; correct the range"
        )


def _parse_digits(data: bytes) -> NDArray[np.bool_] | None:
    """Return the outcomes of the common case, one 0 or 1 per line, without a loop; None for anything else."""
    flat = np.frombuffer(data.replace(b"\r\n", b"\n").rstrip(b"\n") + b"\n", np.uint8)
    if len(flat) % 2 or (flat[1::2] != ord("\n")).any():
        return None
    values = flat[::2] - ord("0")
    return None if (values > 1).any() else values.astype(bool)


def _outcome(cell: str) -> bool | None:
    word = cell.lower()
    return True if word in TRUE_WORDS else False if word in FALSE_WORDS else None


def _number(cell: str) -> float | None:
    value = parse_cell(cell)
    return value if isinstance(value, float) else None


def _outcome_columns(header: RecordedRow, stated: Sequence[Stated], origin: str) -> list[int]:
    """Return the index of the column of each constraint and question."""
    names, wanted = header.cells, [prop.name for prop in stated]
    if all(name in names for name in wanted):
        return [names.index(name) for name in wanted]
    known = VALUE_NAMES if is_value(stated[0]) else OUTCOME_NAMES
    generic = [name for name in known if name in names]
    if len(wanted) == len(generic) == 1:
        return [names.index(generic[0])]
    if len(wanted) == 1:
        remedy = f"call one column {', '.join(known[:-1])} or {known[-1]}, or as the constraint is called"
    else:
        remedy = "name every constraint and its column alike, or leave the header out if they stand in the same order"
    called = ", ".join(name or "(no name)" for name in wanted)
    kinds = _named(stated, "outcomes (0 or 1, true or false)", "values (numbers)")
    raise RunError(
        f"line {header.line} of {origin} is neither {kinds} nor a header that tells which "
        f"columns are the outcomes: {', '.join(names)}; {remedy}. Constraints: {called}"
    )


def _check_single(episodes: list[list[int]], rows: Sequence[RecordedRow], origin: str) -> None:
    for first, *more in episodes:
        if more:
            raise RunError(
                f"line {rows[more[0]].line} of {origin}: the episode of line {rows[first].line} has a second outcome; "
                "give each episode one row and a name of its own"
            )
