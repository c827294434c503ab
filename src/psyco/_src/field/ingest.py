"""Parse episodes from the bytes of a file or a stream, line by line, as outcomes for a field test.

As in `recordings`, nothing is repaired or guessed. Since the input is never complete, a line is judged when it is
complete, and a trace when its episode is. Every result has a `ReadPosition`, from which reading can continue.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import PsycoError, RunError
from psyco._src.field.field_test import Count, MonitoredConstraint
from psyco._src.logic.ast import Constraint, Requirement

# These are also in `recordings`, which imports JAX.
TRUE_WORDS, FALSE_WORDS = ("1", "true", "1.0"), ("0", "false", "0.0")
EPISODE_COLUMN, END_COLUMNS = "episode", ("terminated", "truncated")
OUTCOME_COLUMNS, VALUE_COLUMNS = ("satisfied", "outcome", "success"), ("value", "total")  # of one constraint
MAX_LINE_BYTES = 2**24
BLANK_LINE = "is blank: nothing is counted for it"


class ReadPosition(NamedTuple):
    """The position up to which a source was read."""

    offset: Count = 0  # bytes
    line: Count = 0  # lines
    header: str | None = None  # the first line, if it names the columns


class IncomingEpisode(NamedTuple):
    """One episode, or a line that contains none."""

    position: ReadPosition  # after it
    line: int  # its first line, from 1
    outcome: Any = None  # for `FieldTest.update`
    id: int | None = None  # of the episode, where it is an integer
    observations: NDArray[np.float64] | None = None  # [n+1, inputs], where they were recorded
    problem: str = ""  # of a line without an episode


class InputLine(NamedTuple):
    """A complete line, without its end."""

    text: str
    number: int  # from 1
    offset: int  # after it


def split_lines(data: bytes, start: ReadPosition, origin: str, *, at_end: bool) -> Iterator[InputLine]:
    """Yield the lines of `data`, which begins at `start`; the last one may lack its end only with `at_end`."""
    offset, number = start.offset, start.line
    for piece in re.findall(rb"[^\n]*\n|[^\n]+", data):
        if not piece.endswith(b"\n") and not at_end:
            if len(piece) > MAX_LINE_BYTES:
                raise RunError(f"line {number + 1} of {origin} does not end within {MAX_LINE_BYTES:,} bytes")
            return
        offset, number = offset + len(piece), number + 1
        try:
            text = piece.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise RunError(f"line {number} of {origin} is not text in UTF-8") from None
        yield InputLine(text.strip("\r\n"), number, offset)


# ---- outcomes ---------------------------------------------------------------------------------------------------


def parse_outcomes(
    data: bytes, start: ReadPosition, constraints: Sequence[MonitoredConstraint], origin: str, *, at_end: bool
) -> Iterator[IncomingEpisode]:
    """Yield one episode per line: 0 or 1 (or a value) for each constraint, CSV with a header, or JSON objects."""
    header = start.header
    for line in split_lines(data, start, origin, at_end=at_end):
        position = ReadPosition(line.offset, line.number, header)
        where = f"line {line.number} of {origin}"
        if not line.text.strip():
            yield IncomingEpisode(position, line.number, problem=BLANK_LINE)
            continue
        if line.number == 1 and _is_header(line.text, where):
            header = line.text
            _outcome_columns(_cells(header, where), constraints, where)
            yield IncomingEpisode(ReadPosition(line.offset, 1, header), 1)
            continue
        names, cells = _row(line.text, header, where)
        columns = _outcome_columns(names, constraints, where) if names else range(len(constraints))
        if not names and len(cells) != len(constraints):
            raise RunError(f"{where} has {len(cells)} values, the requirement {len(constraints)} constraints")
        outcome = [
            _value(constraint, cells[column], where) for constraint, column in zip(constraints, columns, strict=True)
        ]
        number = _episode_id(cells[names.index(EPISODE_COLUMN)]) if EPISODE_COLUMN in names else None
        yield IncomingEpisode(position, line.number, outcome, number)


def _is_header(text: str, where: str) -> bool:
    return not text.startswith("{") and not all(map(_is_value, _cells(text, where)))


def _is_value(cell: str) -> bool:
    return cell.lower() in TRUE_WORDS + FALSE_WORDS or _number(cell) is not None


def _row(text: str, header: str | None, where: str) -> tuple[list[str], list[Any]]:
    """Return the names and values of a row; names are empty where there are none."""
    if text.startswith("{"):
        found = _json_object(text, where)
        return list(found), list(found.values())
    names, cells = _cells(header, where) if header else [], _cells(text, where)
    if names and len(cells) != len(names):
        raise RunError(f"{where} has {len(cells)} cells, the header has {len(names)}")
    if names == cells:
        raise RunError(f"{where} repeats the header; watch one recording, or remove the second header")
    return names, cells


def _cells(text: str, where: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([text], strict=True))]
    except csv.Error as error:
        raise RunError(f"{where} is not CSV: {error}") from None


def _json_object(text: str, where: str) -> dict[str, Any]:
    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key occurs twice in the same object")
        return dict(pairs)

    try:
        found = json.loads(text, object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{where} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise RunError(f"{where} should be a JSON object")
    return found


def _outcome_columns(names: Sequence[str], constraints: Sequence[MonitoredConstraint], where: str) -> list[int]:
    """Return the column of each constraint's outcomes."""
    wanted = [each.constraint.name for each in constraints]
    for name in names:
        if list(names).count(name) > 1:
            raise RunError(f"{where}: two columns are called {name!r}; rename one of them")
    if all(name in names for name in wanted):
        return [names.index(str(name)) for name in wanted]
    known = OUTCOME_COLUMNS if isinstance(constraints[0].constraint, Constraint) else VALUE_COLUMNS
    generic = [name for name in known if name in names]
    if len(wanted) == len(generic) == 1:
        return [names.index(generic[0])]
    remedy = f"call it {' or '.join(known)}" if len(wanted) == 1 else "give each constraint a name and a column"
    unnamed = ", ".join(name or "(no name)" for name in wanted)
    raise RunError(
        f"{where}: the columns of the outcomes are not known: {', '.join(names)}; constraints: {unnamed}; {remedy}"
    )


