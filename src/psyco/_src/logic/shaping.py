"""Shaping costs: how far a formula is from holding where that grows step by step, a learning signal beside the cost.

A Boolean cost is constant until the first episode succeeds, or until a budget is spent. Comparisons of a `return` or of
an aggregate (`count(φ) <= 25`, `sum(info.cost) <= 25`, `return >= 200`) contain more: how much of the way to the bound
has been covered, and in which steps. The shaping cost of a formula is that number, as a fraction of the bound: 0 where
nothing is used up, 1 at the bound, more beyond. It is for learning only: satisfaction is decided by `semantics`.

The shaping cost of `G φ` is that of the worst state and of `F φ` that of the best, for state formulas φ that compare a
return or an aggregate. Among those `∧` is the worst of its parts and `∨` the best (quantitative semantics). A part
without a distance keeps its Boolean meaning: `∨` is satisfied where it holds, and `∧` is one bound further away where
it fails. `∧` of several such formulas adds their shaping costs. All other formulas have none and keep their cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from psyco._src.logic.array_eval import Array, SignalArrays, accumulate
from psyco._src.logic.ast import END, Aggregate, Bound, Compare, Formula, Node, Not, Signal, walk
from psyco._src.logic.nnf import Atom, NnfAnd, NnfNode, NnfOr, NnfUnrolled, to_nnf
from psyco._src.logic.scalar_eval import constant_value
from psyco._src.logic.semantics import Semantics, boolean_parts, is_timeless, step_costs

MIN_DISTANCE, MAX_DISTANCE = -1.0, 1e6  # from a bound, as a fraction of the bound
INEQUALITIES = ("<", "<=", ">", ">=")


def has_shaping(node: NnfNode) -> bool:
    """Return whether a formula has a shaping cost."""
    match node:
        case NnfAnd(operands):
            return any(map(has_shaping, operands))
        case NnfOr(operands):
            return all(isinstance(operand, NnfUnrolled) and has_shaping(operand) for operand in operands)
        case NnfUnrolled("U" | "R", None, body):
            return is_timeless(body) and _has_distance(_decomposed(body))
        case _:
            return False


@dataclass(frozen=True)
class Shaping:
    """Shaping costs on a batch of paths."""

    path: SignalArrays
    violations: Semantics
    costs: Semantics  # of formulas without a shaping cost
    cache: dict[NnfNode, Array] = field(default_factory=dict)  # distances

    def step_costs(self, node: NnfNode) -> Array:
        """Return the shaping cost of a formula distributed over the states of the path, `[..., T]`.

        A state adds the change that it causes: a falling return adds, a rising one subtracts.
        """
        if not has_shaping(node):
            return step_costs(self.costs, node)
        match node:
            case NnfAnd(operands):
                return sum(map(self.step_costs, operands))
            case NnfOr(operands):
                totals = [self.step_costs(operand).sum(axis=-1) for operand in operands]
                return self._at_last(reduce(self.path.xp.minimum, totals))
            case NnfUnrolled(operator, _, body, bound):
                return self._unrolled(operator, _decomposed(body), bound)
        raise AssertionError(f"no shaping cost for {node}")

    def _unrolled(self, operator: str, body: NnfNode, bound: Bound | None) -> Array:
        always = operator == "R"
        if always and isinstance(body, NnfAnd):  # G (φ ∧ ψ) is G φ ∧ G ψ, so each part counts
            boolean, metric = _partition(body.operands)
            parts = [self._unrolled(operator, part, bound) for part in metric]
            return sum([*parts, *([self._failures(boolean, bound)] if boolean else [])])
        if bound is None and (rest := _at_end(body, always)) is not None:
            return self._changes(self.distance(rest))  # only the last state counts, and each state leads there
        distance = self.distance(body)
        if bound is not None:
            outside = MIN_DISTANCE if always else MAX_DISTANCE
            distance = self.path.xp.where(self._in_window(bound), distance, outside)
        fold = getattr(self.path.xp, "maximum" if always else "minimum")
        so_far = accumulate(self.path.xp, fold, distance[..., 0], distance)
        if bound is not None and bound.lower and not always:
            return self._at_last(so_far[..., -1] - MIN_DISTANCE)  # unknown before the window opens
        return self._changes(so_far)

    def _changes(self, distance: Array) -> Array:
        """Return the change of a distance in each state; the first state has its excess over the minimum."""
        first = distance[..., :1] - MIN_DISTANCE
        return self.path.xp.concatenate([first, distance[..., 1:] - distance[..., :-1]], axis=-1)

    def _failures(self, boolean: Sequence[NnfNode], bound: Bound | None) -> Array:
        """Return 1 in each state where one of the nodes fails, as in appendix B."""
        fails = self._fails(boolean)
        if bound is not None:
            fails = fails & self._in_window(bound)
        return fails.astype(self.path.dtype)

    def _in_window(self, bound: Bound) -> Any:
        position = np.arange(self.path.shape[-1])
        return (position >= bound.lower) & (position <= bound.upper)

    def _at_last(self, total: Array) -> Array:
        position = np.arange(self.path.shape[-1])
        return self.path.xp.where(position == position[-1], total[..., None], 0.0)

    def worst_distance(self, node: NnfNode) -> Array:
        """Return the largest distance of a state from the body of a `G`, `[...]`; NaN for another formula."""
        match node:
            case NnfUnrolled("R", None, body, None) if is_timeless(body):
                return self.path.xp.max(self._atom_distance(_decomposed(body)), axis=-1)
        return self.path.xp.full(self.path.shape[:-1], self.path.xp.nan)

    def _atom_distance(self, node: NnfNode) -> Array:
        """Return the distance of each state like `distance`, also of comparisons that accumulate nothing."""
        xp = self.path.xp
        match node:
            case NnfAnd(operands):
                return reduce(xp.maximum, map(self._atom_distance, operands))
            case NnfOr(operands):
                return reduce(xp.minimum, map(self._atom_distance, operands))
            case Atom(Compare(operator=operator) as formula, negated) if operator in INEQUALITIES:
                return self._from_bound(formula, negated)
        return xp.where(self.violations.along(node), 1.0, MIN_DISTANCE)

    # ---- one state ---------------------------------------------------------------------------------------------

    def distance(self, node: NnfNode) -> Array:
        """Return how far each state is from satisfying a state formula, `[..., T]`: above 0 where it fails."""
        if node not in self.cache:
            self.cache[node] = self._distance(node)
        return self.cache[node]

    def _distance(self, node: NnfNode) -> Array:
        xp = self.path.xp
        match node:
            case Atom(formula, negated):
                return self._from_bound(formula, negated)
            case NnfAnd(operands):
                boolean, metric = _partition(operands)
                distance = reduce(xp.maximum, map(self.distance, metric))
                if not boolean:
                    return distance
                return xp.where(self._fails(boolean), 1.0 + xp.maximum(distance, 0.0), distance)
            case NnfOr(operands):
                boolean, metric = _partition(operands)
                distance = reduce(xp.minimum, map(self.distance, metric))
                holds = [~self.violations.along(part) for part in boolean]
                return xp.where(reduce(xp.logical_or, holds), MIN_DISTANCE, distance) if boolean else distance
        raise AssertionError(f"not about one state: {node}")

    def _fails(self, boolean: Sequence[NnfNode]) -> Array:
        return reduce(self.path.xp.logical_or, map(self.violations.along, boolean))

    def _from_bound(self, formula: Formula, negated: bool) -> Array:
        assert isinstance(formula, Compare)
        xp, path = self.path.xp, self.path
        above = path.value(formula.left) - path.value(formula.right)
        wants_more = (formula.operator in (">", ">=")) != negated
        distance = (-above if wants_more else above) / bound_size(formula)
        if_nan = xp.where(path.violated(Atom(formula, negated)), 1.0, MIN_DISTANCE)
        distance = xp.where(xp.isnan(distance), if_nan, xp.clip(distance, MIN_DISTANCE, MAX_DISTANCE))
        return xp.broadcast_to(distance, path.shape).astype(path.dtype)


def bound_size(formula: Compare) -> float:
    """Return the size of the bound, the unit of distances from it; 1 where it is 0 or not a constant."""
    constants = [constant_value(side) for side in (formula.left, formula.right)]
    size = next((abs(constant) for constant in constants if constant is not None), 0.0)
    return size if 0.0 < size < math.inf else 1.0


def _decomposed(node: NnfNode) -> NnfNode:
    """Return a state formula decomposed to its comparisons."""
    if isinstance(node, Atom):
        return to_nnf(Not(node.formula) if node.negated else node.formula, True)
    return node  # `to_nnf` has decomposed it already


def _partition(operands: Sequence[NnfNode]) -> tuple[list[NnfNode], list[NnfNode]]:
    """Return the operands without a distance, and those with one."""
    metric = [operand for operand in operands if _has_distance(operand)]
    return [operand for operand in operands if operand not in metric], metric


def _has_distance(node: NnfNode) -> bool:
    return any(
        isinstance(part, Atom)
        and isinstance(part.formula, Compare)
        and part.formula.operator in INEQUALITIES
        and any(map(_accumulates, walk(part.formula)))
        for part in boolean_parts(node)
    )


def _accumulates(node: Node) -> bool:
    return isinstance(node, Aggregate) or (isinstance(node, Signal) and node.name == "return")


def _at_end(body: NnfNode, always: bool) -> NnfNode | None:
    """Return φ if the body is "end" & φ below F, or "end" => φ below G: only the last state counts."""
    if not isinstance(body, NnfOr if always else NnfAnd):
        return None
    rest = tuple(operand for operand in body.operands if not _is_end(operand, negated=always))
    if len(rest) == len(body.operands) or not rest:
        return None
    return rest[0] if len(rest) == 1 else type(body)(rest)


def _is_end(node: NnfNode, *, negated: bool) -> bool:
    return isinstance(node, Atom) and node.formula == END and node.negated == negated
