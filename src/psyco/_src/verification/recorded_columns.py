"""The columns of recorded episodes that do not hold outcomes or signals, and the order in which episodes began.

Of parallel episodes the short ones end first. A test that takes them as they end sees too many short ones at any time,
and accepts wrongly where failures are slow. So a recording may state when each episode began: `index` counts episodes
0, 1, 2, ... as they begin, `started` is a time. Only `index` shows that an episode is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

from psyco._src.core.errors import RunError

TRUE_WORDS, FALSE_WORDS = ("1", "true", "1.0"), ("0", "false", "0.0")
EPISODE = "episode"  # name of the episode
INDEX, STARTED = "index", "started"
END_COLUMNS = ("terminated", "truncated")
# Generic names for the column of a single constraint: on a probability, and on an expected value.
OUTCOME_NAMES, VALUE_NAMES = ("satisfied", "outcome", "success"), ("value", "total")
MAX_LISTED_GAPS = 3  # in an error message
DEFAULT_IN_FLIGHT, MAX_IN_FLIGHT = 1000, 100_000  # episodes of a watch, from the oldest that has not ended

Cut: TypeAlias = Literal["error", "violated"]  # what an episode without an end is: an error, or violated


class StartTime(NamedTuple):
    """The time at which an episode began, comparable with others of the same kind."""

    kind: str  # in words
    value: Any


class RecordedStart(NamedTuple):
    """When an episode began, as far as its row states it."""

    number: int | None = None  # its index
    started: StartTime | None = None

    @property
    def sort_key(self) -> Any:
        """The index, else the time."""
        return self.number if self.started is None or self.number is not None else self.started.value


class EpisodeOrder(NamedTuple):
    """The order in which recorded episodes began; without values where no column states it."""

    column: str | None = None  # that states it
    positions: Sequence[int] = ()  # of the episodes in the recording
    starts: Sequence[RecordedStart] = ()  # of the episodes, in their order
    first_index: int = 0
    missing: tuple[tuple[int, int], ...] = ()  # gaps in the index, first and last


def parse_whole_number(cell: Any) -> int | None:
    """Return a whole number, also from `7.0`; None for anything else."""
    if isinstance(cell, str) and cell.isdecimal() and cell.isascii() and len(cell) <= 18:
        return int(cell)  # most common, and several times faster than the rest
    if isinstance(cell, bool) or not re.fullmatch(r"-?\d{1,18}(\.0+)?", str(cell)):
        return None
    return int(str(cell).partition(".")[0])


def parse_start(cells: Mapping[str, Any], where: str) -> RecordedStart:
    """Return the beginning of an episode from those of the cells `index` and `started` that there are."""
    number = parse_whole_number(cells[INDEX]) if INDEX in cells else None
    if INDEX in cells and (number is None or number < 0):
        raise RunError(
            f"{where}: {INDEX} is {cells[INDEX]!r:.100}; it counts the episodes 0, 1, 2, ... as they begin. Rename the "
            "column if it is something else"
        )
    return RecordedStart(number, _parse_time(cells[STARTED], where) if STARTED in cells else None)


def _parse_time(cell: Any, where: str) -> StartTime:
    text = str(cell)
    if not isinstance(cell, bool):
        if re.fullmatch(r"[+-]?\d{1,30}", text):
            return StartTime("a number", int(text))
        if re.fullmatch(r"[+-]?\d*\.?\d*([eE][+-]?\d{1,2})?", text) and re.search(r"\d", text.lower().split("e")[0]):
            return StartTime("a number", float(text))
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            pass
        else:
            return StartTime("a time without a zone" if moment.tzinfo is None else "a time with a zone", moment)
    raise RunError(
        f"{where}: {STARTED} is {cell!r:.100}; it is the time at which the episode began, a number or a text such as "
        "2026-11-18T05:30:00Z. Rename the column if it is something else"
    )


def order_by_beginning(
    starts: Sequence[RecordedStart], lines: Sequence[int], origin: str, *, first_index: int = 0
) -> EpisodeOrder:
    """Return the order in which episodes began, by their index, else by their time; all state the same of these.

    Raises:
        RunError: two episodes have the same index or time, or the index and the times contradict each other.
    """
    first = starts[0]
    for start, line in zip(starts, lines, strict=True):
        _check_kind(first, start, lines[0], f"line {line} of {origin}")
    positions = sorted(range(len(starts)), key=lambda at: starts[at].sort_key)
    for before, after in pairwise(positions):
        check_later(starts[before], starts[after], lines[before], f"line {lines[after]} of {origin}")
    ordered = [starts[at] for at in positions]
    if first.number is None:
        return EpisodeOrder(STARTED, positions, ordered)
    indices = [start.number for start in ordered if start.number is not None]
    if indices[0] < first_index:
        raise RunError(
            f"line {lines[positions[0]]} of {origin}: {INDEX} is {indices[0]:,}, and the first one is {first_index:,}; "
            "leave out the episodes before it, or change --first-index"
        )
    return EpisodeOrder(INDEX, positions, ordered, first_index, tuple(_gaps([first_index - 1, *indices])))


def check_later(before: RecordedStart, after: RecordedStart, line: int, where: str) -> None:
    """Raise unless an episode began after another one, whose line is given."""
    _check_kind(before, after, line, where)
    if after.number is not None and after.number == before.number:
        raise RunError(f"{where}: {INDEX} {after.number} is also on line {line}; give each episode an index of its own")
    if before.started is None or after.started is None or after.started.value > before.started.value:
        return
    if after.number is not None:
        raise RunError(
            f"{where}: the episode has a higher {INDEX} than that of line {line}, but did not begin later; correct "
            f"{INDEX} or {STARTED}, or leave one of them out"
        )
    how = "at the same time as" if after.started.value == before.started.value else "before"
    raise RunError(
        f"{where}: the episode began {how} that of line {line}, so the order of these parallel episodes is not known; "
        f"record a column {INDEX} that counts the episodes 0, 1, 2, ... as they begin"
    )


def _check_kind(one: RecordedStart, other: RecordedStart, line: int, where: str) -> None:
    """Raise where two times cannot be compared."""
    if one.started is not None and other.started is not None and one.started.kind != other.started.kind:
        raise RunError(f"{where}: {STARTED} is {other.started.kind}, on line {line} {one.started.kind}; use one kind")


def _gaps(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    for before, after in pairwise(indices):
        if after > before + 1:
            yield before + 1, after - 1


def describe_missing(missing: Sequence[tuple[int, int]]) -> str:
    """Return the missing indices in words, such as `index 3 is` or `indices 3 and 7 to 9 are`."""
    listed = [str(a) if a == b else f"{a} to {b}" for a, b in missing[:MAX_LISTED_GAPS]]
    more = sum(b - a + 1 for a, b in missing[MAX_LISTED_GAPS:])
    if more:
        listed.append(f"{more:,} more")
    single = len(listed) == 1 and missing[0][0] == missing[0][1]
    text = " and ".join(filter(None, [", ".join(listed[:-1]), listed[-1]]))
    return f"{INDEX} {text} is" if single else f"indices {text} are"
