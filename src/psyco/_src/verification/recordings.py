"""Read recorded outcomes, values and traces from CSV and JSON lines.

A misread row may hide a violation. So nothing is skipped, repaired or guessed: an ambiguous file is an error that names
the line and the remedy.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RequirementError, RunError, check_has
from psyco._src.envs.value_bounds import RecordedSystem, ValueRange, value_ranges, warn_about
from psyco._src.logic.ast import Constraint, Expectation, Quantity, Question, Requirement, SignalInfo
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.quantifiers import write_out
from psyco._src.logic.trace_check import team_of_path
from psyco._src.logic.validate import check_signals
from psyco._src.verification.episode_stream import is_rate, make_columns
from psyco._src.verification.methods import mean_task
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
    EpisodeOrder,
    order_by_beginning,
    parse_start,
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


class RecordedRow(NamedTuple):
    """One row of a file."""

    line: int  # number of its line, from 1
    cells: list[Any]  # one per column: text in CSV, any value in JSON


# ---- outcomes ---------------------------------------------------------------------------------------------------


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
    rows = _csv_rows(_text(data, origin), origin)
    first = rows[0]
    columns, names = list(range(len(stated))), []
    numbers = any(map(is_value, stated))
    if not all(_outcome(cell) is not None or (numbers and _number(cell) is not None) for cell in first.cells):
        columns, rows, names = _outcome_columns(first, stated, origin), rows[1:], first.cells
        _check_header(first, rows, origin)
        if EPISODE in first.cells:
            _check_single(_episodes(first.cells, rows, origin), rows, origin)
    elif len(first.cells) != len(stated):
        raise RunError(
            f"{origin} has {len(first.cells)} columns, the requirement {len(stated)} constraints; give one column for "
            "each, or a header with the constraints' names"
        )
    parsed = [_parse_column(prop, rows, column, origin) for prop, column in zip(stated, columns, strict=True)]
    for prop, value_range, values in measured_columns(requirement, known, parsed):
        _check_in_range(prop, value_range, values, [row.line for row in rows], origin)
    free = [name if column not in columns else "" for column, name in enumerate(names)]
    return RecordedEpisodes(parsed, known).sort(_order(free, rows, origin, first_index))


def _order(names: Sequence[str], rows: Sequence[RecordedRow], origin: str, first_index: int) -> EpisodeOrder:
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


def _check_in_range(
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
    value = _parse_cell(cell)
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


# ---- traces -----------------------------------------------------------------------------------------------------


def read_traces(
    data: bytes,
    requirement: Requirement,
    *,
    origin: str,
    horizon: int | None = None,
    cut: Cut = "error",
    first_index: int = 0,
) -> RecordedEpisodes:
    """Read traces and evaluate the requirement on them: CSV or JSON lines, one row per state, with an `episode` column.

    The rows of an episode are contiguous, in the order of its states. `obs[0]`, `obs[1]`, ... are the entries of a
    vector. A `step` column counts 0, 1, 2, ... in every episode. Missing columns `step` and `return` are derived, the
    latter from `reward`. No episode may have more steps than `horizon`, if given. `index` and `started` state the order
    in which the episodes began. Where there is a column `terminated` or `truncated`, an episode that ends with neither
    was cut: it is an error, or counts as violated.
    """
    judged = _evaluate(data, requirement, origin, cut, first_index)
    for at in np.flatnonzero(judged.steps > (horizon or np.inf))[:1]:
        raise RunError(
            f"line {judged.lines[at]} of {origin}: the episode has {judged.steps[at]:,} steps, and yet none should "
            f"have more than {horizon:,}; correct the horizon"
        )
    system = RecordedSystem(judged.table, horizon or np.inf)
    known = value_ranges(requirement, system)
    warnings = warn_about(requirement, system)
    columns = make_columns(requirement, judged.held, judged.value, judged.steps)
    for stated, value_range, values in measured_columns(requirement, known, columns):
        _check_in_range(stated, value_range, values, judged.lines, origin)
    found = RecordedEpisodes(columns, known, judged.reached, horizon, cut=judged.cut, warnings=warnings)
    return found.sort(judged.order)


def written_for_traces(
    data: bytes, requirement: Requirement, groups: Mapping[str, Sequence[str]] | None, *, origin: str
) -> Requirement:
    """Return a requirement written out for the agents of traces, such as pursuer_0 of the column `pursuer_0.x`.

    Args:
        data: the traces.
        requirement: it may be about groups of agents.
        groups: names of groups and their agents; None: by their numbers.
        origin: of the traces, for messages.
    """
    columns = _signal_columns(_trace_rows(data, origin, {EPISODE, INDEX, STARTED})[0], origin)
    return write_out(requirement, team_of_path(columns, groups), origin, columns)


class _JudgedRecordings(NamedTuple):
    """Outcomes and values of traces."""

    held: NDArray[np.bool_]  # [B, P], one per constraint on a probability
    value: NDArray[np.float64] | None  # [B, M], as in Episodes
    reached: NDArray[np.bool_] | None  # [B, M], as in Episodes
    steps: NDArray[np.intp]  # [B]
    lines: list[int]  # first line of each episode
    table: dict[str, SignalInfo]  # all signals
    order: EpisodeOrder
    cut: int  # number of episodes without an end, which count as violated


def _evaluate(data: bytes, requirement: Requirement, origin: str, cut: Cut, first_index: int) -> _JudgedRecordings:
    monitor = compile_monitor(
        [constraint.formula for constraint in requirement.probability_constraints],
        measured=[stated.subject for stated in requirement.measured],
    )
    described = {EPISODE} | {INDEX, STARTED} - monitor.signals  # columns that are not signals
    names, rows = _trace_rows(data, origin, described)
    episodes = _episodes(names, rows, origin)
    starts = _first_rows(names, rows, episodes, described, origin)
    order = _order([name if name in described else "" for name in names], starts, origin, first_index)
    columns = _signal_columns(names, origin)
    summed = "return" in monitor.signals and "return" not in columns
    described_states = {"step", *END_COLUMNS} & columns.keys()
    needed = monitor.signals | described_states | ({"reward"} if summed else set())
    signals = {name: _parse_signal(name, rows, columns[name], origin) for name in needed & columns.keys()}
    derived = {"step": SignalInfo()} | ({"return": SignalInfo()} if "reward" in columns else {})
    offered = derived | dict.fromkeys(columns, SignalInfo())
    table = offered | {name: _info(array) for name, array in signals.items()}
    check_signals(requirement, table, origin)
    first, lengths = np.array([(states[0], len(states)) for states in episodes]).T
    step = np.concatenate([np.arange(length) for length in lengths])
    last = step == np.repeat(lengths - 1, lengths)
    for name in sorted(described_states):
        if signals[name].ndim > 1:
            raise RunError(f"{origin}: {name} should have one value in every row, got a list")
    _check_states(signals, step, last, rows, origin)
    is_cut = _find_cut(signals, first + lengths - 1)
    if is_cut.any():
        at = episodes[int(np.argmax(is_cut))][-1]
        _check_cut(
            requirement, signals.keys(), rows[at].cells[names.index(EPISODE)], f"line {rows[at].line} of {origin}", cut
        )
    signals["step"] = step
    held = np.empty((len(episodes), len(monitor.formulas)), bool)
    value, reached = (np.empty((len(episodes), len(monitor.measured)), kind) for kind in (float, bool))
    for which in _length_groups(lengths):
        # The last state repeats, so that these paths have one length: [B, T].
        time, own = np.arange(lengths[which].max()), lengths[which, None]
        index = first[which, None] + np.minimum(time, own - 1)
        paths = {name: array[index] for name, array in signals.items()}
        if summed:
            paths["return"] = np.cumsum(np.where(time < own, paths["reward"], 0.0), axis=1)
        used = {name: paths[name] for name in monitor.signals}
        held[which], _ = monitor(used, end=last[index])
        if monitor.measured:
            value[which], reached[which], _ = monitor.measure(used, end=last[index])
    # Under `P<=p [ φ ]`, φ should not happen: it counts as if it had.
    held[is_cut] = [constraint.lower <= 0.0 for constraint in requirement.probability_constraints]
    lines = [rows[at].line for at in first]
    return _JudgedRecordings(
        held,
        value if monitor.measured else None,
        reached if monitor.measured else None,
        lengths - 1,
        lines,
        table,
        order,
        int(is_cut.sum()),
    )


def read_signals(data: bytes, wanted: Collection[str], origin: str) -> list[dict[str, NDArray[Any]]]:
    """Return the wanted signals of traces, `[n+1]` or `[n+1, size]` for each episode of n steps.

    Missing columns `step` and `return` are derived, as in `read_traces`.
    """
    names, rows = _trace_rows(data, origin, {EPISODE})
    columns, wanted = _signal_columns(names, origin), set(wanted)
    derived = {"step", "return"} & wanted - columns.keys()
    needed = wanted - derived | ({"reward"} if "return" in derived else set())
    check_has(origin, "column", sorted(needed), columns)
    signals = {name: _parse_signal(name, rows, columns[name], origin) for name in needed}
    paths = []
    for own in _episodes(names, rows, origin):
        path = {name: values[own[0] : own[-1] + 1] for name, values in signals.items()}
        path |= {"step": np.arange(len(own))} if "step" in derived else {}
        path |= {"return": np.cumsum(path["reward"])} if "return" in derived else {}
        paths.append(path)
    return paths


def _trace_rows(data: bytes, origin: str, described: Collection[str]) -> tuple[list[str], list[RecordedRow]]:
    """Return the columns and rows of traces; the cells of the columns `described` stay text."""
    if not data.strip():
        raise RunError(f"{origin} is empty; it should hold one row per state, with an {EPISODE!r} column")
    text = _text(data, origin)
    json_lines = text.lstrip().startswith("{")
    names, rows = _json_rows(text, origin) if json_lines else _csv_table(text, origin, described)
    if EPISODE not in names:
        raise RunError(f"{origin} has no {EPISODE!r} column; it has: {', '.join(names)}")
    return names, rows


def _find_cut(signals: Mapping[str, NDArray[Any]], last: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which episodes, whose last rows are given, have no end, `[B]`; none where no column states the end."""
    ends = [signals[name][last] != 0 for name in END_COLUMNS if name in signals]
    return ~np.any(ends, axis=0) if ends else np.zeros(len(last), bool)


