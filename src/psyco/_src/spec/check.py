"""Does a requirement fit what it is used on? Its signals must exist, be of the right type, and bounds be in reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from psyco._src.errors import RequirementError
from psyco._src.spec.formula import (
    Aggregate,
    Compare,
    Finally,
    Formula,
    Globally,
    Label,
    Node,
    Release,
    Requirement,
    Signal,
    SignalInfo,
    Until,
    WeakUntil,
    is_term,
    parts,
    walk,
)

END = "end"  # the built-in label


def check_signals(subject: Requirement | Formula, available: Mapping[str, SignalInfo], owner: str) -> None:
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


def check_bounds(subject: Requirement | Formula, horizon: int, owner: str) -> None:
    """Raise RequirementError if an operator of `subject` looks further ahead than `horizon` steps."""
    for node in _nodes(subject):
        if isinstance(node, Finally | Globally | Until | WeakUntil | Release):
            bound = node.bound
            if bound is not None and bound.upper > horizon:
                raise RequirementError(
                    f"the bound {bound} reaches beyond the horizon",
                    bound.place,
                    f"an episode of {owner} has {horizon} steps: lower the bound to {horizon} or raise the horizon",
                )


def _roots(subject: Requirement | Formula) -> Iterator[Formula]:
    if isinstance(subject, Requirement):
        yield from (constraint.formula for constraint in subject.constraints)
    else:
        yield subject


def _nodes(subject: Requirement | Formula) -> Iterator[Node]:
    for root in _roots(subject):
        yield from walk(root)


def _uses(subject: Requirement | Formula) -> Iterator[tuple[Signal | Label, bool | None]]:
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

    for root in _roots(subject):
        yield from visit(root, True)


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
