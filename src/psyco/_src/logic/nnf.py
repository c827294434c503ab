"""Negation normal form: negations only at atoms; above them `∧`, `∨`, X and four operators that unroll step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from psyco._src.logic.ast import Bound, Connective, Formula, Not, Temporal, is_state_formula


@dataclass(frozen=True, eq=False, slots=True)
class Atom:
    """A state formula that is not decomposed further, or its negation."""

    formula: Formula
    negated: bool


@dataclass(frozen=True, eq=False, slots=True)
class NnfAnd:
    """φ ∧ ψ ∧ ..."""

    operands: tuple[NnfNode, ...]


@dataclass(frozen=True, eq=False, slots=True)
class NnfOr:
    """φ ∨ ψ ∨ ..."""

    operands: tuple[NnfNode, ...]


@dataclass(frozen=True, eq=False, slots=True)
class NnfNext:
    """X φ."""

    body: NnfNode


@dataclass(frozen=True, eq=False, slots=True)
class NnfUnrolled:
    """U and W: φ2 ∨ (φ1 ∧ next); R and M: φ2 ∧ (φ1 ∨ next). Past the end W and R hold, U and M do not.

    Without a left operand U is F, whose φ1 is true, and R is G, whose φ1 is false.
    M, the strong release, is the dual of W; the language has no syntax for it.
    """

    operator: Literal["U", "W", "R", "M"]
    left: NnfNode | None
    right: NnfNode
    bound: Bound | None


NnfNode: TypeAlias = Atom | NnfAnd | NnfOr | NnfNext | NnfUnrolled
_UNROLLED = {"F": "U", "G": "R", "U": "U", "W": "W", "R": "R"}
_DUAL = {"U": "R", "R": "U", "W": "M", "M": "W"}


def to_nnf(formula: Formula, severity: bool) -> NnfNode:
    """Convert a formula to negation normal form; with `severity` state formulas are decomposed, too.

    A subformula is visited once per sign, so nested <=> share their parts.
    """
    visited: dict[tuple[int, bool], NnfNode] = {}

    def nnf(f: Formula, negated: bool) -> NnfNode:
        key = id(f), negated
        if key not in visited:
            visited[key] = build(f, negated)
        return visited[key]

    def build(f: Formula, negated: bool) -> NnfNode:
        if not severity and is_state_formula(f):
            return Atom(f, negated)
        match f:
            case Not(body):
                return nnf(body, not negated)
            case Connective("<=>", (left, right)):
                one = NnfAnd((nnf(left, False), nnf(right, negated)))
                other = NnfAnd((nnf(left, True), nnf(right, not negated)))
                return NnfOr((one, other))
            case Connective("=>", (left, right)):
                return (NnfAnd if negated else NnfOr)((nnf(left, not negated), nnf(right, negated)))
            case Connective(operator, operands):
                kind = NnfAnd if (operator == "&") != negated else NnfOr
                return kind(tuple(nnf(operand, negated) for operand in operands))
            case Temporal("X", (body,)):
                return NnfNext(nnf(body, negated))
            case Temporal(operator, (*left, right), bound):
                unrolled: Any = _DUAL[_UNROLLED[operator]] if negated else _UNROLLED[operator]
                left_node = nnf(left[0], negated) if left else None
                return NnfUnrolled(unrolled, left_node, nnf(right, negated), bound)
            case _:
                return Atom(f, negated)

    return nnf(formula, False)
