"""Two algebras over a path: what is violated (appendix A), and what it costs (appendix B).

Satisfaction and cost are one recursion over two algebras. Both measure what is *wrong*: in the first a formula is
violated or not, and `∧` is or, `∨` is and; in the second it has a cost, `∧` adds and `∨` multiplies. Nothing wrong
is False or 0 in both, so cost is zero exactly where a formula holds.
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

from psyco._src.logic.array_eval import LARGEST, Array, SignalArrays
from psyco._src.logic.ast import Bound
from psyco._src.logic.nnf import Atom, NnfAnd, NnfNext, NnfOr, NnfUnrolled, Normal

SMALLEST = 1e-18  # of a positive cost


class _Map(NamedTuple):
    """x -> offset ∧ (slope ∨ x), what an unrolled operator makes of its own value one step later; `[..., T]` each."""

    offset: Array
    slope: Array

    def during(self, lower: int, upper: int) -> _Map:
        return _Map(self.offset[..., lower:upper], self.slope[..., lower:upper])


@dataclass(frozen=True)
class Semantics:
    """One way to measure what is wrong, and the value of formulas in it."""

    xp: ModuleType
    zero: Array  # nothing is wrong, [..., T]
    one: Array  # the unit: what false costs
    both: Callable[[Array, Array], Array]  # what is wrong with φ ∧ ψ
    either: Callable[[Array, Array], Array]  # what is wrong with φ ∨ ψ
    every: Callable[[Array], Array]  # `both` over the last axis
    some: Callable[[Array], Array] | None  # `either` over the last axis, where there is a short way
    atom: Callable[[Atom], Array]
    # The simpler algebra that suffices for a node, if there is one.
    crisp: Callable[[Normal], Semantics | None] = lambda _: None
    # Bool [..., T], for paths of different lengths: false where the last state only repeats. None: nowhere.
    inside: Array | None = None
    seen: dict[tuple[Normal, bool], Array] = field(default_factory=dict)

    def start(self, node: Normal) -> Array:
        """The value of a formula at the start of the path, `[...]`."""
        return self._once(node, True)

    def along(self, node: Normal) -> Array:
        """The value of a formula at every position of the path, `[..., T]`."""
        return self._once(node, False)

    def _once(self, node: Normal, start: bool) -> Array:
        if (node, start) not in self.seen:
            if simpler := self.crisp(node):
                value = simpler._once(node, start).astype(self.zero.dtype)
            else:
                value = self._start(node) if start else self._along(node)
            self.seen[node, start] = value
        return self.seen[node, start]

    def _start(self, node: Normal) -> Array:
        match node:
            case NnfAnd(operands):
                return reduce(self.both, map(self.start, operands))
            case NnfOr(operands):
                return reduce(self.either, map(self.start, operands))
            case NnfUnrolled(_, _, _, bound) if _ends_within(bound, self.zero.shape[-1]):
                return self.unrolled_from_start(node)
            case _:
                return self.along(node)[..., 0]

    def _along(self, node: Normal) -> Array:
        match node:
            case Atom():
                return self.atom(node)
            case NnfAnd(operands):
                return reduce(self.both, map(self.along, operands))
            case NnfOr(operands):
                return reduce(self.either, map(self.along, operands))
            case NnfNext(body):
                return _later(self.xp, self.along(body), 1)
            case NnfUnrolled():
                return self.unrolled(node)

    def unrolled_from_start(self, node: NnfUnrolled) -> Array:
        """At the start of the path only, for a window that ends within it."""
        bound = node.bound or Bound(0, self.zero.shape[-1] - 1)
        fold = {"R": self.every, "U": self.some}.get(node.operator)
        if node.left is None and fold is not None:  # G is a sum over its window, F a product
            neutral = self.zero if node.operator == "R" else self.one
            values = self.seen_by(node, self.along(node.right), neutral)
            return fold(values[..., bound.lower : bound.upper + 1])
        wait, step, past_end = self.steps(node)
        value, _ = self.backwards(step.during(bound.lower, bound.upper + 1), past_end[..., 0])
        return self.backwards(wait.during(0, bound.lower), value)[0] if bound.lower else value

    def unrolled(self, node: NnfUnrolled) -> Array:
        """At every position of the path."""
        wait, step, past_end = self.steps(node)
        if node.bound is None:
            return self.repeated(self.backwards(step, past_end[..., 0])[1])
        lower, upper = node.bound.lower, node.bound.upper
        window = self.window(step, upper - lower + 1)
        if lower:
            window = self.around(self.window(wait, lower), window, min(lower, past_end.shape[-1]))
        return self.apply(window, past_end)

    def steps(self, node: NnfUnrolled) -> tuple[_Map, _Map, Array]:
        """What each state does while the operator waits for its window, what inside it, and what is past its end."""
        left, right = node.left and self.along(node.left), self.along(node.right)
        past_end = self.one if node.operator in ("U", "M") else self.zero
        if node.operator in ("U", "W"):  # φ2 ∨ (φ1 ∧ x) = (φ2 ∨ φ1) ∧ (φ2 ∨ x)
            waiting = self.zero if left is None else left
            wait, step = _Map(waiting, self.one), _Map(self.either(right, waiting), right)
        else:  # φ2 ∧ (φ1 ∨ x)
            waiting = self.one if left is None else left
            wait, step = _Map(self.zero, waiting), _Map(right, waiting)
        offset, slope = self.seen_by(node, step.offset, self.zero), self.seen_by(node, step.slope, self.one)
        return wait, _Map(offset, slope), past_end

    def seen_by(self, node: NnfUnrolled, values: Array, neutral: Array) -> Array:
        """An operator without a bound sees each state of a path once, one with a bound also repetitions of the last."""
        if self.inside is None or node.bound is not None:
            return values
        return self.xp.where(self.inside, values, neutral)

    def repeated(self, values: Array) -> Array:
        """Past the end of a path, the value in its last state."""
        if self.inside is None:
            return values
        position, last = np.arange(values.shape[-1]), self.inside.sum(axis=-1, keepdims=True) - 1
        return self.xp.take_along_axis(values, self.xp.minimum(position, last), axis=-1)

    def apply(self, step: _Map, value: Array) -> Array:
        """What one step makes of the value behind it."""
        return self.both(step.offset, self.either(step.slope, value))

    def around(self, first: _Map, second: _Map, steps: Array | int) -> _Map:
        """`first` of what `second` makes that many steps later."""
        offset, slope = _later(self.xp, second.offset, steps), _later(self.xp, second.slope, steps)
        return _Map(self.apply(first, offset), self.either(first.slope, slope))

    def backwards(self, step: _Map, value: Array) -> tuple[Array, Array]:
        """Apply the steps from the last to the first: the result `[...]`, and all on the way `[..., T]`."""

        def back(value: Array, step: _Map) -> tuple[Array, Array]:
            value = self.apply(step, value)
            return value, value

        by_time = _Map(*(self.xp.moveaxis(each, -1, 0) for each in step))
        if self.xp is not np:
            value, values = lax.scan(back, value, by_time, reverse=True)
            return value, jnp.moveaxis(values, 0, -1)
        values = np.empty_like(by_time.offset)
        for t in reversed(range(len(values))):
            value, values[t] = back(value, _Map(by_time.offset[t], by_time.slope[t]))
        return value, np.moveaxis(values, 0, -1)

    def window(self, step: _Map, length: int) -> _Map:
        """`length` consecutive steps as one, from every position, by repeated doubling; the last state repeats."""
        xp, last = self.xp, np.int32(self.zero.shape[-1])

        def double(state: tuple[_Map, Array, _Map, Array], bit: Array) -> tuple[Any, None]:
            composed, done, step, span = state  # `composed` covers `done` steps, `step` covers `span`
            longer = self.around(composed, step, done)
            composed = _Map(*(xp.where(bit, new, old) for new, old in zip(longer, composed, strict=True)))
            done = xp.minimum(done + span * bit, last)  # further ahead it is the last state all the same
            return (composed, done, self.around(step, step, span), xp.minimum(2 * span, last)), None

        state = (_Map(self.zero, self.one), np.int32(0), step, np.int32(1))
        bits = np.array([length >> i & 1 for i in range(length.bit_length())], np.int32)
        if xp is not np:  # a loop, also because XLA takes minutes over nested formulas unrolled
            return lax.scan(double, state, bits)[0][0]
        for bit in bits:
            state, _ = double(state, bit)
        return state[0]


def _later(xp: ModuleType, x: Array, steps: Array | int) -> Array:
    """x some steps later; past the end it is the last state again."""
    return x[..., xp.minimum(xp.arange(x.shape[-1], dtype=np.int32) + steps, x.shape[-1] - 1)]


def violations_on(path: SignalArrays, inside: Array | None = None) -> Semantics:
    """Appendix A: violated or not. `inside`: see Algebra."""
    xp = path.xp
    return Semantics(
        xp=xp,
        zero=xp.zeros(path.shape, bool),
        one=xp.ones(path.shape, bool),
        both=xp.logical_or,
        either=xp.logical_and,
        every=lambda x: x.any(axis=-1),
        some=lambda x: x.all(axis=-1),
        atom=path.violated,
        inside=inside,
    )


def costs_on(path: SignalArrays, violations: Semantics, severity: bool) -> Semantics:
    """Appendix B: ∧ adds, ∨ multiplies. Positive costs stay within [SMALLEST, LARGEST]: none becomes 0 or inf."""
    xp = path.xp

    def product(x: Array, y: Array) -> Array:
        return xp.where((x > 0) & (y > 0), xp.clip(x * y, SMALLEST, LARGEST), 0.0)

    def only_0_or_1(node: Normal) -> Semantics | None:
        return violations if not severity and _is_crisp(node) else None

    return Semantics(
        xp=xp,
        zero=xp.zeros(path.shape, path.dtype),
        one=xp.ones(path.shape, path.dtype),
        both=lambda x, y: xp.minimum(x + y, LARGEST),
        either=product,
        every=lambda x: xp.minimum(x.sum(axis=-1), LARGEST),
        some=None,
        atom=path.severity,
        crisp=only_0_or_1,
        inside=violations.inside,
    )


def _is_crisp(node: Normal) -> bool:
    """Can it cost nothing but 0 or 1? Then its cost is its violation: products of 0 and 1 are Boolean."""
    match node:
        case Atom():
            return True
        case NnfNext(body) | NnfUnrolled("U", None, body):
            return _is_crisp(body)
        case NnfOr(operands):
            return all(map(_is_crisp, operands))
        case _:
            return False


# ---- blame -----------------------------------------------------------------------------------------------------


def spread(costs: Semantics, node: Normal) -> Array:
    """How the cost of a formula is spread over the states of the path, `[..., T]`."""
    xp, position = costs.xp, np.arange(costs.zero.shape[-1])
    match node:
        case NnfAnd(operands):
            return sum(spread(costs, each) for each in operands)
        case NnfUnrolled("R", None, body, bound) if is_timeless(body) and _ends_within(bound, len(position)):
            return arising(costs, node, position)
        case _:
            return xp.where(position == position[-1], costs.start(node)[..., None], 0.0)


def arising(costs: Semantics, node: Normal, position: Array) -> Array:
    """What states at these positions `[T]` of a longer path cost whatever the rest of it is like, `[..., T]`."""
    match node:
        case NnfAnd(operands):
            return sum(arising(costs, each, position) for each in operands)
        case NnfUnrolled("R", None, body, bound) if is_timeless(body):
            inside = (position >= bound.lower) & (position <= bound.upper) if bound else True
            return costs.xp.where(inside, costs.along(body), 0.0)
        case _:
            return costs.zero


def _ends_within(bound: Bound | None, length: int) -> bool:
    return bound is None or bound.upper < length


def is_timeless(node: Normal) -> bool:
    """Does it speak about one state only?"""
    seen, new = {node}, [node]  # nested <=> share their parts, and there may be 2^n ways to one of them
    while new:
        match new.pop():
            case NnfAnd(operands) | NnfOr(operands):
                new += set(operands) - seen
                seen.update(operands)
            case NnfNext() | NnfUnrolled():
                return False
    return True
