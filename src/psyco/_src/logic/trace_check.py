"""A recorded path against a formula, and what it makes of a quantity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from psyco._src.core.errors import RequirementError
from psyco._src.logic.ast import Formula, Quantity, Question, SignalInfo
from psyco._src.logic.batch_monitor import BatchMonitor, compile_monitor
from psyco._src.logic.parser import parse, parse_formula
from psyco._src.logic.validate import check_signals


@dataclass(frozen=True, slots=True)
class PathCheck:
    """What one path makes of a formula."""

    satisfied: bool
    cost: float  # 0 exactly if satisfied


def check_path(formula: str | Formula, signals: Mapping[str, Any], *, severity: bool = False) -> PathCheck:
    """Does a recorded path satisfy a formula, and what does it cost?

    `signals` maps names to arrays of length n+1, one entry per state (`[n+1, size]` for vectors); `step` is added if
    it is missing. The last state repeats beyond the end, so bounds may be of any size.
    """
    if isinstance(formula, str):
        formula = parse_formula(formula)
    monitor = compile_monitor([formula], severity=severity)
    satisfied, cost = monitor(_used(formula, monitor, signals))
    return PathCheck(bool(satisfied[0]), float(cost[0]))


def path_value(question: str | Question, signals: Mapping[str, Any]) -> float:
    """What a recorded path contributes to the answer of a question, such as `R{distance < 0.1}=? [ C ]`.

    That is the total, or the value at a step; for `S` the total, which has to be divided by the steps of all paths; for
    `P=? [ ... ]` 1 or 0. `signals` is what `check_path` takes.
    """
    if isinstance(question, str):
        asked = parse(question).questions
        if len(asked) != 1:
            raise RequirementError(f"{len(asked)} questions in {question!r}", advice="ask one: R{x}=? [ C ]")
        question = asked[0]
    monitor = compile_monitor([], measured=[question.subject])
    value = monitor.measure(_used(question.subject, monitor, signals)).value
    return float(value[0])  # type: ignore[index]


def _used(
    subject: Formula | Quantity, monitor: BatchMonitor, signals: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The signals that are needed, checked; at least one, since a path has a length."""
    arrays = {name: np.asarray(values) for name, values in signals.items()}
    arrays.setdefault("step", np.arange(_length(arrays)))
    check_signals(subject, {name: _info(array) for name, array in arrays.items()}, "the path")
    used = {name: arrays[name] for name in monitor.signals} or {"step": arrays["step"]}
    for name, array in used.items():
        _check_values(name, array)
    return used


def _length(arrays: Mapping[str, np.ndarray]) -> int:
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not lengths or min(lengths.values()) == 0:
        empty = next((f": {name} has no entries" for name, n in lengths.items() if n == 0), "")
        raise RequirementError(f"the path is empty{empty}", advice="give every signal one entry per state")
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise RequirementError(
            f"the signals differ in length: {shown}", advice="give every signal one entry per state"
        )
    return next(iter(lengths.values()))


def _info(array: np.ndarray) -> SignalInfo:
    # Recorded Booleans are often numbers, so 0 and 1 may be read as either.
    zero_one = array.dtype.kind in "iuf" and bool(np.isin(array, (0, 1)).all())
    return SignalInfo(array.shape[1] if array.ndim > 1 else None, None if zero_one else array.dtype == bool)


def _check_values(name: str, array: np.ndarray) -> None:
    if array.dtype.kind not in "biuf" or array.ndim > 2:
        raise RequirementError(
            f"the signal {name!r} is no array of numbers or Booleans, one or a vector per state"
        )
    if np.isnan(array).any():
        at = int(np.argwhere(np.isnan(array))[0][0])
        raise RequirementError(
            f"the signal {name!r} is NaN at index {at}", advice="a formula needs a number in every state"
        )
