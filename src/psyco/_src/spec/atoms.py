"""What a state formula says in each state of a path: whether it holds, and how far it is from holding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from psyco._src.errors import RequirementError
from psyco._src.spec.formula import (
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
)
from psyco._src.spec.normal import Atom

Array: TypeAlias = Any  # np.ndarray or jax.Array

LARGEST = 1e18  # of a cost: float32 can multiply any two of these
SEVERITY_FLOOR = 1e-6  # of an inequality that fails by nothing, as x > 0 does at 0


@dataclass(frozen=True)
class States:
    """The signals of one call, `[..., T]` each, or `[..., T, size]` for a vector."""

    xp: ModuleType  # numpy or jax.numpy
    signals: Mapping[str, Array]
    end: Array
    shape: tuple[int, ...]  # [..., T]

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
            case Arith(operator, left, right):
                return getattr(xp, _ARITH[operator])(self.value(left), self.value(right))
            case Call("abs", (argument,)):
                return xp.abs(self.value(argument))
            case Call(function, arguments):
                pick = xp.minimum if function == "min" else xp.maximum
                return reduce(pick, map(self.value, arguments))

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
_ARITH = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
