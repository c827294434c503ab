"""Validation of a requirement against a domain: signals must exist and have the right type, bounds must be in reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TypeAlias

from psyco._src.core.errors import RequirementError
from psyco._src.logic.ast import (
    END,
    Aggregate,
    Bound,
    Compare,
    Constraint,
    Formula,
    Instant,
    Label,
    LongRun,
    Node,
    Quantity,
    Requirement,
    Signal,
    SignalInfo,
    Temporal,
    Total,
    children,
    is_term,
    roots,
    walk,
)
from psyco._src.logic.exact_constants import precision_problem
from psyco._src.logic.quantifiers import refuse_quantifiers

Subject: TypeAlias = Requirement | Formula | Quantity


def check_signals(subject: Subject, available: Mapping[str, SignalInfo], owner: str) -> None:
    """Raise RequirementError unless every signal and label of `subject` exists and is used according to its type.

    `available` maps names to their types; a name that ends in a dot (`info.`) stands for all names that start so.
    `owner` provides them, for the message.
    """
    refuse_quantifiers(subject, owner)
    for signal, as_boolean in _uses(subject):
        if signal == END:
            continue
        info = _find(signal.name, available)
        if info is None:
            advice = _list_available(signal.name, available, owner)
            raise RequirementError(f"unknown {_kind(signal)}", signal.location, advice)
        if info.boolean is not None:
            _check_use(signal, as_boolean, info)


def check_precision(subject: Subject, available: Mapping[str, SignalInfo]) -> None:
    """Raise RequirementError if float32 cannot decide a comparison of whole numbers; for `available` see above."""

    def is_whole(signal: Signal) -> bool:
        info = _find(signal.name, available)
        return signal == Signal("step") or (info is not None and info.whole)

    for part in subjects(subject):
        for node in (node for root in roots(part) for node in walk(root) if isinstance(node, Compare)):
            if found := precision_problem(node, is_whole):
                problem, advice = found
                located = (part.location for part in walk(node) if isinstance(part, Signal | Aggregate))
                message = f"float32, in which compiled code computes, cannot decide {node}: {problem}"
                raise RequirementError(message, next(located, None), advice)


def check_bounds(subject: Subject, horizon: int, owner: str) -> None:
    """Raise RequirementError if a bound in `subject` exceeds `horizon` steps."""
    for bound, steps in _bounds(subject):
        if steps > horizon:
            raise RequirementError(
                f"the bound {bound} reaches beyond the horizon",
                bound.location,
                f"an episode of {owner} has {horizon} steps: lower the bound to {horizon} or raise the horizon",
            )


def _bounds(subject: Subject) -> Iterator[tuple[Bound | Total | Instant, int]]:
    """Yield all bounds and the number of steps that each looks ahead."""
    for part in subjects(subject):
        match part:
            case Quantity(_, Total(int(steps)) as over) | Quantity(_, Instant(steps) as over):
                yield over, steps
        for root in roots(part):
            for node in walk(root):
                if isinstance(node, Temporal) and node.bound:
                    yield node.bound, node.bound.upper


def refuse_intervals(requirement: Requirement, why: str) -> None:
    """Raise RequirementError for a probability that is bounded on both sides: every episode is on one wrong side."""
    sides = [bound.constraint for bound in requirement.probability_bounds]
    for index, constraint in enumerate(requirement.constraints):
        if sides.count(index) > 1:
            raise RequirementError(
                f"{constraint} bounds a probability on both sides, and {why}",
                advice="use one side at a time: P>=p [ ... ], then P<=p [ ... ]",
            )


def subjects(subject: Subject) -> Iterator[Formula | Quantity]:
    """Yield the formulas and quantities of a requirement in its order; or the given one itself."""
    if not isinstance(subject, Requirement):
        yield subject
        return
    for constraint in subject.constraints:
        yield constraint.formula if isinstance(constraint, Constraint) else constraint.subject
    for question in subject.questions:
        yield question.subject


def _uses(subject: Subject) -> Iterator[tuple[Signal | Label, bool | None]]:
    """Yield every signal and label with whether it is used as a Boolean; None where either is fine, as in `a = b`."""

    def visit(node: Node, as_boolean: bool | None) -> Iterator[tuple[Signal | Label, bool | None]]:
        if isinstance(node, Signal | Label):
            yield node, as_boolean
        below: bool | None = not (isinstance(node, Compare) or is_term(node))
        match node:
            case Compare("=" | "!=", Signal(), Signal()):
                below = None
            case Aggregate("count"):
                below = True
        for child in children(node):
            yield from visit(child, below)

    for part in subjects(subject):
        root, *others = roots(part)
        either = isinstance(part, Quantity) and part.over != LongRun(share=True)
        yield from visit(root, None if either else True)
        for other in others:
            yield from visit(other, True)


def _find(name: str, available: Mapping[str, SignalInfo]) -> SignalInfo | None:
    prefixes = (prefix for prefix in available if prefix.endswith(".") and name.startswith(prefix))
    return available.get(name) or next((available[prefix] for prefix in prefixes), None)


def _kind(signal: Signal | Label) -> str:
    return f"label {signal}" if isinstance(signal, Label) else f"signal {signal.name!r}"


def _check_use(signal: Signal | Label, as_boolean: bool | None, info: SignalInfo) -> None:
    kind, name = _kind(signal), signal.name
    if mismatch := size_mismatch(signal, info.size):
        problem, advice = mismatch
    elif as_boolean and not info.boolean:
        problem, advice = f"{kind} is a number, not true or false", f"compare it, as in {name} >= 1"
    elif as_boolean is False and info.boolean:
        problem = f"{kind} is true or false, not a number"
        advice = f"use it alone, {signal} or !{signal}, or count({signal})"
    else:
        return
    raise RequirementError(problem, signal.location, advice)


def size_mismatch(signal: Signal | Label, size: int | None) -> tuple[str, str] | None:
    """Return problem and remedy if the use of a signal does not fit its size, None for a single value; else None."""
    kind, name = _kind(signal), signal.name
    index = signal.index if isinstance(signal, Signal) else None
    if size is None:
        return None if index is None else (f"{kind} is a single value", f"write {name} without an index")
    entries = {0: "no entries", 1: "1 entry"}.get(size, f"{size} entries")
    remedies = {0: "use another signal", 1: f"write {name}[0]"}
    remedy = remedies.get(size, f"choose one: {name}[0] to {name}[{size - 1}]")
    if index is None:
        return f"{kind} has {entries}", remedy
    return None if index < size else (f"index {index} of {kind} is out of range", f"it has {entries}; {remedy}")


def _list_available(name: str, available: Mapping[str, SignalInfo], owner: str) -> str:
    close = get_close_matches(name, [known for known in available if not known.endswith(".")], n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    listed = ", ".join(_with_size(known, available[known]) for known in sorted(available))
    return f"{guess}{owner} offers: {listed}"


def _with_size(name: str, info: SignalInfo) -> str:
    if name.endswith("."):
        return f"{name}*"
    return name if info.size is None else f"{name}[0..{info.size - 1}]"
