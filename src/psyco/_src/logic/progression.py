"""Formula progression: what remains of a formula after each state of a path, as a deterministic automaton.

A formula in negation normal form is progressed through one state by unrolling its operators once; the rest are
obligations from the next state on. Without negations above the atoms it is a monotone Boolean function of these, whose
minimal disjunctive form is unique. So equal remainders are recognised as equal, and there are finitely many.
Obligations of one operator that became due at different times imply each other (`F<=3 a` implies `F<=5 a`); only the
strongest are kept. States of the automaton are created on first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RequirementError
from psyco._src.logic.ast import Formula, children, is_state_formula
from psyco._src.logic.nnf import Atom, NnfAnd, NnfNext, NnfNode, NnfOr, NnfUnrolled, to_nnf

if TYPE_CHECKING:
    from psyco._src.logic.array_eval import SignalArrays  # which imports JAX

MAX_AUTOMATON_STATES = 200_000


class Obligation(NamedTuple):
    """A formula that has to hold from the next state on, with the current bounds of its operator."""

    node: NnfNode
    lower: int = 0
    upper: int | None = None


Clause: TypeAlias = frozenset[Obligation]  # a conjunction
Remainder: TypeAlias = frozenset[Clause]  # a disjunction
Letter: TypeAlias = tuple[bool, ...]  # the truth of every atom in one state
FALSE: Remainder = frozenset()
TRUE: Remainder = frozenset([frozenset()])


class Automaton:
    """The joint automaton of K formulas; its states are numbered, one per tuple of K remainders."""

    def __init__(self, formulas: Sequence[Formula]) -> None:
        self.formulas = tuple(formulas)
        self.atoms = state_formulas(formulas)  # A state formulas, the input of the automaton
        self._index = {atom: i for i, atom in enumerate(self.atoms)}
        self._remainders: list[tuple[Remainder, ...]] = []
        self._numbers: dict[tuple[Remainder, ...], int] = {}
        self._next: dict[tuple[int, Letter], int] = {}
        self.initial_remainders = tuple(_later(to_nnf(f, False)) for f in formulas)
        self.start = self._number(self.initial_remainders)

    def letters(self, path: SignalArrays) -> NDArray[np.bool_]:
        """Return the truth of every atom along paths, `[..., T, A]`."""
        with np.errstate(all="ignore"):
            columns = [np.broadcast_to(path.holds(atom), path.shape) for atom in self.atoms]
        return np.stack(columns, axis=-1) if columns else np.zeros((*path.shape, 0), bool)

    def step(self, state: int, letter: Letter) -> int:
        """Return the successor of a state."""
        key = state, letter
        if key not in self._next:
            after = tuple(self.progress(remainder, letter) for remainder in self._remainders[state])
            self._next[key] = self._number(after)
        return self._next[key]

    def verdicts(self, state: int, letter: Letter) -> tuple[bool, ...]:
        """Return whether each formula holds if the path stays in this last letter forever."""
        return tuple(self.holds_at_end(remainder, letter) for remainder in self._remainders[state])

    def holds(self, state: int, formula: int) -> bool:
        """Return whether a formula holds for every continuation."""
        return self._remainders[state][formula] == TRUE

    def decided(self, state: int) -> bool:
        """Return whether all formulas are true or false for every continuation."""
        return all(remainder in (TRUE, FALSE) for remainder in self._remainders[state])

    def _number(self, remainders: tuple[Remainder, ...]) -> int:
        if remainders not in self._numbers:
            if len(self._remainders) == MAX_AUTOMATON_STATES:
                raise RequirementError(
                    f"exact answers need an automaton of more than {MAX_AUTOMATON_STATES:,} states",
                    advice="lower the bounds of nested temporal operators",
                )
            self._numbers[remainders] = len(self._remainders)
            self._remainders.append(remainders)
        return self._numbers[remainders]

    def progress(self, remainder: Remainder, letter: Letter) -> Remainder:
        """Progress a remainder through one state."""
        return _any(_all(self._unroll(due, letter) for due in clause) for clause in remainder)

    def holds_at_end(self, remainder: Remainder, letter: Letter) -> bool:
        """Return whether a remainder holds if the path stays in this last letter forever."""
        return any(all(self._holds_forever(due, letter) for due in clause) for clause in remainder)

    def _unroll(self, obligation: Obligation, letter: Letter) -> Remainder:
        """Return what one state leaves of an obligation that is due in it."""
        node, lower, upper = obligation

        def now(part: NnfNode) -> Remainder:
            return self._unroll(_obligation(part), letter)

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
                    continued = later if left_node is None else _both(now(left_node), later)
                    return continued if lower else _either(now(right_node), continued)
                # φ2 ∧ (φ1 ∨ next)
                continued = later if left_node is None else _either(now(left_node), later)
                return continued if lower else _both(now(right_node), continued)

    def _holds_forever(self, obligation: Obligation, letter: Letter) -> bool:
        """Return whether an obligation holds on the path that stays in one state."""
        node, lower, _ = obligation

        def now(part: NnfNode) -> bool:
            return self._holds_forever(_obligation(part), letter)

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
                # One unrolling is enough: further ones change nothing where all states are equal.
                right, past_end = now(right_node), operator in ("W", "R")
                if operator in ("U", "W"):
                    left = left_node is None or now(left_node)
                    value = right or (left and past_end)
                    return (left and value) if lower else value
                left = left_node is not None and now(left_node)
                value = right and (left or past_end)
                return (left or value) if lower else value


def state_formulas(formulas: Sequence[Formula]) -> tuple[Formula, ...]:
    """Return the largest state formulas within formulas, each once."""
    found: dict[Formula, None] = {}

    def visit(formula: Formula) -> None:
        if is_state_formula(formula):
            found.setdefault(formula)
        else:
            for child in children(formula):
                visit(child)  # type: ignore[arg-type]

    for formula in formulas:
        visit(formula)
    return tuple(found)


def _obligation(node: NnfNode) -> Obligation:
    bound = node.bound if isinstance(node, NnfUnrolled) else None
    return Obligation(node) if bound is None else Obligation(node, bound.lower, bound.upper)


def _later(node: NnfNode) -> Remainder:
    return frozenset([frozenset([_obligation(node)])])


def _both(one: Remainder, other: Remainder) -> Remainder:
    return _minimal({_strongest(a | b) for a in one for b in other})


def _either(one: Remainder, other: Remainder) -> Remainder:
    return _minimal(one | other)


def _all(remainders: Iterable[Remainder]) -> Remainder:
    return reduce(_both, remainders, TRUE)


def _any(remainders: Iterable[Remainder]) -> Remainder:
    return reduce(_either, remainders, FALSE)


def _minimal(clauses: set[Clause] | Remainder) -> Remainder:
    """Drop clauses that imply another one."""
    if len(clauses) < 2:
        return frozenset(clauses)
    return frozenset(c for c in clauses if not any(_clause_implies(c, d) for d in clauses if d != c))


def _strongest(clause: Clause) -> Clause:
    """Drop obligations that another one implies."""
    if len(clause) < 2:
        return clause
    return frozenset(a for a in clause if not any(_implies(b, a) for b in clause if b != a))


def _clause_implies(clause: Clause, other: Clause) -> bool:
    return all(b in clause or any(_implies(a, b) for a in clause) for b in other)


def _implies(one: Obligation, other: Obligation) -> bool:
    """Return whether an obligation implies another one of the same operator, whose bounds differ.

    A later upper bound is easier to meet for U and M, which wait for something, and harder for R and W, which maintain
    something. An earlier lower bound is easier for U and W, which may then finish sooner, and harder for R and M.
    """
    node, uppers = one.node, (one.upper, other.upper)
    if node is not other.node or not isinstance(node, NnfUnrolled) or None in uppers:
        return False
    first, second = (one, other) if node.operator in ("U", "M") else (other, one)
    sooner, later = (other, one) if node.operator in ("U", "W") else (one, other)
    return first.upper <= second.upper and sooner.lower <= later.lower  # type: ignore[operator]
