"""Negation normal form: negations pushed down to the atoms; what remains is `∧`, `∨`, X and four unrollings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from psyco._src.logic.ast import (
    And,
    Bound,
    Finally,
    Formula,
    Globally,
    Iff,
    Implies,
    Next,
    Not,
    Or,
    Release,
    Until,
    WeakUntil,
    is_state_formula,
)


@dataclass(frozen=True, eq=False, slots=True)
class Atom:
    """A state formula that is not looked into any further, or its negation."""

    formula: Formula
    negated: bool


@dataclass(frozen=True, eq=False, slots=True)
class NnfAnd:
    """φ ∧ ψ ∧ ..."""

    operands: tuple[Normal, ...]


@dataclass(frozen=True, eq=False, slots=True)
class NnfOr:
    """φ ∨ ψ ∨ ..."""

    operands: tuple[Normal, ...]


@dataclass(frozen=True, eq=False, slots=True)
class NnfNext:
    """X φ"""

    body: Normal


@dataclass(frozen=True, eq=False, slots=True)
class NnfUnrolled:
    """U and W: φ2 ∨ (φ1 ∧ next); R and M: φ2 ∧ (φ1 ∨ next). Past the end W and R hold, U and M do not.

    Without a left operand U is F, whose φ1 is true, and R is G, whose φ1 is false.
    M, the strong release, is the dual of W and has no syntax of its own.
    """

    operator: Literal["U", "W", "R", "M"]
    left: Normal | None
    right: Normal
    bound: Bound | None


Normal: TypeAlias = Atom | NnfAnd | NnfOr | NnfNext | NnfUnrolled
_DUAL = {"U": "R", "R": "U", "W": "M", "M": "W"}


def normalize(formula: Formula, severity: bool) -> Normal:
    """Negation normal form. A subformula is visited once per sign, so nested <=> share their parts."""
    seen: dict[tuple[int, bool], Normal] = {}

    def normal(f: Formula, negated: bool) -> Normal:
        key = id(f), negated
        if key not in seen:
            seen[key] = build(f, negated)
        return seen[key]

    def build(f: Formula, negated: bool) -> Normal:
        if not severity and is_state_formula(f):
            return Atom(f, negated)
        match f:
            case Not(body):
                return normal(body, not negated)
            case And(operands):
                return (NnfOr if negated else NnfAnd)(tuple(normal(each, negated) for each in operands))
            case Or(operands):
                return (NnfAnd if negated else NnfOr)(tuple(normal(each, negated) for each in operands))
            case Implies(left, right):
                return (NnfAnd if negated else NnfOr)((normal(left, not negated), normal(right, negated)))
            case Iff(left, right):
                one = NnfAnd((normal(left, False), normal(right, negated)))
                other = NnfAnd((normal(left, True), normal(right, not negated)))
                return NnfOr((one, other))
            case Next(body):
                return NnfNext(normal(body, negated))
            case Finally(body, bound):
                return NnfUnrolled("R" if negated else "U", None, normal(body, negated), bound)
            case Globally(body, bound):
                return NnfUnrolled("U" if negated else "R", None, normal(body, negated), bound)
            case Until(left, right, bound) | WeakUntil(left, right, bound) | Release(left, right, bound):
                operator: Any = _DUAL[f.symbol] if negated else f.symbol
                return NnfUnrolled(operator, normal(left, negated), normal(right, negated), bound)
            case _:
                return Atom(f, negated)

    return normal(formula, False)
