"""Does a requirement fit what it is used on? Its signals must exist, be of the right type, and bounds be in reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TypeAlias

from psyco._src.core.errors import RequirementError
from psyco._src.logic.ast import (
    Aggregate,
    Bound,
    Compare,
    Constraint,
    Finally,
    Formula,
    Globally,
    Instant,
    Label,
    LongRun,
    Node,
    Quantity,
    Release,
    Requirement,
    Signal,
    SignalInfo,
    Total,
    Until,
    WeakUntil,
    is_term,
    parts,
    roots,
    walk,
)

END = "end"  # the built-in label

Subject: TypeAlias = Requirement | Formula | Quantity


def check_signals(subject: Subject, available: Mapping[str, SignalInfo], owner: str) -> None:
    """Raise RequirementError unless every signal and label of `subject` is there and used as what it is.

    `available` maps names to what is known of them; a name that ends in a dot (`info.`) stands for all names
    that start so. `owner` is who offers them, for the message.
    """
    for signal, as_boolean in _uses(subject):
        if isinstance(signal, Label) and signal.name == END:
            continue
        info = _find(signal.name, available)
        if info is None:
            raise RequirementError(
                f"unknown {_kind(signal)}", signal.place, _offer(signal.name, available, owner)
            )
        if info.boolean is not None:
            _check_use(signal, as_boolean, info)


def check_bounds(subject: Subject, horizon: int, owner: str) -> None:
    """Raise RequirementError if something in `subject` looks further ahead than `horizon` steps."""
    for bound, steps in _bounds(subject):
        if steps > horizon:
            raise RequirementError(
                f"the bound {bound} reaches beyond the horizon",
                bound.place,
                f"an episode of {owner} has {horizon} steps: lower the bound to {horizon} or raise the horizon",
            )


def _bounds(subject: Subject) -> Iterator[tuple[Bound | Total | Instant, int]]:
    """What says how many steps to look ahead, and how many these are."""
    for each in subjects(subject):
        match each:
            case Quantity(_, Total(int(steps)) as over) | Quantity(_, Instant(steps) as over):
                yield over, steps
        for root in roots(each):
            for node in walk(root):
                if isinstance(node, Finally | Globally | Until | WeakUntil | Release) and node.bound:
                    yield node.bound, node.bound.upper


def subjects(subject: Subject) -> Iterator[Formula | Quantity]:
    """All that a requirement is about, in its order; anything else is about itself."""
    if not isinstance(subject, Requirement):
        yield subject
        return
    for constraint in subject.constraints:
        yield constraint.formula if isinstance(constraint, Constraint) else constraint.subject
    for question in subject.questions:
        yield question.subject


def _uses(subject: Subject) -> Iterator[tuple[Signal | Label, bool | None]]:
    """Every signal and label, and whether a Boolean is asked of it; None where either is fine, as in `a = b`."""

    def visit(node: Node, as_boolean: bool | None) -> Iterator[tuple[Signal | Label, bool | None]]:
        if isinstance(node, Signal | Label):
            yield node, as_boolean
        for part in parts(node):
            match node:
                case Compare("=" | "!=", Signal(), Signal()):
                    yield from visit(part, None)
                case Aggregate("count"):
                    yield from visit(part, True)
                case _:
                    yield from visit(part, not (isinstance(node, Compare) or is_term(node)))

    for each in subjects(subject):
        root, *others = roots(each)
        either = isinstance(each, Quantity) and each.over != LongRun(share=True)
        yield from visit(root, None if either else True)
        for other in others:
            yield from visit(other, True)


def _find(name: str, available: Mapping[str, SignalInfo]) -> SignalInfo | None:
    prefixes = (each for each in available if each.endswith(".") and name.startswith(each))
    return available.get(name) or next((available[each] for each in prefixes), None)


def _kind(signal: Signal | Label) -> str:
    return f"label {signal}" if isinstance(signal, Label) else f"signal {signal.name!r}"


def _check_use(signal: Signal | Label, as_boolean: bool | None, info: SignalInfo) -> None:
    index = signal.index if isinstance(signal, Signal) else None
    if info.size is None and index is not None:
        raise RequirementError(
            f"{_kind(signal)} is a single value", signal.place, f"write {signal.name} without an index"
        )
    if info.size is not None and index is None:
        raise RequirementError(
            f"{_kind(signal)} has {info.size} entries",
            signal.place,
            f"choose one: {signal.name}[0] to {signal.name}[{info.size - 1}]",
        )
    if info.size is not None and index is not None and index >= info.size:
        raise RequirementError(
            f"index {index} of {_kind(signal)} is out of range",
            signal.place,
            f"it has {info.size} entries, {signal.name}[0] to {signal.name}[{info.size - 1}]",
        )
    if as_boolean and not info.boolean:
        raise RequirementError(
            f"{_kind(signal)} is a number, not true or false",
            signal.place,
            f"compare it, as in {signal.name} >= 1",
        )
    if as_boolean is False and info.boolean:
        raise RequirementError(
            f"{_kind(signal)} is true or false, not a number",
            signal.place,
            f"use it alone, {signal} or !{signal}, or count({signal})",
        )


def _offer(name: str, available: Mapping[str, SignalInfo], owner: str) -> str:
    close = get_close_matches(name, [each for each in available if not each.endswith(".")], n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    return f"{guess}{owner} offers: {', '.join(_shown(each, available[each]) for each in sorted(available))}"


def _shown(name: str, info: SignalInfo) -> str:
    if name.endswith("."):
        return f"{name}*"
    return name if info.size is None else f"{name}[0..{info.size - 1}]"
