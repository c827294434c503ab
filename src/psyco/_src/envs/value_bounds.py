"""In which range the value of an episode can lie: a sound test of its mean needs to know."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from psyco._src.core.errors import RequirementError
from psyco._src.envs.actions import Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.envs.base import Domain, signal_table
from psyco._src.logic.ast import (
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
from psyco._src.logic.rewards import ANYTHING

Range = tuple[float, float]
TRUTH: Range = (0.0, 1.0)
LARGEST = 1e30  # Gymnasium's boxes have the largest float32 where they do not end
ROUNDING = 1e-6  # part of a bound by which float32 may miss it, when many steps are added up


class RecordedSystem(NamedTuple):
    """A system of which episodes were recorded elsewhere: what is known of it."""

    table: Mapping[str, SignalInfo] = MappingProxyType({})  # signals
    horizon: float = math.inf  # the longest episode that there can be, if somebody says it
    actions: None = None


class ValueRange(NamedTuple):
    """Where the value of an episode lies; of a rate, its average per step, and how many steps there may be."""

    lo: float
    hi: float
    steps: int | None = None


def spans(requirement: Requirement, domain: Domain | RecordedSystem) -> tuple[ValueRange, ...]:
    """For all that a requirement measures."""
    return tuple(_span(each, domain) for each in requirement.measured)


def _span(stated: Expectation | Question, domain: Domain | RecordedSystem) -> ValueRange:
    match stated.subject:
        case Quantity(body, LongRun(share)):
            horizon = _horizon(domain, stated)
            return (
                ValueRange(*TRUTH, horizon)
                if share
                else ValueRange(*step_range(body, stated.within, domain), horizon)
            )
    low, high = value_range(stated, domain)
    if low == high:
        raise RequirementError(
            f"every episode has the value {low:g}, so there is nothing to find out: {stated}",
            advice="leave it out",
        )
    return ValueRange(low, high)


def value_range(
    stated: Expectation | Question, domain: Domain | RecordedSystem, *, rate: float = 0.0
) -> Range:
    """The least and the largest value that an episode can have.

    Args:
        stated: what is measured.
        domain: where; what it declares in `ranges`, its actions, and bounded observations of Gymnasium are known.
        rate: what is subtracted from x at every step, for R{x}<=rate [ S ].
    """
    if not isinstance(stated.subject, Quantity):
        return TRUTH
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
        otherwise = "; or where the value of an episode lies, `within [lo,hi]` after the property"
        raise RequirementError(
            f"how long an episode can be is not known, and without that episodes show nothing about {stated}",
            advice="say it for traces, horizon=N (--horizon N)" + otherwise * (not is_rate),
        )
    return int(domain.horizon)


def step_range(body: Node, within: Range | None, domain: Domain | RecordedSystem) -> Range:
    """The range of x in any state: as given, or else as known; then rounded outward, unless x is true or false."""
    low, high = within or worth_range(body, domain)
    if not _ends(low, high):
        signals = (node for node in walk(body) if isinstance(node, Signal | Label))
        signal = next((each for each in signals if not _ends(*worth_range(each, domain))), None)
        declare = f", or let the domain declare it: ranges = {{{str(signal)!r}: (lo, hi)}}"
        raise RequirementError(
            f"no range is known of {signal or body}, and without one episodes show nothing about its mean",
            None if signal is None else signal.place,
            "say where the value of an episode lies, with `within [lo,hi]` after the property"
            + ("" if signal is None else declare),
        )
    if within is not None or (low, high) == TRUTH:
        return low, high
    return low - ROUNDING * abs(low), high + ROUNDING * abs(high)


def known_range(stated: Expectation | Question, domain: Domain) -> Range:
    """In which range x lies at every step, as far as the range of the episode's value was derived from it.

    It is only as good as what an environment says of itself, so episodes are held to it step by step: where steps leave
    it a little, some other episode may leave the range of its value by far.
    """
    if stated.within is not None or not isinstance(stated.subject, Quantity):
        return ANYTHING
    low, high = worth_range(stated.subject.x, domain)
    slack = ROUNDING * max(-low, high) if _ends(low, high) else 0.0
    return low - slack, high + slack


def _ends(low: float, high: float) -> bool:
    return max(-low, high) < LARGEST


def worth_range(body: Node, domain: Domain | RecordedSystem) -> Range:
    """What a term or a formula is worth in any state, by the arithmetic of intervals."""

    def of(part: Node) -> Range:
        return worth_range(part, domain)

    match body:
        case Number(value):
            return value, value
        case Signal() | Label():
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
            return 0.0, domain.horizon + 1.0
        case Aggregate("sum", part):
            low, high = of(part)
            return min(low, (domain.horizon + 1) * low), max(high, (domain.horizon + 1) * high)
        case Aggregate(_, part):
            return of(part)
    return ANYTHING if is_term(body) else TRUTH


def _arithmetic(operator: str, left: Range, right: Range) -> Range:
    match operator:
        case "+":
            return left[0] + right[0], left[1] + right[1]
        case "-":
            return left[0] - right[1], left[1] - right[0]
        case "/":
            if right[0] <= 0.0 <= right[1]:
                return ANYTHING
            right = 1.0 / right[1], 1.0 / right[0]
    products = [
        a * b if a and b else 0.0 for a in left for b in right
    ]  # 0 times whatever is 0, also at infinity
    return min(products), max(products)


def _signal_range(signal: Signal | Label, domain: Domain | RecordedSystem) -> Range:
    table = domain.table if isinstance(domain, RecordedSystem) else signal_table(domain)
    info = table.get(signal.name)
    declared = getattr(domain, "ranges", {})
    index = signal.index if isinstance(signal, Signal) else None
    if (signal.name == "end" and isinstance(signal, Label)) or (info is not None and info.boolean):
        return TRUTH
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
    return ANYTHING


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
            return TRUTH
    return ANYTHING


def _observation_range(space: spaces.Space, index: int) -> Range:  # type: ignore[type-arg]
    """Of an entry of the flattened observation; boxes that end nowhere have none."""
    flat = spaces.flatten_space(space)
    if not isinstance(flat, spaces.Box):
        return ANYTHING
    return float(flat.low.ravel()[index]), float(flat.high.ravel()[index])
