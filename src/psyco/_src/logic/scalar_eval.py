"""State formulas and terms in one state after the other, in plain Python: what `atoms` says of whole paths at once.

Signals become a flat tuple of values, and a formula a function of that: an order of magnitude faster for single states
than arrays are, and nothing but NumPy's numbers is needed. Numbers keep their precision, as they do on paths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from psyco._src.core.errors import RequirementError
from psyco._src.logic.ast import (
    Aggregate,
    And,
    Arith,
    Bool,
    Call,
    Compare,
    Formula,
    Iff,
    Implies,
    Label,
    Minus,
    Node,
    Not,
    Number,
    Or,
    Signal,
    Term,
    aggregates,
    is_term,
    walk,
)
from psyco._src.logic.validate import END

Values: TypeAlias = Sequence[Any]  # the numbers and Booleans of one state
Truth: TypeAlias = Callable[[Values], Any]  # does something hold in it? bool, Python's or NumPy's
Value: TypeAlias = Callable[[Values], Any]  # what is something in it?

STEP = Signal("step")


class StepEvaluator:
    """Reads the states of an episode one by one; formulas and terms become functions of what it has read."""

    def __init__(self, trees: Sequence[Node]) -> None:
        """Prepare everything that these formulas and terms mention."""
        nodes = [node for tree in trees for node in walk(tree)]
        kept = (STEP, Label(END))
        named = {_as_signal(n): n for n in nodes if isinstance(n, Signal | Label) and n not in kept}
        self.signals = tuple(named)
        self.aggregates = aggregates(trees)
        self.names = frozenset(signal.name for signal in self.signals)
        self._places = {signal: place.place for signal, place in named.items()}
        self._slots: dict[Any, int] = {
            each: i for i, each in enumerate((*self.signals, *kept, *self.aggregates))
        }
        # Does anything speak of more than the signals of a state?
        self.remembers = bool(self.aggregates) or any(n in kept for n in nodes)
        self.take = _taker(self.signals)  # their values in a state, which nobody has checked
        self._folds = [self._fold(each) for each in self.aggregates]
        self._means = [each.function == "mean" for each in self.aggregates]
        self.start()

    def start(self) -> None:
        """A new episode."""
        self._totals = [NOTHING[each.function] for each in self.aggregates]

    def remembered(self, values: Values, step: int, end: bool) -> Values:
        """The same with step, end and what the aggregates come to by this state, which is the next."""
        values = (*values, step, end)
        self._totals = [fold(total, values) for fold, total in zip(self._folds, self._totals, strict=True)]
        return (*values, *self.running(step))

    def running(self, step: int) -> list[float]:
        """What the aggregates are in state `step`, of which all up to it have been read."""
        pairs = zip(self._totals, self._means, strict=True)
        return [total / (step + 1.0) if mean else total for total, mean in pairs]

    def truth(self, formula: Formula) -> Truth:
        """Does a state formula hold?"""
        match formula:
            case Bool(truth):
                return lambda values: truth
            case Label() | Signal():
                i = self._slots[_as_signal(formula) if formula != Label(END) else formula]
                return lambda values: abs(values[i]) > 0  # a text would not be 0 either; it has no size
            case Compare(operator, Signal() as signal, Number(limit)):  # the most frequent of all
                return COMPARE_NUMBER[operator](self._slots[signal], limit)
            case Compare(operator, left, right):
                return COMPARE[operator](self.value(left), self.value(right))
            case Not(body):
                holds = self.truth(body)
                return lambda values: not holds(values)
            case And((left, right)):
                one, two = self.truth(left), self.truth(right)
                return lambda values: one(values) and two(values)
            case Or((left, right)):
                one, two = self.truth(left), self.truth(right)
                return lambda values: one(values) or two(values)
            case And(operands):
                every = [self.truth(each) for each in operands]
                return lambda values: all(holds(values) for holds in every)
            case Or(operands):
                some = [self.truth(each) for each in operands]
                return lambda values: any(holds(values) for holds in some)
            case Implies(left, right):
                one, two = self.truth(left), self.truth(right)
                return lambda values: not one(values) or two(values)
            case Iff(left, right):
                one, two = self.truth(left), self.truth(right)
                return lambda values: bool(one(values)) == bool(two(values))
        raise TypeError(f"not a state formula: {formula}")

    def value(self, term: Term) -> Value:
        """What is a term?"""
        match term:
            case Number(number):
                return lambda values: number
            case Signal() | Aggregate():
                i = self._slots[term]
                # On paths, too, all but NumPy's own floats are of double precision.
                return lambda values: v if isinstance(v := values[i], np.floating) else np.float64(v)
            case Minus(body):
                positive = self.value(body)
                return lambda values: -positive(values)
            case Arith(operator, left, right):
                return ARITH[operator](self.value(left), self.value(right))
            case Call("abs", (argument,)):
                signed = self.value(argument)
                return lambda values: abs(signed(values))
            case Call(function, arguments):
                pick, numbers = (_least if function == "min" else _most), [self.value(a) for a in arguments]
                return lambda values: reduce(pick, [number(values) for number in numbers])

    def worth(self, body: Term | Formula) -> Value:
        """What is a state worth: the value of a term, 1 or 0 for a formula?"""
        of = self.value(body) if is_term(body) else self.truth(body)  # type: ignore[arg-type]
        return lambda values: float(of(values))

    def _fold(self, aggregate: Aggregate) -> Callable[[Any, Values], Any]:
        match aggregate:
            case Aggregate("count", body):
                holds = self.truth(body)
                return lambda total, values: total + bool(holds(values))
            case Aggregate("sum" | "mean", body):
                added = self.value(body)
                return lambda total, values: total + float(added(values))
            case Aggregate(function, body):
                pick, of = (_least if function == "least" else _most), self.value(body)
                return lambda total, values: pick(total, of(values))

    def complaint(self, signals: Mapping[str, Any], step: int) -> RequirementError:
        """What is wrong with the signals of a state."""
        if not isinstance(signals, Mapping):
            return RequirementError(f"the signals in state {step} must go by name; got {signals!r:.100}")
        for signal in self.signals:
            where, advice = (
                f"in state {step}",
                "give every signal a finite number or a Boolean in every state",
            )
            if signal.name not in signals:
                return RequirementError(
                    f"no value for the signal {signal.name!r} {where}", self._places[signal], advice
                )
            try:
                value = _taken(signal, signals)
                fine = np.shape(value) == () and math.isfinite(value)
            except (IndexError, TypeError, ValueError):
                value, fine = signals[signal.name], False
            if not fine:
                return RequirementError(
                    f"the signal {signal} is {value!r:.80} {where}", self._places[signal], advice
                )
        return RequirementError(f"the signals {where} are no numbers: {signals!r:.200}")


def _as_signal(named: Signal | Label) -> Signal:
    """A name in quotes is that of a signal, except for "end"."""
    return Signal(named.name) if isinstance(named, Label) else named


def _taker(signals: Sequence[Signal]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """How the values of signals are taken from what one is given."""
    if len(signals) > 1 and all(each.index is None for each in signals):
        return itemgetter(*(each.name for each in signals))  # the fastest way there is
    return lambda given: tuple([_taken(each, given) for each in signals])


def _taken(signal: Signal, given: Mapping[str, Any]) -> Any:
    value = given[signal.name]
    return value if signal.index is None else value[signal.index]


def _least(x: Any, y: Any) -> Any:
    return x if x < y or x != x else y  # as np.minimum: no number wins


def _most(x: Any, y: Any) -> Any:
    return x if x > y or x != x else y


def _divided(x: Any, y: Any) -> Any:
    if y == 0:  # a zero has no sign: 1 / -0 is 1 / 0
        return math.nan if x == 0 or x != x else math.copysign(math.inf, x)
    return x / y


NOTHING = {"count": 0, "sum": 0.0, "mean": 0.0, "least": math.inf, "most": -math.inf}

# Written out, since a call less per comparison is what makes a step fast.
COMPARE: dict[str, Callable[[Value, Value], Truth]] = {
    "<": lambda x, y: lambda values: x(values) < y(values),
    "<=": lambda x, y: lambda values: x(values) <= y(values),
    ">": lambda x, y: lambda values: x(values) > y(values),
    ">=": lambda x, y: lambda values: x(values) >= y(values),
    "=": lambda x, y: lambda values: x(values) == y(values),
    "!=": lambda x, y: lambda values: x(values) != y(values),
}
COMPARE_NUMBER: dict[str, Callable[[int, float], Truth]] = {
    "<": lambda i, limit: lambda values: values[i] < limit,
    "<=": lambda i, limit: lambda values: values[i] <= limit,
    ">": lambda i, limit: lambda values: values[i] > limit,
    ">=": lambda i, limit: lambda values: values[i] >= limit,
    "=": lambda i, limit: lambda values: values[i] == limit,
    "!=": lambda i, limit: lambda values: values[i] != limit,
}
ARITH: dict[str, Callable[[Value, Value], Value]] = {
    "+": lambda x, y: lambda values: x(values) + y(values),
    "-": lambda x, y: lambda values: x(values) - y(values),
    "*": lambda x, y: lambda values: x(values) * y(values),
    "/": lambda x, y: lambda values: _divided(x(values), y(values)),
}