def _value(constraint: MonitoredConstraint, cell: Any, where: str) -> bool | float:
    """Return the outcome of a constraint in a cell; `FieldTest` checks the range of values."""
    if constraint.is_rate:
        raise RunError(f"a rate needs the steps of every episode; give traces: {constraint.constraint}")
    is_outcome = isinstance(constraint.constraint, Constraint)
    word = str(cell).lower()
    if is_outcome and word in TRUE_WORDS + FALSE_WORDS:
        return word in TRUE_WORDS
    number = None if is_outcome or isinstance(cell, bool) else _number(cell)
    if number is None:
        expected = "an outcome is 0 or 1, true or false" if is_outcome else "a value is a number"
        raise RunError(f"{where}: {expected}; got {cell!r:.100}")
    return number


def _number(cell: Any) -> float | None:
    """Return a finite number from JSON or text; None for others. Python's `1_000` is none."""
    try:
        number = float(cell) if isinstance(cell, str | int | float) and "_" not in str(cell) else np.nan
    except (ValueError, OverflowError):
        return None
    return number if np.isfinite(number) else None


def _episode_id(cell: Any) -> int | None:
    """Return the number of an episode, also from `7.0`; None for a name, which has no successor."""
    if isinstance(cell, bool) or not re.fullmatch(r"-?\d{1,18}(\.0+)?", str(cell)):
        return None
    return int(str(cell).partition(".")[0])


# ---- traces -----------------------------------------------------------------------------------------------------


def parse_traces(
    data: bytes, start: ReadPosition, constraints: Sequence[MonitoredConstraint], origin: str, *, at_end: bool
) -> Iterator[IncomingEpisode]:
    """Yield episodes from CSV or JSON lines with one row per state and a column `episode`.

    An episode is complete when one of its rows has `terminated` or `truncated`, when another episode begins, or
    at the end of the input.
    """
    header = start.header
    rows: list[InputLine] = []  # of the incomplete episode
    name: Any = None
    for line in split_lines(data, start, origin, at_end=at_end):
        where = f"line {line.number} of {origin}"
        if not line.text.strip():
            if rows:  # `read_traces` refuses a blank line inside an episode
                rows.append(line)
            else:
                position = ReadPosition(line.offset, line.number, header)
                yield IncomingEpisode(position, line.number, problem=BLANK_LINE)
            continue
        if line.number == 1 and not line.text.startswith("{"):
            header = line.text
            yield IncomingEpisode(ReadPosition(line.offset, 1, header), 1)
            continue
        names, cells = _row(line.text, header, where)
        if EPISODE_COLUMN not in names:
            raise RunError(f"{where} has no {EPISODE_COLUMN!r}; it has: {', '.join(names)}")
        row = dict(zip(names, cells, strict=True))
        if rows and row[EPISODE_COLUMN] != name:
            yield _judge(rows, header, name, constraints, origin)
            rows = []
        rows.append(line)
        name = row[EPISODE_COLUMN]
        if any(str(row.get(column, "")).lower() in TRUE_WORDS for column in END_COLUMNS):
            yield _judge(rows, header, name, constraints, origin)
            rows = []
    if rows and at_end:
        yield _judge(rows, header, name, constraints, origin)


def _judge(
    rows: Sequence[InputLine],
    header: str | None,
    name: Any,
    constraints: Sequence[MonitoredConstraint],
    origin: str,
) -> IncomingEpisode:
    """Return an episode with the outcomes that `recordings` computes from its rows."""
    from psyco._src.verification.recordings import read_traces  # imports JAX, which takes long

    text = "\n".join(([] if header is None else [header]) + [line.text for line in rows]).encode()
    requirement = Requirement(constraints=tuple(each.with_range for each in constraints))
    horizon = max((each.horizon for each in constraints if each.is_rate), default=None)
    try:
        columns = read_traces(text, requirement, origin=origin, horizon=horizon).columns
    except PsycoError as error:
        before = rows[0].number - 1 - (header is not None)
        message = re.sub(r"\bline (\d+)\b", lambda match: f"line {int(match[1]) + before}", str(error))
        raise RunError(message) from None
    outcome = [
        (float(column[0, 0]), int(column[0, 1])) if each.is_rate else column[0].item()
        for each, column in zip(constraints, columns, strict=True)
    ]
    position = ReadPosition(rows[-1].offset, rows[-1].number, header)
    observations = _observations(rows, header, origin)
    return IncomingEpisode(position, rows[0].number, outcome, _episode_id(name), observations)


def _observations(rows: Sequence[InputLine], header: str | None, origin: str) -> NDArray[np.float64] | None:
    """Return the observations `[n+1, inputs]`; None where they were not recorded, or are not numbers."""
    found = []
    for line in filter(lambda line: line.text.strip(), rows):
        row = dict(zip(*_row(line.text, header, f"line {line.number} of {origin}"), strict=True))
        entries = row.get("obs")
        if not isinstance(entries, list):
            entries = [row[f"obs[{i}]"] for i in range(len(row)) if f"obs[{i}]" in row]
        found.append([_number(entry) for entry in entries])
    numbers = all(entry is not None for entries in found for entry in entries)
    widths = {len(entries) for entries in found}
    return np.array(found, np.float64) if numbers and len(widths) == 1 and widths != {0} else None
