"""Arithmetic with constants is exact: `0.1 * x <= 0.3` is decided as `x <= 3`, in every precision.

A constant is the decimal that was written. Before a comparison is evaluated, anywhere, both sides are multiplied by a
positive number, so that whole numbers multiply the signals, and constants are moved to the side that has no signal. For
signals that are whole numbers, all arithmetic is then exact, in float32 as in float64, up to `MAX_WHOLE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from math import gcd
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from psyco._src.logic.ast import (
    Aggregate,
    Arith,
    Call,
    Compare,
    Minus,
    Node,
    Number,
    Signal,
    Term,
    children,
    walk,
)

MAX_WHOLE = 2**24  # float32 has all whole numbers up to this one


def exact_comparison(compare: Compare) -> Compare:
    """Return the comparison that decides this one; itself where no constant has to be computed with."""
    return _rewritten(compare) or compare


def evaluated_aggregates(trees: Iterable[Node]) -> tuple[Aggregate, ...]:
    """Return the distinct aggregates that the evaluation of formulas and terms needs."""

    def visit(node: Node) -> Iterator[Aggregate]:
        if isinstance(node, Aggregate):
            yield node
            return
        for child in children(exact_comparison(node) if isinstance(node, Compare) else node):
            yield from visit(child)

    return tuple(dict.fromkeys(aggregate for tree in trees for aggregate in visit(tree)))


# ---- what float32 can decide -----------------------------------------------------------------------------------------

# Whole numbers are exact, the ratio of two is rounded once; "rounded" is everything else that whole numbers make.
Exactness: TypeAlias = Literal["whole", "ratio", "rounded"] | None  # None: a signal is measured, and rounded anyway


def precision_problem(compare: Compare, is_whole: Callable[[Signal], bool]) -> tuple[str, str] | None:
    """Return why float32 cannot decide a comparison of whole numbers, and what to do instead.

    The result is None if float32 can decide it, or if a signal is not known to be whole.
    """
    exact = exact_comparison(compare)
    sides = [side for side in (exact.left, exact.right) if not is_number(side)]
    kinds = [_exactness(side, is_whole) for side in sides]
    if not kinds or None in kinds:
        return None
    if "rounded" in kinds:
        return (
            "its sides are neither whole numbers nor ratios of two",
            "multiply divisions out, as in x + y <= z * y for x / y + 1 <= z, and use constants with fewer digits",
        )
    numbers = [float(_value(side)) for side in (exact.left, exact.right) if is_number(side)]
    if "whole" in kinds and numbers:
        (number,) = numbers
        rounded = float(np.float32(number))
        if abs(number) > MAX_WHOLE:
            return f"it has all whole numbers up to {MAX_WHOLE:,} only", "count in larger units"
        # Only this whole number may lie on another side of the rounded one.
        if rounded.is_integer() and _holds(exact.operator, rounded, number) != _holds(exact.operator, rounded, rounded):
            return f"it rounds {number!r} to {rounded:.0f}", "compare whole numbers with a whole number"
    return None


def _exactness(term: Term, is_whole: Callable[[Signal], bool]) -> Exactness:
    match term:
        case Number(value):
            return "whole" if value.is_integer() and value <= MAX_WHOLE else "rounded"
        case Signal():
            return "whole" if is_whole(term) else None
        case Aggregate("count"):
            return "whole"
    kinds = [_exactness(part, is_whole) for part in children(term)]  # type: ignore[arg-type]
    if None in kinds:
        return None
    one_rounding = set(kinds) == {"whole"}
    match term:
        case Arith("/") | Aggregate("mean"):
            return "ratio" if one_rounding else "rounded"
        case Arith() | Aggregate("sum"):
            return "whole" if one_rounding else "rounded"
    return next(kind for kind in ("rounded", "ratio", "whole") if kind in kinds)


def _holds(operator: str, left: float, right: float) -> bool:
    return {
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
        "=": left == right,
        "!=": left != right,
    }[operator]


# ---- exact forms -----------------------------------------------------------------------------------------------------


class _NotRational(Exception):
    """A constant has no exact value."""


class _Scaled(NamedTuple):
    """A term as a positive factor times a term in which only whole numbers multiply signals."""

    factor: Fraction
    term: Term  # 1, 0 or -1 for a constant

    @property
    def constant(self) -> Fraction | None:
        """The value of a constant; None for any other term."""
        match self.term:
            case Number(value):
                return self.factor * int(value)
            case Minus(Number(value)):
                return -self.factor * int(value)
        return None


@lru_cache(maxsize=4096)
def _rewritten(compare: Compare) -> Compare | None:
    """Return the exact form of a comparison; None if that is the comparison itself, or if its numbers are too large."""
    try:
        left, right = _scaled(compare.left), _scaled(compare.right)
        if left.constant is not None and right.constant is not None:
            difference = left.constant - right.constant
            sides: tuple[Term, Term] = _number(Fraction((difference > 0) - (difference < 0))), Number(0.0)
        elif right.constant is not None:
            sides = _isolated(left, right.constant)
        elif left.constant is not None:
            term, number = _isolated(right, left.constant)
            sides = number, term
        else:
            unit = _common([left, right])
            sides = _times(left, unit), _times(right, unit)
    except (_NotRational, OverflowError):
        return None
    exact = Compare(compare.operator, *sides)
    too_large = any(number > MAX_WHOLE for side in sides if not is_number(side) for number in _multipliers(side))
    return None if too_large or exact == compare else exact


def is_number(term: Term) -> bool:
    """Return whether a term is a literal, or one with a minus."""
    return isinstance(term.body if isinstance(term, Minus) else term, Number)


def _multipliers(node: Node) -> Iterator[float]:
    if isinstance(node, Number):
        yield node.value
    if not (isinstance(node, Aggregate) and node.function == "count"):
        for child in children(node):
            yield from _multipliers(child)


def _isolated(scaled: _Scaled, constant: Fraction) -> tuple[Term, Term]:
    """Return the side without its factor and its added constants, and the constant that it is compared with."""
    constant /= scaled.factor
    match scaled.term:
        case Arith("+", rest, added) if is_number(added):
            return _isolated(_scaled(rest), constant - _value(added))
        case Arith("+", added, rest) if is_number(added):
            return _isolated(_scaled(rest), constant - _value(added))
        case Arith("-", rest, taken) if is_number(taken):
            return _isolated(_scaled(rest), constant + _value(taken))
        case Arith("-", added, rest) if is_number(added):
            return _isolated(_scaled(Minus(rest)), constant - _value(added))
    return scaled.term, _number(constant)


def _scaled(term: Term) -> _Scaled:
    if not any(isinstance(node, Signal | Aggregate) for node in walk(term)):
        value = _value(term)
        return _Scaled(abs(value) or Fraction(1), _number(Fraction((value > 0) - (value < 0))))
    match term:
        case Minus(body):
            factor, inner = _scaled(body)
            return _Scaled(factor, _negated(inner))
        case Aggregate("sum" | "mean" | "least" | "most" as function, body):
            factor, inner = _scaled(body)
            return _Scaled(factor, Aggregate(function, inner, term.location))
        case Call("abs", (argument,)):
            factor, inner = _scaled(argument)
            return _Scaled(factor, Call("abs", (inner,)))
        case Call(function, arguments):
            parts = [_scaled(argument) for argument in arguments]
            unit = _common(parts)
            return _Scaled(unit, Call(function, tuple(_times(part, unit) for part in parts)))
        case Arith("+" | "-" as operator, left, right):
            parts = [_scaled(left), _scaled(right)]
            unit = _common(parts)
            return _Scaled(unit, Arith(operator, _times(parts[0], unit), _times(parts[1], unit)))
        case Arith(operator, left, right):
            return _product(operator, _scaled(left), _scaled(right))
    return _Scaled(Fraction(1), term)


def _product(operator: str, left: _Scaled, right: _Scaled) -> _Scaled:
    if left.constant == 0 or right.constant == 0:  # 0 times infinity is undefined, and so is 0 / 0
        return _Scaled(Fraction(1), Arith(operator, left.term, right.term))  # type: ignore[arg-type]
    factor = left.factor * right.factor if operator == "*" else left.factor / right.factor
    for one, other in ((left, right), (right, left)):
        if one.constant is not None and (operator == "*" or one is right):
            return _Scaled(factor, other.term if one.constant > 0 else _negated(other.term))
    return _Scaled(factor, Arith(operator, left.term, right.term))  # type: ignore[arg-type]


def _common(parts: Iterable[_Scaled]) -> Fraction:
    """Return the largest number of which all factors are whole multiples."""
    unit = Fraction(0)
    for factor, _ in parts:
        denominator = unit.denominator * factor.denominator
        unit = Fraction(gcd(unit.numerator * factor.denominator, factor.numerator * unit.denominator), denominator)
    return unit


def _times(scaled: _Scaled, unit: Fraction) -> Term:
    """Return the term as a whole multiple, in this unit."""
    multiple = scaled.factor / unit
    if scaled.constant is not None:
        return _number(scaled.constant / unit)
    return scaled.term if multiple == 1 else Arith("*", Number(float(multiple)), scaled.term)


def _value(term: Term) -> Fraction:
    """Return the exact value of a constant term."""
    match term:
        case Number(value) if value < float("inf"):
            return Fraction(repr(value))
        case Minus(body):
            return -_value(body)
        case Call("abs", (argument,)):
            return abs(_value(argument))
        case Call(function, arguments):
            return (min if function == "min" else max)(map(_value, arguments))
        case Arith(operator, left, right):
            one, other = _value(left), _value(right)
            if operator != "/":
                return {"+": one + other, "-": one - other, "*": one * other}[operator]
            if other:
                return one / other
    raise _NotRational


def _number(value: Fraction) -> Term:
    number = Number(float(abs(value)))
    return Minus(number) if value < 0 else number


def _negated(term: Term) -> Term:
    return term.body if isinstance(term, Minus) else Minus(term)
