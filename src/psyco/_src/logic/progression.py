"""What is left of a formula after each state of a path: a deterministic automaton, built as it is needed.

A formula in normal form is progressed through one state by unrolling its operators once; what remains are obligations
from the next state on. Without negations above the atoms it is a monotone Boolean function of these, whose minimal
disjunctive form is unique. So equal remainders are recognised as equal, and there are finitely many. Obligations of one
operator that became due at different times imply each other (`F<=3 a` implies `F<=5 a`); only the strongest are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RequirementError
from psyco._src.logic.ast import And, Formula, Iff, Implies, Not, Or, is_state_formula, parts
from psyco._src.logic.nnf import Atom, NnfAnd, NnfNext, NnfOr, NnfUnrolled, Normal, normalize

if TYPE_CHECKING:
    from psyco._src.logic.array_eval import SignalArrays  # which needs JAX

LARGEST = 200_000  # remainders of one formula


class Obligation(NamedTuple):
    """A formula that has to hold from the next state on; an operator's bound as it has become by then."""

    node: Normal
    lower: int = 0
    upper: int | None = None


Clause: TypeAlias = frozenset[Obligation]  # all of them
Remainder: TypeAlias = frozenset[Clause]  # one of these
Letter: TypeAlias = tuple[bool, ...]  # the truth of every atom in one state
FALSE: Remainder = frozenset()
TRUE: Remainder = frozenset([frozenset()])


class Automaton:
    """K formulas read state by state; a number stands for what is left of all of them."""

    def __init__(self, formulas: Sequence[Formula]) -> None:
        self.formulas = tuple(formulas)
        self.atoms = state_formulas(formulas)  # A state formulas: all that the automaton sees of a state
        self._index = {atom: i for i, atom in enumerate(self.atoms)}
        self._remainders: list[tuple[Remainder, ...]] = []
        self._numbers: dict[tuple[Remainder, ...], int] = {}
        self._next: dict[tuple[int, Letter], int] = {}
        # What is left before the first state.
        self.whole = tuple(_later(normalize(f, False)) for f in formulas)
        self.start = self._number(self.whole)

    def letters(self, path: SignalArrays) -> NDArray[np.bool_]:
        """The truth of every atom along paths, `[..., T, A]`."""
        with np.errstate(all="ignore"):
            columns = [np.broadcast_to(path.holds(atom), path.shape) for atom in self.atoms]
        return np.stack(columns, axis=-1) if columns else np.zeros((*path.shape, 0), bool)

    def step(self, progress: int, letter: Letter) -> int:
        """What is left after one more state."""
        key = progress, letter
        if key not in self._next:
            left = tuple(self.through(remainder, letter) for remainder in self._remainders[progress])
            self._next[key] = self._number(left)
        return self._next[key]

    def verdicts(self, progress: int, letter: Letter) -> tuple[bool, ...]:
        """Does each formula hold if this state is the last, and so repeats forever?"""
        return tuple(self.final(remainder, letter) for remainder in self._remainders[progress])

    def holds(self, progress: int, formula: int) -> bool:
        """Does a formula hold, whatever is to come?"""
        return self._remainders[progress][formula] == TRUE

    def decided(self, progress: int) -> bool:
        """Is nothing left to be seen?"""
        return all(remainder in (TRUE, FALSE) for remainder in self._remainders[progress])

    def _number(self, remainders: tuple[Remainder, ...]) -> int:
        if remainders not in self._numbers:
            if len(self._remainders) == LARGEST:
                raise RequirementError(
                    f"exact answers need more than {LARGEST:,} intermediate results",
                    advice="lower the bounds of nested temporal operators",
                )
            self._numbers[remainders] = len(self._remainders)
            self._remainders.append(remainders)
        return self._numbers[remainders]

    def through(self, remainder: Remainder, letter: Letter) -> Remainder:
        """What one more state leaves of a remainder."""
        return _any(_all(self._unroll(each, letter) for each in clause) for clause in remainder)

    def final(self, remainder: Remainder, letter: Letter) -> bool:
        """Does what is left hold if this state is the last, and so repeats forever?"""
        return any(all(self._constant(each, letter) for each in clause) for clause in remainder)

    def _unroll(self, obligation: Obligation, letter: Letter) -> Remainder:
        """An obligation that has become due: what does this state leave of it?"""
        node, lower, upper = obligation

        def now(part: Normal) -> Remainder:
            return self._unroll(_due(part), letter)

        match node:
            case Atom(formula, negated):
                return TRUE if letter[self._index[formula]] != negated else FALSE
            case NnfAnd(operands):
                return _all(map(now, operands))
            case NnfOr(operands):
                return _any(map(now, operands))
            case NnfNext(body):
                return _later(body)
            case NnfUnrolled(operator, left_node, right_node, _):
                strong = operator in ("U", "M")  # past its bound it does not hold
                if upper == 0:
                    later = FALSE if strong else TRUE
                else:
                    bound = (max(lower - 1, 0), None if upper is None else upper - 1)
                    later = frozenset([frozenset([Obligation(node, *bound)])])
                if operator in ("U", "W"):  # φ2 ∨ (φ1 ∧ next)
                    goes_on = later if left_node is None else _both(now(left_node), later)
                    return goes_on if lower else _either(now(right_node), goes_on)
                goes_on = later if left_node is None else _either(now(left_node), later)  # φ2 ∧ (φ1 ∨ next)
                return goes_on if lower else _both(now(right_node), goes_on)

    def _constant(self, obligation: Obligation, letter: Letter) -> bool:
        """Does the obligation hold on the path that stays in one state?"""
        node, lower, _ = obligation

        def now(part: Normal) -> bool:
            return self._constant(_due(part), letter)

        match node:
            case Atom(formula, negated):
                return letter[self._index[formula]] != negated
            case NnfAnd(operands):
                return all(map(now, operands))
            case NnfOr(operands):
                return any(map(now, operands))
            case NnfNext(body):
                return now(body)
            case NnfUnrolled(operator, left_node, right_node, _):
                # One unrolling is enough: a second one changes nothing where all states are equal.
                right, past_end = now(right_node), operator in ("W", "R")
                if operator in ("U", "W"):
                    left = left_node is None or now(left_node)
                    value = right or (left and past_end)
                    return (left and value) if lower else value
                left = left_node is not None and now(left_node)
                value = right and (left or past_end)
                return (left or value) if lower else value


