"""Traces, the signals of recorded episodes: the requirement judges them, with their end and their length."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError, check_has
from psyco._src.envs.value_bounds import RecordedSystem, value_ranges, warn_about
from psyco._src.logic.ast import Constraint, Requirement, SignalInfo
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.quantifiers import write_out
from psyco._src.logic.trace_check import team_of_path
from psyco._src.logic.validate import check_signals
from psyco._src.verification.episode_stream import make_columns
from psyco._src.verification.recorded_columns import (
    END_COLUMNS,
    EPISODE,
    INDEX,
    STARTED,
    Cut,
    EpisodeOrder,
)
from psyco._src.verification.recorded_rows import (
    BOOLEAN,
    NUMBER,
    RecordedRow,
    csv_table,
    decode_text,
    json_rows,
    kind_of_value,
    rows_of_episodes,
)
from psyco._src.verification.recordings import (
    RecordedEpisodes,
    check_in_range,
    measured_columns,
    order_of_rows,
    properties,
)


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
        check_in_range(stated, value_range, values, judged.lines, origin)
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
    episodes = rows_of_episodes(names, rows, origin)
    starts = _first_rows(names, rows, episodes, described, origin)
    order = order_of_rows([name if name in described else "" for name in names], starts, origin, first_index)
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
    for own in rows_of_episodes(names, rows, origin):
        path = {name: values[own[0] : own[-1] + 1] for name, values in signals.items()}
        path |= {"step": np.arange(len(own))} if "step" in derived else {}
        path |= {"return": np.cumsum(path["reward"])} if "return" in derived else {}
        paths.append(path)
    return paths


def _trace_rows(data: bytes, origin: str, described: Collection[str]) -> tuple[list[str], list[RecordedRow]]:
    """Return the columns and rows of traces; the cells of the columns `described` stay text."""
    if not data.strip():
        raise RunError(f"{origin} is empty; it should hold one row per state, with an {EPISODE!r} column")
    text = decode_text(data, origin)
    json_lines = text.lstrip().startswith("{")
    names, rows = json_rows(text, origin) if json_lines else csv_table(text, origin, described)
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


def _parse_signal(name: str, rows: Sequence[RecordedRow], column: int | list[int], origin: str) -> NDArray[Any]:
    """Return a signal in all rows, `[rows]` or `[rows, size]`."""
    values = [[cells[at] for at in column] if isinstance(column, list) else cells[column] for _, cells in rows]
    first = kind_of_value(values[0])
    for row, value in zip(rows, values, strict=True):
        if first is None or kind_of_value(value) != first:
            expected = f"{first}, as on line {rows[0].line}" if first else f"{NUMBER}, {BOOLEAN}, or a list of these"
            raise RunError(f"line {row.line} of {origin}: {name} is {value!r}; it should be {expected}")
    return np.array(values, bool if first and BOOLEAN in first else np.float64)


def _info(array: NDArray[Any]) -> SignalInfo:
    # Recorded Booleans are often numbers, so 0 and 1 may be read as either.
    zero_one = array.dtype.kind in "iuf" and bool(np.isin(array, (0, 1)).all())
    return SignalInfo(array.shape[1] if array.ndim > 1 else None, None if zero_one else array.dtype == bool)
