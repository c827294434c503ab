"""Two semantics of formulas along a path: Boolean violation (appendix A) and cost (appendix B).

Violation and cost are one recursion over two algebras. In the first, a formula is violated or not: `∧` is a logical or,
`∨` a logical and. In the second it has a cost: `∧` adds and `∨` multiplies. A formula that holds has the value False or
0, so its cost is zero exactly where it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from types import ModuleType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from psyco._src.logic.array_eval import MAX_COST, Array, SignalArrays
from psyco._src.logic.ast import Bound
from psyco._src.logic.nnf import Atom, NnfAnd, NnfNext, NnfNode, NnfOr, NnfUnrolled

MIN_POSITIVE_COST = 1e-18


class _Map(NamedTuple):
    """x -> offset ∧ (slope ∨ x): the value of an unrolled operator from its value one step later; `[..., T]` each."""

    offset: Array
    slope: Array

    def slice(self, start: int, stop: int) -> _Map:
        return _Map(self.offset[..., start:stop], self.slope[..., start:stop])


@dataclass(frozen=True)
class Semantics:
    """One algebra on one batch of paths, and the values of formulas in it."""

    xp: ModuleType
    zero: Array  # the value of true, [..., T]
    one: Array  # the value of false
    conjoin: Callable[[Array, Array], Array]  # the value of φ ∧ ψ
    disjoin: Callable[[Array, Array], Array]  # the value of φ ∨ ψ
    conjoin_all: Callable[[Array], Array]  # `conjoin` over the last axis
    disjoin_all: Callable[[Array], Array] | None  # `disjoin` over the last axis, if there is a reduction for it
    atom: Callable[[Atom], Array]
    # A simpler algebra that gives the same values for a node, or None.
    simpler: Callable[[NnfNode], Semantics | None] = lambda _: None
    # Bool [..., T], for paths of different lengths: false in repetitions of the last state. None: true everywhere.
    in_path: Array | None = None
    cache: dict[tuple[NnfNode, bool], Array] = field(default_factory=dict)

    def at_start(self, node: NnfNode) -> Array:
        """Return the value of a formula at the start of the path, `[...]`."""
        return self._cached(node, True)

    def along(self, node: NnfNode) -> Array:
        """Return the value of a formula at every position of the path, `[..., T]`."""
        return self._cached(node, False)

    def _cached(self, node: NnfNode, start: bool) -> Array:
        if (node, start) not in self.cache:
            if simpler := self.simpler(node):
                value = simpler._cached(node, start).astype(self.zero.dtype)
            else:
                value = self._at_start(node) if start else self._along(node)
            self.cache[node, start] = value
        return self.cache[node, start]

    def _at_start(self, node: NnfNode) -> Array:
        match node:
            case NnfAnd(operands):
                return reduce(self.conjoin, map(self.at_start, operands))
            case NnfOr(operands):
                return reduce(self.disjoin, map(self.at_start, operands))
            case NnfUnrolled(_, _, _, bound) if _ends_within(bound, self.zero.shape[-1]):
                return self._unrolled_at_start(node)
            case _:
                return self.along(node)[..., 0]

    def _along(self, node: NnfNode) -> Array:
        match node:
            case Atom():
                return self.atom(node)
            case NnfAnd(operands):
                return reduce(self.conjoin, map(self.along, operands))
            case NnfOr(operands):
                return reduce(self.disjoin, map(self.along, operands))
            case NnfNext(body):
                return _later(self.xp, self.along(body), 1)
            case NnfUnrolled():
                return self._unrolled_along(node)

    def _unrolled_at_start(self, node: NnfUnrolled) -> Array:
        """Return the value at the start of the path, for a window that ends within it."""
        bound = node.bound or Bound(0, self.zero.shape[-1] - 1)
        fold = {"R": self.conjoin_all, "U": self.disjoin_all}.get(node.operator)
        if node.left is None and fold is not None:  # G is a sum over its window, F a product
            neutral = self.zero if node.operator == "R" else self.one
            values = self._masked(node, self.along(node.right), neutral)
            return fold(values[..., bound.lower : bound.upper + 1])
        wait, step, past_end = self._steps(node)
        value, _ = self._scan_backward(step.slice(bound.lower, bound.upper + 1), past_end[..., 0])
        return self._scan_backward(wait.slice(0, bound.lower), value)[0] if bound.lower else value

    def _unrolled_along(self, node: NnfUnrolled) -> Array:
        """Return the value at every position of the path."""
        wait, step, past_end = self._steps(node)
        if node.bound is None:
            return self._repeat_last(self._scan_backward(step, past_end[..., 0])[1])
        lower, upper = node.bound.lower, node.bound.upper
        window = self._window(step, upper - lower + 1)
        if lower:
            window = self._compose(self._window(wait, lower), window, min(lower, past_end.shape[-1]))
        return self._apply(window, past_end)

    def _steps(self, node: NnfUnrolled) -> tuple[_Map, _Map, Array]:
        """Return the map of each state before the window, the map inside it, and the value past its end."""
        left, right = node.left and self.along(node.left), self.along(node.right)
        past_end = self.one if node.operator in ("U", "M") else self.zero
        if node.operator in ("U", "W"):  # φ2 ∨ (φ1 ∧ x) = (φ2 ∨ φ1) ∧ (φ2 ∨ x)
            waiting = self.zero if left is None else left
            wait, step = _Map(waiting, self.one), _Map(self.disjoin(right, waiting), right)
        else:  # φ2 ∧ (φ1 ∨ x)
            waiting = self.one if left is None else left
            wait, step = _Map(self.zero, waiting), _Map(right, waiting)
        offset, slope = self._masked(node, step.offset, self.zero), self._masked(node, step.slope, self.one)
        return wait, _Map(offset, slope), past_end

    def _masked(self, node: NnfUnrolled, values: Array, neutral: Array) -> Array:
        """Replace values in repetitions of the last state by `neutral`, unless the operator has a bound.

        An operator without a bound visits each state of a path once, one with a bound also visits the repetitions.
        """
        if self.in_path is None or node.bound is not None:
            return values
        return self.xp.where(self.in_path, values, neutral)

    def _repeat_last(self, values: Array) -> Array:
        """Replace values past the end of a path by that of its last state."""
        if self.in_path is None:
            return values
        position, last = np.arange(values.shape[-1]), self.in_path.sum(axis=-1, keepdims=True) - 1
        return self.xp.take_along_axis(values, self.xp.minimum(position, last), axis=-1)

    def _apply(self, step: _Map, value: Array) -> Array:
        return self.conjoin(step.offset, self.disjoin(step.slope, value))

    def _compose(self, first: _Map, second: _Map, steps: Array | int) -> _Map:
        """Compose `first` with `second` taken `steps` later."""
        offset, slope = _later(self.xp, second.offset, steps), _later(self.xp, second.slope, steps)
        return _Map(self._apply(first, offset), self.disjoin(first.slope, slope))

    def _scan_backward(self, step: _Map, value: Array) -> tuple[Array, Array]:
        """Apply the maps from the last to the first; return the result `[...]` and all on the way `[..., T]`."""

        def back(value: Array, step: _Map) -> tuple[Array, Array]:
            value = self._apply(step, value)
            return value, value

        by_time = _Map(*(self.xp.moveaxis(array, -1, 0) for array in step))
        if self.xp is not np:
            value, values = lax.scan(back, value, by_time, reverse=True)
            return value, jnp.moveaxis(values, 0, -1)
        values = np.empty_like(by_time.offset)
        for t in reversed(range(len(values))):
            value, values[t] = back(value, _Map(by_time.offset[t], by_time.slope[t]))
        return value, np.moveaxis(values, 0, -1)

    def _window(self, step: _Map, length: int) -> _Map:
        """Compose `length` consecutive maps from every position by repeated doubling; the last state repeats."""
        xp, last = self.xp, np.int32(self.zero.shape[-1])

        def double(state: tuple[_Map, Array, _Map, Array], bit: Array) -> tuple[Any, None]:
            composed, done, step, span = state  # `composed` covers `done` steps, `step` covers `span`
            longer = self._compose(composed, step, done)
            composed = _Map(*(xp.where(bit, new, old) for new, old in zip(longer, composed, strict=True)))
            done = xp.minimum(done + span * bit, last)  # beyond the path the last state repeats
            return (composed, done, self._compose(step, step, span), xp.minimum(2 * span, last)), None

        state = (_Map(self.zero, self.one), np.int32(0), step, np.int32(1))
        bits = np.array([length >> i & 1 for i in range(length.bit_length())], np.int32)
        if xp is not np:  # a scan: XLA takes minutes to compile nested formulas that are unrolled
            return lax.scan(double, state, bits)[0][0]
        for bit in bits:
            state, _ = double(state, bit)
        return state[0]


def _later(xp: ModuleType, x: Array, steps: Array | int) -> Array:
    """Shift x by some steps; past the end the last state repeats."""
    return x[..., xp.minimum(xp.arange(x.shape[-1], dtype=np.int32) + steps, x.shape[-1] - 1)]


def violations_on(path: SignalArrays, in_path: Array | None = None) -> Semantics:
    """Return the Boolean semantics of appendix A on a batch of paths."""
    xp = path.xp
    return Semantics(
        xp=xp,
        zero=xp.zeros(path.shape, bool),
        one=xp.ones(path.shape, bool),
        conjoin=xp.logical_or,
        disjoin=xp.logical_and,
        conjoin_all=lambda x: x.any(axis=-1),
        disjoin_all=lambda x: x.all(axis=-1),
        atom=path.violated,
        in_path=in_path,
    )


def costs_on(path: SignalArrays, violations: Semantics, severity: bool) -> Semantics:
    """Return the cost semantics of appendix B on a batch of paths.

    Positive costs stay within [MIN_POSITIVE_COST, MAX_COST], so none becomes 0 or infinite.
    """
    xp = path.xp

    def product(x: Array, y: Array) -> Array:
        return xp.where((x > 0) & (y > 0), xp.clip(x * y, MIN_POSITIVE_COST, MAX_COST), 0.0)

    return Semantics(
        xp=xp,
        zero=xp.zeros(path.shape, path.dtype),
        one=xp.ones(path.shape, path.dtype),
        conjoin=lambda x, y: xp.minimum(x + y, MAX_COST),
        disjoin=product,
        conjoin_all=lambda x: xp.minimum(x.sum(axis=-1), MAX_COST),
        disjoin_all=None,
        atom=path.severity,
        simpler=lambda node: violations if not severity and _costs_0_or_1(node) else None,
        in_path=violations.in_path,
    )


def _costs_0_or_1(node: NnfNode) -> bool:
    """Return whether a node can cost nothing but 0 or 1; its cost is then its violation, by Boolean operations."""
    match node:
        case Atom():
            return True
        case NnfNext(body) | NnfUnrolled("U", None, body):
            return _costs_0_or_1(body)
        case NnfOr(operands):
            return all(map(_costs_0_or_1, operands))
        case _:
            return False


# ---- costs by step -----------------------------------------------------------------------------------------


def conjuncts(node: NnfNode) -> list[NnfNode]:
    """Return the operands of a conjunction at the top of a formula; those about a single state stay together."""
    if isinstance(node, NnfAnd) and not is_timeless(node):
        return [part for operand in node.operands for part in conjuncts(operand)]
    return [node]


def step_costs(costs: Semantics, node: NnfNode) -> Array:
    """Return the cost of a formula distributed over the states of the path, `[..., T]`."""
    xp, position = costs.xp, np.arange(costs.zero.shape[-1])
    match node:
        case NnfAnd(operands):
            return sum(step_costs(costs, operand) for operand in operands)
        case NnfUnrolled("R", None, body, bound) if is_timeless(body) and _ends_within(bound, len(position)):
            return known_step_costs(costs, node, position)
        case _:
            return xp.where(position == position[-1], costs.at_start(node)[..., None], 0.0)


def known_step_costs(costs: Semantics, node: NnfNode, position: Array) -> Array:
    """Return the costs of states at positions `[T]` of a longer path that hold for any rest of it, `[..., T]`."""
    match node:
        case NnfAnd(operands):
            return sum(known_step_costs(costs, operand, position) for operand in operands)
        case NnfUnrolled("R", None, body, bound) if is_timeless(body):
            in_window = (position >= bound.lower) & (position <= bound.upper) if bound else True
            return costs.xp.where(in_window, costs.along(body), 0.0)
        case _:
            return costs.zero


def _ends_within(bound: Bound | None, length: int) -> bool:
    return bound is None or bound.upper < length


def is_timeless(node: NnfNode) -> bool:
    """Return whether a node is about a single state."""
    return not any(isinstance(part, NnfNext | NnfUnrolled) for part in boolean_parts(node))


def boolean_parts(node: NnfNode) -> list[NnfNode]:
    """Return the node and its operands below ∧ and ∨, each once: nested <=> share operands along up to 2^n ways."""
    parts = {node: None}
    queue = [node]
    while queue:
        match queue.pop():
            case NnfAnd(operands) | NnfOr(operands):
                queue += [operand for operand in dict.fromkeys(operands) if operand not in parts]
                parts |= dict.fromkeys(operands)
    return list(parts)
