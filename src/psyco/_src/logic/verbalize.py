"""The remainder of a formula in words: `distance >= 0.1 or at most 0 more collisions, in every state from now on`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from psyco._src.logic.ast import (
    Aggregate,
    Bool,
    Compare,
    Connective,
    Formula,
    Label,
    Node,
    Not,
    Number,
    Signal,
    Term,
    walk,
)
from psyco._src.logic.nnf import Atom, NnfAnd, NnfNext, NnfNode, NnfOr, NnfUnrolled
from psyco._src.logic.progression import FALSE, TRUE, Obligation, Remainder

Known = Mapping[Term, float]  # the values of counters


def remaining(remainder: Remainder, known: Known) -> str:
    """Describe the obligations from the next state on.

    Args:
        remainder: of a formula.
        known: the values of its counters; the text says by how much they may still rise.
    """
    if remainder in (TRUE, FALSE):
        return "nothing" if remainder == TRUE else "it cannot be met any more"
    clauses = [_join(" and ", [_due(obligation, known) for obligation in clause]) for clause in remainder]
    return _join(" or ", clauses)


def _join(word: str, texts: list[str]) -> str:
    return word.join(sorted(map(_grouped, texts))) if len(texts) > 1 else texts[0]


def _due(obligation: Obligation, known: Known, now: bool = True) -> str:
    """Describe an obligation from the next state on, or, if not `now`, one nested in another."""
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
    if lower:
        return f"in {which} state {lower} to {upper} steps later"
    return f"in {which} state within {upper} steps"


def _timed(node: NnfNode, known: Known, when: str = "") -> str:
    match node:
        case Atom():
            text = _atom(node, known)
            return f"{text}, {when}" if when else text
        case NnfAnd(operands):
            return " and ".join(_grouped(_timed(operand, known, when)) for operand in operands)
        case NnfOr(operands):
            return " or ".join(_grouped(_timed(operand, known, when)) for operand in operands)
        case NnfNext(body):
            return f"{_operand(body, known)}, a step later"
        case NnfUnrolled(_, _, _, bound):
            bounds = (0, None) if bound is None else (bound.lower, bound.upper)
            return _due(Obligation(node, *bounds), known, now=False)


def _operand(node: NnfNode, known: Known) -> str:
    return _atom(node, known) if isinstance(node, Atom) else _grouped(_timed(node, known))


def _grouped(text: str) -> str:
    return f"({text})" if any(word in text for word in (",", " or ", " and ")) else text


# ---- state formulas --------------------------------------------------------------------------------------------------

QUANTIFIERS = {"<=": "at most", "<": "fewer than", ">=": "at least", ">": "more than"}
OPPOSITE: dict[str, Any] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def _atom(atom: Atom, known: Known) -> str:
    """Describe a state formula, without the parts that the counters have decided already."""
    formula = Not(atom.formula) if atom.negated else atom.formula
    return _state(_simplified(formula, known), known)


def _simplified(formula: Formula, known: Known) -> Formula:
    """Replace comparisons of counters that are decided by true or false, and rewrite `!` and `=>` of comparisons."""

    def simple(part: Formula) -> Formula:
        return _simplified(part, known)

    match formula:
        case Compare(operator, left, Number(limit)) if left in known and operator in QUANTIFIERS:
            over = known[left] > limit if operator in ("<=", ">") else known[left] >= limit
            return Bool(operator in (">", ">=")) if over else formula
        case Not(Compare(operator, left, right)) if left in known and operator in QUANTIFIERS:
            return simple(Compare(OPPOSITE[operator], left, right))
        case Not(body):
            inner = simple(body)
            return Bool(not inner.value) if isinstance(inner, Bool) else Not(inner)
        case Connective("=>", (left, right)):
            return simple(Connective("|", (Not(left), right)))
        case Connective("<=>", operands):
            return Connective("<=>", tuple(map(simple, operands)))
        case Connective(operator, operands):
            decides = operator == "|"  # the value of an operand that decides the whole
            parts = [part for operand in operands if (part := simple(operand)) != Bool(not decides)]
            if Bool(decides) in parts or not parts:
                return Bool(decides if parts else not decides)
            return Connective(operator, tuple(parts)) if len(parts) > 1 else parts[0]
    return formula


CONNECTIVE_WORDS = {"&": " and ", "|": " or ", "<=>": " exactly if "}


def _state(formula: Formula, known: Known) -> str:
    def operand(part: Formula) -> str:
        text = _state(part, known)
        return f"({text})" if isinstance(part, Connective) else text

    match formula:
        case Compare(operator, left, Number(limit)) if left in known and operator in QUANTIFIERS:
            return f"{QUANTIFIERS[operator]} {limit - known[left]:g} more {_counted(left)}"
        case Not(body):
            return f"not {operand(body)}"
        case Connective(operator, operands):
            return CONNECTIVE_WORDS[operator].join(map(operand, operands))
        case Label(name):
            return name
    return str(formula)


def _counted(counter: Term) -> str:
    if isinstance(counter, Aggregate):
        return f"states with {counter.body}"
    return str(counter).replace("_", " ")


def counters_in(formula: Formula, counters: Collection[str]) -> tuple[Term, ...]:
    """Return the terms of a formula that only count up: `count(φ)`, and the named counters."""

    def counts(node: Node) -> bool:
        match node:
            case Aggregate("count"):
                return True
            case Signal(name, None):
                return name in counters
        return False

    return tuple({node: None for node in walk(formula) if counts(node)})  # type: ignore[misc]