def _check_cut(requirement: Requirement, columns: Collection[str], name: Any, where: str, cut: Cut) -> None:
    """Raise for an episode without an end, unless it counts as violated."""
    stated = [column for column in END_COLUMNS if column in columns]
    how = f"ends neither {stated[0]} nor {stated[1]}" if len(stated) > 1 else f"is not {stated[0]} at its end"
    problem = f"{where}: episode {name!r:.100} {how}, so it was cut, and what came after is not known"
    if cut == "error":
        raise RunError(
            f"{problem}; complete it, record {' or '.join(END_COLUMNS)} in its last row, or count such episodes as "
            "violated (--cut violated)"
        )
    for prop in properties(requirement):
        if not isinstance(prop, Constraint) or (prop.lower > 0.0 and prop.upper < 1.0):
            raise RunError(f"{problem}; it has no outcome that would count as violated for {prop}: complete it")


def _first_rows(
    names: Sequence[str], rows: Sequence[RecordedRow], episodes: Sequence[list[int]], described: set[str], origin: str
) -> list[RecordedRow]:
    """Return the first row of each episode; raise where a column that describes the episode changes within it."""
    for name in sorted(described & set(names)):
        column = names.index(name)
        for first, *more in episodes:
            for at in more:
                if rows[at].cells[column] != rows[first].cells[column]:
                    raise RunError(
                        f"line {rows[at].line} of {origin}: {name} is {rows[at].cells[column]!r:.100}, on line "
                        f"{rows[first].line} {rows[first].cells[column]!r:.100}; it is the same in all rows of an "
                        "episode. Rename the column if it is something else"
                    )
    return [rows[states[0]] for states in episodes]


