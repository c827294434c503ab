"""F, G, U, W or R over states, or their negation, as states that decide it."""

from __future__ import annotations

from typing import NamedTuple

from psyco._src.logic.ast import Connective, Formula, Not, Temporal, is_state_formula


class ReachFormula(NamedTuple):
    """A formula that the first state in `yes` or `no` decides; if none does, its truth is `at_end`."""

    yes: Formula | None
    no: Formula | None
    at_end: bool
    bound: int | None  # steps


def reach_formula(formula: Formula) -> ReachFormula | None:
    """Return the states that decide a formula; None: it has other operators or bounds."""
    negated = False
    while isinstance(formula, Not):
        formula, negated = formula.body, not negated
    if not isinstance(formula, Temporal) or formula.operator == "X":
        return None
    if not all(map(is_state_formula, formula.operands)):
        return None
    if formula.bound is not None and (formula.bound.lower or not formula.bound.upper):
        return None
    left, right = formula.operands[0], formula.operands[-1]
    yes, no, at_end = {
        "F": (left, None, False),
        "G": (None, Not(left), True),
        "U": (right, _neither(left, right), False),
        "W": (right, _neither(left, right), True),
        "R": (_both(left, right), Not(right), True),
    }[formula.operator]
    bound = None if formula.bound is None else formula.bound.upper
    return ReachFormula(no, yes, not at_end, bound) if negated else ReachFormula(yes, no, at_end, bound)


def _both(left: Formula, right: Formula) -> Formula:
    return Connective("&", (left, right))


def _neither(left: Formula, right: Formula) -> Formula:
    return _both(Not(left), Not(right))
