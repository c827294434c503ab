"""One recorded path: satisfaction and cost of a formula, and the value of a quantity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psyco._src.core.errors import RequirementError
from psyco._src.logic.ast import Formula, Quantity, Question, SignalInfo
from psyco._src.logic.batch_monitor import BatchMonitor, compile_monitor
from psyco._src.logic.parser import parse, parse_formula
from psyco._src.logic.quantifiers import Team, make_team, team_of_signals, write_out
from psyco._src.logic.validate import check_signals

ADVICE = "give every signal one entry per state"


@dataclass(frozen=True, slots=True)
class PathCheck:
    """The result of checking one path against a formula."""

    satisfied: bool
    cost: float  # 0 exactly if satisfied


def check_path(
    formula: str | Formula,
    signals: Mapping[str, Any],
    *,
    severity: bool = False,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> PathCheck:
    """Check whether a recorded path satisfies a formula, and return its cost.

    `signals` maps names to arrays of length n+1, one entry per state (`[n+1, size]` for vectors); `step` is added if
    it is missing. The last state repeats beyond the end, so bounds may be of any size. `groups` names the agents that
    `each` and `any` are about; by default they are numbered, as in `pursuer_0.x`.
    """
    if isinstance(formula, str):
        formula = parse_formula(formula)
    formula = write_out(formula, team_of_path(signals, groups), "the path", signals)
    monitor = compile_monitor([formula], severity=severity)
    satisfied, cost = monitor(*_needed_signals(formula, monitor, signals))
    return PathCheck(bool(satisfied[0]), float(cost[0]))


def path_value(
    question: str | Question, signals: Mapping[str, Any], *, groups: Mapping[str, Sequence[str]] | None = None
) -> float:
    """Return the value of one recorded path for a question, such as `R{distance < 0.1}=? [ C ]`.

    That is the total, or the value at a step; for `S` the total, which has to be divided by the steps of all paths; for
    `P=? [ ... ]` 1 or 0. `signals` and `groups` are as in `check_path`.
    """
    if isinstance(question, str):
        questions = parse(question).questions
        if len(questions) != 1:
            raise RequirementError(f"{len(questions)} questions in {question!r}", advice="ask one: R{x}=? [ C ]")
        question = questions[0]
    if question.for_each is not None:
        raise RequirementError(
            f"for each {question.for_each.name} asks for several values",
            question.for_each.location,
            "ask about one agent at a time, as in R{agent_0.reward}=? [ C ]",
        )
    subject = write_out(question.subject, team_of_path(signals, groups), "the path", signals)
    monitor = compile_monitor([], measured=[subject])
    value = monitor.measure(*_needed_signals(subject, monitor, signals)).value
    return float(value[0])  # type: ignore[index]


def team_of_path(names: Iterable[str], groups: Mapping[str, Sequence[str]] | None) -> Team:
    """Return the agents of recorded signals, in these groups, or in those of their numbers."""
    found = team_of_signals(names)
    return found if groups is None else make_team(found.agents, groups)


def _needed_signals(
    subject: Formula | Quantity, monitor: BatchMonitor, signals: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the signals that the monitor reads, checked, and where the path ends, `[n+1]`."""
    arrays = {name: np.asarray(values) for name, values in signals.items()}
    states = np.arange(_length(arrays))
    arrays.setdefault("step", states)
    check_signals(subject, {name: _info(array) for name, array in arrays.items()}, "the path")
    needed = {name: arrays[name] for name in monitor.signals}
    for name, array in needed.items():
        _check_values(name, array)
    return needed, states == states[-1]


def _length(arrays: Mapping[str, np.ndarray]) -> int:
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not lengths or min(lengths.values()) == 0:
        empty = next((f": {name} has no entries" for name, n in lengths.items() if n == 0), "")
        raise RequirementError(f"the path is empty{empty}", advice=ADVICE)
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise RequirementError(f"the signals differ in length: {listed}", advice=ADVICE)
    return next(iter(lengths.values()))


def _info(array: np.ndarray) -> SignalInfo:
    # Recorded Booleans are often numbers, so 0 and 1 may be read as either.
    zero_one = array.dtype.kind in "iuf" and bool(np.isin(array, (0, 1)).all())
    return SignalInfo(array.shape[1] if array.ndim > 1 else None, None if zero_one else array.dtype == bool)


def _check_values(name: str, array: np.ndarray) -> None:
    if array.dtype.kind not in "biuf" or array.ndim > 2:
        raise RequirementError(f"the signal {name!r} is no array of numbers or Booleans, one or a vector per state")
    if np.isnan(array).any():
        at = int(np.argwhere(np.isnan(array))[0][0])
        raise RequirementError(
            f"the signal {name!r} is NaN at index {at}", advice="a formula needs a number in every state"
        )
