"""Negation normal form: negations pushed down to the atoms; what remains is `∧`, `∨`, X and four unrollings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from psyco._src.spec.formula import (
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
class Every:
    """φ ∧ ψ ∧ ..."""

    operands: tuple[Normal, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Some:
    """φ ∨ ψ ∨ ..."""

    operands: tuple[Normal, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Later:
    """X φ"""

    body: Normal


@dataclass(frozen=True, eq=False, slots=True)
class Unrolled:
    """U and W: φ2 ∨ (φ1 ∧ next); R and M: φ2 ∧ (φ1 ∨ next). Past the end W and R hold, U and M do not.

    Without a left operand U is F, whose φ1 is true, and R is G, whose φ1 is false.
    M, the strong release, is the dual of W and has no syntax of its own.
    """

    operator: Literal["U", "W", "R", "M"]
    left: Normal | None
    right: Normal
    bound: Bound | None


Normal: TypeAlias = Atom | Every | Some | Later | Unrolled
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
                return (Some if negated else Every)(tuple(normal(each, negated) for each in operands))
            case Or(operands):
                return (Every if negated else Some)(tuple(normal(each, negated) for each in operands))
            case Implies(left, right):
                return (Every if negated else Some)((normal(left, not negated), normal(right, negated)))
            case Iff(left, right):
                one = Every((normal(left, False), normal(right, negated)))
                other = Every((normal(left, True), normal(right, not negated)))
                return Some((one, other))
            case Next(body):
                return Later(normal(body, negated))
            case Finally(body, bound):
                return Unrolled("R" if negated else "U", None, normal(body, negated), bound)
            case Globally(body, bound):
                return Unrolled("U" if negated else "R", None, normal(body, negated), bound)
            case Until(left, right, bound) | WeakUntil(left, right, bound) | Release(left, right, bound):
                operator: Any = _DUAL[f.symbol] if negated else f.symbol
                return Unrolled(operator, normal(left, negated), normal(right, negated), bound)
            case _:
                return Atom(f, negated)

    return normal(formula, False)
