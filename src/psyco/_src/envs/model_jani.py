"""Read the JANI document that Storm writes of a PRISM or JANI model into a program, or refuse it with a sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from psyco._src.core.errors import DomainError
from psyco._src.envs.model_program import (
    BINARY,
    BOOLEAN,
    MAX_INTEGER,
    UNARY,
    Branch,
    Command,
    Expression,
    ModelProgram,
    Variable,
    evaluate,
    render,
    subexpressions,
)
from psyco._src.envs.model_tables import RESERVED

MAX_DEPTH = 400  # of an expression
MAX_CHOICES = 2**30  # of a state
MAX_RESULT = 2**31  # of arithmetic with integers, which have 32 bits here

Range: TypeAlias = tuple[int, int]


def read_program(file: str, digest: str, facts: Mapping[str, Any]) -> ModelProgram:
    """Return the program of a JANI document that Storm has written; raise DomainError for what it cannot have."""
    document = facts["program"]
    automata = document["automata"]
    for automaton in automata if facts["order"] is not None else ():
        automaton["edges"] = _in_order(automaton["edges"], facts["order"].get(automaton["name"], []))
    stated = [*document["variables"], *(each for automaton in automata for each in automaton.get("variables", []))]
    variables = [_variable(file, each) for each in stated if not each.get("transient")]
    if facts["order"] is None or any(len(automaton["locations"]) > 1 for automaton in automata):
        variables += [_location_variable(file, automaton) for automaton in automata]
    variables.sort(key=lambda variable: variable.name)
    names = [variable.name for variable in variables]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DomainError(f"{file}: it is too large to build, and several automata have a variable {twice[0]!r}")
    read = _Reader(file, {each.name: None if each.boolean else (each.low, each.high) for each in variables})
    transient = {each["name"]: each["type"] for each in stated if each.get("transient")}
    rewards = [name for name, kind in transient.items() if kind != "bool"]
    if taken := sorted(RESERVED & {*rewards}):
        raise DomainError(f"{file}: its reward structure {taken[0]!r} has the name of a built-in signal; rename it")
    commands, groups = _commands(read, automata, names, rewards)
    labels, of_states = _state_values(read, automata, transient)
    renamed = {f"label_{name}": name for name in facts["labels"] if name not in labels}
    initial = _all([_equal(variable) for variable in variables])
    program = ModelProgram(
        digest, facts["kind"], facts["actions"], tuple(variables), tuple(commands),
        tuple(_synchronisations(file, document, groups, prism=facts["order"] is not None)),
        {renamed.get(name, name): value for name, value in labels.items()} | {"init": initial},
        of_states, tuple((name, text) for name, text in facts["properties"]),
    )  # fmt: skip
    restriction = read(document.get("restrict-initial", {"exp": True})["exp"])
    if not evaluate(np, restriction, program.environment(np, program.initial)):
        raise DomainError(
            f"{file}: it is too large to build, and its initial state is given by a formula, not by values"
        )
    if program.enabled(np, program.initial)[1].prod(-1).sum() == 0:
        raise DomainError(f"{file}: its initial state is a deadlock: no command is enabled, so no step is possible")
    return program


def _in_order(edges: list[Any], keys: list[Any]) -> list[Any]:
    """Return the edges in the order of the commands in the PRISM file, which have these keys."""
    waiting: dict[str, list[Any]] = {}
    for edge in edges:
        waiting.setdefault(json.dumps(_edge_key(edge)), []).append(edge)
    wanted = [text for text in map(json.dumps, keys) if text in waiting]  # commands that are never enabled are missing
    if sorted(wanted) != sorted(key for key, found in waiting.items() for _ in found):
        return edges
    return [waiting[key].pop(0) for key in wanted]


def _edge_key(edge: Any) -> list[Any]:
    """Return what identifies a command, as Storm prints it in comments."""
    made = [sorted(each["comment"] for each in branch.get("assignments", [])) for branch in edge["destinations"]]
    return [edge.get("action"), edge.get("guard", {"comment": "true"})["comment"], made]


def _equal(variable: Variable) -> Expression:
    if variable.boolean:
        return variable.name if variable.initial else ("¬", variable.name)
    return ("=", variable.name, variable.initial)


def _all(parts: list[Expression]) -> Expression:
    """Return the conjunction, as a balanced tree."""
    if len(parts) < 2:
        return parts[0] if parts else True
    middle = len(parts) // 2
    return ("∧", _all(parts[:middle]), _all(parts[middle:]))


def _variable(file: str, stated: Mapping[str, Any]) -> Variable:
    kind, name, initial = stated["type"], stated["name"], stated.get("initial-value")
    if initial is None:
        raise DomainError(
            f"{file}: it is too large to build, and has several initial states, since {name} has no initial value: "
            "give it one in the file"
        )
    if kind == "bool":
        return Variable(name, 0, 1, int(_number(file, name, initial)), boolean=True)
    if (
        not isinstance(kind, dict)
        or kind.get("base") != "int"
        or "lower-bound" not in kind
        or "upper-bound" not in kind
    ):
        raise DomainError(f"{file}: it is too large to build, and its variable {name} is no integer with a range")
    low, high, first = (_number(file, name, each) for each in (kind["lower-bound"], kind["upper-bound"], initial))
    if max(abs(low), abs(high)) > MAX_INTEGER or not low <= first <= high:
        raise DomainError(
            f"{file}: its variable {name} starts at {first}, in {low} to {high}; at most 2^24 is possible"
        )
    return Variable(name, low, high, first, boolean=False)


def _number(file: str, name: str, tree: Any) -> int:
    found = _Reader(file, {})(tree)
    if not float(found).is_integer():
        raise DomainError(f"{file}: a bound or initial value of {name} is {found}, which is no integer")
    return int(found)


def _location_variable(file: str, automaton: Mapping[str, Any]) -> Variable:
    """Return the variable that Storm has for the location of an automaton."""
    names, first = [each["name"] for each in automaton["locations"]], automaton["initial-locations"]
    if len(first) != 1:
        raise DomainError(f"{file}: it is too large to build, and {automaton['name']} has several initial locations")
    return Variable(f"_loc_{automaton['name']}", 0, len(names) - 1, names.index(first[0]), boolean=False)


def _commands(
    read: _Reader, automata: list[Any], names: list[str], rewards: list[str]
) -> tuple[list[Command], dict[tuple[int, str | None], list[int]]]:
    """Return all commands, and their numbers by automaton and action."""
    commands: list[Command] = []
    groups: dict[tuple[int, str | None], list[int]] = {}
    for a, automaton in enumerate(automata):
        places = {each["name"]: i for i, each in enumerate(automaton["locations"])}
        here = f"_loc_{automaton['name']}"
        for edge in automaton["edges"]:
            guard = read(edge.get("guard", {"exp": True})["exp"], exact=True)
            if here in names:
                guard = _all([("=", here, places[edge["location"]]), guard])
            branches = [_branch(read, edge, each, names, rewards) for each in edge["destinations"]]
            if here in names:
                for branch, each in zip(branches, edge["destinations"], strict=True):
                    branch.assignments[names.index(here)] = places[each["location"]]
            groups.setdefault((a, edge.get("action")), []).append(len(commands))
            commands.append(Command(guard, tuple(branches)))
    return commands, groups


def _branch(read: _Reader, edge: Any, stated: Any, names: list[str], rewards: list[str]) -> Branch:
    assignments: dict[int, Expression] = {}
    gained: dict[str, Expression] = {}
    for each in [*edge.get("assignments", []), *stated.get("assignments", [])]:
        name = each["ref"]
        if name in rewards:
            gained[name] = ("+", gained[name], read(each["value"])) if name in gained else read(each["value"])
        elif name in names:
            if each.get("index"):
                raise DomainError(f"{read.file}: it is too large to build, and assigns {name} in several stages")
            assignments[names.index(name)] = read(each["value"], exact=True)
    return Branch(read(stated.get("probability", {"exp": 1.0})["exp"]), assignments, gained)


def _state_values(
    read: _Reader, automata: list[Any], transient: Mapping[str, str]
) -> tuple[dict[str, Expression], dict[str, Expression]]:
    """Return the labels, and the rewards of states."""
    labels: dict[str, Expression] = {name: False for name, kind in transient.items() if kind == "bool"}
    rewards: dict[str, Expression] = {name: 0.0 for name, kind in transient.items() if kind != "bool"}
    for automaton in automata:
        here, several = f"_loc_{automaton['name']}", len(automaton["locations"]) > 1
        for i, location in enumerate(automaton["locations"]):
            for each in location.get("transient-values", []):
                name, is_label = each["ref"], each["ref"] in labels
                value = read(each["value"], exact=is_label)
                if is_label:
                    value = _all([("=", here, i), value]) if several else value
                    labels[name] = value if labels[name] is False else ("∨", labels[name], value)
                else:
                    value = ("ite", ("=", here, i), value, 0.0) if several else value
                    rewards[name] = value if rewards[name] == 0.0 else ("+", rewards[name], value)
    return labels, rewards


def _synchronisations(
    file: str, document: Mapping[str, Any], groups: Mapping[tuple[int, str | None], list[int]], *, prism: bool
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the commands of each synchronisation, in Storm's order: first those of one module alone."""
    automata = [automaton["name"] for automaton in document["automata"]]
    system = document.get("system", {"elements": [{"automaton": name} for name in automata]})
    order = [each.get("automaton") for each in system["elements"]]
    if sorted(map(str, order)) != sorted(automata) or any(each.get("input-enable") for each in system["elements"]):
        raise DomainError(f"{file}: it is too large to build, and its automata are composed in an unusual way")
    places = [automata.index(name) for name in order]
    vectors = [_participants(each["synchronise"], places) for each in system.get("syncs", [])]
    # In PRISM, an action of one module is like no action.
    alone = [each for each in vectors if len(each) == 1] if prism else []
    for place in places:
        own = [(place, None), *(pair for pairs in alone for pair in pairs if pair[0] == place)]
        if numbers := sorted(number for pair in own for number in groups.get(pair, ())):
            yield (tuple(numbers),)
    for pairs in vectors:
        found = [tuple(groups.get(pair, ())) for pair in pairs]
        if pairs not in alone and found and all(found):
            if math.prod(map(len, found)) > MAX_CHOICES:
                raise DomainError(f"{file}: it is too large to build, and so is the number of choices of a state")
            yield tuple(found)


