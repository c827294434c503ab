"""State formulas and terms in one state at a time, in plain Python: the counterpart of `array_eval`.

Signals become a flat tuple of values, and a formula becomes a function of that: for single states an order of magnitude
faster than arrays, without JAX. NumPy floats keep their precision, all else is double, as in `array_eval`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add, eq, ge, gt, itemgetter, le, lt, mul, ne, sub
from typing import Any, TypeAlias

import numpy as np

from psyco._src.core.errors import RequirementError
from psyco._src.logic.ast import (
    END,
    Aggregate,
    Arith,
    Bool,
    Call,
    Compare,
    Connective,
    Formula,
    Label,
    Minus,
    Node,
    Not,
    Number,
    Signal,
    Term,
    aggregates,
    is_term,
    walk,
)
from psyco._src.logic.exact_constants import evaluated_aggregates, exact_comparison
from psyco._src.logic.validate import size_mismatch

Values: TypeAlias = Sequence[Any]  # the numbers and Booleans of one state
Predicate: TypeAlias = Callable[[Values], Any]  # returns a bool, Python's or NumPy's
TermFunction: TypeAlias = Callable[[Values], Any]  # returns a number

STEP = Signal("step")


class StepEvaluator:
    """Reads the states of an episode one by one; compiles formulas and terms to functions of the values read."""

    def __init__(self, trees: Sequence[Node]) -> None:
        """Prepare to read all signals and aggregates in these formulas and terms."""
        nodes = [node for tree in trees for node in walk(tree)]
        built_in = (STEP, END)
        named = {_as_signal(n): n for n in nodes if isinstance(n, Signal | Label) and n not in built_in}
        self.signals = tuple(named)
        # Aggregates written in the requirement first, then those that exact comparisons need.
        self.aggregates = tuple(dict.fromkeys((*aggregates(trees), *evaluated_aggregates(trees))))
        self.names = frozenset(signal.name for signal in self.signals)
        self._locations = {signal: node.location for signal, node in named.items()}
        slots = (*self.signals, *built_in, *self.aggregates)
        self._slots: dict[Any, int] = {slot: i for i, slot in enumerate(slots)}
        # Whether more than the signals of a state is needed.
        self.stateful = bool(self.aggregates) or any(n in built_in for n in nodes)
        self.read = _reader(self.signals)  # a mapping of signals -> their values, unchecked
        self._updates = [self._update(aggregate) for aggregate in self.aggregates]
        self._is_mean = [aggregate.function == "mean" for aggregate in self.aggregates]
        self.start()

    def start(self) -> None:
        """Begin a new episode."""
        self.totals: list[Any] = [INITIAL_TOTALS[aggregate.function] for aggregate in self.aggregates]

    def extend(self, values: Values, step: int, end: bool) -> Values:
        """Append step, end and the running aggregates to the values of the next state."""
        values = (*values, step, end)
        self.totals = [update(total, values) for update, total in zip(self._updates, self.totals, strict=True)]
        return (*values, *self.running(step))

    def running(self, step: int) -> list[float]:
        """Return the values of the aggregates in state `step`, the last one read."""
        pairs = zip(self.totals, self._is_mean, strict=True)
        return [total / (step + 1.0) if is_mean else total for total, is_mean in pairs]

    def predicate(self, formula: Formula) -> Predicate:
        """Compile a state formula."""
        match exact_comparison(formula) if isinstance(formula, Compare) else formula:
            case Bool(truth):
                return lambda values: truth
            case Label() | Signal() as named:
                i = self._slots[named if named == END else _as_signal(named)]
                return lambda values: abs(values[i]) > 0  # `abs` raises for text, which would otherwise count as true
            case Compare(operator, Signal() as signal, Number(limit)):  # the most frequent kind
                return COMPARE_NUMBER[operator](self._slots[signal], limit)
            case Compare(operator, left, right):
                compare, x, y = COMPARE[operator], self.value(left), self.value(right)
                return lambda values: compare(x(values), y(values))
            case Not(body):
                holds = self.predicate(body)
                return lambda values: not holds(values)
            case Connective(operator, (left, right)):
                return CONNECT[operator](self.predicate(left), self.predicate(right))
            case Connective(operator, operands):
                predicates, connect = [self.predicate(operand) for operand in operands], CONNECT_MANY[operator]
                return lambda values: connect(holds(values) for holds in predicates)
        raise TypeError(f"not a state formula: {formula}")

    def value(self, term: Term) -> TermFunction:
        """Compile a term."""
        match term:
            case Number(number):
                return lambda values: number
            case Signal() | Aggregate():
                i = self._slots[term]
                return lambda values: v if isinstance(v := values[i], np.floating) else np.float64(v)
            case Minus(body):
                positive = self.value(body)
                return lambda values: -positive(values)
            case Arith(operator, left, right):
                apply, x, y = ARITH[operator], self.value(left), self.value(right)
                return _without_warnings(lambda values: apply(x(values), y(values)))
            case Call("abs", (argument,)):
                signed = self.value(argument)
                return lambda values: abs(signed(values))
            case Call(function, arguments):
                pick, numbers = (_least if function == "min" else _most), [self.value(a) for a in arguments]
                return lambda values: reduce(pick, [number(values) for number in numbers])

    def reward(self, body: Term | Formula) -> TermFunction:
        """Compile the reward of a state: the value of a term, 1 or 0 for a formula."""
        of = self.value(body) if is_term(body) else self.predicate(body)  # type: ignore[arg-type]
        return lambda values: float(of(values))

    def _update(self, aggregate: Aggregate) -> Callable[[Any, Values], Any]:
        match aggregate:
            case Aggregate("count", body):
                holds = self.predicate(body)
                return lambda total, values: total + bool(holds(values))
            case Aggregate("sum" | "mean", body):
                added = self.value(body)
                return lambda total, values: total + float(added(values))
            case Aggregate(function, body):
                pick, of = (_least if function == "least" else _most), self.value(body)
                return lambda total, values: pick(total, of(values))

    def error(self, signals: Mapping[str, Any], step: int) -> RequirementError:
        """Return the error about the signals of a state."""
        if not isinstance(signals, Mapping):
            return RequirementError(f"the signals in state {step} must go by name; got {signals!r:.100}")
        where, advice = f"in state {step}", "give every signal a finite number or a Boolean in every state"
        for signal in self.signals:
            location = self._locations[signal]
            if signal.name not in signals:
                return RequirementError(f"no value for the signal {signal.name!r} {where}", location, advice)
            try:
                shape = np.shape(signals[signal.name])
                if len(shape) <= 1 and (mismatch := size_mismatch(signal, shape[0] if shape else None)):
                    advice = mismatch[1]
                value = _read(signal, signals)
                is_number = np.shape(value) == () and math.isfinite(value)
            except (IndexError, TypeError, ValueError):
                value, is_number = signals[signal.name], False
            if not is_number:
                return RequirementError(f"the signal {signal} is {value!r:.80} {where}", location, advice)
        return RequirementError(f"the signals {where} are no numbers: {signals!r:.200}")


def constant_value(term: Term) -> float | None:
    """Return the value of a term without signals and aggregates; None for any other term."""
    if any(isinstance(node, Signal | Aggregate) for node in walk(term)):
        return None
    return float(StepEvaluator([]).value(term)(()))


def _without_warnings(value: TermFunction) -> TermFunction:
    """Silence NumPy: 0 * inf is no error, because the comparison of its result decides."""

    def quiet(values: Values) -> Any:
        with np.errstate(all="ignore"):
            return value(values)

    return quiet


def _as_signal(named: Signal | Label) -> Signal:
    """Return the signal that a label stands for; "end" stands for none."""
    return Signal(named.name) if isinstance(named, Label) else named


def _reader(signals: Sequence[Signal]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Return a function that reads the values of signals from a mapping."""
    if len(signals) > 1 and all(signal.index is None for signal in signals):
        return itemgetter(*(signal.name for signal in signals))  # the fastest way
    return lambda given: tuple([_read(signal, given) for signal in signals])