def state_formulas(formulas: Sequence[Formula]) -> tuple[Formula, ...]:
    """The largest parts of formulas that speak about one state only, each once."""
    found: dict[Formula, None] = {}

    def visit(formula: Formula) -> None:
        if is_state_formula(formula):
            found.setdefault(formula)
        else:
            for part in parts(formula):
                visit(part)  # type: ignore[arg-type]

    for formula in formulas:
        visit(formula)
    return tuple(found)


def connectives(formula: Formula) -> Formula:
    """=> and <=> written with & | !, for tools that lack them."""
    match formula:
        case Implies(left, right):
            return Or((Not(left), right))
        case Iff(left, right):
            return Or((And((left, right)), And((Not(left), Not(right)))))
        case _:
            return formula


def _due(node: Normal) -> Obligation:
    bound = node.bound if isinstance(node, NnfUnrolled) else None
    return Obligation(node) if bound is None else Obligation(node, bound.lower, bound.upper)


def _later(node: Normal) -> Remainder:
    return frozenset([frozenset([_due(node)])])


def _both(one: Remainder, other: Remainder) -> Remainder:
    return _minimal({_strongest(a | b) for a in one for b in other})


def _either(one: Remainder, other: Remainder) -> Remainder:
    return _minimal(one | other)


def _all(remainders: Any) -> Remainder:
    return reduce(_both, remainders, TRUE)


def _any(remainders: Any) -> Remainder:
    return reduce(_either, remainders, FALSE)


def _minimal(clauses: set[Clause] | Remainder) -> Remainder:
    """Without clauses that imply another one."""
    if len(clauses) < 2:
        return frozenset(clauses)
    return frozenset(c for c in clauses if not any(_adds(c, other) for other in clauses if other != c))


def _strongest(clause: Clause) -> Clause:
    """Without obligations that another one implies."""
    if len(clause) < 2:
        return clause
    return frozenset(a for a in clause if not any(_implies(b, a) for b in clause if b != a))


def _adds(clause: Clause, other: Clause) -> bool:
    """Does a clause ask for everything that another one asks for?"""
    return all(b in clause or any(_implies(a, b) for a in clause) for b in other)


def _implies(one: Obligation, other: Obligation) -> bool:
    """Obligations of one operator with bounds that have moved on differently far.

    A later end is easier to meet for U and M, which wait for something, and harder for R and W, which keep something
    up. An earlier beginning is easier for U and W, which may then be over sooner, and harder for R and M.
    """
    node = one.node
    if (
        node is not other.node
        or not isinstance(node, NnfUnrolled)
        or one.upper is None
        or other.upper is None
    ):
        return False
    first, second = (one, other) if node.operator in ("U", "M") else (other, one)
    sooner, later = (other, one) if node.operator in ("U", "W") else (one, other)
    return first.upper <= second.upper and sooner.lower <= later.lower  # type: ignore[operator]
