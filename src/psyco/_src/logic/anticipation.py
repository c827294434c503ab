"""The earliest verdict about a running episode: what can still become of a formula.

A verdict is given as soon as every continuation of the episode leads to it. Continuations are all sequences of states
of any length up to the horizon, in which comparisons and Boolean signals take values independently of each other. Two
facts restrict them: the label "end" is true in the last state only, and a comparison of a term that never falls
(counts, `step`, `most(x)`, counters) or never rises (`least(x)`) may be settled for good, unless its value can become
undefined later, as `most(x / y)` does at 0/0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import product
from typing import Literal, NamedTuple

from psyco._src.logic.ast import (
    END,
    Aggregate,
    Arith,
    Bool,
    Call,
    Compare,
    Connective,
    Formula,
    Minus,
    Not,
    Number,
    Signal,
    Term,
    children,
)
from psyco._src.logic.exact_constants import exact_comparison
from psyco._src.logic.progression import FALSE, TRUE, Automaton, Letter, Remainder
from psyco._src.logic.scalar_eval import constant_value

MAX_PROPOSITIONS = 10  # comparisons and Boolean signals of a formula that are distinguished: 2^10 letters
MAX_SEARCHED_STATES = 10_000  # for one verdict; after that it may come later than possible
MAX_CACHED_STATES = 10_000

Settled = tuple[bool, ...]  # for each latch, whether it has its final value


class ProgressState:
    """The remainder of a formula, and how soon it can become true or false."""

    __slots__ = ("next", "remainder", "self_loops", "settled", "to_false", "to_true")

    def __init__(self, remainder: Remainder, settled: Settled) -> None:
        self.remainder, self.settled = remainder, settled
        self.next: dict[Letter, ProgressState] = {}
        self.self_loops: set[Letter] = set()  # letters that change nothing, as far as the runtime monitor knows
        # The least number of further states in which an episode can satisfy or violate the formula; inf for never.
        self.to_true = self.to_false = math.nan

    @property
    def undecidable(self) -> bool:
        """Whether the next state can bring either verdict, so there is none as long as the episode continues."""
        return self.to_true == self.to_false == 1


class Anticipation:
    """The progress states of one formula, created on first use.

    A letter is the truth of `atoms` in a state, followed by that of `latches`.
    """

    def __init__(self, formula: Formula, horizon: int | None, counters: Collection[str] = ()) -> None:
        """See `Monitor`."""
        self.automaton = Automaton([formula])
        self.horizon = horizon
        self.atoms = self.automaton.atoms
        leaves: dict[Formula, None] = {
            leaf: None for atom in self.atoms for leaf in propositions(atom) if not isinstance(leaf, Bool)
        }
        fit = len(leaves) <= MAX_PROPOSITIONS
        # With too many to enumerate, state formulas are taken to be independent, or nothing is anticipated.
        independent = leaves if fit else dict.fromkeys(self.atoms)
        self.propositions = tuple(leaf for leaf in independent if leaf != END)
        self.enumerable = len(self.propositions) <= MAX_PROPOSITIONS
        final = {leaf: final_value(leaf, counters) for leaf in leaves} if fit else {}
        self.latches = {leaf: value for leaf, value in final.items() if value is not None}
        self._letters: dict[tuple[Settled, bool], tuple[Letter, ...]] = {}
        self._states: dict[tuple[Remainder, Settled], ProgressState] = {}
        unsettled = (False,) * len(self.latches)
        self.start = self.with_distances(self._state(self.automaton.initial_remainders[0], unsettled))

    def after(self, state: ProgressState, letter: Letter) -> ProgressState:
        """Return the successor of a state with its distances; the cache of states stays bounded."""
        if len(self._states) > MAX_CACHED_STATES:  # states still in use are created again
            self._states.clear()
            state.next.clear()
            self.start.next.clear()
        return self.with_distances(self.step(state, letter))

    def holds_at_end(self, state: ProgressState, letter: Letter) -> bool:
        """Return whether the formula holds if this letter is that of the last state."""
        return self.automaton.holds_at_end(state.remainder, letter)

    def with_distances(self, state: ProgressState) -> ProgressState:
        """Fill in `to_true` and `to_false`."""
        if math.isnan(state.to_true):
            state.to_true, state.to_false = self._distances(state)
        return state

    def possible_letters(self, settled: Settled, end: bool) -> tuple[Letter, ...]:
        """Return the distinct letters that the next state can have."""
        if (settled, end) not in self._letters:
            latches = zip(self.latches.items(), settled, strict=True)
            fixed = {leaf: value for (leaf, value), is_fixed in latches if is_fixed}
            free = [leaf for leaf in self.propositions if leaf not in fixed]
            letters: dict[Letter, None] = {}
            for values in product((True, False), repeat=len(free)):
                known: dict[Formula, bool] = {END: end, **fixed, **dict(zip(free, values, strict=True))}
                letters[tuple(holds(formula, known) for formula in (*self.atoms, *self.latches))] = None
            self._letters[settled, end] = tuple(letters)
        return self._letters[settled, end]

    def step(self, state: ProgressState, letter: Letter) -> ProgressState:
        """Return the successor of a state after a letter that is not the last."""
        if letter not in state.next:
            truths = letter[len(self.atoms) :]
            settled = tuple(map(bool.__eq__, truths, self.latches.values()))
            state.next[letter] = self._state(self.automaton.progress(state.remainder, letter), settled)
        return state.next[letter]

    def _state(self, remainder: Remainder, settled: Settled) -> ProgressState:
        return self._states.setdefault((remainder, settled), ProgressState(remainder, settled))

    def _distances(self, state: ProgressState) -> tuple[float, float]:
        """Search breadth first for the least number of states until the formula is true, and until it is false."""
        if state.remainder in (TRUE, FALSE):
            return (1, math.inf) if state.remainder == TRUE else (math.inf, 1)
        if not self.enumerable:
            return 1, 1
        nearest: dict[bool, float] = {}
        level, seen, depth = [state], {state}, 0
        while level and len(nearest) < 2 and (self.horizon is None or depth <= self.horizon):
            if len(seen) > MAX_SEARCHED_STATES:  # both verdicts remain possible
                return nearest.get(True, depth), nearest.get(False, depth)
            depth += 1
            for node in level:
                for letter in self.possible_letters(node.settled, end=True):
                    nearest.setdefault(self.holds_at_end(node, letter), depth)
            successors = {
                self.step(node, letter): None
                for node in (level if len(nearest) < 2 else ())
                for letter in self.possible_letters(node.settled, end=False)
            }
            level = [node for node in successors if node not in seen]
            seen.update(level)
        return nearest.get(True, math.inf), nearest.get(False, math.inf)


def propositions(formula: Formula) -> Iterator[Formula]:
    """Yield the comparisons, signals, labels and literals that a state formula combines."""
    if not isinstance(formula, Not | Connective):
        yield formula
        return
    for child in children(formula):
        yield from propositions(child)  # type: ignore[arg-type]


def holds(formula: Formula, known: Mapping[Formula, bool]) -> bool:
    """Evaluate a state formula, given the truth of its propositions."""
    if formula in known:
        return known[formula]
    match formula:
        case Bool(value):
            return value
        case Not(body):
            return not holds(body, known)
        case Connective(operator, operands):
            return _CONNECTIVES[operator]([holds(operand, known) for operand in operands])
    raise KeyError(formula)


_CONNECTIVES: dict[str, Callable[[list[bool]], bool]] = {
    "&": all,
    "|": any,
    "=>": lambda truths: not truths[0] or truths[1],
    "<=>": lambda truths: truths[0] == truths[1],
}


# ---- monotone terms --------------------------------------------------------------------------------------------------

Direction = Literal[-1, 0, 1] | None  # never rises, never changes, never falls; None: may do either


def final_value(leaf: Formula, counters: Collection[str]) -> bool | None:
    """Return the value that a comparison keeps once it has it; None if it may always change."""
    if not isinstance(leaf, Compare) or leaf.operator in ("=", "!="):
        return None
    leaf = exact_comparison(leaf)
    direction = _sum(trend(leaf.left, counters), _opposite(trend(leaf.right, counters)))
    if not direction:
        return None
    final = (direction > 0) == (leaf.operator in (">", ">="))
    # No inequality holds for an undefined value; in an aggregate it lasts, elsewhere it need not.
    undefined = any(special_values(side, within_aggregates=final).undefined for side in (leaf.left, leaf.right))
    return None if undefined else final


def trend(term: Term, counters: Collection[str]) -> Direction:
    """Return the direction in which a term can change along an episode."""
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
            return _opposite(trend(body, counters))
        case Arith("+", left, right) | Call("min" | "max", (left, right)):
            return _sum(trend(left, counters), trend(right, counters))
        case Arith("-", left, right):
            return _sum(trend(left, counters), _opposite(trend(right, counters)))
        case Arith("*", Number(), body) | Arith("*" | "/", body, Number()):  # literals are not negative
            return trend(body, counters)
    return None


class SpecialValues(NamedTuple):
    """Whether a term can be infinite, and whether it can be undefined, as 0/0 is."""

    infinite: bool
    undefined: bool


def special_values(term: Term, *, within_aggregates: bool) -> SpecialValues:
    """Return which special values a term can have if all signals are finite.

    Args:
        term: any term.
        within_aggregates: whether values count that are undefined within an aggregate, and so from then on.
    """

    def special(part: Term) -> SpecialValues:
        return special_values(part, within_aggregates=within_aggregates)

    if (constant := constant_value(term)) is not None:
        return SpecialValues(math.isinf(constant), math.isnan(constant))
    match term:
        case Minus(body):
            return special(body)
        case Aggregate("least" | "most", body):
            infinite, undefined = special_values(body, within_aggregates=True)
            return SpecialValues(infinite, undefined and within_aggregates)
        case Aggregate("sum" | "mean"):
            return SpecialValues(True, True)
        case Call(_, arguments):
            infinite, undefined = map(any, zip(*map(special, arguments), strict=True))
            return SpecialValues(infinite, undefined)
        case Arith(operator, left, right):
            one, other = special(left), special(right)
            undefined = one.undefined or other.undefined
            if operator == "*":  # 0 times infinity
                undefined |= (one.infinite and _can_be_zero(right)) or (other.infinite and _can_be_zero(left))
            else:  # infinity minus infinity, infinity by infinity
                undefined |= one.infinite and other.infinite
                undefined |= operator == "/" and _can_be_zero(left) and _can_be_zero(right)
            return SpecialValues(True, undefined)  # any result can overflow
    return SpecialValues(False, False)  # signals and counts


def _can_be_zero(term: Term) -> bool:
    return constant_value(term) in (None, 0.0)


def _opposite(direction: Direction) -> Direction:
    opposite: dict[Direction, Direction] = {1: -1, -1: 1}
    return opposite.get(direction, direction)


def _sum(one: Direction, other: Direction) -> Direction:
    if one is None or other is None:
        return None
    return one or other if not (one and other) or one == other else None