def _participants(actions: list[str | None], places: list[int]) -> list[tuple[int, str]]:
    return [(place, action) for place, action in zip(places, actions, strict=True) if action is not None]


# ---- expressions ----------------------------------------------------------------------------------------------------


class _Reader(NamedTuple):
    """Reads the expressions of a JANI document into tuples."""

    file: str
    ranges: Mapping[str, Range | None]  # of variables; None: Boolean

    def __call__(self, tree: Any, *, exact: bool = False, depth: int = 0) -> Expression:
        """Return an expression; `exact` ones must not compute with real numbers."""
        if depth > MAX_DEPTH:
            self._refuse(f"has an expression nested {MAX_DEPTH} deep")
        if isinstance(tree, bool | int | float):
            if isinstance(tree, int) and abs(tree) > MAX_INTEGER:
                self._refuse(f"has the number {tree}, above 2^24")
            return tree
        if isinstance(tree, str):
            if tree not in self.ranges:
                self._refuse(f"refers to {tree!r}, which is no variable with a range")
            return tree
        known = isinstance(tree, dict) and tree.get("op") in {*BINARY, *UNARY, "ite"}
        keys = [key for key in ("if", "then", "else", "left", "right", "exp") if isinstance(tree, dict) and key in tree]
        if not known or len(keys) != (3 if tree["op"] == "ite" else 2 if tree["op"] in BINARY else 1):
            self._refuse(f"has an expression of another kind: {str(tree)[:100]}")
        found = (tree["op"], *(self(tree[key], exact=False, depth=depth + 1) for key in keys))
        found = self._fold(_whole_division(found))
        if max(map(abs, self._range(found) or (0,))) >= MAX_RESULT:
            self._refuse(f"computes with integers of 2^31 and more: {render(found)[:100]}")
        if exact and (real := next(filter(self._is_real, subexpressions(found)), None)) is not None:
            self._refuse(f"computes with real numbers in a guard, an assignment or a label: {render(real)[:100]}")
        return found

    def _refuse(self, what: str) -> None:
        raise DomainError(f"{self.file}: it is too large to build, and it {what}")

    def _fold(self, found: Any) -> Expression:
        """Return the value of an expression without variables."""
        if any(isinstance(part, str) for part in subexpressions(found)):
            return found
        with np.errstate(all="ignore"):
            value = evaluate(np, found, {})
        if not np.isfinite(value):
            self._refuse(f"has the expression {render(found)[:100]}, which is no finite number")
        return np.asarray(value).item()

    def _range(self, part: Expression) -> Range | None:
        """Return the smallest and the largest value of an integer expression, or wider; None: it is no integer."""
        if isinstance(part, bool | float):
            return None
        if isinstance(part, int):
            return part, part
        if isinstance(part, str):
            return self.ranges[part]
        operator, *operands = part
        found = [self._range(each) for each in (operands[1:] if operator == "ite" else operands)]
        if operator in BOOLEAN or operator in ("/", "pow", "log") or None in found:
            return None
        ends = [each for each in found if each is not None]
        match operator:
            case "ite":
                values = [end for each in ends for end in each]
            case "//" | "-//" | "%" | "abs" | "sgn" | "floor" | "ceil":  # a magnitude that none of these exceeds
                most = max(map(abs, ends[-1 if operator == "%" else 0]))
                values = [-most, most]
            case _:  # the extremes of these are at corners
                values = [int(BINARY[operator](np, a, b)) for a in ends[0] for b in ends[1]]
        return min(values), max(values)

    def _is_real(self, part: Any) -> bool:
        """Return whether a part has variables and a real value."""
        if not isinstance(part, tuple) or part[0] in BOOLEAN:
            return False
        inner = part[2:] if part[0] == "ite" else part[1:]
        real = part[0] in ("/", "log", "pow", "floor", "ceil") or any(isinstance(each, float) for each in inner)
        return real and any(isinstance(each, str) for each in subexpressions(part))


def _whole_division(expression: tuple[Any, ...]) -> Expression:
    """Return a rounded quotient of integers, or a remainder, as one operation, which is exact in every precision."""
    match expression:
        case ("-", left, ("*", right, ("//", *parts))) if parts == [left, right]:
            return ("%", left, right)
        case ("floor" | "ceil" as rounds, ("/", left, right)) if not isinstance(left, float) and right:
            whole = int(right) if isinstance(right, float) and right.is_integer() else right
            if not isinstance(whole, float):
                return ("//" if rounds == "floor" else "-//", left, whole)
    return expression
