"""Warnings about requirements that are valid, but hardly mean the intended: first states, certain outcomes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any, TypeAlias

from psyco._src.logic.ast import (
    Arith,
    Bool,
    Compare,
    Connective,
    Constraint,
    Expectation,
    Formula,
    Label,
    Minus,
    Not,
    Number,
    Requirement,
    Signal,
    Temporal,
    Term,
    children,
    is_formula,
    is_state_formula,
    walk,
    without_implications,
)
from psyco._src.logic.scalar_eval import COMPARE

Range: TypeAlias = tuple[float, float]
# The range of a term in every state; with `first=True` in the first one.
RangeOf: TypeAlias = Callable[..., Range]

MAX_CASES = 4096  # that are enumerated to find out whether a formula is certain
# Signals that say how an episode goes on or ends: a formula with one of them does not overlook an early end.
END_SIGNALS = frozenset({"terminated", "truncated", "end", "step"})
EARLY = 0.1  # of the horizon
FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def lint(requirement: Requirement, range_of: RangeOf, value_range: Callable[[Expectation], Range | None]) -> list[str]:
    """Return warnings about a requirement, as sentences.

    Args:
        requirement: the requirement; its signals exist.
        range_of: range of a term in every state, or, with `first=True`, in the first one.
        value_range: range of an episode's value; None if it is unknown.
    """
    found: list[str] = []
    for stated in (*requirement.constraints, *requirement.questions):
        if isinstance(stated, Expectation):
            found += _certain_value(stated, value_range(stated))
            continue
        if isinstance(stated, Constraint) and _admits(stated, 0.0, 1.0):
            found.append(f"{stated} holds whatever happens: every probability lies between 0 and 1.")
        formula = stated.formula if isinstance(stated, Constraint) else stated.subject
        if is_formula(formula):
            found += _first_state_warnings(formula, at_most=getattr(stated, "comparison", "") in ("<", "<="))
            found += _certain_formula(formula, range_of)
    return list(dict.fromkeys(found))


def early_end_note(requirement: Requirement, horizon: int, lengths: Sequence[int]) -> str | None:
    """Return a note if most episodes ended at once, and satisfied the requirement by that; else None.

    Args:
        requirement: the requirement.
        horizon: largest number of steps of an episode.
        lengths: steps of the episodes.
    """
    early = sum(length < EARLY * horizon for length in lengths)
    if 2 * early <= len(lengths) or not met_by_ending_early(requirement):
        return None
    return (
        f"{early:,} of {len(lengths):,} episodes that satisfied the requirement ended within a tenth of the horizon of "
        f"{horizon:,} steps: the end of an episode satisfies all that the requirement asks of the rest. If an episode "
        f"must not end early, add a constraint on its length: P>=0.9 [ F step >= {horizon} ]."
    )


def met_by_ending_early(requirement: Requirement) -> bool:
    """Return whether an episode that ends at once satisfies all constraints, which say nothing about ends."""
    formulas = [bound.formula for bound in requirement.probability_bounds]
    named = {node.name for formula in formulas for node in walk(formula) if isinstance(node, Signal | Label)}
    temporal = any(not is_state_formula(formula) for formula in formulas)
    bounds_only = len(requirement.probability_constraints) == len(requirement.constraints)
    return temporal and bounds_only and not named & END_SIGNALS and all(map(_is_safety, formulas))


def _is_safety(formula: Formula, positive: bool = True) -> bool:
    """Return whether only a bad state violates a formula, or with `positive=False` its negation."""
    match formula:
        case Not(body):
            return _is_safety(body, not positive)
        case Connective("=>" | "<=>"):
            return _is_safety(without_implications(formula), positive)
        case Connective(operator, operands):
            choose = any if (operator == "|") == positive else all
            return choose(_is_safety(part, positive) for part in operands)
        case Temporal(operator, operands):
            return operator not in ("FU" if positive else "GWR") and all(_is_safety(p, positive) for p in operands)
    return True


def _admits(stated: Constraint | Expectation, low: float, high: float) -> bool:
    """Return whether a bound admits all values from low to high."""
    inside = (stated.lower < low or stated.comparison != ">") and (stated.upper > high or stated.comparison != "<")
    return stated.lower <= low and stated.upper >= high and inside


def _certain_value(stated: Expectation, values: Range | None) -> Iterator[str]:
    low, high = values or (-math.inf, math.inf)
    if stated.lower > high or stated.upper < low:
        yield f"{stated} cannot be met: the value of an episode lies between {low:g} and {high:g}."
    elif values is not None and _admits(stated, low, high):
        yield f"{stated} holds whatever happens: the value of an episode lies between {low:g} and {high:g}."


def _first_state_warnings(formula: Formula, *, at_most: bool) -> Iterator[str]:
    # A condition on the start beside an unwanted event, P<=0.1 [ φ & F ψ ], may be meant.
    apart = not is_state_formula(formula) and not at_most
    for part in _conjuncts(formula) if apart else [formula]:
        match part:
            # A condition on the start, φ => G ψ, may be meant; a response to an event hardly is.
            case Connective("=>", (left, Temporal("F" | "U"))) if is_state_formula(left):
                if _has_signals(left):
                    yield (
                        f"{left} in {part} has no temporal operator: it is judged in the first state of an episode "
                        f"only. Write {Temporal('G', (part,))} if it may come later."
                    )
            case _ if is_state_formula(part) and _has_signals(part):
                every, some = (Temporal(operator, (part,)) for operator in ("G", "F"))
                advice = f"{every} if it must hold in every state, {some} if in some state"
                if any(isinstance(node, Signal) and node.name == "return" for node in walk(part)):
                    advice = f"{Temporal('F', (Connective('&', (Label('end'), part)),))} for the end of an episode"
                yield (
                    f"{part} has no temporal operator: it is judged in the first state of an episode only. Write "
                    f"{advice}."
                )


def _conjuncts(formula: Formula) -> Iterator[Formula]:
    """Yield the parts of a conjunction, also of nested ones; state formulas stay whole."""
    if isinstance(formula, Connective) and formula.operator == "&" and not is_state_formula(formula):
        for part in formula.operands:
            yield from _conjuncts(part)
    else:
        yield formula


def _has_signals(formula: Formula) -> bool:
    return any(isinstance(node, Signal | Label) for node in walk(formula))


def _certain_formula(formula: Formula, range_of: RangeOf) -> Iterator[str]:
    reasons = list(dict.fromkeys(_decided_comparisons(formula, range_of)))
    outcome = _outcome(formula, range_of)
    if outcome is not None and _outcome(formula, range_of, first=False) is None:
        reasons = ["the first state decides it, where step, reward and return are 0"]
    if outcome is None:
        yield from (f"{reason}." for reason in reasons)
    else:
        because = f" ({'; '.join(reasons)})" if reasons else ""
        yield f"{formula} {'holds' if outcome else 'fails'} in every episode, whatever the policy does{because}."


def _decided_comparisons(formula: Formula, range_of: RangeOf) -> Iterator[str]:
    """Yield the comparisons that the range of their term decides."""
    for node in walk(formula):
        if isinstance(node, Compare) and (holds := _outcome(node, range_of, first=False)) is not None:
            term, _, _ = normalized(node)
            low, high = range_of(term)
            verb = "always" if holds else "never"
            yield f"{node} {verb} holds: {term} lies between {low:g} and {high:g}"


# ---- outcomes that are certain ---------------------------------------------------------------------------------------


def _outcome(formula: Formula, range_of: RangeOf, first: bool = True) -> bool | None:
    """Return whether a formula holds, or fails, in every state of every episode, or in the first one; else None.

    All values of terms and of temporal operators are combined, so None may also mean that this shows nothing.
    """
    outcome = partial(_outcome, range_of=range_of)
    cases: dict[Any, list[Any]] = {}  # values of each term, Boolean signal and temporal operator
    for atom in _atoms(formula):
        match atom:
            case Temporal():
                certain = _temporal_outcome(atom, outcome, first)
                cases[atom] = [False, True] if certain is None else [certain]
            case Signal(name) | Label(name):
                ended = first and range_of(atom, first=True) == (0.0, 0.0)
                cases[name] = [False] if ended else [False, True]
            case Compare():
                term, _, limit = normalized(atom)
                cases.setdefault(term, []).append(limit)
    for term, limits in cases.items():
        if isinstance(limits[0], float):
            cases[term] = _representatives(term, limits, range_of(term, first=first))
    if math.prod(map(len, cases.values())) > MAX_CASES:
        return None
    found = {_evaluate(formula, dict(zip(cases, values, strict=True))) for values in product(*cases.values())}
    return found.pop() if len(found) == 1 else None


def _temporal_outcome(formula: Temporal, outcome: Callable[..., bool | None], first: bool) -> bool | None:
    """Return the certain outcome of a temporal operator; the last state of an episode repeats forever."""
    *lefts, right = formula.operands
    starts_now = formula.operator != "X" and not (formula.bound and formula.bound.lower)
    here, later = outcome(right, first=first and starts_now), outcome(right, first=False)
    left = outcome(lefts[0], first=False) if lefts else None
    match formula.operator:
        case "G" | "R" if starts_now and here is False:
            return False
        case "F" | "U" | "W" if starts_now and here:
            return True
        case "W":
            return left if left or later is False else None
        case "U":
            return None if later else later
        case "R":
            return later or None
    return later


def _atoms(formula: Formula) -> Iterator[Formula]:
    """Yield the parts of a formula below its connectives."""
    if isinstance(formula, Not | Connective):
        for part in children(formula):
            yield from _atoms(part)  # type: ignore[arg-type]  # operands of a connective are formulas
    else:
        yield formula


def normalized(compare: Compare) -> tuple[Term, str, float]:
    """Return a comparison as a term, an operator and a number."""
    if (limit := _number(compare.right)) is not None:
        return compare.left, compare.operator, limit
    if (limit := _number(compare.left)) is not None:
        return compare.right, FLIPPED.get(compare.operator, compare.operator), limit
    return Arith("-", compare.left, compare.right), compare.operator, 0.0


def _number(term: Term) -> float | None:
    match term:
        case Number(value):
            return value
        case Minus(Number(value)):
            return -value
    return None


def _representatives(term: Term, limits: list[float], values: Range) -> list[float]:
    """Return values of a term, one for each outcome of its comparisons with these numbers."""
    low = values[0] if math.isfinite(values[0]) else min(*limits, values[1]) - 1.0
    high = values[1] if math.isfinite(values[1]) else max(*limits, values[0]) + 1.0
    points = sorted({low, high, *(limit for limit in limits if low < limit < high)})
    undefined = [math.nan] if any(isinstance(node, Arith) and node.operator == "/" for node in walk(term)) else []
    return [*points, *((a + b) / 2 for a, b in pairwise(points)), *undefined]


def _evaluate(formula: Formula, values: dict[Any, Any]) -> bool:
    of = partial(_evaluate, values=values)

    match formula:
        case Bool(value):
            return value
        case Not(body):
            return not of(body)
        case Connective("&", operands):
            return all(map(of, operands))
        case Connective("|", operands):
            return any(map(of, operands))
        case Connective("=>", (left, right)):
            return not of(left) or of(right)
        case Connective(_, (left, right)):
            return of(left) == of(right)
        case Compare():
            term, operator, limit = normalized(formula)
            return bool(COMPARE[operator](values[term], limit))
        case Signal(name) | Label(name):
            return bool(values[name])
    return bool(values[formula])
