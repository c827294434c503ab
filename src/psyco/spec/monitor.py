"""Signals along a path -> satisfied, cost (appendices A and B), on NumPy arrays and inside compiled JAX code.

Satisfaction and cost are one recursion over two algebras. Both measure what is *wrong*: in the first a formula is
violated or not, and `∧` is or, `∨` is and; in the second it has a cost, `∧` adds and `∨` multiplies. Nothing wrong
is False or 0 in both, so cost is zero exactly where a formula holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from psyco.errors import RequirementError
from psyco.spec.check import END, check_signals
from psyco.spec.formula import (
    And,
    Arith,
    Bool,
    Bound,
    Call,
    Compare,
    Finally,
    Formula,
    Globally,
    Iff,
    Implies,
    Label,
    Minus,
    Next,
    Not,
    Number,
    Or,
    Release,
    Signal,
    SignalInfo,
    Term,
    Until,
    WeakUntil,
    is_state_formula,
    walk,
)
from psyco.spec.parse import parse_formula

Array: TypeAlias = Any  # np.ndarray or jax.Array

SMALLEST, LARGEST = 1e-18, 1e18  # of a positive cost: float32 can multiply any two of these
SEVERITY_FLOOR = 1e-6  # of an inequality that fails by nothing, as x > 0 does at 0

# ---- normal form: negations pushed down to the atoms --------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class _Atom:
    """A state formula that is not looked into any further, or its negation."""

    formula: Formula
    negated: bool


@dataclass(frozen=True, eq=False, slots=True)
class _All:
    operands: tuple[_Normal, ...]


@dataclass(frozen=True, eq=False, slots=True)
class _Any:
    operands: tuple[_Normal, ...]


@dataclass(frozen=True, eq=False, slots=True)
class _Next:
    body: _Normal


@dataclass(frozen=True, eq=False, slots=True)
class _Unrolled:
    """U and W: φ2 ∨ (φ1 ∧ next); R and M: φ2 ∧ (φ1 ∨ next). Past the end W and R hold, U and M do not.

    Without a left operand U is F, whose φ1 is true, and R is G, whose φ1 is false.
    M, the strong release, is the dual of W and has no syntax of its own.
    """

    operator: Literal["U", "W", "R", "M"]
    left: _Normal | None
    right: _Normal
    bound: Bound | None


_Normal: TypeAlias = _Atom | _All | _Any | _Next | _Unrolled
_DUAL = {"U": "R", "R": "U", "W": "M", "M": "W"}


def _normalize(formula: Formula, severity: bool) -> _Normal:
    """Negation normal form. A subformula is visited once per sign, so nested <=> share their parts."""
    seen: dict[tuple[int, bool], _Normal] = {}

    def normal(f: Formula, negated: bool) -> _Normal:
        key = id(f), negated
        if key not in seen:
            seen[key] = build(f, negated)
        return seen[key]

    def build(f: Formula, negated: bool) -> _Normal:
        if not severity and is_state_formula(f):
            return _Atom(f, negated)
        match f:
            case Not(body):
                return normal(body, not negated)
            case And(operands):
                return (_Any if negated else _All)(tuple(normal(each, negated) for each in operands))
            case Or(operands):
                return (_All if negated else _Any)(tuple(normal(each, negated) for each in operands))
            case Implies(left, right):
                return (_All if negated else _Any)((normal(left, not negated), normal(right, negated)))
            case Iff(left, right):
                one = _All((normal(left, False), normal(right, negated)))
                other = _All((normal(left, True), normal(right, not negated)))
                return _Any((one, other))
            case Next(body):
                return _Next(normal(body, negated))
            case Finally(body, bound):
                return _Unrolled("R" if negated else "U", None, normal(body, negated), bound)
            case Globally(body, bound):
                return _Unrolled("U" if negated else "R", None, normal(body, negated), bound)
            case Until(left, right, bound) | WeakUntil(left, right, bound) | Release(left, right, bound):
                operator: Any = _DUAL[f.symbol] if negated else f.symbol
                return _Unrolled(operator, normal(left, negated), normal(right, negated), bound)
            case _:
                return _Atom(f, negated)

    return normal(formula, False)


# ---- atoms: what a state formula says in each state ---------------------------------------------------------


@dataclass(frozen=True)
class _Path:
    """The signals of one call, `[..., T]` each, or `[..., T, size]` for a vector."""

    xp: ModuleType  # numpy or jax.numpy
    signals: Mapping[str, Array]
    end: Array
    shape: tuple[int, ...]  # [..., T]

    @property
    def dtype(self) -> Any:
        return np.float64 if self.xp is np else np.float32

    def violated(self, atom: _Atom) -> Array:
        """Where the atom does not hold, bool `[..., T]`."""
        holds = self.xp.broadcast_to(self.holds(atom.formula), self.shape)
        return holds if atom.negated else ~holds

    def severity(self, atom: _Atom) -> Array:
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


# ---- temporal operators ----------------------------------------------------------------------------------------


class _Map(NamedTuple):
    """x -> offset ∧ (slope ∨ x), what an unrolled operator makes of its own value one step later; `[..., T]` each."""

    offset: Array
    slope: Array

    def during(self, lower: int, upper: int) -> _Map:
        return _Map(self.offset[..., lower:upper], self.slope[..., lower:upper])


@dataclass(frozen=True)
class _Algebra:
    """One way to measure what is wrong, and the value of formulas in it."""

    xp: ModuleType
    zero: Array  # nothing is wrong, [..., T]
    one: Array  # the unit: what false costs
    both: Callable[[Array, Array], Array]  # what is wrong with φ ∧ ψ
    either: Callable[[Array, Array], Array]  # what is wrong with φ ∨ ψ
    every: Callable[[Array], Array]  # `both` over the last axis
    some: Callable[[Array], Array] | None  # `either` over the last axis, where there is a short way
    atom: Callable[[_Atom], Array]
    # The simpler algebra that suffices for a node, if there is one.
    crisp: Callable[[_Normal], _Algebra | None] = lambda _: None
    seen: dict[tuple[_Normal, bool], Array] = field(default_factory=dict)

    def start(self, node: _Normal) -> Array:
        """The value of a formula at the start of the path, `[...]`."""
        return self._once(node, True)

    def along(self, node: _Normal) -> Array:
        """The value of a formula at every position of the path, `[..., T]`."""
        return self._once(node, False)

    def _once(self, node: _Normal, start: bool) -> Array:
        if (node, start) not in self.seen:
            if simpler := self.crisp(node):
                value = simpler._once(node, start).astype(self.zero.dtype)
            else:
                value = self._start(node) if start else self._along(node)
            self.seen[node, start] = value
        return self.seen[node, start]

    def _start(self, node: _Normal) -> Array:
        match node:
            case _All(operands):
                return reduce(self.both, map(self.start, operands))
            case _Any(operands):
                return reduce(self.either, map(self.start, operands))
            case _Unrolled(_, _, _, bound) if _ends_within(bound, self.zero.shape[-1]):
                return self.unrolled_from_start(node)
            case _:
                return self.along(node)[..., 0]

    def _along(self, node: _Normal) -> Array:
        match node:
            case _Atom():
                return self.atom(node)
            case _All(operands):
                return reduce(self.both, map(self.along, operands))
            case _Any(operands):
                return reduce(self.either, map(self.along, operands))
            case _Next(body):
                return _later(self.xp, self.along(body), 1)
            case _Unrolled():
                return self.unrolled(node)

    def unrolled_from_start(self, node: _Unrolled) -> Array:
        """At the start of the path only, for a window that ends within it."""
        bound = node.bound or Bound(0, self.zero.shape[-1] - 1)
        fold = {"R": self.every, "U": self.some}.get(node.operator)
        if node.left is None and fold is not None:  # G is a sum over its window, F a product
            return fold(self.along(node.right)[..., bound.lower : bound.upper + 1])
        wait, step, past_end = self.steps(node)
        value, _ = self.backwards(step.during(bound.lower, bound.upper + 1), past_end[..., 0])
        return self.backwards(wait.during(0, bound.lower), value)[0] if bound.lower else value

    def unrolled(self, node: _Unrolled) -> Array:
        """At every position of the path."""
        wait, step, past_end = self.steps(node)
        if node.bound is None:
            return self.backwards(step, past_end[..., 0])[1]
        lower, upper = node.bound.lower, node.bound.upper
        window = self.window(step, upper - lower + 1)
        if lower:
            window = self.around(self.window(wait, lower), window, min(lower, past_end.shape[-1]))
        return self.apply(window, past_end)

    def steps(self, node: _Unrolled) -> tuple[_Map, _Map, Array]:
        """What each state does while the operator waits for its window, what inside it, and what is past its end."""
        left, right = node.left and self.along(node.left), self.along(node.right)
        past_end = self.one if node.operator in ("U", "M") else self.zero
        if node.operator in ("U", "W"):  # φ2 ∨ (φ1 ∧ x) = (φ2 ∨ φ1) ∧ (φ2 ∨ x)
            waiting = self.zero if left is None else left
            return _Map(waiting, self.one), _Map(self.either(right, waiting), right), past_end
        waiting = self.one if left is None else left
        return _Map(self.zero, waiting), _Map(right, waiting), past_end  # φ2 ∧ (φ1 ∨ x)

    def apply(self, step: _Map, value: Array) -> Array:
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


def _violations(path: _Path) -> _Algebra:
    """Appendix A: violated or not."""
    xp = path.xp
    return _Algebra(
        xp=xp,
        zero=xp.zeros(path.shape, bool),
        one=xp.ones(path.shape, bool),
        both=xp.logical_or,
        either=xp.logical_and,
        every=lambda x: x.any(axis=-1),
        some=lambda x: x.all(axis=-1),
        atom=path.violated,
    )


def _costs(path: _Path, violations: _Algebra, severity: bool) -> _Algebra:
    """Appendix B: ∧ adds, ∨ multiplies. Positive costs stay within [SMALLEST, LARGEST]: none becomes 0 or inf."""
    xp = path.xp

    def product(x: Array, y: Array) -> Array:
        return xp.where((x > 0) & (y > 0), xp.clip(x * y, SMALLEST, LARGEST), 0.0)

    def only_0_or_1(node: _Normal) -> _Algebra | None:
        return violations if not severity and _is_crisp(node) else None

    return _Algebra(
        xp=xp,
        zero=xp.zeros(path.shape, path.dtype),
        one=xp.ones(path.shape, path.dtype),
        both=lambda x, y: xp.minimum(x + y, LARGEST),
        either=product,
        every=lambda x: xp.minimum(x.sum(axis=-1), LARGEST),
        some=None,
        atom=path.severity,
        crisp=only_0_or_1,
    )


def _is_crisp(node: _Normal) -> bool:
    """Can it cost nothing but 0 or 1? Then its cost is its violation: products of 0 and 1 are Boolean."""
    match node:
        case _Atom():
            return True
        case _Next(body) | _Unrolled("U", None, body):
            return _is_crisp(body)
        case _Any(operands):
            return all(map(_is_crisp, operands))
        case _:
            return False


# ---- blame -----------------------------------------------------------------------------------------------------


def _blame(costs: _Algebra, node: _Normal) -> Array:
    """How the cost of a formula is spread over the states of the path, `[..., T]`."""
    xp, position = costs.xp, np.arange(costs.zero.shape[-1])
    match node:
        case _All(operands):
            return sum(_blame(costs, each) for each in operands)
        case _Unrolled("R", None, body, bound) if _is_timeless(body) and _ends_within(bound, len(position)):
            inside = (position >= bound.lower) & (position <= bound.upper) if bound else True
            return xp.where(inside, costs.along(body), 0.0)
        case _:
            return xp.where(position == position[-1], costs.start(node)[..., None], 0.0)


def _ends_within(bound: Bound | None, length: int) -> bool:
    return bound is None or bound.upper < length


def _is_timeless(node: _Normal) -> bool:
    """Does it speak about one state only?"""
    match node:
        case _All(operands) | _Any(operands):
            return all(map(_is_timeless, operands))
        case _:
            return isinstance(node, _Atom)


# ---- the monitor ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Monitor:
    """K compiled formulas; call it with the signals of a path, or of many."""

    formulas: tuple[Formula, ...]
    severity: bool
    signals: frozenset[str]  # the names it needs, labels among them
    _normal: tuple[_Normal, ...] = field(repr=False, compare=False)

    def __call__(self, signals: Mapping[str, Array], end: Array | None = None) -> tuple[Array, Array]:
        """(satisfied bool `[..., K]`, cost `[..., K]`) for signals `[..., T]`, or `[..., T, size]` if vectors.

        NumPy arrays give NumPy results in float64; JAX arrays, traced ones too, give JAX results in float32.
        `end` is bool `[..., T]`, true in the last state of each path and in its repetitions; by default the last
        position. If no formula names a signal, the first of `signals`, not a vector, tells the shape.
        """
        path = self._path(signals, end)
        xp, shape = path.xp, path.shape
        with np.errstate(all="ignore"):  # dividing by zero is no error: a comparison with its result decides
            violations = _violations(path)
            costs = _costs(path, violations, self.severity)
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
        path = self._path(signals, end)
        with np.errstate(all="ignore"):
            costs = _costs(path, _violations(path), self.severity)
            blame = [_blame(costs, each) for each in self._normal]
        return path.xp.stack(blame, axis=-1) if blame else path.xp.zeros((*path.shape, 0), path.dtype)

    def _path(self, signals: Mapping[str, Array], end: Array | None) -> _Path:
        arrays = [*signals.values(), *([] if end is None else [end])]
        xp: ModuleType = jnp if any(isinstance(each, jax.Array) for each in arrays) else np
        shape = self._shape(signals, end)
        if end is None:
            end = xp.arange(shape[-1]) == shape[-1] - 1
        return _Path(xp, signals, xp.asarray(end), shape)

    def _shape(self, signals: Mapping[str, Array], end: Array | None) -> tuple[int, ...]:
        shapes = [] if end is None else [np.shape(end)]
        for formula in self.formulas:
            for node in walk(formula):
                if isinstance(node, Signal | Label) and node.name in self.signals and node.name in signals:
                    shape = np.shape(signals[node.name])
                    shapes.append(
                        shape[:-1] if isinstance(node, Signal) and node.index is not None else shape
                    )
        if not shapes and not signals:
            raise RequirementError("a path without signals has no length: pass at least one signal")
        return np.broadcast_shapes(*(shapes or [np.shape(next(iter(signals.values())))]))


def compile_monitor(formulas: Sequence[Formula], *, severity: bool = False) -> Monitor:
    """Prepare K formulas for evaluation.

    A formula with no temporal operator costs 0 where it holds and 1 where it does not. With `severity` it is opened
    up: an inequality costs how far it is from holding, anything else 1, and `&` adds and `|` multiplies in it too.
    """
    named = (node for f in formulas for node in walk(f) if isinstance(node, Signal | Label))
    names = frozenset(node.name for node in named if node != Label(END))
    return Monitor(tuple(formulas), severity, names, tuple(_normalize(f, severity) for f in formulas))


@dataclass(frozen=True, slots=True)
class PathCheck:
    """What one path makes of a formula."""

    satisfied: bool
    cost: float  # 0 exactly if satisfied


def check_path(formula: str | Formula, signals: Mapping[str, Any], *, severity: bool = False) -> PathCheck:
    """Does a recorded path satisfy a formula, and what does it cost?

    `signals` maps names to arrays of length n+1, one entry per state (`[n+1, size]` for vectors); `step` is added if
    it is missing. The last state repeats beyond the end, so bounds may be of any size.
    """
    if isinstance(formula, str):
        formula = parse_formula(formula)
    arrays = {name: np.asarray(values) for name, values in signals.items()}
    length = _length(arrays)
    arrays.setdefault("step", np.arange(length))
    check_signals(formula, {name: _info(array) for name, array in arrays.items()}, "the path")
    monitor = compile_monitor([formula], severity=severity)
    used = {name: arrays[name] for name in monitor.signals} or {"step": arrays["step"]}
    for name, array in used.items():
        _check_values(name, array)
    satisfied, cost = monitor(used)
    return PathCheck(bool(satisfied[0]), float(cost[0]))


def _length(arrays: Mapping[str, np.ndarray]) -> int:
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not lengths or min(lengths.values()) == 0:
        empty = next((f": {name} has no entries" for name, n in lengths.items() if n == 0), "")
        raise RequirementError(f"the path is empty{empty}", advice="give every signal one entry per state")
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise RequirementError(
            f"the signals differ in length: {shown}", advice="give every signal one entry per state"
        )
    return next(iter(lengths.values()))


def _info(array: np.ndarray) -> SignalInfo:
    # Recorded Booleans are often numbers, so 0 and 1 may be read as either.
    zero_one = array.dtype.kind in "iuf" and bool(np.isin(array, (0, 1)).all())
    return SignalInfo(array.shape[1] if array.ndim > 1 else None, None if zero_one else array.dtype == bool)


def _check_values(name: str, array: np.ndarray) -> None:
    if array.dtype.kind not in "biuf" or array.ndim > 2:
        raise RequirementError(
            f"the signal {name!r} is no array of numbers or Booleans, one or a vector per state"
        )
    if np.isnan(array).any():
        at = int(np.argwhere(np.isnan(array))[0][0])
        raise RequirementError(
            f"the signal {name!r} is NaN at index {at}", advice="a formula needs a number in every state"
        )
