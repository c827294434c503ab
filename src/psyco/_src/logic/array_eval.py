"""What a state formula says in each state of a path: whether it holds, and how far it is from holding."""

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
    Aggregate,
    And,
    Arith,
    Bool,
    Call,
    Compare,
    Formula,
    Iff,
    Implies,
    Label,
    Minus,
    Not,
    Number,
    Or,
    Signal,
    Term,
    is_term,
)
from psyco._src.logic.nnf import Atom

Array: TypeAlias = Any  # np.ndarray or jax.Array

LARGEST = 1e18  # of a cost: float32 can multiply any two of these
SEVERITY_FLOOR = 1e-6  # of an inequality that fails by nothing, as x > 0 does at 0


class PathPrefix(NamedTuple):
    """What came before a piece of a path."""

    states: int = 0
    totals: Mapping[Aggregate, Array] = MappingProxyType({})  # [...] of the aggregates; of a mean, the sum


BEGINNING = PathPrefix()


@dataclass(frozen=True)
class SignalArrays:
    """The signals of one call, `[..., T]` each, or `[..., T, size]` for a vector."""

    xp: ModuleType  # numpy or jax.numpy
    signals: Mapping[str, Array]
    end: Array  # bool [..., T], true in the last state of a path and in its repetitions
    shape: tuple[int, ...]  # [..., T]
    past: PathPrefix = BEGINNING
    _totals: dict[Aggregate, Array] = field(default_factory=dict, init=False)  # [..., T] each, once computed

    @property
    def dtype(self) -> Any:
        """The float of the backend."""
        return np.float64 if self.xp is np else np.float32

    def violated(self, atom: Atom) -> Array:
        """Where the atom does not hold, bool `[..., T]`."""
        holds = self.xp.broadcast_to(self.holds(atom.formula), self.shape)
        return holds if atom.negated else ~holds

    def severity(self, atom: Atom) -> Array:
        """How far the atom is from holding, `[..., T]`: an inequality by its distance, anything else by 1."""
        violated, far = self.violated(atom), self.xp.ones(self.shape, self.dtype)
        match atom.formula:
            case Compare(">=" | ">" | "<=" | "<", left, right):
                far = abs(self.value(left) - self.value(right))
            case Compare("=" | "!=" as operator, left, right) if (operator == "=") != atom.negated:
                far = abs(self.value(left) - self.value(right))
        far = self.xp.where(self.xp.isnan(far), 1.0, self.xp.clip(far, SEVERITY_FLOOR, LARGEST))
        return self.xp.where(violated, far, 0.0).astype(self.dtype)

    def holds(self, formula: Formula) -> Array:
        """A state formula by its Boolean semantics; broadcasts to `[..., T]`."""
        xp = self.xp
        match formula:
            case Bool(value):
                return xp.asarray(value)
            case Label("end"):
                return self.end
            case Label() | Signal():
                array = self.read(formula)
                return array if array.dtype == bool else array != 0
            case Compare(operator, left, right):
                return getattr(xp, _COMPARE[operator])(self.value(left), self.value(right))
            case Not(body):
                return ~self.holds(body)
            case And(operands):
                return reduce(xp.logical_and, map(self.holds, operands))
            case Or(operands):
                return reduce(xp.logical_or, map(self.holds, operands))
            case Implies(left, right):
                return ~self.holds(left) | self.holds(right)
            case Iff(left, right):
                return self.holds(left) == self.holds(right)
        raise TypeError(f"not a state formula: {formula}")

    def value(self, term: Term) -> Array | float:
        """A term; broadcasts to `[..., T]`. Floats keep their precision, all else becomes the float of the backend."""
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
                divisor = self.value(right)  # a zero has no sign: 1 / -0 is 1 / 0
                divisor = (
                    divisor or 0.0 if isinstance(divisor, float) else xp.where(divisor == 0, 0.0, divisor)
                )
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

    def worth(self, body: Term | Formula) -> Array:
        """What each state is worth, `[..., T]`: the value of a term, 1 or 0 for a formula; signals may be either."""
        value = self.value(body) if is_term(body) else self.holds(body)  # type: ignore[arg-type]
        return self.xp.broadcast_to(self.xp.asarray(value, self.dtype), self.shape)

    def total(self, aggregate: Aggregate) -> Array:
        """What an aggregate has come to in each state, `[..., T]`; of a mean, the sum. Counts are whole numbers."""
        if aggregate not in self._totals:
            self._totals[aggregate] = self._total(aggregate)
        return self._totals[aggregate]

    def _total(self, aggregate: Aggregate) -> Array:
        xp = self.xp
        fresh = self.position == np.arange(self.shape[-1])  # false where the last state only repeats
        match aggregate:
            case Aggregate("count", body):
                values = (self.holds(body) & fresh).astype(np.int32)
            case Aggregate("sum" | "mean", body):
                values = xp.where(fresh, self.value(body), 0.0).astype(self.dtype)
            case Aggregate(_, body):
                values = xp.asarray(self.value(body))
        fold, nothing = _FOLD[aggregate.function]
        before = xp.asarray(self.past.totals.get(aggregate, nothing), values.dtype)
        before, values = xp.broadcast_to(before, self.shape[:-1]), xp.broadcast_to(values, self.shape)
        return accumulate(xp, getattr(xp, fold), before, values)

    def passed(self, aggregates: Iterable[Aggregate]) -> PathPrefix:
        """The past of the states that follow these."""
        if not self.shape[-1]:
            return self.past
        with np.errstate(all="ignore"):
            totals = {each: self.total(each)[..., -1] for each in aggregates}
        return PathPrefix(self.past.states + self.shape[-1], totals)

    @property
    def position(self) -> Array:
        """The number of each state among these, `[..., T]`; repetitions of the last one have its number."""
        return self.xp.minimum(np.arange(self.shape[-1]), (~self.end).sum(axis=-1, keepdims=True))

    def read(self, signal: Signal | Label) -> Array:
        """The values of a signal, or of one entry of a vector."""
        if signal.name not in self.signals:
            raise RequirementError(f"no values for the signal {signal.name!r}", signal.place)
        array = self.xp.asarray(self.signals[signal.name])
        index = signal.index if isinstance(signal, Signal) else None
        if index is None:
            return array
        if index >= array.shape[-1]:  # JAX would clamp it without a word
            raise RequirementError(
                f"index {index} of signal {signal.name!r} is out of range",
                signal.place,
                f"it has {array.shape[-1]} entries",
            )
        return array[..., index]


_COMPARE = {
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
    "=": "equal",
    "!=": "not_equal",
}
_ARITH = {"+": "add", "-": "subtract", "*": "multiply"}
_FOLD = {
    "count": ("add", 0),
    "sum": ("add", 0.0),
    "mean": ("add", 0.0),
    "least": ("minimum", np.inf),
    "most": ("maximum", -np.inf),
}


def accumulate(xp: ModuleType, fold: Any, before: Array, values: Array) -> Array:
    """Fold values `[..., T]` one by one into what was before them `[...]`; all results on the way, `[..., T]`."""
    if xp is np:
        return fold.accumulate(np.concatenate([before[..., None], values], axis=-1), axis=-1)[..., 1:]

    def step(total: Array, value: Array) -> tuple[Array, Array]:
        total = fold(total, value)
        return total, total

    # A loop: over 51 states JAX's own cumulative sum takes four times as long.
    _, totals = lax.scan(step, before, xp.moveaxis(values, -1, 0))
    return xp.moveaxis(totals, 0, -1)
