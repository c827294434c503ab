"""Parse episodes from the bytes of a file or a stream, line by line, as outcomes for a field test.

As in `recordings`, nothing is repaired or guessed. Since the input is never complete, a line is judged when it is
complete, and a trace when its episode is. A parser keeps the incomplete line and the open episode, so every byte is
parsed once. Every result has the position from which reading can continue.
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
from psyco._src.field.field_test import Count, EpisodeValue, FieldTest, MonitoredConstraint
from psyco._src.logic.ast import Requirement
from psyco._src.verification.recorded_columns import (
    END_COLUMNS,
    EPISODE,
    FALSE_WORDS,
    INDEX,
    OUTCOME_NAMES,
    STARTED,
    TRUE_WORDS,
    VALUE_NAMES,
    Cut,
    RecordedStart,
    parse_start,
    parse_whole_number,
)

MAX_LINE_BYTES = 2**24
MAX_EPISODE_BYTES = 2**26
MAX_REMEMBERED_ROWS = 1000  # short texts of rows, which are parsed once
UNSTATED = RecordedStart()
BLANK_LINE = "is blank: nothing is counted for it"


class ReadPosition(NamedTuple):
    """The position up to which a source was read."""

    offset: Count = 0  # bytes
    line: Count = 0  # lines
    header: str | None = None  # the first line, if it names the columns


class IncomingEpisode(NamedTuple):
    """One episode, or a line that contains none."""

    line: int  # its first line, from 1
    last_line: int
    offset: int  # in bytes, after its last line
    values: list[EpisodeValue] | None = None  # of each constraint
    id: int | None = None  # of the episode, where it is an integer
    start: RecordedStart = UNSTATED
    observations: NDArray[np.float64] | None = None  # [n+1, inputs], where they were recorded
    problem: str = ""  # of a line without an episode


class InputLine(NamedTuple):
    """A complete line, without its end."""

    text: str
    number: int  # from 1
    offset: int  # after it


class LineSplitter:
    """Split bytes into lines, whatever the pieces in which they come."""

    def __init__(self, start: ReadPosition, origin: str) -> None:
        self.origin, self.offset, self.number = origin, start.offset, start.line  # after the last complete line
        self.rest: list[bytes] = []  # of the incomplete line
        self.rest_size = 0

    def feed(self, data: bytes, *, at_end: bool) -> Iterator[InputLine]:
        """Yield the lines that are complete now; the last one may lack its end only with `at_end`."""
        *complete, rest = data.split(b"\n")
        if complete:
            complete[0] = b"".join([*self.rest, complete[0]])
            self.rest, self.rest_size = [], 0
        for piece in complete:
            yield self._line(piece, 1)
        if rest:
            self.rest.append(rest)
            self.rest_size += len(rest)
        if self.rest_size > MAX_LINE_BYTES:
            raise self._too_long()
        if at_end and self.rest_size:
            yield self._line(b"".join(self.rest), 0)
            self.rest, self.rest_size = [], 0

    def _line(self, piece: bytes, end: int) -> InputLine:
        if len(piece) > MAX_LINE_BYTES:
            raise self._too_long()
        self.offset, self.number = self.offset + len(piece) + end, self.number + 1
        try:
            text = piece.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise RunError(f"line {self.number} of {self.origin} is not text in UTF-8") from None
        return InputLine(text.strip("\r\n"), self.number, self.offset)

    def _too_long(self) -> RunError:
        return RunError(f"line {self.number + 1} of {self.origin} does not end within {MAX_LINE_BYTES:,} bytes")


class Parser:
    """What the parsers of outcomes and traces have in common.

    Args:
        start: the position at which the data begins.
        field_test: checks the outcomes.
        origin: name of the source, for messages.
    """

    def __init__(self, start: ReadPosition, field_test: FieldTest, origin: str) -> None:
        self.field_test, self.constraints, self.origin = field_test, field_test.constraints, origin
        self.lines = LineSplitter(start, origin)
        self.header = start.header
        self.names = _cells(start.header, "the header") if start.header else []

    def feed(self, data: bytes, *, at_end: bool) -> Iterator[IncomingEpisode]:
        """Yield the episodes that are complete now, and the lines that contain none."""
        raise NotImplementedError

    @property
    def is_waiting(self) -> bool:
        """Whether a line or an episode is incomplete."""
        return self.lines.rest_size > 0

    def where(self, line: InputLine) -> str:
        """Return the place of a line, for messages."""
        return f"line {line.number} of {self.origin}"

    def check(self, outcome: list[Any], line: InputLine) -> list[EpisodeValue]:
        """Return the values of an outcome; an error names its line."""
        try:
            return self.field_test.check_outcome(outcome)
        except RunError as error:
            raise RunError(f"{self.where(line)}: {error}") from None

    def row(self, line: InputLine) -> tuple[list[str], list[Any]]:
        """Return the names and values of a row; names are empty where there are none."""
        if line.text.startswith("{"):
            found = _json_object(line.text, self.where(line))
            return list(found), list(found.values())
        names, cells = self.names, _cells(line.text, self.where(line))
        if names and len(cells) != len(names):
            raise RunError(f"{self.where(line)} has {len(cells)} cells, the header has {len(names)}")
        if names == cells:
            raise RunError(f"{self.where(line)} repeats the header; watch one recording, or remove the second header")
        return names, cells

    def read_header(self, line: InputLine) -> IncomingEpisode:
        """Take the names of the columns from a line."""
        self.header, self.names = line.text, _cells(line.text, self.where(line))
        return IncomingEpisode(line.number, line.number, line.offset)


# ---- outcomes ---------------------------------------------------------------------------------------------------


class RowLayout(NamedTuple):
    """The meaning of the columns of a row of outcomes."""

    names: list[str]
    outcomes: list[int]  # column of each constraint
    described: dict[str, int]  # columns that describe the episode


def row_layout(names: list[str], constraints: Sequence[MonitoredConstraint], where: str) -> RowLayout:
    """Return the layout of a row whose columns have these names."""
    outcomes = _outcome_columns(names, constraints, where)
    described = {name: names.index(name) for name in (EPISODE, INDEX, STARTED) if name in names}
    return RowLayout(names, outcomes, {name: at for name, at in described.items() if at not in outcomes})


class OutcomeParser(Parser):
    """Parse one episode per line: 0 or 1 (or a value) for each constraint, CSV with a header, or JSON objects."""

    def __init__(self, start: ReadPosition, field_test: FieldTest, origin: str) -> None:
        super().__init__(start, field_test, origin)
        self.known: dict[str, list[EpisodeValue]] = {}  # values of rows without names, by their text
        self.layout = RowLayout([], [], {})  # of the last row

    def feed(self, data: bytes, *, at_end: bool) -> Iterator[IncomingEpisode]:
        """Yield one episode per line."""
        for line in self.lines.feed(data, at_end=at_end):
            text, number, offset = line
            if (values := self.known.get(text)) is not None:
                yield IncomingEpisode(number, number, offset, values)
            elif not text.strip():
                yield IncomingEpisode(number, number, offset, problem=BLANK_LINE)
            elif number == 1 and _is_header(text, self.where(line)):
                header = self.read_header(line)
                row_layout(self.names, self.constraints, self.where(line))
                yield header
            else:
                yield self._episode(line)

    def _episode(self, line: InputLine) -> IncomingEpisode:
        names, cells = self.row(line)
        if not names:
            values = self.check(self._without_names(cells, line), line)
            if len(self.known) < MAX_REMEMBERED_ROWS:
                self.known[line.text] = values
            return IncomingEpisode(line.number, line.number, line.offset, values)
        if names != self.layout.names:
            self.layout = row_layout(names, self.constraints, self.where(line))
        outcome = [
            self._value(c, cells[at], line) for c, at in zip(self.constraints, self.layout.outcomes, strict=True)
        ]
        described = {name: cells[at] for name, at in self.layout.described.items()}
        number = parse_whole_number(described.pop(EPISODE)) if EPISODE in described else None
        start = parse_start(described, self.where(line)) if described else UNSTATED
        return IncomingEpisode(line.number, line.number, line.offset, self.check(outcome, line), number, start)

    def _without_names(self, cells: Sequence[Any], line: InputLine) -> list[Any]:
        if len(cells) != len(self.constraints):
            raise RunError(
                f"{self.where(line)} has {len(cells)} values, the requirement {len(self.constraints)} constraints"
            )
        return [self._value(constraint, cell, line) for constraint, cell in zip(self.constraints, cells, strict=True)]

    def _value(self, constraint: MonitoredConstraint, cell: Any, line: InputLine) -> bool | float:
        """Return the outcome of a constraint in a cell; `FieldTest` checks the range of values."""
        if constraint.is_rate:
            raise RunError(f"a rate needs the steps of every episode; give traces: {constraint.constraint}")
        word = str(cell).lower()
        if constraint.is_outcome and word in TRUE_WORDS + FALSE_WORDS:
            return word in TRUE_WORDS
        number = None if constraint.is_outcome or isinstance(cell, bool) else _number(cell)
        if number is None:
            expected = "an outcome is 0 or 1, true or false" if constraint.is_outcome else "a value is a number"
            raise RunError(f"{self.where(line)}: {expected}; got {cell!r:.100}")
        return number


def _is_header(text: str, where: str) -> bool:
    return not text.startswith("{") and not all(map(_is_value, _cells(text, where)))


def _is_value(cell: str) -> bool:
    return cell.lower() in TRUE_WORDS + FALSE_WORDS or _number(cell) is not None


def _cells(text: str, where: str) -> list[str]:
    if '"' not in text and "\r" not in text:
        return [cell.strip() for cell in text.split(",")]
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
    known = OUTCOME_NAMES if constraints[0].is_outcome else VALUE_NAMES
    generic = [name for name in known if name in names]
    if len(wanted) == len(generic) == 1:
        return [names.index(generic[0])]
    remedy = f"call it {' or '.join(known)}" if len(wanted) == 1 else "give each constraint a name and a column"
    unnamed = ", ".join(name or "(no name)" for name in wanted)
    raise RunError(
        f"{where}: the columns of the outcomes are not known: {', '.join(names)}; constraints: {unnamed}; {remedy}"
    )


def _number(cell: Any) -> float | None:
    """Return a finite number from JSON or text; None for others. Python's `1_000` is none."""
    try:
        number = float(cell) if isinstance(cell, str | int | float) and "_" not in str(cell) else np.nan
    except (ValueError, OverflowError):
        return None
    return number if np.isfinite(number) else None


