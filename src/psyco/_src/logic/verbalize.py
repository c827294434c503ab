"""What is left of a formula, in words: `distance >= 0.1 or at most 0 more collisions, in every state from now on`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from psyco._src.logic.ast import (
    Aggregate,
    And,
    Bool,
    Compare,
    Formula,
    Iff,
    Implies,
    Label,
    Node,
    Not,
    Number,
    Or,
    Signal,
    Term,
    walk,
)
from psyco._src.logic.nnf import Atom, NnfAnd, NnfNext, NnfOr, NnfUnrolled, Normal
from psyco._src.logic.progression import FALSE, TRUE, Obligation, Remainder

Known = Mapping[Term, float]  # what counters have come to


def remaining(remainder: Remainder, known: Known) -> str:
    """What has to hold from the next state on.

    Args:
        remainder: what is left of a formula.
        known: what the counters in it have come to; they are spoken of by how much they may still rise.
    """
    if remainder in (TRUE, FALSE):
        return "nothing" if remainder == TRUE else "it cannot be met any more"
    clauses = [_joined(" and ", [_due(each, known) for each in clause]) for clause in remainder]
    return _joined(" or ", clauses)


def _joined(word: str, texts: list[str]) -> str:
    return word.join(sorted(map(_grouped, texts))) if len(texts) > 1 else texts[0]


def _due(obligation: Obligation, known: Known, now: bool = True) -> str:
    """An obligation, from the next state on; or from where it stands inside of another one."""
    node, lower, upper = obligation
    if not isinstance(node, NnfUnrolled):
        return _timed(node, known, "in the next state")
    right = _operand(node.right, known)
    left = None if node.left is None else _operand(node.left, known)
    window = _from_now if now else _from_there
    some, every = window("some", lower, upper), window("every", lower, upper)
    match node.operator, left:
        case "U", None:
            return f"{right}, {some}"
        case "R", None:
            return f"{right}, {every}"
        case "U", _:
            return f"{right}, {some}, and {left} until then"
        case "W", _:
            return f"{left}, {every} before one with {right}"
        case "R", _:
            return f"{right}, {every} up to one with {left}"
    return f"{left}, {some}, and {right} up to and including that"


def _from_now(which: str, lower: int, upper: int | None) -> str:
    if upper is None:
        return f"in {which} state from now on"
    if upper == lower:
        return "in the next state" if upper == 0 else f"{upper + 1} steps from now"
    if lower:
        return f"in {which} state {lower + 1} to {upper + 1} steps from now"
    return f"in {which} of the next {upper + 1} states"


def _from_there(which: str, lower: int, upper: int | None) -> str:
    if upper is None:
        return f"in {which} state from there on"
    return (
        f"in {which} state {lower} to {upper} steps later"
        if lower
        else f"in {which} state within {upper} steps"
    )


def _timed(node: Normal, known: Known, when: str = "") -> str:
    match node:
        case Atom(formula, negated):
            text = state(Not(formula) if negated else formula, known)
            return f"{text}, {when}" if when else text
        case NnfAnd(operands):
            return " and ".join(_grouped(_timed(each, known, when)) for each in operands)
        case NnfOr(operands):
            return " or ".join(_grouped(_timed(each, known, when)) for each in operands)
        case NnfNext(body):
            return f"{_operand(body, known)}, a step later"
        case NnfUnrolled(_, _, _, bound):
            bounds = (0, None) if bound is None else (bound.lower, bound.upper)
            return _due(Obligation(node, *bounds), known, now=False)


def _operand(node: Normal, known: Known) -> str:
    """What an operator has below it: a state formula, or again something about time."""
    if isinstance(node, Atom):
        return state(Not(node.formula) if node.negated else node.formula, known)
    return _grouped(_timed(node, known))


def _grouped(text: str) -> str:
    return f"({text})" if any(word in text for word in (",", " or ", " and ")) else text


# ---- state formulas --------------------------------------------------------------------------------------------------

MORE = {"<=": "at most", "<": "fewer than", ">=": "at least", ">": "more than"}
OPPOSITE: dict[str, Any] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def state(formula: Formula, known: Known) -> str:
    """A state formula, without what the counters have decided already."""
    return _state(_simplified(formula, known), known)


def _simplified(formula: Formula, known: Known) -> Formula:
    """The formula with what is settled about counters left out, and `!` and `=>` of comparisons written without."""

    def simple(each: Formula) -> Formula:
        return _simplified(each, known)

    match formula:
        case Compare(operator, left, Number(limit)) if left in known and operator in MORE:
            over = known[left] > limit if operator in ("<=", ">") else known[left] >= limit
            return Bool(operator in (">", ">=")) if over else formula
        case Not(Compare(operator, left, right)) if left in known and operator in MORE:
            return simple(Compare(OPPOSITE[operator], left, right))
        case Not(body):
            inner = simple(body)
            return Bool(not inner.value) if isinstance(inner, Bool) else Not(inner)
        case And(operands) | Or(operands):
            decides = isinstance(formula, Or)  # the value of an operand that is enough
            parts = [part for each in operands if (part := simple(each)) != Bool(not decides)]
            if Bool(decides) in parts or not parts:
                return Bool(decides if parts else not decides)
            return type(formula)(tuple(parts)) if len(parts) > 1 else parts[0]
        case Implies(left, right):
            return simple(Or((Not(left), right)))
        case Iff(left, right):
            return Iff(simple(left), simple(right))
    return formula


def _state(formula: Formula, known: Known) -> str:
    def operand(each: Formula) -> str:
        text = _state(each, known)
        return f"({text})" if isinstance(each, And | Or | Iff) else text

    match formula:
        case Compare(operator, left, Number(limit)) if left in known and operator in MORE:
            return f"{MORE[operator]} {limit - known[left]:g} more {_what(left)}"
        case Not(body):
            return f"not {operand(body)}"
        case And(operands):
            return " and ".join(map(operand, operands))
        case Or(operands):
            return " or ".join(map(operand, operands))
        case Iff(left, right):
            return f"{operand(left)} exactly if {operand(right)}"
        case Label(name):
            return name
    return str(formula)


def _what(counter: Term) -> str:
    if isinstance(counter, Aggregate):
        return f"states with {counter.body}"
    return str(counter).replace("_", " ")


def counters_in(formula: Formula, counters: Collection[str]) -> tuple[Term, ...]:
    """The terms that only ever count up: counts, and the signals that are said to."""

    def counts(node: Node) -> bool:
        match node:
            case Aggregate("count"):
                return True
            case Signal(name, None):
                return name in counters
        return False

    return tuple({node: None for node in walk(formula) if counts(node)})  # type: ignore[misc]
