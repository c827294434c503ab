"""State formulas, terms and quantities along whole paths, on NumPy or JAX arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jax import lax

from psyco._src.core.errors import RequirementError
from psyco._src.logic.ast import (
    END,
    UNBOUNDED_RANGE,
    Aggregate,
    Arith,
    Bool,
    Call,
    Compare,
    Connective,
    Formula,
    Instant,
    Label,
    Minus,
    Not,
    Number,
    Quantity,
    Reaching,
    Signal,
    Term,
    Total,
    is_term,
)
from psyco._src.logic.exact_constants import exact_comparison
from psyco._src.logic.nnf import Atom
from psyco._src.logic.validate import size_mismatch

Array: TypeAlias = Any  # np.ndarray or jax.Array

MAX_COST = 1e18  # float32 can multiply any two of these
SEVERITY_FLOOR = 1e-6  # of an inequality that fails by nothing, as x > 0 does at 0


class PathPrefix(NamedTuple):
    """A summary of the states before a piece of a path."""

    states: int = 0
    totals: Mapping[Aggregate, Array] = MappingProxyType({})  # [...] of the aggregates; the sum for a mean


EMPTY_PREFIX = PathPrefix()


@dataclass(frozen=True)
class SignalArrays:
    """The signals along paths, `[..., T]` each, or `[..., T, size]` for a vector."""

    xp: ModuleType  # numpy or jax.numpy
    signals: Mapping[str, Array]
    end: Array  # bool [..., T], true in the last state of a path and in its repetitions
    shape: tuple[int, ...]  # [..., T]
    past: PathPrefix = EMPTY_PREFIX
    _totals: dict[Aggregate, Array] = field(default_factory=dict, init=False)  # cache, [..., T] each

    @property
    def dtype(self) -> Any:
        """The float type of the backend."""
        return np.float64 if self.xp is np else np.float32

    def violated(self, atom: Atom) -> Array:
        """Return where the atom does not hold, bool `[..., T]`."""
        holds = self.xp.broadcast_to(self.holds(atom.formula), self.shape)
        return holds if atom.negated else ~holds

    def severity(self, atom: Atom) -> Array:
        """Return how far the atom is from holding, `[..., T]`: the distance of an inequality, else 1."""
        violated, distance = self.violated(atom), self.xp.ones(self.shape, self.dtype)
        match atom.formula:
            case Compare(">=" | ">" | "<=" | "<", left, right):
                distance = abs(self.value(left) - self.value(right))
            case Compare("=" | "!=" as operator, left, right) if (operator == "=") != atom.negated:
                distance = abs(self.value(left) - self.value(right))
        clipped = self.xp.clip(distance, SEVERITY_FLOOR, MAX_COST)
        distance = self.xp.where(self.xp.isnan(distance), 1.0, clipped)
        return self.xp.where(violated, distance, 0.0).astype(self.dtype)

    def holds(self, formula: Formula) -> Array:
        """Evaluate a state formula by its Boolean semantics; the result broadcasts to `[..., T]`."""
        match formula:
            case Bool(value):
                return self.xp.asarray(value)
            case Label() if formula == END:
                return self.end
            case Label() | Signal():
                array = self.read(formula)
                return array if array.dtype == bool else array != 0
            case Compare(operator):
                exact = exact_comparison(formula)
                return getattr(self.xp, _COMPARE[operator])(self.value(exact.left), self.value(exact.right))
            case Not(body):
                return ~self.holds(body)
            case Connective("=>", (left, right)):
                return ~self.holds(left) | self.holds(right)
            case Connective(operator, operands):
                return reduce(getattr(self.xp, _CONNECTIVE[operator]), map(self.holds, operands))
        raise TypeError(f"not a state formula: {formula}")

    def value(self, term: Term) -> Array | float:
        """Evaluate a term; the result broadcasts to `[..., T]`.

        Float signals keep their precision; other types become the float type of the backend.
        """
        xp = self.xp
        match term:
            case Number(value):
                return value
            case Signal():
                array = self.read(term)
                return array if xp.issubdtype(array.dtype, xp.floating) else array.astype(self.dtype)
            case Minus(body):
                return -self.value(body)
            case Arith("/", left, right):
                divisor = self.value(right)
                # Zeros become positive: 1 / -0 is 1 / 0.
                if isinstance(divisor, float):
                    divisor = divisor or 0.0
                else:
                    divisor = xp.where(divisor == 0, 0.0, divisor)
                return xp.divide(self.value(left), divisor)
            case Arith(operator, left, right):
                return getattr(xp, _ARITH[operator])(self.value(left), self.value(right))
            case Call("abs", (argument,)):
                return xp.abs(self.value(argument))
            case Call(function, arguments):
                pick = xp.minimum if function == "min" else xp.maximum
                return reduce(pick, map(self.value, arguments))
            case Aggregate("mean"):
                return self.total(term) / (self.past.states + self.position + 1).astype(self.dtype)
            case Aggregate("count"):
                return self.total(term).astype(self.dtype)
            case Aggregate():
                return self.total(term)

    def reward(self, body: Term | Formula) -> Array:
        """Return the reward of each state, `[..., T]`: the value of a term, 1 or 0 for a formula."""
        value = self.value(body) if is_term(body) else self.holds(body)  # type: ignore[arg-type]
        return self.xp.broadcast_to(self.xp.asarray(value, self.dtype), self.shape)

    def total(self, aggregate: Aggregate) -> Array:
        """Return the running total of an aggregate, `[..., T]`; the sum for a mean, integers for a count."""
        if aggregate not in self._totals:
            self._totals[aggregate] = self._total(aggregate)
        return self._totals[aggregate]

    def _total(self, aggregate: Aggregate) -> Array:
        xp = self.xp
        fresh = self.position == np.arange(self.shape[-1])  # false in repetitions of the last state
        match aggregate:
            case Aggregate("count", body):
                values = (self.holds(body) & fresh).astype(np.int32)
            case Aggregate("sum" | "mean", body):
                values = xp.where(fresh, self.value(body), 0.0).astype(self.dtype)
            case Aggregate(_, body):
                values = xp.asarray(self.value(body))
        fold, initial = _FOLD[aggregate.function]
        before = xp.asarray(self.past.totals.get(aggregate, initial), values.dtype)
        before, values = xp.broadcast_to(before, self.shape[:-1]), xp.broadcast_to(values, self.shape)
        return accumulate(xp, getattr(xp, fold), before, values)

    def prefix_after(self, aggregates: Iterable[Aggregate]) -> PathPrefix:
        """Return the prefix that ends with these states."""
        if not self.shape[-1]:
            return self.past
        with np.errstate(all="ignore"):
            totals = {aggregate: self.total(aggregate)[..., -1] for aggregate in aggregates}
        return PathPrefix(self.past.states + self.shape[-1], totals)

    @property
    def position(self) -> Array:
        """The index of each state, `[..., T]`; repetitions of the last state have its index."""
        return self.xp.minimum(np.arange(self.shape[-1]), (~self.end).sum(axis=-1, keepdims=True))

    def read(self, signal: Signal | Label) -> Array:
        """Return the values of a signal, or of one entry of a vector."""
        if signal.name not in self.signals:
            raise RequirementError(f"no values for the signal {signal.name!r}", signal.location)
        array = self.xp.asarray(self.signals[signal.name])
        index = signal.index if isinstance(signal, Signal) else None
        if index is None:
            return array
        if mismatch := size_mismatch(signal, array.shape[-1]):  # JAX would clamp the index silently
            problem, remedy = mismatch
            raise RequirementError(problem, signal.location, remedy)
        return array[..., index]


_COMPARE = {
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
    "=": "equal",
    "!=": "not_equal",
}
_CONNECTIVE = {"&": "logical_and", "|": "logical_or", "<=>": "equal"}
_ARITH = {"+": "add", "-": "subtract", "*": "multiply"}
_FOLD = {
    "count": ("add", 0),
    "sum": ("add", 0.0),
    "mean": ("add", 0.0),
    "least": ("minimum", np.inf),
    "most": ("maximum", -np.inf),
}


def accumulate(xp: ModuleType, fold: Any, before: Array, values: Array) -> Array:
    """Fold values `[..., T]` one by one into `before` `[...]`; return all intermediate results, `[..., T]`."""
    if xp is np:
        return fold.accumulate(np.concatenate([before[..., None], values], axis=-1), axis=-1)[..., 1:]

    def step(total: Array, value: Array) -> tuple[Array, Array]:
        total = fold(total, value)
        return total, total

    # A scan: over 51 states JAX's cumulative sum takes four times as long.
    _, totals = lax.scan(step, before, xp.moveaxis(values, -1, 0))
    return xp.moveaxis(totals, 0, -1)


def measure(
    path: SignalArrays, quantity: Quantity, within: tuple[float, float] = UNBOUNDED_RANGE
) -> tuple[Array, Array, Array]:
    """Evaluate a quantity along paths.

    Returns:
        added: `[..., T]`, what each state adds to the value; for a rate, to the total.
        reached: bool `[...]`, whether the state formula of `F φ` was reached; true for all other quantities.
        first_out_of_range: int `[...]`, the first step whose added reward is outside of `within`, else 0.
    """
    xp, state = path.xp, np.arange(path.shape[-1])
    reward, reached = path.reward(quantity.x), xp.ones(path.shape[:-1], bool)
    steps = (state > 0) & (path.position == state)  # false in repetitions of the last state
    match quantity.over:
        case Instant(step):
            # A single value: its range is checked as that of the episode.
            steps, within = state == min(step, len(state) - 1), UNBOUNDED_RANGE
        case Total(int(last)):
            steps = steps & (state <= last)
        case Reaching(body):
            holds = xp.broadcast_to(path.holds(body), path.shape)
            reached = holds.any(axis=-1)
            first = xp.where(reached, xp.argmax(holds, axis=-1), len(state))
            steps = steps & (state <= first[..., None])
    # NaN is not outside: it makes the total NaN, which is noticed anyway.
    outside = steps & ((reward < within[0]) | (reward > within[1]))
    first_out_of_range = xp.argmax(outside, axis=-1)  # 0 if no step is outside, since steps begin at 1
    return xp.where(steps, reward, 0.0), reached, first_out_of_range.astype(np.int32)
