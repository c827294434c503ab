"""The same tests for outcomes that were recorded elsewhere, and for recorded signals, judged by the formula first."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from psyco._src.certify.certificate import Certificate, Subject, certify
from psyco._src.certify.verify import NO_OPTIONS, check_decidable
from psyco._src.errors import RunError
from psyco._src.smc.base import overall, run_tests
from psyco._src.smc.methods import DEFAULT_METHOD, make_tests
from psyco._src.spec.check import check_signals
from psyco._src.spec.formula import Requirement, SignalInfo
from psyco._src.spec.monitor import compile_monitor
from psyco._src.spec.parse import parse

Outcomes = NDArray[np.bool_]  # [B, K]
TRUE, FALSE = ("1", "true", "1.0"), ("0", "false", "0.0")
EPISODE = "episode"  # the column of a trace file that tells episodes apart

# A probability bound with nothing to speak of: recorded outcomes have been judged already.
_BARE = re.compile(r"\bP\s*(?:(?:>=|<=|>|<|≥|≤)\s*[\d.eE+-]+|in\s*\[[^\]]*\])(?=\s*(?:&|∧|and\b|;|$))")


def verify_outcomes(
    outcomes: ArrayLike,
    requirement: Requirement,
    *,
    method: str = DEFAULT_METHOD,
    options: Mapping[str, Any] = NO_OPTIONS,
    max_episodes: int | None = None,
    issued: str | None = None,
) -> Certificate:
    """Test recorded outcomes, in their order and only as far as needed.

    Args:
        outcomes: did the formula hold? `[B]`, or `[B, K]` for K constraints; Booleans or 0 and 1.
        requirement: what must hold; see `outcome_requirement` for one without a formula.
        method: how the constraints are tested, a name in `METHODS`.
        options: parameters of the method.
        max_episodes: look at no more than so many, a number chosen without looking; default: all there are.
        issued: the time that the certificate shows; now, if it is not given.
    """
    check_decidable(requirement)
    judged = _as_outcomes(outcomes, len(requirement.constraints))
    if max_episodes is not None and max_episodes < 1:
        raise RunError(f"the maximum number of episodes must be at least 1, got {max_episodes}")
    cap = len(judged) if max_episodes is None else max_episodes
    tests = make_tests(method, requirement, max_episodes=cap, **options)
    progress = run_tests(tests, _growing_batches(judged), max_episodes=cap)
    digest = hashlib.sha256(np.ascontiguousarray(judged, np.uint8).tobytes()).hexdigest()
    return certify(
        requirement, Subject(outcomes=digest), tests, progress, overall(progress),
        method=method, options=options, max_episodes=cap, issued=issued,
    )  # fmt: skip


def outcome_requirement(text: str) -> Requirement:
    """A requirement in which `P>=0.85` may stand without a formula, for outcomes that somebody else has judged."""
    return parse(_BARE.sub(lambda bound: f'{bound[0]} [ "satisfied" ]', text))


def read_outcomes(data: bytes, requirement: Requirement, *, origin: str) -> Outcomes:
    """Outcomes `[B, K]` from one 0 or 1 per line, or from CSV with one column per constraint.

    A header names the columns: by the constraints' names, or, where there are as many columns as constraints, in order.
    """
    if not data.strip():
        raise RunError(f"{origin} is empty; it should hold one outcome, 0 or 1, per line")
    wanted = len(requirement.constraints)
    if wanted == 1 and (quick := _digits(data)) is not None:
        return quick
    rows = _csv_rows(data, origin)
    line, first = rows[0]
    if all(_outcome(cell) is not None for cell in first):
        columns, body = list(range(len(first))), rows
        if len(first) != wanted:
            raise RunError(
                f"{origin} has {len(first)} columns, the requirement {wanted} constraints; give one column for each, "
                "or a header with the constraints' names"
            )
    else:
        if any(isinstance(_cell(cell), float) for cell in first):
            raise RunError(f"line {line} of {origin}: an outcome is 0 or 1, true or false; got {first!r}")
        columns, body = _columns(first, requirement, origin), rows[1:]
        if not body:
            raise RunError(
                f"line {line} of {origin} should be 0 or 1, or a header with outcomes below it: {first!r}"
            )
    judged = np.empty((len(body), wanted), bool)
    for i, (line, row) in enumerate(body):
        if len(row) != len(first):
            raise RunError(f"line {line} of {origin} has {len(row)} cells, the first has {len(first)}")
        for k, column in enumerate(columns):
            outcome = _outcome(row[column])
            if outcome is None:
                raise RunError(
                    f"line {line} of {origin}: an outcome is 0 or 1, true or false; got {row[column]!r}"
                )
            judged[i, k] = outcome
    return judged


def read_traces(data: bytes, requirement: Requirement, *, origin: str) -> Outcomes:
    """Outcomes `[B, K]` of recorded signals: CSV or JSON lines, one row per state, with an `episode` column.

    The rows of an episode stand in the order of its states. `obs[0]`, `obs[1]`, ... are the entries of a vector;
    `step` is counted and `return` summed up from `reward` where they are missing.
    """
    if not data.strip():
        raise RunError(f"{origin} is empty; it should hold one row per state, with an {EPISODE!r} column")
    names, rows = _json_rows(data, origin) if data.lstrip().startswith(b"{") else _table(data, origin)
    if EPISODE not in names:
        raise RunError(f"{origin} has no {EPISODE!r} column; it has: {', '.join(names)}")
    episodes: dict[Any, list[int]] = {}
    for i, row in enumerate(rows):
        key = row[names.index(EPISODE)]
        if not isinstance(key, str | int | float) or key != key:
            raise RunError(f"{origin}: {key!r} in row {i + 1} is no name of an episode")
        episodes.setdefault(key, []).append(i)
    signals = _signals(names, rows, origin)
    info = {name: _info(array) for name, array in signals.items()}
    derived = {"step": SignalInfo()} | ({"return": SignalInfo()} if "reward" in signals else {})
    check_signals(requirement, derived | info, origin)
    monitor = compile_monitor([constraint.formula for constraint in requirement.constraints])
    summed = {"reward"} if "return" in monitor.signals - signals.keys() else set()
    for name in (monitor.signals | summed) & signals.keys():
        if not np.isfinite(np.asarray(signals[name], float)).all():
            bad = int(np.argwhere(~np.isfinite(np.asarray(signals[name], float)))[0][0])
            raise RunError(f"{origin}: {name} is no number in row {bad + 1} of its states")
    longest = max(map(len, episodes.values()))
    # The last state repeats, so that all paths have one length: [B, T].
    index = np.array([rows_of + [rows_of[-1]] * (longest - len(rows_of)) for rows_of in episodes.values()])
    lengths = np.array([len(rows_of) for rows_of in episodes.values()])
    step = np.minimum(np.arange(longest), lengths[:, None] - 1)
    paths: dict[str, NDArray[Any]] = {name: array[index] for name, array in signals.items()}
    paths.setdefault("step", step)
    if "reward" in paths and "return" not in paths:
        fresh = np.arange(longest) < lengths[:, None]
        paths["return"] = np.cumsum(np.where(fresh, paths["reward"], 0.0), axis=1)
    satisfied, _ = monitor({name: paths[name] for name in monitor.signals}, end=step == lengths[:, None] - 1)
    return np.asarray(satisfied)


def _as_outcomes(outcomes: ArrayLike, wanted: int) -> Outcomes:
    array = np.asarray(outcomes)
    if array.ndim == 1:
        array = array[:, None]
    if array.size == 0:
        raise RunError("there are no outcomes")
    if array.ndim != 2 or array.shape[1] != wanted:
        raise RunError(
            f"outcomes of shape {np.shape(outcomes)} do not fit {wanted} constraints; give [B, {wanted}]"
        )
    if array.dtype != bool:
        wrong = ~np.isin(array, (0, 1))
        if array.dtype.kind not in "iuf" or wrong.any():
            at = int(np.argwhere(wrong)[0][0]) if wrong.any() else 0
            raise RunError(f"an outcome is 0 or 1; the one at index {at} is {array[at].tolist()}")
    return array.astype(bool, copy=False)


def _growing_batches(outcomes: Outcomes) -> Iterator[Outcomes]:
    """Batches that double: an early decision is found early, a late one with few calls."""
    start, size = 0, 1024
    while start < len(outcomes):
        yield outcomes[start : start + size]
        start, size = start + size, 2 * size


def _digits(data: bytes) -> Outcomes | None:
    """The common case, nothing but 0 and 1 on lines of their own, without a loop; None for anything else."""
    flat = np.frombuffer(data.replace(b"\r\n", b"\n").rstrip(b"\n") + b"\n", np.uint8)
    if len(flat) % 2 or (flat[1::2] != ord("\n")).any():
        return None
    values = flat[::2] - ord("0")
    return None if (values > 1).any() else values.astype(bool)[:, None]


def _outcome(cell: str) -> bool | None:
    text = cell.strip().lower()
    return True if text in TRUE else False if text in FALSE else None


def _text(data: bytes, origin: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RunError(f"{origin} is not a text file in UTF-8") from None


def _csv_rows(data: bytes, origin: str) -> list[tuple[int, list[str]]]:
    """Rows that are not empty, with their line numbers."""
    reader = csv.reader(io.StringIO(_text(data, origin)))
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise RunError(f"line {reader.line_num} of {origin} is not CSV: {error}") from None
    if not rows:
        raise RunError(f"{origin} holds no values")
    return rows


def _columns(header: list[str], requirement: Requirement, origin: str) -> list[int]:
    names = [cell.strip() for cell in header]
    wanted = [constraint.name for constraint in requirement.constraints]
    if all(name in names for name in wanted):
        return [names.index(name) for name in wanted if name is not None]
    if len(names) == len(wanted):
        return list(range(len(names)))
    if len(wanted) == 1 and "satisfied" in names:
        return [names.index("satisfied")]
    raise RunError(
        f"{origin} has the columns {', '.join(names)}; which of them is the outcome? Give as many columns as "
        f'constraints ({len(wanted)}), or name the constraints after their columns: "{names[0]}": P>=0.9 [ ... ]'
    )


def _table(data: bytes, origin: str) -> tuple[list[str], list[list[Any]]]:
    (line, header), *body = _csv_rows(data, origin)
    names = [cell.strip() for cell in header]
    for line, row in body:
        if len(row) != len(names):
            raise RunError(f"line {line} of {origin} has {len(row)} cells, the header has {len(names)}")
    if not body:
        raise RunError(f"{origin} has a header and no rows below it")
    return names, [[_cell(cell) for cell in row] for _, row in body]


def _json_rows(data: bytes, origin: str) -> tuple[list[str], list[list[Any]]]:
    rows: list[Mapping[str, Any]] = []
    for line, text in enumerate(_text(data, origin).splitlines(), 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except ValueError as error:
            raise RunError(f"line {line} of {origin} is not JSON: {error}") from None
        if not isinstance(row, dict) or (rows and row.keys() != rows[0].keys()):
            raise RunError(
                f"line {line} of {origin} should be an object with the same keys as the first line"
            )
        rows.append(row)
    names = list(rows[0])
    return names, [[row[name] for name in names] for row in rows]


def _cell(text: str) -> bool | float | str:
    word = text.strip().lower()
    if word in ("true", "false"):
        return word == "true"
    try:
        return float(word)
    except ValueError:
        return text.strip()


def _signals(names: Sequence[str], rows: Sequence[Sequence[Any]], origin: str) -> dict[str, NDArray[Any]]:
    """One array per signal, `[rows]` or `[rows, size]`; columns that hold text are left out."""
    columns: dict[str, NDArray[Any]] = {}
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        try:
            array = np.asarray(values)
        except ValueError:
            raise RunError(f"{origin}: the vectors in {name!r} differ in length") from None
        if name != EPISODE and array.dtype.kind in "biuf" and array.ndim <= 2:
            columns[name] = array
    vectors: dict[str, dict[int, NDArray[Any]]] = {}
    for name in list(columns):
        if entry := re.fullmatch(r"(.+)\[(\d+)\]", name):
            vectors.setdefault(entry[1], {})[int(entry[2])] = columns.pop(name)
    for name, entries in vectors.items():
        if sorted(entries) != list(range(len(entries))):
            raise RunError(
                f"{origin}: the entries of {name!r} should be {name}[0] to {name}[{len(entries) - 1}]"
            )
        columns[name] = np.stack([entries[i] for i in range(len(entries))], axis=1)
    return columns


def _info(array: NDArray[Any]) -> SignalInfo:
    # Recorded Booleans are often numbers, so 0 and 1 may be read as either.
    zero_one = array.dtype.kind in "iuf" and bool(np.isin(array, (0, 1)).all())
    return SignalInfo(array.shape[1] if array.ndim > 1 else None, None if zero_one else array.dtype == bool)
