"""Ranges of signals, expressions and episode values; a sound test of a mean needs the range of its values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from psyco._src.core.errors import RequirementError
from psyco._src.envs.actions import Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.envs.base import Domain, signal_table
from psyco._src.envs.gym_env import ObservationPart
from psyco._src.logic.ast import (
    UNBOUNDED_RANGE,
    Aggregate,
    Arith,
    Call,
    Expectation,
    Instant,
    Label,
    LongRun,
    Minus,
    Node,
    Number,
    Quantity,
    Question,
    Reaching,
    Requirement,
    Signal,
    SignalInfo,
    Total,
    is_term,
    walk,
)
from psyco._src.logic.lint import lint

Range = tuple[float, float]
BOOLEAN_RANGE: Range = (0.0, 1.0)
EFFECTIVELY_INFINITE = 1e30  # an unbounded Box of Gymnasium may have the largest float32 as its bound
ZERO_AT_START = frozenset({"step", "reward", "return", "terminated", "truncated"})  # signals that are 0 or false there
FLOAT32_SLACK = 1e-6  # relative rounding error of sums over many steps in float32


class RecordedSystem(NamedTuple):
    """A system without a simulator, known only through recorded episodes."""

    table: Mapping[str, SignalInfo] = MappingProxyType({})  # signals
    horizon: float = math.inf  # largest number of steps of an episode, if stated
    actions: None = None


class ValueRange(NamedTuple):
    """Range of an episode's value; for a rate, of its average per step, with the largest number of steps."""

    lo: float
    hi: float
    steps: int | None = None


def value_ranges(requirement: Requirement, domain: Domain | RecordedSystem) -> tuple[ValueRange, ...]:
    """Return the ranges of all expectations and questions of a requirement."""
    return tuple(_value_range(stated, domain) for stated in requirement.measured)


def _value_range(stated: Expectation | Question, domain: Domain | RecordedSystem) -> ValueRange:
    match stated.subject:
        case Quantity(body, LongRun(share)):
            horizon = _horizon(domain, stated)
            return (
                ValueRange(*BOOLEAN_RANGE, horizon)
                if share
                else ValueRange(*step_range(body, stated.within, domain), horizon)
            )
    low, high = episode_range(stated, domain)
    if low == high:
        raise RequirementError(
            f"every episode has the value {low:g}, so there is nothing to test: {stated}",
            advice="leave it out",
        )
    return ValueRange(low, high)


def episode_range(stated: Expectation | Question, domain: Domain | RecordedSystem, *, rate: float = 0.0) -> Range:
    """Return the smallest and largest value that an episode can have.

    Args:
        stated: expectation or question.
        domain: its `ranges`, actions and bounded Gymnasium observations are used.
        rate: subtracted from x at every step, for R{x}<=rate [ S ].
    """
    if not isinstance(stated.subject, Quantity):
        return BOOLEAN_RANGE
    over = stated.subject.over
    if stated.within is not None and not isinstance(over, LongRun):
        return stated.within
    low, high = step_range(stated.subject.body, stated.within, domain)
    match over:
        case Instant():
            return low, high
        case Total(int(most)):
            steps = min(most, 1), most
        case Reaching():
            steps = 0, _horizon(domain, stated)
        case _:
            steps = 1, _horizon(domain, stated)
    return min(n * (low - rate) for n in steps), max(n * (high - rate) for n in steps)


def _horizon(domain: Domain | RecordedSystem, stated: Expectation | Question) -> int:
    if math.isinf(domain.horizon):
        is_rate = isinstance(stated.subject.over, LongRun)
        otherwise = "; or state the range of the episode's value, `within [lo,hi]` after the property"
        raise RequirementError(
            f"the largest length of an episode is unknown, and without it episodes prove nothing about {stated}",
            advice="state it for traces, horizon=N (--horizon N)" + otherwise * (not is_rate),
        )
    return int(domain.horizon)


def step_range(body: Node, within: Range | None, domain: Domain | RecordedSystem) -> Range:
    """Return the range of x in any state: `within` if given, else derived and, unless Boolean, rounded outward."""
    low, high = within or expression_range(body, domain)
    if not _is_bounded(low, high):
        signals = (node for node in walk(body) if isinstance(node, Signal | Label))
        signal = next((node for node in signals if not _is_bounded(*expression_range(node, domain))), None)
        declare = f", or let the domain declare it: ranges = {{{str(signal)!r}: (lo, hi)}}"
        raise RequirementError(
            f"no range is known of {signal or body}, and without one episodes prove nothing about its mean",
            None if signal is None else signal.location,
            "state the range of the episode's value, with `within [lo,hi]` after the property"
            + ("" if signal is None else declare),
        )
    if within is not None or (low, high) == BOOLEAN_RANGE:
        return low, high
    return low - FLOAT32_SLACK * abs(low), high + FLOAT32_SLACK * abs(high)


def declared_step_range(stated: Expectation | Question, domain: Domain) -> Range:
    """Return the range of x at every step, if the range of the episode's value is derived from it; else no bounds.

    The derived range relies on what the environment declares, so every step is checked against it: if steps exceed it
    slightly, another episode may exceed the range of its value by far.
    """
    if stated.within is not None or not isinstance(stated.subject, Quantity):
        return UNBOUNDED_RANGE
    low, high = expression_range(stated.subject.x, domain)
    slack = FLOAT32_SLACK * max(-low, high) if _is_bounded(low, high) else 0.0
    return low - slack, high + slack


