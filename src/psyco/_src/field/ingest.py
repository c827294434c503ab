"""How episodes arrive: bytes of a file or a stream, line by line, as outcomes for a watcher.

As in `recordings`, nothing is repaired or guessed; but there is no whole file to look at, so a line is judged when it
is complete, and a trace when its episode is. What comes out knows how many bytes and lines it has used up: whoever
keeps that `Position` can go on from there.
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
from psyco._src.field.field_test import MonitoredConstraint
from psyco._src.logic.ast import Constraint, Requirement

# As in `recordings`, which imports JAX.
TRUE, FALSE = ("1", "true", "1.0"), ("0", "false", "0.0")
EPISODE, ENDS = "episode", ("terminated", "truncated")
OUTCOME, VALUE = ("satisfied", "outcome", "success"), ("value", "total")  # columns of a single constraint
LONGEST_LINE = 2**24  # bytes
BLANK = "is blank: nothing is counted for it"


class ReadPosition(NamedTuple):
    """How far a source has been read."""

    offset: int = 0  # bytes
    line: int = 0  # lines
    head: str | None = None  # the first line, if it says what the columns are


class IncomingEpisode(NamedTuple):
    """One episode, or a line that is none."""

    position: ReadPosition  # after it
    line: int  # where it begins, from 1
    outcome: Any = None  # as a watcher takes it
    id: int | None = None  # of the episode, where it is a whole number
    seen: NDArray[np.float64] | None = None  # observations [n+1, inputs], where they were recorded
    problem: str = ""  # of a line that is no episode


class InputLine(NamedTuple):
    """A complete line, without its end."""

    text: str
    number: int  # from 1
    offset: int  # after it


def lines(data: bytes, start: ReadPosition, origin: str, *, whole: bool) -> Iterator[InputLine]:
    """The lines in `data`, which begins at `start`; `whole`: nothing will be added to the last one."""
    offset, number = start.offset, start.line
    for piece in re.findall(rb"[^\n]*\n|[^\n]+", data):
        if not piece.endswith(b"\n") and not whole:
            if len(piece) > LONGEST_LINE:
                raise RunError(f"line {number + 1} of {origin} does not end within {LONGEST_LINE:,} bytes")
            return
        offset, number = offset + len(piece), number + 1
        try:
            text = piece.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise RunError(f"line {number} of {origin} is not text in UTF-8") from None
        yield InputLine(text.strip("\r\n"), number, offset)


# ---- outcomes ---------------------------------------------------------------------------------------------------


def outcomes(
    data: bytes, start: ReadPosition, watched: Sequence[MonitoredConstraint], origin: str, *, whole: bool
) -> Iterator[IncomingEpisode]:
    """One episode per line: 0 or 1 (or a value) for each constraint, CSV with a header, or JSON objects."""
    head = start.head
    for line in lines(data, start, origin, whole=whole):
        position = ReadPosition(line.offset, line.number, head)
        where = f"line {line.number} of {origin}"
        if not line.text.strip():
            yield IncomingEpisode(position, line.number, problem=BLANK)
            continue
        if line.number == 1 and _is_header(line.text, where):
            head = line.text
            _columns(_cells(head, where), watched, where)
            yield IncomingEpisode(ReadPosition(line.offset, 1, head), 1)
            continue
        names, cells = _row(line.text, head, where)
        columns = _columns(names, watched, where) if names else range(len(watched))
        if not names and len(cells) != len(watched):
            raise RunError(f"{where} has {len(cells)} values, the requirement {len(watched)} constraints")
        outcome = [_value(each, cells[column], where) for each, column in zip(watched, columns, strict=True)]
        yield IncomingEpisode(
            position, line.number, outcome, _id(cells[names.index(EPISODE)]) if EPISODE in names else None
        )


def _is_header(text: str, where: str) -> bool:
    return not text.startswith("{") and not all(map(_is_value, _cells(text, where)))


def _is_value(cell: str) -> bool:
    return cell.lower() in TRUE + FALSE or _number(cell) is not None


def _row(text: str, head: str | None, where: str) -> tuple[list[str], list[Any]]:
    """Names and values of a row; names are empty where there are none."""
    if text.startswith("{"):
        found = _object(text, where)
        return list(found), list(found.values())
    names, cells = _cells(head, where) if head else [], _cells(text, where)
    if names and len(cells) != len(names):
        raise RunError(f"{where} has {len(cells)} cells, the header has {len(names)}")
    if names == cells:
        raise RunError(f"{where} is a header again; watch one recording, or leave the second header out")
    return names, cells


def _cells(text: str, where: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([text], strict=True))]
    except csv.Error as error:
        raise RunError(f"{where} is not CSV: {error}") from None


def _object(text: str, where: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key stands twice in the same object")
        return dict(pairs)

    try:
        found = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{where} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise RunError(f"{where} should be a JSON object")
    return found


def _columns(names: Sequence[str], watched: Sequence[MonitoredConstraint], where: str) -> list[int]:
    """Which column has the outcomes of each constraint."""
    wanted = [each.stated.name for each in watched]
    for name in names:
        if list(names).count(name) > 1:
            raise RunError(f"{where}: two columns are called {name!r}; rename one of them")
    if all(name in names for name in wanted):
        return [names.index(str(name)) for name in wanted]
    known = OUTCOME if isinstance(watched[0].stated, Constraint) else VALUE
    generic = [name for name in known if name in names]
    if len(wanted) == len(generic) == 1:
        return [names.index(generic[0])]
    remedy = (
        f"{' or '.join(known)} will do" if len(wanted) == 1 else "give each constraint a name and a column"
    )
    called = ", ".join(name or "(no name)" for name in wanted)
    raise RunError(
        f"{where} does not tell which columns are the outcomes: {', '.join(names)}; constraints: {called}; {remedy}"
    )


def _value(watched: MonitoredConstraint, cell: Any, where: str) -> bool | float:
    """What a cell says about a constraint; a watcher checks ranges."""
    if watched.is_rate:
        raise RunError(f"a rate needs the steps of every episode; give traces: {watched.stated}")
    is_outcome = isinstance(watched.stated, Constraint)
    word = str(cell).lower()
    if is_outcome and word in TRUE + FALSE:
        return word in TRUE
    number = None if is_outcome or isinstance(cell, bool) else _number(cell)
    if number is None:
        what = "an outcome is 0 or 1, true or false" if is_outcome else "a value is a number"
        raise RunError(f"{where}: {what}; got {cell!r:.100}")
    return number


def _number(cell: Any) -> float | None:
    """A finite number, from JSON or as text; Python also reads 1_000."""
    try:
        number = float(cell) if isinstance(cell, str | int | float) and "_" not in str(cell) else np.nan
    except (ValueError, OverflowError):
        return None
    return number if np.isfinite(number) else None


def _id(name: Any) -> int | None:
    """The number of an episode, also one that a table has made 7.0 of; a name can't be missed or come too late."""
    if isinstance(name, bool) or not re.fullmatch(r"-?\d{1,18}(\.0+)?", str(name)):
        return None
    return int(str(name).partition(".")[0])