def _read(signal: Signal, given: Mapping[str, Any]) -> Any:
    value = given[signal.name]
    return value if signal.index is None else value[signal.index]


def _least(x: Any, y: Any) -> Any:
    return x if x < y or x != x else y  # as np.minimum: NaN wins


def _most(x: Any, y: Any) -> Any:
    return x if x > y or x != x else y


def _divided(x: Any, y: Any) -> Any:
    if y == 0:  # zeros have no sign: 1 / -0 is 1 / 0
        return math.nan if x == 0 or x != x else math.copysign(math.inf, x)
    return x / y


COMPARE = {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq, "!=": ne}
ARITH = {"+": add, "-": sub, "*": mul, "/": _divided}
INITIAL_TOTALS = {"count": 0, "sum": 0.0, "mean": 0.0, "least": math.inf, "most": -math.inf}

# Written out, because one call less in the most frequent kinds of formulas makes a step faster.
COMPARE_NUMBER: dict[str, Callable[[int, float], Predicate]] = {
    "<": lambda i, limit: lambda values: values[i] < limit,
    "<=": lambda i, limit: lambda values: values[i] <= limit,
    ">": lambda i, limit: lambda values: values[i] > limit,
    ">=": lambda i, limit: lambda values: values[i] >= limit,
    "=": lambda i, limit: lambda values: values[i] == limit,
    "!=": lambda i, limit: lambda values: values[i] != limit,
}
CONNECT: dict[str, Callable[[Predicate, Predicate], Predicate]] = {
    "&": lambda p, q: lambda values: p(values) and q(values),
    "|": lambda p, q: lambda values: p(values) or q(values),
    "=>": lambda p, q: lambda values: not p(values) or q(values),
    "<=>": lambda p, q: lambda values: bool(p(values)) == bool(q(values)),
}
CONNECT_MANY: dict[str, Callable[[Any], bool]] = {"&": all, "|": any}
