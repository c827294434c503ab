"""Signals along a path -> satisfied, cost (appendices A and B), values; on NumPy arrays and in compiled JAX code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RequirementError
from psyco._src.logic.array_eval import Array, PathPrefix, SignalArrays
from psyco._src.logic.ast import (
    Aggregate,
    Compare,
    Formula,
    Label,
    Minus,
    Node,
    Number,
    Quantity,
    Signal,
    Term,
    aggregates,
    is_term,
    roots,
    walk,
)
from psyco._src.logic.nnf import NnfUnrolled, Normal, normalize
from psyco._src.logic.rewards import ANYTHING, measure
from psyco._src.logic.semantics import Semantics, arising, costs_on, spread, violations_on
from psyco._src.logic.shaping import Shaping, has_grade
from psyco._src.logic.validate import END

RETURN = "return"  # the signal of what has been gained so far
MEMORY = 2**24  # bytes that signals may take while many beginnings of a path are judged at once


@dataclass(frozen=True)
class BatchMonitor:
    """K compiled formulas and M measured values; call it with the signals of a path, or of many."""

    formulas: tuple[Formula, ...]
    severity: bool
    signals: frozenset[str]  # the names it needs, labels among them
    aggregates: tuple[Aggregate, ...]  # what it remembers of a path
    measured: tuple[Formula | Quantity, ...]  # what it finds the values of
    ranges: tuple[tuple[float, float], ...]  # in which x should lie at every step, for all that is measured
    _normal: tuple[Normal, ...] = field(repr=False, compare=False)

    def __call__(self, signals: Mapping[str, Array], end: Array | None = None) -> tuple[Array, Array]:
        """(satisfied bool `[..., K]`, cost `[..., K]`) for signals `[..., T]`, or `[..., T, size]` if vectors.

        NumPy arrays give NumPy results in float64; JAX arrays, traced ones too, give JAX results in float32.
        `end` is bool `[..., T]`, true in the last state of each path and in its repetitions; by default the last
        position. If no formula names a signal, the first of `signals`, not a vector, tells the shape.
        """
        return self._judge(self._path(signals, end))

    def measure(self, signals: Mapping[str, Array], end: Array | None = None) -> MeasuredValues:
        """The values of what is measured, for signals as above; a formula is 1 if it holds, and else 0."""
        if not self.measured:
            return MeasuredValues(None, None, None)
        path = self._path(signals, end)
        added, reached, strays = self._accrued(path)
        xp = path.xp
        # Each is added up by itself: what else is measured changes no bit of a value.
        value = [
            xp.where(
                stray > 0, xp.take_along_axis(column, stray[..., None], axis=-1)[..., 0], column.sum(axis=-1)
            )
            for column, stray in zip(added, strays, strict=True)
        ]
        return MeasuredValues(*(xp.stack(columns, axis=-1) for columns in (value, reached, strays)))

    def accrued(self, signals: Mapping[str, Array], end: Array | None = None) -> Array | None:
        """Where along a path its values arise: `[..., T, M]`, whose sums over T they are; None if M is 0."""
        path = self._path(signals, end)
        return path.xp.stack(self._accrued(path)[0], axis=-1) if self.measured else None

    def _accrued(self, path: SignalArrays) -> tuple[tuple[Array, ...], ...]:
        """What each state adds to each value, `[..., T]`, that of a formula at the end; and the rest of `measure`."""
        xp, shape = path.xp, path.shape[:-1]
        violations, last = violations_on(path), np.arange(path.shape[-1]) == path.shape[-1] - 1

        def found(subject: Formula | Quantity, within: tuple[float, float]) -> tuple[Array, Array, Array]:
            if isinstance(subject, Quantity):
                return measure(path, subject, within)
            holds = ~violations.start(normalize(subject, False))[..., None]
            return (holds & last).astype(path.dtype), xp.ones(shape, bool), xp.zeros(shape, np.int32)

        with np.errstate(all="ignore"):
            return tuple(zip(*map(found, self.measured, self.ranges), strict=True))

    def counters(self, signals: Mapping[str, Array], end: Array | None = None) -> Array | None:
        """How much of each budget is used up in each state: `[..., T, Q]`; None if Q is 0.

        The values of the formulas' aggregates and of the return so far, each as a part of what it is compared with.
        """
        terms = tracked(self.formulas)
        if not terms:
            return None
        path = self._path(signals, end)
        with np.errstate(all="ignore"):
            columns = [path.worth(term) / size for term, size in terms.items()]
        return path.xp.stack(columns, axis=-1)

    def beginnings(self, signals: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """What the beginnings of one path cost, each as a path of its own: `[T, K]`, at t that of states 0 to t.

        Signals are NumPy arrays `[T]`, or `[T, size]` if vectors.
        """
        states = np.arange(len(next(iter(signals.values()))))
        used = {name: np.asarray(signals[name]) for name in self.signals}
        at_once = max(1, MEMORY // (8 * len(states) + sum(array.nbytes for array in used.values())))
        costs = []
        for first in range(0, len(states), at_once):
            last = states[first : first + at_once, None]
            repeated = {name: array[np.minimum(states, last)] for name, array in used.items()}
            path = SignalArrays(np, repeated, states >= last, (len(last), len(states)))
            costs.append(self._judge(path, inside=states <= last)[1])
        return np.concatenate(costs)

    def _judge(self, path: SignalArrays, inside: Array | None = None) -> tuple[Array, Array]:
        xp, shape = path.xp, path.shape
        with np.errstate(all="ignore"):  # dividing by zero is no error: a comparison with its result decides
            violations = violations_on(path, inside)
            costs = costs_on(path, violations, self.severity)
            satisfied = [~violations.start(each) for each in self._normal]
            cost = [costs.start(each) for each in self._normal]
        if not cost:
            return xp.zeros((*shape[:-1], 0), bool), xp.zeros((*shape[:-1], 0), path.dtype)
        return xp.stack(satisfied, axis=-1), xp.stack(cost, axis=-1)

    def blame(self, signals: Mapping[str, Array], end: Array | None = None) -> Array:
        """Where along a path its cost arises: `[..., T, K]`, not negative; its sum over T is the cost.

        A top-level `G` of a state formula is to blame on the states where that fails, and `&` on those that its
        operands are to blame on. All other costs depend on many states, and stand at the last one.
        """
        return self._spread(self._path(signals, end), spread)

    @cached_property
    def has_grade(self) -> bool:
        """Is there a formula that is graded, see `grade`?"""
        return any(map(has_grade, self._normal))

    @cached_property
    def graded_late(self) -> tuple[bool, ...]:
        """Which of the K formulas are graded and cost nothing before a path ends: `F` of a return or an aggregate."""
        return tuple(
            isinstance(each, NnfUnrolled) and each.operator == "U" and has_grade(each)
            for each in self._normal
        )

    def grade(self, signals: Mapping[str, Array], end: Array | None = None) -> Array | None:
        """How far along a path its formulas come to be from holding: `[..., T, K]`, whose sum over T is the grade.

        For learning alone, see `logic/shaping.py`; of a formula that has none it is the blame. None if none has one.
        """
        if not self.has_grade:
            return None
        path = self._path(signals, end)
        with np.errstate(all="ignore"):
            violations = violations_on(path)
            grading = Shaping(path, violations, costs_on(path, violations, self.severity))
            return path.xp.stack([grading.spread(each) for each in self._normal], axis=-1)

    def arising(self, signals: Mapping[str, Array], end: Array, past: PathPrefix) -> tuple[Array, PathPrefix]:
        """What a piece of a path costs whatever the rest is like: `[..., T, K]`, not negative; and the next one's past.

        So a path can be judged while it grows. What blame finds at the states of a top-level `G` is known at once; all
        else only when the path is complete, and is 0 here.

        Args:
            signals: of the piece.
            end: bool `[..., T]`, true in the last state of the path, if that lies in the piece.
            past: what came before the piece; `BEGINNING` at the start of the path.
        """

        def known(costs: Semantics, node: Normal) -> Array:
            return arising(costs, node, past.states + np.arange(costs.zero.shape[-1]))

        piece = replace(self._path(signals, end), past=past)
        return self._spread(piece, known), piece.passed(self.aggregates)

    def _spread(self, path: SignalArrays, of: Callable[[Semantics, Normal], Array]) -> Array:
        with np.errstate(all="ignore"):
            costs = costs_on(path, violations_on(path), self.severity)
            shares = [of(costs, each) for each in self._normal]
        return path.xp.stack(shares, axis=-1) if shares else path.xp.zeros((*path.shape, 0), path.dtype)

    def _path(self, signals: Mapping[str, Array], end: Array | None) -> SignalArrays:
        arrays = [*signals.values(), *([] if end is None else [end])]
        xp: ModuleType = jnp if any(isinstance(each, jax.Array) for each in arrays) else np
        shape = self._shape(signals, end)
        if end is None:
            end = xp.arange(shape[-1]) == shape[-1] - 1
        return SignalArrays(xp, signals, xp.asarray(end), shape)

    def _shape(self, signals: Mapping[str, Array], end: Array | None) -> tuple[int, ...]:
        shapes = [] if end is None else [np.shape(end)]
        for root in _trees(self.formulas, self.measured):
            for node in walk(root):
                if isinstance(node, Signal | Label) and node.name in self.signals and node.name in signals:
                    shape = np.shape(signals[node.name])
                    shapes.append(
                        shape[:-1] if isinstance(node, Signal) and node.index is not None else shape
                    )
        if not shapes and not signals:
            raise RequirementError("a path without signals has no length: pass at least one signal")
        return np.broadcast_shapes(*(shapes or [np.shape(next(iter(signals.values())))]))


class MeasuredValues(NamedTuple):
    """The values of M formulas and quantities on paths; all are None if M is 0."""

    value: Array | None  # [..., M]
    reached: Array | None  # [..., M] bool: the state was reached up to which it runs
    stray: Array | None  # [..., M] int: the first step outside of its range, or 0; see `measure`


def compile_monitor(
    formulas: Sequence[Formula],
    *,
    severity: bool = False,
    measured: Sequence[Formula | Quantity] = (),
    ranges: Sequence[tuple[float, float]] | None = None,
) -> BatchMonitor:
    """Prepare K formulas for evaluation, and M formulas and quantities to be measured, with `ranges` of their x.

    A formula with no temporal operator costs 0 where it holds and 1 where it does not. With `severity` it is opened
    up: an inequality costs how far it is from holding, anything else 1, and `&` adds and `|` multiplies in it too.
    """
    named = (n for tree in _trees(formulas, measured) for n in walk(tree) if isinstance(n, Signal | Label))
    names = frozenset(node.name for node in named if node != Label(END))
    normal = tuple(normalize(f, severity) for f in formulas)
    within = tuple([ANYTHING] * len(measured) if ranges is None else ranges)
    return BatchMonitor(
        tuple(formulas), severity, names, aggregates(formulas), tuple(measured), within, normal
    )


def tracked(formulas: Sequence[Formula]) -> dict[Term, float]:
    """What grows along a path in the formulas, and the largest number that each is compared with; 1 without one."""
    found: dict[Term, float] = {}
    for node in (node for tree in formulas for node in walk(tree)):
        if isinstance(node, Compare):
            for term, other in ((node.left, node.right), (node.right, node.left)):
                found[term] = max(found.get(term, 0.0), _size(other))
        elif is_term(node):
            found.setdefault(node, 0.0)
    return {
        term: size or 1.0
        for term, size in found.items()
        if isinstance(term, Aggregate) or term == Signal(RETURN)
    }


def _size(term: Term) -> float:
    """Of a number that stands there as one, perhaps with its sign; else 0."""
    match term:
        case Number(value) | Minus(Number(value)):
            return value
    return 0.0


def _trees(formulas: Sequence[Formula], measured: Sequence[Formula | Quantity]) -> Iterator[Node]:
    for subject in (*formulas, *measured):
        yield from roots(subject)
