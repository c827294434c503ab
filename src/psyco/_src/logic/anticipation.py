"""What can still become of a formula: the earliest verdict about an episode, while it runs.

A verdict is given as soon as every way in which the episode can go on ends in it. The ways are all sequences of states
of any length up to the horizon, in which comparisons and Boolean signals take values independently of each other. Two
things are known beyond that: the label "end" is true in the last state alone, and a comparison of what never falls
(counts, `step`, `most(x)`, counters) or never rises (`least(x)`) may be settled for good.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from itertools import product
from typing import Literal

from psyco._src.logic.ast import (
    Aggregate,
    And,
    Arith,
    Bool,
    Call,
    Compare,
    Formula,
    Iff,
    Implies,
    Label,
    Minus,
    Not,
    Number,
    Or,
    Signal,
    Term,
)
from psyco._src.logic.progression import FALSE, TRUE, Automaton, Letter, Remainder
from psyco._src.logic.validate import END

PROPOSITIONS = 10  # comparisons and Boolean signals of a formula that are told apart: 2^10 kinds of states
SEARCHED = 10_000  # situations that are looked at for one verdict; after that it may come later than it could
KEPT = 10_000  # situations that are remembered, so that they need not be searched again

Settled = tuple[bool, ...]  # which of the comparisons that can be settled are


class Situation:
    """What is left of a formula, and what can become of it."""

    __slots__ = ("next", "quiet", "remainder", "settled", "to_false", "to_true")

    def __init__(self, remainder: Remainder, settled: Settled) -> None:
        self.remainder, self.settled = remainder, settled
        self.next: dict[Letter, Situation] = {}
        self.quiet: set[Letter] = set()  # states that change nothing; whoever finds one may enter it here
        # In how many more states at the least an episode can satisfy or violate the formula; inf for never.
        self.to_true = self.to_false = math.nan

    @property
    def undecidable(self) -> bool:
        """Can the very next state bring either, so that nothing is decided here as long as an episode goes on?"""
        return self.to_true == self.to_false == 1


class Anticipation:
    """The situations of one formula, found as they are needed.

    A letter has the truth of `atoms` in a state, then that of `latches`.
    """

    def __init__(self, formula: Formula, horizon: int | None, counters: Collection[str] = ()) -> None:
        """See `Monitor`."""
        self.automaton = Automaton([formula])
        self.horizon = horizon
        self.atoms = self.automaton.atoms
        leaves = {n: None for a in self.atoms for n in walk_truths(a) if not isinstance(n, Bool)}
        fit = len(leaves) <= PROPOSITIONS
        # Too many to try all of their values: then state formulas are taken to be independent, or nothing is foreseen.
        apart = leaves if fit else dict.fromkeys(self.atoms)
        self.propositions = tuple(each for each in apart if each != Label(END))
        self.foresees = len(self.propositions) <= PROPOSITIONS
        final = {leaf: final_value(leaf, counters) for leaf in leaves} if fit else {}
        self.latches = {leaf: value for leaf, value in final.items() if value is not None}
        self._letters: dict[tuple[Settled, bool], tuple[Letter, ...]] = {}
        self._situations: dict[tuple[Remainder, Settled], Situation] = {}
        self.start = self.judged(self._situation(self.automaton.whole[0], (False,) * len(self.latches)))

    def after(self, situation: Situation, letter: Letter) -> Situation:
        """The same as `step`, with what can become of it; and memory stays bounded."""
        if len(self._situations) > KEPT:  # a new start; what is in use now is found again
            self._situations.clear()
            situation.next.clear()
            self.start.next.clear()
        return self.judged(self.step(situation, letter))

    def final(self, situation: Situation, letter: Letter) -> bool:
        """Does the formula hold if this state is the last?"""
        return self.automaton.final(situation.remainder, letter)

    def judged(self, situation: Situation) -> Situation:
        """The same, with what can become of it."""
        if math.isnan(situation.to_true):
            situation.to_true, situation.to_false = self._nearest(situation)
        return situation

    def letters(self, settled: Settled, end: bool) -> tuple[Letter, ...]:
        """What the next state can be like, each once."""
        if (settled, end) not in self._letters:
            fixed = {leaf: value for (leaf, value), is_fixed in self._fixed(settled) if is_fixed}
            free = [leaf for leaf in self.propositions if leaf not in fixed]
            found: dict[Letter, None] = {}
            for values in product((True, False), repeat=len(free)):
                known = {Label(END): end, **fixed, **dict(zip(free, values, strict=True))}
                found[tuple(holds(each, known) for each in (*self.atoms, *self.latches))] = None
            self._letters[settled, end] = tuple(found)
        return self._letters[settled, end]

    def _fixed(self, settled: Settled) -> Iterator[tuple[tuple[Formula, bool], bool]]:
        return zip(self.latches.items(), settled, strict=True)

    def step(self, situation: Situation, letter: Letter) -> Situation:
        """The situation after one more state that is not the last."""
        if letter not in situation.next:
            truths = letter[len(self.atoms) :]
            settled = tuple(map(bool.__eq__, truths, self.latches.values()))
            remainder = self.automaton.through(situation.remainder, letter)
            situation.next[letter] = self._situation(remainder, settled)
        return situation.next[letter]

    def _situation(self, remainder: Remainder, settled: Settled) -> Situation:
        return self._situations.setdefault((remainder, settled), Situation(remainder, settled))

    def _nearest(self, situation: Situation) -> tuple[float, float]:
        """The least number of further states after which the formula is true, and false: breadth first."""
        if situation.remainder in (TRUE, FALSE):
            return (1, math.inf) if situation.remainder == TRUE else (math.inf, 1)
        if not self.foresees:
            return 1, 1
        nearest: dict[bool, float] = {}
        level, seen, depth = [situation], {situation}, 0
        while level and len(nearest) < 2 and (self.horizon is None or depth <= self.horizon):
            if len(seen) > SEARCHED:  # either may still happen, for all we know
                return nearest.get(True, depth), nearest.get(False, depth)
            depth += 1
            for each in level:
                for letter in self.letters(each.settled, end=True):
                    nearest.setdefault(self.final(each, letter), depth)
            further = {
                self.step(each, letter): None
                for each in (level if len(nearest) < 2 else ())
                for letter in self.letters(each.settled, end=False)
            }
            level = [each for each in further if each not in seen]
            seen.update(level)
        return nearest.get(True, math.inf), nearest.get(False, math.inf)


def walk_truths(formula: Formula) -> Iterator[Formula]:
    """The comparisons, signals, labels and truths that a state formula combines."""
    match formula:
        case Compare() | Signal() | Label() | Bool():
            yield formula
        case And(operands) | Or(operands):
            for each in operands:
                yield from walk_truths(each)
        case Not(body):
            yield from walk_truths(body)
        case Implies(left, right) | Iff(left, right):
            yield from walk_truths(left)
            yield from walk_truths(right)


def holds(formula: Formula, known: Mapping[Formula, bool]) -> bool:
    """A state formula, with what is known of its parts."""
    if formula in known:
        return known[formula]
    match formula:
        case Bool(value):
            return value
        case Not(body):
            return not holds(body, known)
        case And(operands):
            return all(holds(each, known) for each in operands)
        case Or(operands):
            return any(holds(each, known) for each in operands)
        case Implies(left, right):
            return not holds(left, known) or holds(right, known)
        case Iff(left, right):
            return holds(left, known) == holds(right, known)
    raise KeyError(formula)


# ---- what never falls or never rises ---------------------------------------------------------------------------------

Direction = Literal[-1, 0, 1] | None  # never rises, never changes, never falls; None: may do either


def final_value(leaf: Formula, counters: Collection[str]) -> bool | None:
    """The value that a comparison keeps once it has it; None if it may always change."""
    if not isinstance(leaf, Compare) or leaf.operator in ("=", "!="):
        return None
    direction = _together(trend(leaf.left, counters), _turned(trend(leaf.right, counters)))
    return None if not direction else (direction > 0) == (leaf.operator in (">", ">="))


def trend(term: Term, counters: Collection[str]) -> Direction:
    """Which way a term can go along an episode."""
    match term:
        case Number():
            return 0
        case Signal(name, None):
            return 1 if name == "step" or name in counters else None
        case Aggregate("count" | "most"):
            return 1
        case Aggregate("least"):
            return -1
        case Minus(body):
            return _turned(trend(body, counters))
        case Arith("+", left, right) | Call("min" | "max", (left, right)):
            return _together(trend(left, counters), trend(right, counters))
        case Arith("-", left, right):
            return _together(trend(left, counters), _turned(trend(right, counters)))
        case Arith("*", Number(), body) | Arith("*" | "/", body, Number()):  # which is not negative
            return trend(body, counters)
    return None


def _turned(direction: Direction) -> Direction:
    turned: dict[Direction, Direction] = {1: -1, -1: 1}
    return turned.get(direction, direction)


def _together(one: Direction, other: Direction) -> Direction:
    if one is None or other is None:
        return None
    return one or other if not (one and other) or one == other else None