# ---- traces -----------------------------------------------------------------------------------------------------


def traces(
    data: bytes, start: ReadPosition, watched: Sequence[MonitoredConstraint], origin: str, *, whole: bool
) -> Iterator[IncomingEpisode]:
    """One row per state, CSV or JSON lines with an `episode` column: an episode is complete when one of its rows says
    so (`terminated`, `truncated`), when another one begins, or when the input is `whole`."""
    head = start.head
    rows: list[InputLine] = []  # of the episode that is not complete
    name: Any = None
    for line in lines(data, start, origin, whole=whole):
        where = f"line {line.number} of {origin}"
        if not line.text.strip():
            if rows:  # an error, unless it is the last one of the episode
                rows.append(line)
            else:
                yield IncomingEpisode(
                    ReadPosition(line.offset, line.number, head), line.number, problem=BLANK
                )
            continue
        if line.number == 1 and not line.text.startswith("{"):
            head = line.text
            yield IncomingEpisode(ReadPosition(line.offset, 1, head), 1)
            continue
        names, cells = _row(line.text, head, where)
        if EPISODE not in names:
            raise RunError(f"{where} has no {EPISODE!r}; it has: {', '.join(names)}")
        row = dict(zip(names, cells, strict=True))
        if rows and row[EPISODE] != name:
            yield _judge(rows, head, name, watched, origin)
            rows = []
        rows.append(line)
        name = row[EPISODE]
        if any(str(row.get(end, "")).lower() in TRUE for end in ENDS):
            yield _judge(rows, head, name, watched, origin)
            rows = []
    if rows and whole:
        yield _judge(rows, head, name, watched, origin)


def _judge(
    rows: Sequence[InputLine],
    head: str | None,
    name: Any,
    watched: Sequence[MonitoredConstraint],
    origin: str,
) -> IncomingEpisode:
    """What an episode's rows come to, judged as recorded ones are."""
    from psyco._src.verification.recordings import read_traces  # imports JAX, which takes long

    text = "\n".join(([] if head is None else [head]) + [line.text for line in rows]).encode()
    judged_by = Requirement(constraints=tuple(each.ranged for each in watched))
    longest = max((each.horizon for each in watched if each.is_rate), default=None)
    try:
        columns = read_traces(text, judged_by, origin=origin, horizon=longest).columns
    except PsycoError as error:
        before = rows[0].number - 1 - (head is not None)
        found = re.sub(r"\bline (\d+)\b", lambda match: f"line {int(match[1]) + before}", str(error))
        raise RunError(found) from None
    outcome = [
        (float(column[0, 0]), int(column[0, 1])) if each.is_rate else column[0].item()
        for each, column in zip(watched, columns, strict=True)
    ]
    position = ReadPosition(rows[-1].offset, rows[-1].number, head)
    return IncomingEpisode(position, rows[0].number, outcome, _id(name), _observations(rows, head, origin))


def _observations(rows: Sequence[InputLine], head: str | None, origin: str) -> NDArray[np.float64] | None:
    """What the policy saw, `[n+1, inputs]`; None where it was not recorded, or not as numbers."""
    found = []
    for line in filter(lambda line: line.text.strip(), rows):
        row = dict(zip(*_row(line.text, head, f"line {line.number} of {origin}"), strict=True))
        entries = row.get("obs")
        if not isinstance(entries, list):
            entries = [row[f"obs[{i}]"] for i in range(len(row)) if f"obs[{i}]" in row]
        found.append([_number(entry) for entry in entries])
    numbers = all(entry is not None for entries in found for entry in entries)
    widths = {len(entries) for entries in found}
    return np.array(found, np.float64) if numbers and len(widths) == 1 and widths != {0} else None
