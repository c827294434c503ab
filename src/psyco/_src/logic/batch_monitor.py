"""Compiled formulas on batches of paths: satisfied, cost (appendices A and B), values; on NumPy or JAX arrays."""

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
from psyco._src.logic.array_eval import Array, PathPrefix, SignalArrays, measure
from psyco._src.logic.ast import (
    END,
    UNBOUNDED_RANGE,
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
from psyco._src.logic.exact_constants import evaluated_aggregates
from psyco._src.logic.nnf import NnfNode, NnfUnrolled, to_nnf
from psyco._src.logic.semantics import Semantics, conjuncts, costs_on, known_step_costs, step_costs, violations_on
from psyco._src.logic.shaping import Shaping, has_shaping
from psyco._src.logic.validate import size_mismatch

RETURN = "return"  # the signal of the return so far
PREFIX_BATCH_BYTES = 2**24  # of signals while many prefixes of a path are evaluated at once


@dataclass(frozen=True)
class BatchMonitor:
    """K compiled formulas and M measured values; call it with the signals of a path, or of many."""

    formulas: tuple[Formula, ...]
    severity: bool
    signals: frozenset[str]  # the names it needs, labels included
    aggregates: tuple[Aggregate, ...]  # of the formulas, and of the comparisons that decide them
    measured: tuple[Formula | Quantity, ...]
    ranges: tuple[tuple[float, float], ...]  # [M] where each step's reward should lie
    _nnf: tuple[NnfNode, ...] = field(repr=False, compare=False)

    def __call__(self, signals: Mapping[str, Array], end: Array | None = None) -> tuple[Array, Array]:
        """Return (satisfied bool `[..., K]`, cost `[..., K]`) for signals `[..., T]`, or `[..., T, size]` if vectors.

        NumPy arrays give NumPy results in float64; JAX arrays, also traced ones, give JAX results in float32.
        `end` is bool `[..., T]`, true in the last state of each path and in its repetitions; by default the last
        position. If no formula names a signal, the first of `signals`, not a vector, gives the shape.
        """
        return self._evaluate(self._path(signals, end))

    def measure(self, signals: Mapping[str, Array], end: Array | None = None) -> MeasuredValues:
        """Return the measured values for signals as above; a formula is 1 if it holds, else 0."""
        if not self.measured:
            return MeasuredValues(None, None, None)
        path = self._path(signals, end)
        added, reached, first_outs = self._step_values(path)
        xp = path.xp

        def value(column: Array, first_out: Array) -> Array:
            reward = xp.take_along_axis(column, first_out[..., None], axis=-1)[..., 0]
            return xp.where(first_out > 0, reward, column.sum(axis=-1))

        # Each is added up by itself: the bits of a value do not depend on what else is measured.
        values = [value(column, first_out) for column, first_out in zip(added, first_outs, strict=True)]
        return MeasuredValues(*(xp.stack(columns, axis=-1) for columns in (values, reached, first_outs)))

    def step_values(self, signals: Mapping[str, Array], end: Array | None = None) -> Array | None:
        """Return what each state adds to the measured values, `[..., T, M]`; None if M is 0."""
        path = self._path(signals, end)
        return path.xp.stack(self._step_values(path)[0], axis=-1) if self.measured else None

    def _step_values(self, path: SignalArrays) -> tuple[tuple[Array, ...], ...]:
        """Return the results of `measure` for each measured value; a formula adds its value at the end."""
        xp, shape = path.xp, path.shape[:-1]
        violations, last = violations_on(path), np.arange(path.shape[-1]) == path.shape[-1] - 1

        def evaluate(subject: Formula | Quantity, within: tuple[float, float]) -> tuple[Array, Array, Array]:
            if isinstance(subject, Quantity):
                return measure(path, subject, within)
            holds = ~violations.at_start(to_nnf(subject, False))[..., None]
            return (holds & last).astype(path.dtype), xp.ones(shape, bool), xp.zeros(shape, np.int32)

        with np.errstate(all="ignore"):
            return tuple(zip(*map(evaluate, self.measured, self.ranges), strict=True))

    def budget_use(self, signals: Mapping[str, Array], end: Array | None = None) -> Array | None:
        """Return the fraction of each budget used up in each state, `[..., T, Q]`; None if Q is 0.

        Budgets are the bounds of the formulas' aggregates and of the return so far.
        """
        terms = budget_terms(self.formulas)
        if not terms:
            return None
        path = self._path(signals, end)
        with np.errstate(all="ignore"):
            columns = [path.reward(term) / size for term, size in terms.items()]
        return path.xp.stack(columns, axis=-1)

    def prefix_costs(self, signals: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Return the cost of every prefix of one path, `[T, K]`: row t is that of the path of states 0 to t.

        Signals are NumPy arrays `[T]`, or `[T, size]` if vectors.
        """
        states = np.arange(len(next(iter(signals.values()))))
        used = {name: np.asarray(signals[name]) for name in self.signals}
        path_bytes = 8 * len(states) + sum(array.nbytes for array in used.values())
        at_once = max(1, PREFIX_BATCH_BYTES // path_bytes)
        costs = []
        for first in range(0, len(states), at_once):
            last = states[first : first + at_once, None]
            repeated = {name: array[np.minimum(states, last)] for name, array in used.items()}
            path = SignalArrays(np, repeated, states >= last, (len(last), len(states)))
            costs.append(self._evaluate(path, in_path=states <= last)[1])
        return np.concatenate(costs)

    def _evaluate(self, path: SignalArrays, in_path: Array | None = None) -> tuple[Array, Array]:
        xp, shape = path.xp, path.shape
        with np.errstate(all="ignore"):  # division by zero is no error: the comparison of its result decides
            violations = violations_on(path, in_path)
            costs = costs_on(path, violations, self.severity)
            satisfied = [~violations.at_start(node) for node in self._nnf]
            cost = [costs.at_start(node) for node in self._nnf]
        if not cost:
            return xp.zeros((*shape[:-1], 0), bool), xp.zeros((*shape[:-1], 0), path.dtype)
        return xp.stack(satisfied, axis=-1), xp.stack(cost, axis=-1)

    def step_costs(self, signals: Mapping[str, Array], end: Array | None = None) -> Array:
        """Return the cost distributed over the states of the path, `[..., T, K]`, not negative.

        A top-level `G` of a state formula costs in the states where that fails, and `&` where its operands do. All
        other costs depend on many states, and are assigned to the last one.
        """
        return self._by_step(self._path(signals, end), step_costs)

    @cached_property
    def by_conjunct(self) -> BatchMonitor:
        """The monitor whose columns are the conjuncts of the K formulas, each with step costs of its own.

        Their sum would hide the violation of an `F`, which costs 1 at the end, behind that of a `G`, which costs 1 in
        each state.
        """
        return replace(self, _nnf=tuple(part for node in self._nnf for part in conjuncts(node)))

    @cached_property
    def has_shaping(self) -> bool:
        """Whether any formula has a shaping cost, see `step_shaping_costs`."""
        return any(map(has_shaping, self._nnf))

    @cached_property
    def shaped_at_end(self) -> tuple[bool, ...]:
        """Which of the K formulas have a shaping cost but no cost before the path ends: `F` of an accumulated term."""
        return tuple(isinstance(node, NnfUnrolled) and node.operator == "U" and has_shaping(node) for node in self._nnf)

    def step_shaping_costs(self, signals: Mapping[str, Array], end: Array | None = None) -> Array | None:
        """Return the shaping cost distributed over the states of the path, `[..., T, K]`; None if no formula has one.

        For learning only, see `logic/shaping.py`; a formula without a shaping cost has its step costs.
        """
        if not self.has_shaping:
            return None
        path = self._path(signals, end)
        with np.errstate(all="ignore"):
            violations = violations_on(path)
            shaping = Shaping(path, violations, costs_on(path, violations, self.severity))
            return path.xp.stack([shaping.step_costs(node) for node in self._nnf], axis=-1)

    def worst_distances(self, signals: Mapping[str, Array]) -> Array:
        """Return the largest distance of a state from satisfying the body of each `G`, `[..., K]`: above 0 if violated.

        NaN for a formula that is no `G` of comparisons. For the choice of an episode to show, not for a verdict.
        """
        path = self._path(signals, None)
        with np.errstate(all="ignore"):
            violations = violations_on(path)
            shaping = Shaping(path, violations, costs_on(path, violations, self.severity))
            columns = [shaping.worst_distance(node) for node in self._nnf]
        return path.xp.stack(columns, axis=-1) if columns else path.xp.zeros((*path.shape[:-1], 0))

    def known_step_costs(self, signals: Mapping[str, Array], end: Array, past: PathPrefix) -> tuple[Array, PathPrefix]:
        """Return the costs of a piece of a path that hold for any rest of it, `[..., T, K]`, and the next prefix.

        So a path can be evaluated while it grows. Step costs of a top-level `G` are known at once; all others only
        when the path is complete, and are 0 here.

        Args:
            signals: of the piece.
            end: bool `[..., T]`, true in the last state of the path, if that lies in the piece.
            past: the states before the piece; `EMPTY_PREFIX` at the start of the path.
        """

        def known(costs: Semantics, node: NnfNode) -> Array:
            return known_step_costs(costs, node, past.states + np.arange(costs.zero.shape[-1]))

        piece = replace(self._path(signals, end), past=past)
        return self._by_step(piece, known), piece.prefix_after(self.aggregates)

    def _by_step(self, path: SignalArrays, step_costs: Callable[[Semantics, NnfNode], Array]) -> Array:
        with np.errstate(all="ignore"):
            costs = costs_on(path, violations_on(path), self.severity)
            columns = [step_costs(costs, node) for node in self._nnf]
        return path.xp.stack(columns, axis=-1) if columns else path.xp.zeros((*path.shape, 0), path.dtype)

    def _path(self, signals: Mapping[str, Array], end: Array | None) -> SignalArrays:
        arrays = [*signals.values(), *([] if end is None else [end])]
        xp: ModuleType = jnp if any(isinstance(array, jax.Array) for array in arrays) else np
        shape = self._shape(signals, end)
        if end is None:
            end = xp.arange(shape[-1]) == shape[-1] - 1
        return SignalArrays(xp, signals, xp.asarray(end), shape)

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise RequirementError unless all uses of a signal fit the shape of its values, () or (size,)."""
        for node in self.uses.get(name, ()):
            if len(shape) > 1:
                problem = f"the signal {name!r} has values of shape {shape}"
                raise RequirementError(problem, node.location, "give a number, a Boolean, or a vector of them")
            if mismatch := size_mismatch(node, shape[0] if shape else None):
                raise RequirementError(mismatch[0], node.location, mismatch[1])

    def used_shape(self, name: str) -> tuple[int, ...]:
        """Return () for a signal that is used as a single value, or (size,) with the entries of a vector in use."""
        entries = [index + 1 for node in self.uses.get(name, ()) if (index := _index(node)) is not None]
        return (max(entries),) if entries else ()

    @cached_property
    def uses(self) -> dict[str, list[Signal | Label]]:
        """The nodes of each signal, by name."""
        uses: dict[str, list[Signal | Label]] = {}
        for node in _nodes(self.formulas, self.measured):
            if isinstance(node, Signal | Label) and node != END:
                uses.setdefault(node.name, []).append(node)
        return uses

    def _shape(self, signals: Mapping[str, Array], end: Array | None) -> tuple[int, ...]:
        if end is not None:  # arrays of other shapes would broadcast to values of other states
            for name in self.uses.keys() & signals.keys():
                self.check_shape(name, np.shape(signals[name])[np.ndim(end) :])
            return np.shape(end)
        shapes = []
        for name in self.uses.keys() & signals.keys():
            shape = np.shape(signals[name])
            shapes += [shape if _index(node) is None else shape[:-1] for node in self.uses[name]]
        if not shapes and not signals:
            raise RequirementError("a path without signals has no length: pass at least one signal")
        return np.broadcast_shapes(*(shapes or [np.shape(next(iter(signals.values())))]))


class MeasuredValues(NamedTuple):
    """The values of M formulas and quantities on paths; all are None if M is 0."""

    value: Array | None  # [..., M]; where a reward left its range, that reward
    reached: Array | None  # [..., M] bool, see `measure`
    first_out_of_range: Array | None  # [..., M] int: first step whose reward left its range, else 0


def compile_monitor(
    formulas: Sequence[Formula],
    *,
    severity: bool = False,
    measured: Sequence[Formula | Quantity] = (),
    ranges: Sequence[tuple[float, float]] | None = None,
) -> BatchMonitor:
    """Compile K formulas and M measured formulas or quantities, with the `ranges` of the latter's rewards.

    A formula without a temporal operator costs 0 where it holds and 1 where it fails. With `severity` it is
    decomposed: an inequality costs its distance from holding, anything else 1; `&` adds and `|` multiplies.
    """
    named = (node for node in _nodes(formulas, measured) if isinstance(node, Signal | Label))
    names = frozenset(node.name for node in named if node != END)
    nnf = tuple(to_nnf(f, severity) for f in formulas)
    within = tuple([UNBOUNDED_RANGE] * len(measured) if ranges is None else ranges)
    needed = tuple(dict.fromkeys((*aggregates(formulas), *evaluated_aggregates(formulas))))
    return BatchMonitor(tuple(formulas), severity, names, needed, tuple(measured), within, nnf)


def budget_terms(formulas: Sequence[Formula]) -> dict[Term, float]:
    """Return the accumulated terms of formulas, each with the largest number it is compared with; 1 without one."""
    sizes: dict[Term, float] = {}
    for node in _nodes(formulas, ()):
        if isinstance(node, Compare):
            for term, other in ((node.left, node.right), (node.right, node.left)):
                sizes[term] = max(sizes.get(term, 0.0), _literal_size(other))
        elif is_term(node):
            sizes.setdefault(node, 0.0)
    return {term: size or 1.0 for term, size in sizes.items() if isinstance(term, Aggregate) or term == Signal(RETURN)}


def _index(node: Signal | Label) -> int | None:
    return node.index if isinstance(node, Signal) else None


def _literal_size(term: Term) -> float:
    """Return the absolute value of a literal; 0 for any other term."""
    match term:
        case Number(value) | Minus(Number(value)):
            return value
    return 0.0


def _nodes(formulas: Sequence[Formula], measured: Sequence[Formula | Quantity]) -> Iterator[Node]:
    for subject in (*formulas, *measured):
        for root in roots(subject):
            yield from walk(root)