def _check_states(
    signals: Mapping[str, NDArray[Any]],
    step: NDArray[np.intp],
    last: NDArray[np.bool_],
    rows: Sequence[RecordedRow],
    origin: str,
) -> None:
    """Raise where `step`, `terminated` or `truncated` contradict the position of a row in its episode."""
    given = signals.get("step", step)
    if (wrong := np.flatnonzero((given != step) | (given.dtype == bool))).size:
        at = wrong[0]
        raise RunError(
            f"line {rows[at].line} of {origin}: step is {given[at]:g} where {step[at]} should stand; it counts 0, 1, "
            "2, ... in every episode: complete and sort the rows, or rename the column if it counts otherwise"
        )
    for name in filter(signals.__contains__, END_COLUMNS):
        if (early := np.flatnonzero((signals[name] != 0) & ~last)).size:
            raise RunError(
                f"line {rows[early[0]].line} of {origin}: the episode is {name}, and yet it has further rows; "
                "if they are of another episode, give that another name"
            )


def _length_groups(lengths: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    """Yield groups of episodes of similar length, up to a factor of 2: they are padded to the longest one."""
    _, magnitude = np.frexp(lengths)
    for exponent in np.unique(magnitude):
        yield np.flatnonzero(magnitude == exponent)


def _episodes(names: Sequence[str], rows: Sequence[RecordedRow], origin: str) -> list[list[int]]:
    """Return the rows of each episode; raise for a name that returns, which may be another episode."""
    column = names.index(EPISODE)
    episodes: list[list[int]] = []
    begun: dict[Any, int] = {}  # name -> line; 1, 01 and 1.0 count as the same name
    before = None
    for i, (line, cells) in enumerate(rows):
        name, first = cells[column], rows[0].cells[column]
        named = name != "" if isinstance(name, str) else _kind(name) == NUMBER
        if not named or type(name) is not type(first):
            raise RunError(
                f"line {line} of {origin}: {name!r} is no name of an episode; give each a text, or each a number"
            )
        key = _parse_cell(name) if isinstance(name, str) else name
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


def _signal_columns(names: Sequence[str], origin: str) -> dict[str, int | list[int]]:
    """Return the column of each signal, or the columns of its entries."""
    single: dict[str, int | list[int]] = {}
    vectors: dict[str, list[tuple[int, int]]] = {}
    for column, name in enumerate(names):
        if entry := re.fullmatch(r"(.+)\[(\d{1,9})\]", name):
            vectors.setdefault(entry[1], []).append((int(entry[2]), column))
        elif name != EPISODE:
            single[name] = column
    for name, entries in vectors.items():
        if name in single or sorted(index for index, _ in entries) != list(range(len(entries))):
            raise RunError(
                f"{origin}: the entries of {name!r} should be {name}[0] to {name}[{len(entries) - 1}], each once"
            )
    return single | {name: [column for _, column in sorted(entries)] for name, entries in vectors.items()}


NUMBER, BOOLEAN = "a number", "true or false"


def _parse_signal(name: str, rows: Sequence[RecordedRow], column: int | list[int], origin: str) -> NDArray[Any]:
    """Return a signal in all rows, `[rows]` or `[rows, size]`."""
    values = [[cells[at] for at in column] if isinstance(column, list) else cells[column] for _, cells in rows]
    first = _kind(values[0])
    for row, value in zip(rows, values, strict=True):
        if first is None or _kind(value) != first:
            expected = f"{first}, as on line {rows[0].line}" if first else f"{NUMBER}, {BOOLEAN}, or a list of these"
            raise RunError(f"line {row.line} of {origin}: {name} is {value!r}; it should be {expected}")
    return np.array(values, bool if first and BOOLEAN in first else np.float64)


def _kind(value: Any) -> str | None:
    """Return the type of a value in words, equal for all values of one column; None if no signal has such a value."""
    match value:
        case bool():
            return BOOLEAN
        case int() | float():
            return NUMBER if abs(value) <= sys.float_info.max else None  # neither NaN nor infinite
        case list():
            kinds = {_kind(entry) for entry in value}
            kind = kinds.pop() if len(kinds) == 1 else None
            return f"a list of {len(value)}, each {kind}" if kind in (NUMBER, BOOLEAN) else None
    return None


def _info(array: NDArray[Any]) -> SignalInfo:
    # Recorded Booleans are often numbers, so 0 and 1 may be read as either.
    zero_one = array.dtype.kind in "iuf" and bool(np.isin(array, (0, 1)).all())
    return SignalInfo(array.shape[1] if array.ndim > 1 else None, None if zero_one else array.dtype == bool)


# ---- rows -------------------------------------------------------------------------------------------------------


def _text(data: bytes, origin: str) -> str:
    """Return the decoded file, without blank lines at its end."""
    try:
        text = data.decode("utf-8-sig").rstrip()
    except UnicodeDecodeError:
        raise RunError(f"{origin} is not a text file in UTF-8") from None
    if not text:  # only Unicode spaces, or a byte order mark
        raise RunError(f"{origin} is empty")
    return text


def _csv_rows(text: str, origin: str) -> list[RecordedRow]:
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


def _csv_table(text: str, origin: str, described: Collection[str]) -> tuple[list[str], list[RecordedRow]]:
    """Return header and rows; the cells of the columns `described` stay text, others are values of signals."""
    header, *rows = _csv_rows(text, origin)
    _check_header(header, rows, origin)
    names: list[str] = header.cells

    def read(cells: list[str]) -> list[Any]:
        return [cell if name in described else _parse_cell(cell) for name, cell in zip(names, cells, strict=True)]

    return names, [RecordedRow(line, read(cells)) for line, cells in rows]


def _check_header(header: RecordedRow, rows: Sequence[RecordedRow], origin: str) -> None:
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


def _json_rows(text: str, origin: str) -> tuple[list[str], list[RecordedRow]]:
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


def _parse_cell(text: str) -> bool | float | str:
    """Return the value of a CSV cell: true or false, a number, or text."""
    word = text.lower()
    if word in ("true", "false"):
        return word == "true"
    try:
        number = float(word)
    except ValueError:
        return text
    # Python also accepts 1_000, nan and inf; here they are text.
    return number if _kind(number) and "_" not in word else text
