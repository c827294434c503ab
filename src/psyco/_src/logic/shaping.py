"""How far a formula is from holding where that grows step by step: a learning signal beside the cost.

A Boolean cost says nothing until the first episode succeeds, or until a budget is spent. Comparisons of a `return` or
of an aggregate (`count(φ) <= 25`, `sum(info.cost) <= 25`, `return >= 200`) say more: how much of the way to the bound
has been gone, and in which steps. The grade of a formula is that number, as a part of the bound: 0 where nothing of it
is used up, 1 at the bound, more beyond. It is for learning alone: whether a formula holds is decided elsewhere.

What is graded: `G φ` by the worst state and `F φ` by the best, for formulas φ about one state in which a return or an
aggregate is compared; among those `∧` is the worst of its parts and `∨` the best (quantitative semantics). A part that
cannot be graded decides as it is: `∨` is done with where it holds, and `∧` is further away by one bound where it fails.
`∧` of several such demands adds their grades. What has no grade keeps its cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from psyco._src.logic.array_eval import Array, SignalArrays, accumulate
from psyco._src.logic.ast import Aggregate, Bound, Compare, Formula, Label, Node, Not, Signal, walk
from psyco._src.logic.nnf import Atom, NnfAnd, NnfOr, NnfUnrolled, Normal, normalize
from psyco._src.logic.semantics import Semantics, is_timeless, spread
from psyco._src.logic.validate import END

BEST, WORST = -1.0, 1e6  # between these lies a distance from a bound, as a part of the bound
ORDER = ("<", "<=", ">", ">=")


def has_grade(node: Normal) -> bool:
    """Can it be said how far a formula is from holding, step by step?"""
    match node:
        case NnfAnd(operands):
            return any(map(has_grade, operands))
        case NnfOr(operands):
            return all(isinstance(each, NnfUnrolled) and has_grade(each) for each in operands)
        case NnfUnrolled("U" | "R", None, body):
            return is_timeless(body) and _has_distance(_opened(body))
        case _:
            return False


@dataclass(frozen=True)
class Shaping:
    """Grades on one path, or on many."""

    path: SignalArrays
    violations: Semantics
    costs: Semantics  # of what has no grade
    seen: dict[Normal, Array] = field(default_factory=dict)  # distances, each found once

    def spread(self, node: Normal) -> Array:
        """How the grade of a formula is spread over the states of the path, `[..., T]`: its sum over T is the grade.

        A state adds what it changes, so a return that falls adds, and one that rises takes away.
        """
        if not has_grade(node):
            return spread(self.costs, node)
        match node:
            case NnfAnd(operands):
                return sum(map(self.spread, operands))
            case NnfOr(operands):
                totals = [self.spread(each).sum(axis=-1) for each in operands]
                return self._at_last(reduce(self.path.xp.minimum, totals))
            case NnfUnrolled(operator, _, body, bound):
                return self._unrolled(operator, _opened(body), bound)
        raise AssertionError(f"no grade for {node}")

    def _unrolled(self, operator: str, body: Normal, bound: Bound | None) -> Array:
        always = operator == "R"
        if always and isinstance(body, NnfAnd):  # G (φ ∧ ψ) is G φ ∧ G ψ, and each part keeps its say
            crisp, graded = _parted(body.operands)
            each = [self._unrolled(operator, part, bound) for part in graded]
            return sum([*each, *([self._failures(crisp, bound)] if crisp else [])])
        if bound is None and (rest := _at_end(body, always)) is not None:
            return self._changes(self.distance(rest))  # only the last state counts, and each leads there
        distance = self.distance(body)
        if bound is not None:
            inside = self._inside(bound)
            distance = self.path.xp.where(inside, distance, BEST if always else WORST)
        so_far = self._so_far("maximum" if always else "minimum", distance)
        if bound is not None and bound.lower and not always:
            return self._at_last(so_far[..., -1] - BEST)  # before its window opens nothing is known
        return self._changes(so_far)

    def _so_far(self, fold: str, distance: Array) -> Array:
        return accumulate(self.path.xp, getattr(self.path.xp, fold), distance[..., 0], distance)

    def _changes(self, distance: Array) -> Array:
        """What each state adds to a distance, the first one all that is beyond the best."""
        first = distance[..., :1] - BEST
        return self.path.xp.concatenate([first, distance[..., 1:] - distance[..., :-1]], axis=-1)

    def _failures(self, crisp: Sequence[Normal], bound: Bound | None) -> Array:
        """1 in each state where one of these fails, as appendix B has it."""
        fails = self._fails(crisp)
        if bound is not None:
            fails = fails & self._inside(bound)
        return fails.astype(self.path.dtype)

    def _inside(self, bound: Bound) -> Any:
        position = np.arange(self.path.shape[-1])
        return (position >= bound.lower) & (position <= bound.upper)

    def _at_last(self, total: Array) -> Array:
        position = np.arange(self.path.shape[-1])
        return self.path.xp.where(position == position[-1], total[..., None], 0.0)

    # ---- one state ---------------------------------------------------------------------------------------------

    def distance(self, node: Normal) -> Array:
        """How far each state is from satisfying a formula about it, `[..., T]`: above 0 where it fails."""
        if node not in self.seen:
            self.seen[node] = self._distance(node)
        return self.seen[node]

    def _distance(self, node: Normal) -> Array:
        xp = self.path.xp
        match node:
            case Atom(formula, negated):
                return self._from_bound(formula, negated)
            case NnfAnd(operands):
                crisp, graded = _parted(operands)
                far = reduce(xp.maximum, map(self.distance, graded))
                return xp.where(self._fails(crisp), 1.0 + xp.maximum(far, 0.0), far) if crisp else far
            case NnfOr(operands):
                crisp, graded = _parted(operands)
                far = reduce(xp.minimum, map(self.distance, graded))
                holds = [~self.violations.along(each) for each in crisp]
                return xp.where(reduce(xp.logical_or, holds), BEST, far) if crisp else far
        raise AssertionError(f"not about one state: {node}")

    def _fails(self, crisp: Sequence[Normal]) -> Array:
        return reduce(self.path.xp.logical_or, map(self.violations.along, crisp))

    def _from_bound(self, formula: Formula, negated: bool) -> Array:
        assert isinstance(formula, Compare)
        xp, path = self.path.xp, self.path
        above = path.value(formula.left) - path.value(formula.right)
        wants_more = (formula.operator in (">", ">=")) != negated
        far = (-above if wants_more else above) / self._scale(formula)
        fails = xp.where(path.violated(Atom(formula, negated)), 1.0, BEST)
        far = xp.where(xp.isnan(far), fails, xp.clip(far, BEST, WORST))
        return xp.broadcast_to(far, path.shape).astype(path.dtype)

    def _scale(self, formula: Compare) -> float:
        """The size of the bound, in which distances from it are told; 1 where it is 0, or no constant."""
        constant = [
            s
            for s in (formula.left, formula.right)
            if not any(isinstance(p, Signal | Aggregate) for p in walk(s))
        ]
        size = abs(float(self.path.value(constant[0]))) if constant else 0.0
        return size if 0.0 < size < math.inf else 1.0


def _opened(node: Normal) -> Normal:
    """A formula about one state, down to its comparisons."""
    if isinstance(node, Atom):
        return normalize(Not(node.formula) if node.negated else node.formula, True)
    return node  # by `normalize` already


def _parted(operands: Sequence[Normal]) -> tuple[list[Normal], list[Normal]]:
    """Those that only hold or fail, and those that do so by a distance."""
    graded = [each for each in operands if _has_distance(each)]
    return [each for each in operands if each not in graded], graded


def _has_distance(node: Normal) -> bool:
    seen, new = {node}, [node]  # nested <=> share their parts, and there may be 2^n ways to one of them
    while new:
        match new.pop():
            case Atom(Compare(operator, left, right)) if operator in ORDER:
                if any(map(_grows, (*walk(left), *walk(right)))):
                    return True
            case NnfAnd(operands) | NnfOr(operands):
                new += set(operands) - seen
                seen.update(operands)
    return False


def _grows(part: Node) -> bool:
    return isinstance(part, Aggregate) or (isinstance(part, Signal) and part.name == "return")


def _at_end(body: Normal, always: bool) -> Normal | None:
    """φ, where a body is "end" & φ below F, or "end" => φ below G: what counts in the last state alone."""
    if not isinstance(body, NnfOr if always else NnfAnd):
        return None
    rest = tuple(each for each in body.operands if not _is_end(each, negated=always))
    if len(rest) == len(body.operands) or not rest:
        return None
    return rest[0] if len(rest) == 1 else type(body)(rest)


def _is_end(node: Normal, *, negated: bool) -> bool:
    return isinstance(node, Atom) and node.formula == Label(END) and node.negated == negated
