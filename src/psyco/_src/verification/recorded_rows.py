"""Rows of recordings, CSV or JSON lines: texts, the cells of signals, and the rows of each episode."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from psyco._src.core.errors import RunError
from psyco._src.verification.recorded_columns import EPISODE


class RecordedRow(NamedTuple):
    """One row of a file."""

    line: int  # number of its line, from 1
    cells: list[Any]  # one per column: text in CSV, any value in JSON


def rows_of_episodes(names: Sequence[str], rows: Sequence[RecordedRow], origin: str) -> list[list[int]]:
    """Return the rows of each episode; raise for a name that returns, which may be another episode."""
    column = names.index(EPISODE)
    episodes: list[list[int]] = []
    begun: dict[Any, int] = {}  # name -> line; 1, 01 and 1.0 count as the same name
    before = None
    for i, (line, cells) in enumerate(rows):
        name, first = cells[column], rows[0].cells[column]
        named = name != "" if isinstance(name, str) else kind_of_value(name) == NUMBER
        if not named or type(name) is not type(first):
            raise RunError(
                f"line {line} of {origin}: {name!r} is no name of an episode; give each a text, or each a number"
            )
        key = parse_cell(name) if isinstance(name, str) else name
        if name == before:
            episodes[-1].append(i)
        elif key in begun:
            raise RunError(
                f"line {line} of {origin}: episode {name!r}, begun on line {begun[key]}, comes back after another one "
                "or in another spelling; keep the rows of an episode together, and where several recordings were "
                "joined, tell their episodes apart, for example by a prefix"
            )
        else:
            begun[key] = line
            episodes.append([i])
        before = name
    return episodes


NUMBER, BOOLEAN = "a number", "true or false"


def kind_of_value(value: Any) -> str | None:
    """Return the type of a value in words, equal for all values of one column; None if no signal has such a value."""
    match value:
        case bool():
            return BOOLEAN
        case int() | float():
            return NUMBER if abs(value) <= sys.float_info.max else None  # neither NaN nor infinite
        case list():
            kinds = {kind_of_value(entry) for entry in value}
            kind = kinds.pop() if len(kinds) == 1 else None
            return f"a list of {len(value)}, each {kind}" if kind in (NUMBER, BOOLEAN) else None
    return None


def decode_text(data: bytes, origin: str) -> str:
    """Return the decoded file, without blank lines at its end."""
    try:
        text = data.decode("utf-8-sig").rstrip()
    except UnicodeDecodeError:
        raise RunError(f"{origin} is not a text file in UTF-8") from None
    if not text:  # only Unicode spaces, or a byte order mark
        raise RunError(f"{origin} is empty")
    return text


def csv_rows(text: str, origin: str) -> list[RecordedRow]:
    """Return all rows; raise unless each has as many cells as the first."""
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        rows = [RecordedRow(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    except csv.Error as error:
        raise RunError(f"line {reader.line_num} of {origin} is not CSV: {error}") from None
    for line, cells in rows:
        if not any(cells):
            raise _blank(line, origin)
        if len(cells) != len(rows[0].cells):
            raise RunError(f"line {line} of {origin} has {len(cells)} cells, the first has {len(rows[0].cells)}")
    return rows


def csv_table(text: str, origin: str, described: Collection[str]) -> tuple[list[str], list[RecordedRow]]:
    """Return header and rows; the cells of the columns `described` stay text, others are values of signals."""
    header, *rows = csv_rows(text, origin)
    check_header(header, rows, origin)
    names: list[str] = header.cells

    def read(cells: list[str]) -> list[Any]:
        return [cell if name in described else parse_cell(cell) for name, cell in zip(names, cells, strict=True)]

    return names, [RecordedRow(line, read(cells)) for line, cells in rows]


def check_header(header: RecordedRow, rows: Sequence[RecordedRow], origin: str) -> None:
    names = header.cells
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise RunError(f"line {header.line} of {origin}: two columns are called {twice[0]!r}; rename one of them")
    if not rows:
        raise RunError(f"{origin} has a header and no rows below it")
    for line, cells in rows:
        # Another recording may have had its columns in another order.
        if cells == names or EPISODE in cells:
            raise RunError(
                f"line {line} of {origin} is a header again; verify recordings one by one, or join their rows alone "
                "with a different name for every episode"
            )


def json_rows(text: str, origin: str) -> tuple[list[str], list[RecordedRow]]:
    names: list[str] = []
    rows: list[RecordedRow] = []
    for line, row in enumerate(text.split("\n"), 1):
        if not row.strip():
            raise _blank(line, origin)
        try:
            content = json.loads(row, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise RunError(f"line {line} of {origin} is not JSON: {error}") from None
        names = names or (list(content) if isinstance(content, dict) else [])
        if not isinstance(content, dict) or content.keys() != set(names):
            raise RunError(f"line {line} of {origin} should be an object with the same keys as the first line")
        rows.append(RecordedRow(line, [content[name] for name in names]))
    return names, rows


def _unique_keys(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands twice in the same object")
    return content


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _blank(line: int, origin: str) -> RunError:
    return RunError(
        f"line {line} of {origin} is blank; if something was not recorded there, nothing can be said about it, "
        "else delete the line"
    )


def parse_cell(text: str) -> bool | float | str:
    """Return the value of a CSV cell: true or false, a number, or text."""
    word = text.lower()
    if word in ("true", "false"):
        return word == "true"
    try:
        number = float(word)
    except ValueError:
        return text
    # Python also accepts 1_000, nan and inf; here they are text.
    return number if kind_of_value(number) and "_" not in word else text
