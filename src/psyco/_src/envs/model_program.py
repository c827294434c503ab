"""Models as programs: variables, commands and their synchronisation, for models that are too large to build.

Guards, probabilities and assignments are expressions, trees of data,
which `evaluate` computes with NumPy for many states, or with JAX inside of compiled code. No code is made from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.envs.model_tables import RESERVED

MAX_INTEGER = 2**24  # float32 has all integers up to here
SUM_TOLERANCE = 1e-5  # of probabilities in single precision
RARE = 2.0**-12  # probability below which a branch is drawn with more bits

Expression = Any  # True, 3, 0.5, the name of a variable, or (operator, operands...)


class Variable(NamedTuple):
    """A variable of the program; Booleans are 0 and 1."""

    name: str
    low: int
    high: int
    initial: int
    boolean: bool


class Branch(NamedTuple):
    """One outcome of a command."""

    probability: Expression
    assignments: dict[int, Expression]  # by the number of the variable
    rewards: dict[str, Expression]


class Command(NamedTuple):
    """A command of one module: an edge in JANI."""

    guard: Expression
    branches: tuple[Branch, ...]


@dataclass(frozen=True, eq=False)
class ModelProgram:
    """A program with V variables, E commands and S synchronisations of at most P commands."""

    digest: str  # SHA-256 of the file
    kind: str  # DTMC or MDP
    actions: int  # most choices of a state, of those that were explored
    variables: tuple[Variable, ...]
    commands: tuple[Command, ...]
    synchronisations: tuple[tuple[tuple[int, ...], ...], ...]  # for each module that takes part, its commands
    labels: dict[str, Expression]
    rewards: dict[str, Expression]  # of states
    properties: tuple[tuple[str, str], ...]

    @cached_property
    def initial(self) -> NDArray[np.int32]:
        """[V]."""
        return np.array([variable.initial for variable in self.variables], np.int32)

    @cached_property
    def participants(self) -> NDArray[np.int32]:
        """[S, P, K] commands of each module in a synchronisation, filled up with E."""
        most = max((len(each) for each in self.synchronisations), default=1)
        width = max((len(part) for each in self.synchronisations for part in each), default=1)
        found = np.full((len(self.synchronisations), most, width), len(self.commands), np.int32)
        for s, each in enumerate(self.synchronisations):
            for p, part in enumerate(each):
                found[s, p, : len(part)] = part
        return found

    @cached_property
    def branches(self) -> list[Branch]:
        """All branches of all commands."""
        return [branch for command in self.commands for branch in command.branches]

    @cached_property
    def has_rare_branches(self) -> bool:
        """Whether a probability may be positive and below `RARE`: expressions of variables may."""
        values = [branch.probability for branch in self.branches]
        return any(not isinstance(value, int | float) or 0 < value < RARE for value in values)

    @cached_property
    def branches_of(self) -> NDArray[np.int32]:
        """[E+1, W] branches of each command, filled up with their number; the last row has none."""
        width = max((len(command.branches) for command in self.commands), default=1)
        found, first = np.full((len(self.commands) + 1, width), len(self.branches), np.int32), 0
        for e, command in enumerate(self.commands):
            found[e, : len(command.branches)] = first + np.arange(len(command.branches))
            first += len(command.branches)
        return found

    @cached_property
    def named(self) -> dict[str, Expression]:
        """Variables and labels by the names that formulas use."""
        found: dict[str, Expression] = {}
        variables = {variable.name: variable.name for variable in self.variables}
        for prefix, group in (("label", self.labels), ("var", variables)):
            for name, value in group.items():
                taken = name in RESERVED or name in self.rewards or (name in found and found[name] != value)
                found[f"{prefix}.{name}" if taken else name] = value
        return found

    def environment(self, xp: Any, values: Any) -> dict[str, Any]:
        """Return the variables `[...]` by name, for values `[..., V]`."""
        columns = [values[..., i] for i in range(len(self.variables))]
        pairs = zip(self.variables, columns, strict=True)
        return {variable.name: column != 0 if variable.boolean else column for variable, column in pairs}

    def stack(self, xp: Any, expressions: list[Expression], values: Any, *, last: Any) -> Any:
        """Return the values of expressions `[..., n+1]`; the last one is given."""
        environment = self.environment(xp, values)
        found = [xp.asarray(evaluate(xp, each, environment)) for each in expressions]
        return xp.stack([xp.broadcast_to(each, values.shape[:-1]) for each in [*found, xp.asarray(last)]], -1)

    def enabled(self, xp: Any, values: Any) -> tuple[Any, Any]:
        """Return which commands are enabled, bool `[..., E+1]`, and how many modules offer: `[..., S, P]`."""
        guards = self.stack(xp, [command.guard for command in self.commands], values, last=False)
        present = self.participants[..., 0] < len(self.commands)
        counts = guards[..., self.participants].sum(-1)
        return guards, xp.where(present, counts, 1)

    def select(self, xp: Any, guards: Any, counts: Any, choice: Any) -> Any:
        """Return the commands `[..., P]` of a choice `[...]`, E where fewer take part.

        Choices are counted as Storm does: those of the last module run fastest.
        """
        sizes = counts.prod(-1)
        stops = xp.cumsum(sizes, -1)
        s = (stops <= choice[..., None]).sum(-1)
        rest = choice - (_take(xp, stops, s) - _take(xp, sizes, s))
        commands = xp.asarray(self.participants)[s]  # [..., P, K]
        offered = _take(xp, counts, s, axes=1)  # [..., P]
        later = xp.flip(xp.cumprod(xp.flip(offered, -1), -1), -1) // offered
        number = rest[..., None] // later % offered
        open_ones = xp.take_along_axis(guards[..., None, :], commands, -1)
        found = (xp.cumsum(open_ones, -1) == number[..., None] + 1) & open_ones
        place = xp.argmax(found, -1)
        chosen = xp.take_along_axis(commands, place[..., None], -1)[..., 0]
        return xp.where(found.any(-1), chosen, len(self.commands))

    def next_values(self, xp: Any, values: Any, taken: Any) -> Any:
        """Return the values `[..., V]` after branches `[..., P]`."""
        environment, columns = self.environment(xp, values), []
        for i in range(len(self.variables)):
            column = values[..., i]
            for b, branch in enumerate(self.branches):
                if i in branch.assignments:
                    value = xp.asarray(evaluate(xp, branch.assignments[i], environment)).astype(column.dtype)
                    column = xp.where((taken == b).any(-1), value, column)
            columns.append(column)
        return xp.stack(columns, -1)

    def in_range(self, xp: Any, values: Any) -> Any:
        """Return whether all variables are in their ranges, bool `[...]`."""
        low, high = (np.array([getattr(v, end) for v in self.variables], np.int32) for end in ("low", "high"))
        return ((values >= low) & (values <= high)).all(-1)

    def probabilities(self, xp: Any, values: Any) -> Any:
        """Return the probability of each branch, `[..., B+1]`."""
        return self.stack(xp, [branch.probability for branch in self.branches], values, last=0.0)

    def gains(self, xp: Any, values: Any, taken: Any) -> Any:
        """Return the rewards `[..., R]` of a step: of the state, and of the branches `[..., P]` taken."""
        environment, columns = self.environment(xp, values), []
        for name, of_state in self.rewards.items():
            total = xp.asarray(evaluate(xp, of_state, environment)) + xp.zeros(values.shape[:-1])
            for b, branch in enumerate(self.branches):
                if name in branch.rewards:
                    total = total + xp.where((taken == b).any(-1), evaluate(xp, branch.rewards[name], environment), 0.0)
            columns.append(total)
        return xp.stack(columns, -1) if columns else xp.zeros((*values.shape[:-1], 0))

    def absorbing(self, xp: Any, values: Any) -> Any:
        """Return whether no choice leaves a state, and no reward accrues there: bool `[...]`."""
        environment = self.environment(xp, values)
        guards, counts = self.enabled(xp, values)
        moves = []
        for command in self.commands:
            move = xp.zeros(values.shape[:-1], bool)
            for branch in command.branches:
                changes = [evaluate(xp, new, environment) != values[..., i] for i, new in branch.assignments.items()]
                changes += [xp.asarray(evaluate(xp, reward, environment)) != 0 for reward in branch.rewards.values()]
                for change in changes:
                    move = move | (change & (xp.asarray(evaluate(xp, branch.probability, environment)) > 0))
            moves.append(move)
        leaving = guards & xp.stack([*moves, xp.zeros(values.shape[:-1], bool)], -1)
        offered = counts.prod(-1) > 0
        left = (leaving[..., self.participants].any((-1, -2)) & offered).any(-1)
        for of_state in self.rewards.values():
            left = left | (offered.any(-1) & (xp.asarray(evaluate(xp, of_state, environment)) != 0))
        return ~left


def _take(xp: Any, values: Any, index: Any, axes: int = 0) -> Any:
    """Return the entries `[..., (n)]` of values `[..., S, (n)]` at indices `[...]`."""
    place = index[(..., None, *[None] * axes)]
    found = xp.take_along_axis(values, place, -1 - axes)
    return found[..., 0] if not axes else found[..., 0, :]


# ---- expressions ----------------------------------------------------------------------------------------------------


def _quietly(function: Callable[..., Any], *operands: Any) -> Any:
    """Return a value without a warning: a command may divide by a variable that is 0 where it is not enabled."""
    with np.errstate(all="ignore"):
        return function(*operands)


BINARY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "∨": lambda xp, a, b: xp.logical_or(a, b),
    "∧": lambda xp, a, b: xp.logical_and(a, b),
    "⇒": lambda xp, a, b: xp.logical_or(xp.logical_not(a), b),
    "=": lambda xp, a, b: xp.equal(a, b),
    "≠": lambda xp, a, b: xp.not_equal(a, b),
    "<": lambda xp, a, b: xp.less(a, b),
    "≤": lambda xp, a, b: xp.less_equal(a, b),
    ">": lambda xp, a, b: xp.greater(a, b),
    "≥": lambda xp, a, b: xp.greater_equal(a, b),
    "+": lambda xp, a, b: xp.add(a, b),
    "-": lambda xp, a, b: xp.subtract(a, b),
    "*": lambda xp, a, b: xp.multiply(a, b),
    "/": lambda xp, a, b: _quietly(xp.true_divide, a, b),
    "//": lambda xp, a, b: _quietly(xp.floor_divide, a, b),
    "-//": lambda xp, a, b: -_quietly(xp.floor_divide, -a, b),  # rounds up
    "%": lambda xp, a, b: _quietly(xp.mod, a, b),
    "min": lambda xp, a, b: xp.minimum(a, b),
    "max": lambda xp, a, b: xp.maximum(a, b),
    "pow": lambda xp, a, b: xp.power(xp.asarray(a, float), b),
    "log": lambda xp, a, b: _quietly(xp.true_divide, _quietly(xp.log, a), _quietly(xp.log, b)),
}
UNARY: dict[str, Callable[[Any, Any], Any]] = {
    "¬": lambda xp, a: xp.logical_not(a),
    "floor": lambda xp, a: xp.floor(a),
    "ceil": lambda xp, a: xp.ceil(a),
    "abs": lambda xp, a: xp.abs(a),
    "sgn": lambda xp, a: xp.sign(a),
}
COMPARISONS = frozenset("=≠<≤>≥")
BOOLEAN = frozenset("∨∧⇒¬") | COMPARISONS


def evaluate(xp: Any, expression: Expression, environment: Mapping[str, Any]) -> Any:
    """Return the value of an expression, by NumPy or JAX."""
    if isinstance(expression, str):
        return environment[expression]
    if not isinstance(expression, tuple):
        return expression
    operator, *operands = expression
    values = [evaluate(xp, operand, environment) for operand in operands]
    if operator == "ite":
        return xp.where(*values)
    return (BINARY[operator] if len(values) == 2 else UNARY[operator])(xp, *values)


def subexpressions(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all of its parts."""
    yield expression
    if isinstance(expression, tuple):
        for operand in expression[1:]:
            yield from subexpressions(operand)


def render(expression: Expression) -> str:
    """Return an expression as text."""
    if not isinstance(expression, tuple):
        return str(expression)
    operator, *operands = expression
    words = [render(each) for each in operands]
    return f"({words[0]} {operator} {words[1]})" if len(words) == 2 else f"{operator}({', '.join(words)})"
