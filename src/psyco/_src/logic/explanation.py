"""Why a path satisfies or violates a formula: the cells that decide it, and its margin.

A cell is a comparison or a Boolean signal of the formula in one state. A set of cells decides the verdict if the
verdict is the same whatever all other cells are, on every path of this length. The explanation is such a set from which
no cell can be removed. `"end"` and comparisons of `step` alone are given by the length of the path, so they are no
cells. An aggregate is not taken apart: `count(φ) <= 2` is one cell per state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.logic.array_eval import SignalArrays
from psyco._src.logic.ast import (
    END,
    Bool,
    Compare,
    Connective,
    Formula,
    Label,
    Not,
    Signal,
    Temporal,
    Term,
    aggregates,
    walk,
)
from psyco._src.logic.nnf import Atom, NnfAnd, NnfNext, NnfNode, NnfOr, NnfUnrolled, to_nnf
from psyco._src.logic.scalar_eval import constant_value
from psyco._src.logic.semantics import Semantics, violations_on
from psyco._src.logic.shaping import bound_size

Signals = Mapping[str, NDArray[Any]]  # [T], or [T, size] for vectors
BATCH_CELLS = 2**22  # that are looked at in one go
# Cells that may be looked at to show by cases that a formula such as `a | !a` holds whatever a is.
MAX_WORK = 100_000


class SubformulaRow(NamedTuple):
    """A subformula along a path."""

    formula: Formula
    depth: int  # of nesting
    holds: NDArray[np.bool_]  # [T]
    deciding: NDArray[np.bool_]  # [T], in which states it is part of the explanation


class TermCurve(NamedTuple):
    """A compared term along a path."""

    term: Term
    values: NDArray[np.float64]  # [T]
    limits: tuple[float, ...]  # the constants that it is compared with


@dataclass(frozen=True, eq=False)
class Explanation:
    """The verdict about one path, and the reason for it."""

    formula: Formula
    satisfied: bool
    deciding: dict[Formula, NDArray[np.bool_]]  # per comparison or Boolean signal [T]: in which states it decides
    path: SignalArrays = dataclasses.field(repr=False)

    @property
    def cells(self) -> list[tuple[Formula, int]]:
        """The deciding cells, by step."""
        found = [(leaf, int(step)) for leaf, where in self.deciding.items() for step in np.flatnonzero(where)]
        return sorted(found, key=lambda cell: cell[1])

    @cached_property
    def rows(self) -> list[SubformulaRow]:
        """Every subformula once, in the order of the text."""
        violations, nowhere = violations_on(self.path), np.zeros(self.path.shape, bool)
        rows: dict[Formula, SubformulaRow] = {}
        with np.errstate(all="ignore"):
            for depth, part in _subformulas(self.formula):
                holds = ~violations.along(to_nnf(part, False))
                rows.setdefault(part, SubformulaRow(part, depth, holds, self.deciding.get(part, nowhere)))
        return list(rows.values())

    @cached_property
    def curves(self) -> list[TermCurve]:
        """The terms that deciding comparisons compare; those of all comparisons if none decides."""
        compared = [leaf for leaf in self.deciding if isinstance(leaf, Compare)]
        limits: dict[Term, dict[float, None]] = {}
        for leaf in [leaf for leaf in compared if self.deciding[leaf].any()] or compared:
            for side, other in ((leaf.left, leaf.right), (leaf.right, leaf.left)):
                if constant_value(side) is None:
                    limit = constant_value(other)
                    limits.setdefault(side, {}).update({} if limit is None else {limit: None})
        with np.errstate(all="ignore"):
            return [
                TermCurve(term, np.broadcast_to(np.asarray(self.path.value(term), float), self.path.shape), tuple(own))
                for term, own in limits.items()
            ]


def _subformulas(formula: Formula, depth: int = 0) -> Iterator[tuple[int, Formula]]:
    """Yield a formula and all formulas in it, also counted ones; constants are left out."""
    if isinstance(formula, Bool):
        return
    yield depth, formula
    inner: tuple[Any, ...] = ()
    match formula:
        case Not(body):
            inner = (body,)
        case Connective(_, operands) | Temporal(_, operands):
            inner = operands
        case Compare():
            inner = tuple(each.body for each in aggregates([formula]) if each.function == "count")
    for part in inner:
        yield from _subformulas(part, depth + 1)


def explain(formula: Formula, signals: Signals) -> Explanation:
    """Return why a path satisfies or violates a formula; of several explanations a short one that ends early.

    Args:
        formula: the formula.
        signals: all signals in it, in every state of the path.
    """
    path = _path(formula, signals)
    node = to_nnf(formula, True)
    polarities = _polarities(node)
    with np.errstate(all="ignore"):
        holds = {leaf: np.broadcast_to(path.holds(leaf), path.shape) for leaf in polarities}
        satisfied = not violations_on(path).at_start(node)
    values = np.array(list(holds.values()), bool).reshape(-1, *path.shape)
    given = np.array([_is_given(leaf) for leaf in holds], bool)
    mixed = np.array([len(polarities[leaf]) > 1 for leaf in holds], bool) & ~given
    verdict = _Verdict(node, {leaf: row for row, leaf in enumerate(holds)}, path, satisfied, values, mixed)
    cells = np.argwhere(np.broadcast_to(~given[:, None], values.shape))
    # Later cells are dropped first, so that the explanation ends where the verdict was decided.
    orders = (np.lexsort((by_row, -cells[:, 1])) for by_row in (cells[:, 0], -cells[:, 0]))
    tried = [verdict.shrink(cells[order]) for order in orders]
    best = min(tried, key=lambda known: int(known[~given].sum()))
    deciding = {leaf: best[row] for row, leaf in enumerate(holds) if not given[row]}
    return Explanation(formula, satisfied, deciding, path)


def _path(formula: Formula, signals: Signals) -> SignalArrays:
    named = {node.name for node in walk(formula) if isinstance(node, Signal | Label) and node != END}
    length = len(signals["step"])
    used = {name: np.asarray(signals[name]) for name in named}
    return SignalArrays(np, used, np.arange(length) == length - 1, (length,))


def _is_given(leaf: Formula) -> bool:
    """Whether a formula is about the position in the path alone."""
    names = (node for node in walk(leaf) if isinstance(node, Signal | Label))
    return all(node == END or node.name == "step" for node in names)


def _polarities(node: NnfNode) -> dict[Formula, set[bool]]:
    """Return the comparisons and Boolean signals below a node: whether they occur plain, negated, or both."""
    found: dict[Formula, set[bool]] = {}
    queue, seen = [node], set()
    while queue:
        part = queue.pop()
        if id(part) in seen:  # nested <=> share their parts
            continue
        seen.add(id(part))
        match part:
            case Atom(formula, negated):
                found.setdefault(formula, set()).add(negated)
            case NnfAnd(operands) | NnfOr(operands):
                queue += reversed(operands)
            case NnfNext(body):
                queue.append(body)
            case NnfUnrolled(_, left, right):
                queue += [right, *([] if left is None else [left])]
    return found


@dataclass
class _Verdict:
    """Whether some of the cells `[L, T]` decide the verdict about a path."""

    node: NnfNode
    row: Mapping[Formula, int]  # of each comparison or Boolean signal, L of them
    path: SignalArrays
    satisfied: bool
    values: NDArray[np.bool_]  # [L, T], of all cells
    mixed: NDArray[np.bool_]  # [L], those that occur plain and negated
    work: int = MAX_WORK

    def shrink(self, cells: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return a set that decides, bool `[L, T]`, without those of the cells `[N, 2]` that it can do without."""
        known = np.ones(self.values.shape, bool)
        cells = cells[~self._needed(cells)]
        at, size = 0, len(cells)
        while at < len(cells):
            rows, steps = cells[at : at + size].T
            fewer = known.copy()
            fewer[rows, steps] = False
            if self.decided(fewer):
                known, at, size = fewer, at + size, 2 * size
            elif size > 1:
                size //= 2
            else:
                at += 1
        return known

    def _needed(self, cells: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return without which of the cells no set decides, where that can be found out for many at once, `[N]`."""
        if self.mixed.any():
            return np.zeros(len(cells), bool)
        at_once = max(1, BATCH_CELLS // self.values.size)
        needed = [np.zeros(0, bool)]
        for batch in np.split(cells, range(at_once, len(cells), at_once)):
            known = np.ones((len(batch), *self.values.shape), bool)
            known[np.arange(len(batch)), *batch.T] = False
            needed.append(~self._decided_at_once(self.values, known))
        return np.concatenate(needed)

    def decided(self, known: NDArray[np.bool_]) -> bool:
        """Return whether the known cells decide, by cases where a cell occurs plain and negated.

        A question that takes too much work counts as not decided: the explanation then has more cells than it needs.
        """
        cases = [(self.values, known)]
        while cases:
            values, known = cases.pop()
            self.work -= values.size
            if self._decided_at_once(values, known):
                continue
            free = np.argwhere(~known & self.mixed[:, None])
            if not len(free) or self.work < 0 or not self._decided_for_some(values, known):
                return False
            row, step = free[0]
            known, other = known.copy(), values.copy()
            known[row, step], other[row, step] = True, not values[row, step]
            cases += [(values, known), (other, known)]
        return True

    def _decided_for_some(self, values: NDArray[np.bool_], known: NDArray[np.bool_]) -> bool:
        """Return whether a few simple choices for the cells that occur plain and negated leave the verdict."""
        chosen = ~known & self.mixed[:, None]
        tried = np.array([values, np.where(chosen, ~values, values), values | chosen, values & ~chosen])
        return bool(self._decided_at_once(tried, np.broadcast_to(known | chosen, tried.shape)).all())

    def _decided_at_once(self, values: NDArray[np.bool_], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return whether the verdict holds even if every occurrence of an unknown cell is adverse to it, `[...]`."""
        shape = (*known.shape[:-2], known.shape[-1])

        def atom(each: Atom) -> NDArray[np.bool_]:
            row = self.row[each.formula]
            return np.where(known[..., row, :], values[..., row, :] == each.negated, self.satisfied)

        violations = dataclasses.replace(violations_on(dataclasses.replace(self.path, shape=shape)), atom=atom)
        found: NDArray[np.bool_] = violations.at_start(self.node) != self.satisfied
        return found


# ---- how close a path is to the other verdict -------------------------------------------------------------------


def margin(formula: Formula, signals: Signals) -> float:
    """Return how far a path is from satisfying a formula, or, below 0, from violating it (quantitative semantics).

    An inequality counts by its distance from the bound, as a fraction of the bound; anything else as 1.
    """
    path = _path(formula, signals)
    infinity = np.full(path.shape, np.inf)

    def atom(each: Atom) -> NDArray[np.float64]:
        if _is_given(each.formula):
            return np.where(path.violated(each), np.inf, -np.inf)
        distance = path.severity(each) - path.severity(Atom(each.formula, not each.negated))
        return distance / (bound_size(each.formula) if isinstance(each.formula, Compare) else 1.0)

    distances = Semantics(
        xp=np,
        zero=-infinity,
        one=infinity,
        conjoin=np.maximum,
        disjoin=np.minimum,
        conjoin_all=lambda x: x.max(axis=-1),
        disjoin_all=lambda x: x.min(axis=-1),
        atom=atom,
    )
    with np.errstate(all="ignore"):
        return float(distances.at_start(to_nnf(formula, True)))