# ---- traces -----------------------------------------------------------------------------------------------------


class TraceParser(Parser):
    """Parse episodes from CSV or JSON lines with one row per state and a column `episode`.

    An episode is complete when one of its rows has `terminated` or `truncated`, when another episode begins, or at the
    end of the input. Where there are such columns, an episode without an end was cut.

    Args:
        start: as in `Parser`.
        field_test: as in `Parser`.
        origin: as in `Parser`.
        cut: what an episode without an end is.
        observations: whether to return the observations.
    """

    def __init__(
        self,
        start: ReadPosition,
        field_test: FieldTest,
        origin: str,
        *,
        cut: Cut,
        observations: bool,
    ) -> None:
        super().__init__(start, field_test, origin)
        self.cut, self.observations = cut, observations
        self.rows: list[InputLine] = []  # of the open episode
        self.name: Any = None
        self.begin = start.offset  # of the open episode, in bytes

    @property
    def is_waiting(self) -> bool:
        """Whether a line or an episode is incomplete."""
        return bool(self.rows) or super().is_waiting

    def feed(self, data: bytes, *, at_end: bool) -> Iterator[IncomingEpisode]:
        """Yield episodes as they are complete."""
        for line in self.lines.feed(data, at_end=at_end):
            if not line.text.strip():
                if self.rows:  # `read_traces` refuses a blank line inside an episode
                    self.rows.append(line)
                else:
                    self.begin = line.offset
                    yield IncomingEpisode(line.number, line.number, line.offset, problem=BLANK_LINE)
            elif line.number == 1 and not line.text.startswith("{"):
                self.begin = line.offset
                yield self.read_header(line)
            else:
                yield from self._add(line)
            if line.offset - self.begin > MAX_EPISODE_BYTES:
                raise RunError(
                    f"line {self.rows[0].number} of {self.origin}: the episode has more than {MAX_EPISODE_BYTES:,} "
                    "bytes; record fewer signals, or verify the file as a whole (psyco verify --traces)"
                )
        if self.rows and at_end:
            yield self._judge()

    def _add(self, line: InputLine) -> Iterator[IncomingEpisode]:
        """Add a row; yield the episodes that it completes."""
        row = dict(zip(*self.row(line), strict=True))
        if EPISODE not in row:
            raise RunError(f"{self.where(line)} has no {EPISODE!r}; it has: {', '.join(row)}")
        if self.rows and row[EPISODE] != self.name:
            yield self._judge()
        self.rows.append(line)
        self.name = row[EPISODE]
        if any(str(row.get(column, "")).lower() in TRUE_WORDS for column in END_COLUMNS):
            yield self._judge()

    def _judge(self) -> IncomingEpisode:
        """Return the open episode with the outcomes that `recordings` computes from its rows."""
        from psyco._src.verification.recorded_traces import read_traces  # imports JAX, which takes long

        rows, self.rows = self.rows, []
        text = "\n".join(([] if self.header is None else [self.header]) + [line.text for line in rows]).encode()
        requirement = Requirement(constraints=tuple(each.with_range for each in self.constraints))
        horizon = max((each.horizon for each in self.constraints if each.is_rate), default=None)
        try:
            found = read_traces(text, requirement, origin=self.origin, horizon=horizon, cut=self.cut)
        except PsycoError as error:
            before = rows[0].number - 1 - (self.header is not None)
            message = re.sub(r"\bline (\d+)\b", lambda match: f"line {int(match[1]) + before}", str(error))
            raise RunError(message) from None
        outcome = [
            (float(column[0, 0]), int(column[0, 1])) if each.is_rate else column[0].item()
            for each, column in zip(self.constraints, found.columns, strict=True)
        ]
        self.begin = rows[-1].offset
        start = found.order.starts[0] if found.order.starts else UNSTATED
        observations = self._observations(rows) if self.observations else None
        number = parse_whole_number(self.name)
        values, last = self.check(outcome, rows[0]), rows[-1]
        return IncomingEpisode(rows[0].number, last.number, last.offset, values, number, start, observations)

    def _observations(self, rows: Sequence[InputLine]) -> NDArray[np.float64] | None:
        """Return the observations `[n+1, inputs]`; None where they were not recorded, or are not numbers."""
        found = []
        for line in filter(lambda line: line.text.strip(), rows):
            row = dict(zip(*self.row(line), strict=True))
            entries = row.get("obs")
            if not isinstance(entries, list):
                entries = [row[f"obs[{i}]"] for i in range(len(row)) if f"obs[{i}]" in row]
            found.append([_number(entry) for entry in entries])
        numbers = all(entry is not None for entries in found for entry in entries)
        widths = {len(entries) for entries in found}
        return np.array(found, np.float64) if numbers and len(widths) == 1 and widths != {0} else None