def _is_bounded(low: float, high: float) -> bool:
    return max(-low, high) < EFFECTIVELY_INFINITE


def requirement_warnings(requirement: Requirement, domain: Domain | RecordedSystem) -> list[str]:
    """Return warnings about a requirement that says less, or something else, than it seems to; see `lint`."""

    def value_range(stated: Expectation) -> Range | None:
        try:
            low, high, _ = _value_range(stated, domain)
        except RequirementError:  # no range is known; verification says so
            return None
        return low, high

    return lint(requirement, partial(expression_range, domain=domain), value_range)


def warn_about(requirement: Requirement, domain: Domain | RecordedSystem) -> tuple[str, ...]:
    """Issue the warnings about a requirement, each once in a process, and return them."""
    found = tuple(requirement_warnings(requirement, domain))
    for text in found:
        warnings.warn(text, stacklevel=1)
    return found


def expression_range(body: Node, domain: Domain | RecordedSystem, *, first: bool = False) -> Range:
    """Return the range of a term, or of a formula as 0 or 1, by interval arithmetic, in any state or in the first."""
    states = 1.0 if first else domain.horizon + 1.0

    def of(part: Node) -> Range:
        return expression_range(part, domain, first=first)

    match body:
        case Number(value):
            return value, value
        case Signal() | Label():
            if first and body.name in ZERO_AT_START and not isinstance(domain, RecordedSystem):
                return 0.0, 0.0
            return _signal_range(body, domain)
        case Minus(part):
            low, high = of(part)
            return -high, -low
        case Arith(operator, left, right):
            return _arithmetic(operator, of(left), of(right))
        case Call("abs", (part,)):
            low, high = of(part)
            return max(low, -high, 0.0), max(-low, high)
        case Call(function, arguments):
            lows, highs = zip(*map(of, arguments), strict=True)
            pick = min if function == "min" else max
            return pick(lows), pick(highs)
        case Aggregate("count"):
            return 0.0, states
        case Aggregate("sum", part):
            low, high = of(part)
            return min(low, states * low), max(high, states * high)
        case Aggregate(_, part):
            return of(part)
    return UNBOUNDED_RANGE if is_term(body) else BOOLEAN_RANGE


def _arithmetic(operator: str, left: Range, right: Range) -> Range:
    match operator:
        case "+":
            return left[0] + right[0], left[1] + right[1]
        case "-":
            return left[0] - right[1], left[1] - right[0]
        case "/":
            if right[0] <= 0.0 <= right[1]:
                return UNBOUNDED_RANGE
            right = 1.0 / right[1], 1.0 / right[0]
    # 0 times infinity is 0 here.
    products = [a * b if a and b else 0.0 for a in left for b in right]
    return min(products), max(products)


def _signal_range(signal: Signal | Label, domain: Domain | RecordedSystem) -> Range:
    table = domain.table if isinstance(domain, RecordedSystem) else signal_table(domain)
    info = table.get(signal.name)
    declared = getattr(domain, "ranges", {})
    index = signal.index if isinstance(signal, Signal) else None
    if (signal.name == "end" and isinstance(signal, Label)) or (info is not None and info.boolean):
        return BOOLEAN_RANGE
    for name in (str(Signal(signal.name, index)), signal.name):
        if name in declared:
            low, high = declared[name]
            return float(low), float(high)
    match signal.name:
        case "step":
            return 0.0, float(domain.horizon)
        case "action":
            return _action_range(domain, index)
        case "obs" if index is not None and hasattr(domain, "observation_space"):
            return _observation_range(domain.observation_space, index)  # type: ignore[union-attr]
    parts: Mapping[str, ObservationPart] = getattr(domain, "observation_parts", {})
    return _part_range(parts[signal.name].space, index or 0) if signal.name in parts else UNBOUNDED_RANGE


def _action_range(domain: Domain | RecordedSystem, index: int | None) -> Range:
    first = getattr(getattr(domain, "action_space", None), "start", 0)  # of discrete Gymnasium spaces
    match domain.actions, index:
        case Continuous(low, high), int(i):
            return low[i], high[i]
        case Discrete(n), None:
            return float(first), float(first) + n - 1
        case MultiDiscrete(n), int(i):
            start = float(np.broadcast_to(first, len(n))[i])
            return start, start + n[i] - 1
        case MultiBinary(), int():
            return BOOLEAN_RANGE
    return UNBOUNDED_RANGE


def _part_range(space: Any, index: int) -> Range:
    """Return the range of an entry of a part of a Dict or Tuple observation."""
    match space:
        case spaces.Box(low=low, high=high):
            return float(low.flat[index]), float(high.flat[index])
        case spaces.Discrete(n=n, start=start) | spaces.MultiDiscrete(nvec=n, start=start):
            first = float(np.ravel(start)[index])
            return first, first + float(np.ravel(n)[index]) - 1.0
        case spaces.MultiBinary():
            return BOOLEAN_RANGE
    return UNBOUNDED_RANGE


def _observation_range(space: spaces.Space, index: int) -> Range:  # type: ignore[type-arg]
    """Return the range of an entry of the flattened observation, if its space declares one."""
    flat = spaces.flatten_space(space)
    if not isinstance(flat, spaces.Box):
        return UNBOUNDED_RANGE
    return float(flat.low.ravel()[index]), float(flat.high.ravel()[index])
