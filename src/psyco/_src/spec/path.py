"""A recorded path against a formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from psyco._src.errors import RequirementError
from psyco._src.spec.check import check_signals
from psyco._src.spec.formula import Formula, SignalInfo
from psyco._src.spec.monitor import compile_monitor
from psyco._src.spec.parse import parse_formula


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
    arrays = {name: np.asarray(values) for name, values in signals.items()}
    length = _length(arrays)
    arrays.setdefault("step", np.arange(length))
    check_signals(formula, {name: _info(array) for name, array in arrays.items()}, "the path")
    monitor = compile_monitor([formula], severity=severity)
    used = {name: arrays[name] for name in monitor.signals} or {"step": arrays["step"]}
    for name, array in used.items():
        _check_values(name, array)
    satisfied, cost = monitor(used)
    return PathCheck(bool(satisfied[0]), float(cost[0]))


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
