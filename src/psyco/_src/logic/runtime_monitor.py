"""The status of each constraint while an episode runs, after every state.

`BatchMonitor` evaluates complete episodes, `Monitor` running ones. It needs neither JAX nor SciPy, so it can be
deployed with a policy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from enum import Enum
from operator import contains, ge, gt, le, lt
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from psyco._src.core.errors import RequirementError
from psyco._src.logic.anticipation import Anticipation
from psyco._src.logic.ast import (
    Compare,
    Constraint,
    Expectation,
    Formula,
    Instant,
    LongRun,
    Number,
    Reaching,
    Total,
    aggregates,
    roots,
)
from psyco._src.logic.exact_constants import exact_comparison
from psyco._src.logic.nnf import Atom, NnfAnd, NnfNext, NnfNode, NnfOr, NnfUnrolled, to_nnf
from psyco._src.logic.progression import Letter, Remainder
from psyco._src.logic.quantifiers import groups_by_name, make_team, write_out
from psyco._src.logic.requirement import AnyRequirement, as_requirement
from psyco._src.logic.scalar_eval import StepEvaluator, Values
from psyco._src.logic.verbalize import Known, counters_in, remaining


class Outlook(Enum):
    """The verdict about an episode and a constraint, as far as it is known."""

    SATISFIED = "satisfied, whatever comes"
    VIOLATED = "violated, whatever comes"
    OPEN = "still open"


OPEN = Outlook.OPEN  # used at every step, and Enum members are slow to look up

INEQUALITIES = {"<": lt, "<=": le, ">": gt, ">=": ge}
FOREVER = 2**62  # steps of an episode without a limit; less than inf, which stands for never
NEGATIVE_INFINITY, INFINITY, NUMPY_TRUE = -math.inf, math.inf, np.True_
NO_AGGREGATES: Mapping[str, float] = MappingProxyType({})
_new: Any = tuple.__new__  # makes a NamedTuple faster than its constructor


class ConstraintStatus(NamedTuple):
    """The status of one constraint."""

    constraint: Constraint | Expectation
    outlook: Outlook  # always open for an expected value, since no single episode decides about it
    decided: int | None  # the step at which the outlook ceased to be open
    cost: float | None  # of the states so far; None for a formula whose cost is known at the end only
    value: float | None  # so far, of an expected value; None for a probability
    remainder: Remainder = frozenset()
    known: Known = NO_AGGREGATES  # type: ignore[assignment]  # the values of counters

    @property
    def remaining(self) -> str:
        """A description of what still has to happen for the episode to satisfy the constraint's formula."""
        if self.outlook is not OPEN or not self.remainder:
            return "nothing"
        return remaining(self.remainder, self.known)

    def __str__(self) -> str:
        name = f"{self.constraint.name}: " if self.constraint.name else ""
        if self.value is not None:
            return f"{name}{self.value:g} so far"
        if self.outlook is OPEN:
            return f"{name}{self.outlook.value}; remaining: {self.remaining}"
        return f"{name}{self.outlook.value}, since step {self.decided}"


class Status(NamedTuple):
    """The status of an episode after a state."""

    step: int  # the index of the state; -1 before the first
    over: bool  # whether it was the last state
    constraints: tuple[ConstraintStatus, ...]  # in the order of the requirement
    aggregates: Mapping[str, float]  # the values of count(...), sum(...) and so on, by their text

    @property
    def outlook(self) -> Outlook:
        """Over all constraints on probabilities: violated if one is, satisfied if all are, else open."""
        outlooks = [status.outlook for status in self.constraints if status.value is None]
        if Outlook.VIOLATED in outlooks:
            return Outlook.VIOLATED
        return Outlook.OPEN if Outlook.OPEN in outlooks else Outlook.SATISFIED

    def __str__(self) -> str:
        return "\n".join([f"step {self.step}:", *(f"  {status}" for status in self.constraints)])


class Monitor:
    """Monitors one episode at a time against a requirement.

    For every constraint it reports as early as possible whether the episode satisfies or violates its formula for every
    continuation; for `P<=p [ φ ]`, under which φ should not happen, that formula is `!φ`. docs/deployment.md defines
    "as early as possible".
    """

    def __init__(
        self,
        requirement: AnyRequirement,
        *,
        horizon: int | None = None,
        counters: Collection[str] = (),
        agents: Sequence[str] = (),
        groups: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Prepare a monitor for its first episode.

        Args:
            requirement: a Requirement, its text, or the name of its file.
            horizon: the maximum number of steps of an episode; None if there is no limit.
            counters: signals that never fall along an episode, such as a number of collisions.
            agents: names of the agents that `each`, `any` and `for each agent` are about.
            groups: names of groups and their agents; default: by their numbers, as in `pursuer_0`.
        """
        if horizon is not None and (isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1):
            raise RequirementError(f"horizon must be a whole number of at least 1, or None; got {horizon!r}")
        # The characters of a string would be taken for names.
        if isinstance(counters, str) or not isinstance(counters, Collection):
            raise RequirementError(f"counters must be a list of names, such as ['collisions']; got {counters!r}")
        team = make_team(agents, groups_by_name(agents) if groups is None else groups)
        self.requirement, self.horizon = write_out(as_requirement(requirement), team, "the monitor"), horizon
        formulas = {b.constraint: b.formula for b in reversed(self.requirement.probability_bounds)}
        subjects = [
            c.subject if isinstance(c, Expectation) else formulas[i] for i, c in enumerate(self.requirement.constraints)
        ]
        self.trees = [root for subject in subjects for root in roots(subject)]
        self._evaluator = StepEvaluator(self.trees)
        self._aggregate_texts = tuple(map(str, aggregates(self.trees)))
        self._trackers = [
            _ValueTracker(c, self._evaluator)
            if isinstance(c, Expectation)
            else _FormulaTracker(c, formulas[i], self._evaluator, horizon, counters)
            for i, c in enumerate(self.requirement.constraints)
        ]
        self._last, self._read = horizon or -1, self._evaluator.read
        # Entries of a vector are distinct signals, and cannot be counters.
        scalars = [signal.name for signal in self._evaluator.signals if signal.index is None]
        self._counters = [name for name in scalars if name in counters]
        self.start()

    @property
    def signals(self) -> frozenset[str]:
        """The names of the signals that `update` needs; `step` is provided by the monitor."""
        return self._evaluator.names

    def fresh_copy(self) -> Monitor:
        """Return a monitor for another episode that shares all prepared tables with this one."""
        twin = copy(self)
        twin._evaluator, twin._trackers = copy(self._evaluator), [copy(t) for t in self._trackers]
        twin.start()
        return twin

    @property
    def critical(self) -> bool:
        """Whether the next state could violate a formula for good.

        Every comparison may take either value in that state, but no counter rises by more than 1.
        """
        return any(tracker.critical(self._step) for tracker in self._trackers)

    def start(self) -> Status:
        """Begin a new episode, and return the status before its first state."""
        self._step, self._over = -1, False
        self._last_counts: dict[str, float] = {}
        self._evaluator.start()
        # The fast path for the most frequent case: one constraint about nothing but the signals of a state.
        simple = len(self._trackers) == 1 and not self._counters and not self._evaluator.stateful
        self._only = self._trackers[0] if simple else None
        return Status(-1, False, tuple([tracker.start() for tracker in self._trackers]), {})

    def update(self, signals: Mapping[str, Any], *, end: bool = False) -> Status:
        """Read the next state of the episode, the first of which is state 0, and return the status after it.

        Args:
            signals: numbers, Booleans or vectors by name in this state; names that are not needed are ignored.
            end: whether the episode ends in this state. At the horizon it always does.
        """
        if self._over:
            raise RequirementError("the episode is over", advice="call start() before the next one")
        step, only, read = self._step + 1, self._only, self._read
        if step == self._last:
            end = True
        try:  # inlined: this runs at every step, and a call costs time
            values = read(signals)
            for value in values:
                finite = NEGATIVE_INFINITY < value < INFINITY
                if finite is not True and finite is not NUMPY_TRUE:  # excludes an array of one number
                    raise ValueError
        except (KeyError, IndexError, TypeError, ValueError):
            raise self._evaluator.error(signals, step) from None
        statuses: tuple[ConstraintStatus, ...]
        if only is not None:
            statuses, running = (only.update(values, step, end),), NO_AGGREGATES
        else:
            statuses, running = self._update_all(values, signals, step, end)
        self._step, self._over = step, end
        return _new(Status, (step, end, statuses, running))

    def _update_all(
        self, values: Values, signals: Mapping[str, Any], step: int, end: bool
    ) -> tuple[tuple[ConstraintStatus, ...], Mapping[str, float]]:
        """Update all trackers; return their statuses and the running aggregates."""
        self._check_counters(signals, step)
        evaluator, texts = self._evaluator, self._aggregate_texts
        if evaluator.stateful:
            values = evaluator.extend(values, step, end)
        statuses = tuple([tracker.update(values, step, end) for tracker in self._trackers])
        return statuses, dict(zip(texts, evaluator.running(step), strict=False)) if texts else NO_AGGREGATES

    def _check_counters(self, signals: Mapping[str, Any], step: int) -> None:
        for name in self._counters:
            if (now := signals[name]) < self._last_counts.get(name, -math.inf):
                raise RequirementError(
                    f"the counter {name!r} fell from {self._last_counts[name]} to {now} at step {step}",
                    advice="list in `counters` only signals that never fall along an episode",
                )
            self._last_counts[name] = now


def replay_episode(monitor: Monitor, signals: Mapping[str, Any]) -> tuple[ConstraintStatus, ...]:
    """Return the final status of each constraint on a recorded episode, with the steps of the decisions.

    Args:
        monitor: of the requirement; it begins a new episode.
        signals: arrays `[n+1]`, or `[n+1, size]` for vectors.
    """
    status, last = monitor.start(), len(next(iter(signals.values()))) - 1
    for step in range(last + 1):
        now = {name: signals[name][step] for name in monitor.signals & signals.keys()}
        status = monitor.update(now, end=step == last)
    return status.constraints


def episode_verdict(monitor: Monitor, signals: Mapping[str, Any]) -> tuple[Outlook, int] | None:
    """Return the verdict about a recorded episode and the step at which it was decided.

    The episode is violated with its first violated constraint, and satisfied with its last satisfied one. The result
    is None if the requirement has no constraint on a probability.
    """
    statuses = [status for status in replay_episode(monitor, signals) if status.value is None]
    violated = [status for status in statuses if status.outlook is Outlook.VIOLATED]
    steps = [max(status.decided or 0, 0) for status in violated or statuses]  # -1: before it began
    if not steps:
        return None
    return (Outlook.VIOLATED, min(steps)) if violated else (Outlook.SATISFIED, max(steps))


# ---- one constraint --------------------------------------------------------------------------------------------------


class _FormulaTracker:
    """Tracks whether the episode satisfies the formula of a bound on a probability."""

    def __init__(
        self,
        constraint: Constraint,
        formula: Formula,
        evaluator: StepEvaluator,
        horizon: int | None,
        counters: Collection[str],
    ) -> None:
        self.constraint, self.horizon = constraint, FOREVER if horizon is None else horizon
        self.future = Anticipation(formula, horizon, counters)
        self.predicates = [evaluator.predicate(f) for f in (*self.future.atoms, *self.future.latches)]
        self.only_predicate = self.predicates[0] if len(self.predicates) == 1 else None
        self.costs = _state_costs(to_nnf(formula, False), self.future.atoms)
        self.counters = counters_in(formula, counters)
        self.counter_values = [evaluator.value(counter) for counter in self.counters]

    def start(self) -> ConstraintStatus:
        self.state, self.decided, self.cost = self.future.start, None, 0.0
        self.counts = [0.0] * len(self.counters)
        self.outlook = self.outlook_after(-1)
        if self.outlook is not OPEN:
            self.decided = -1
        self.status = self.make_status()
        return self.status

    def update(self, values: Values, step: int, end: bool) -> ConstraintStatus:
        # The fast path for the most frequent case: one state formula, and a letter that changes nothing.
        predicate, state = self.only_predicate, self.state
        letter = (predicate(values),) if predicate else self.letter(values)
        if letter in state.self_loops and not end and (not self.counters or self.count(values) == self.counts):
            return self.status
        if self.outlook is OPEN:
            self.outlook = self.final_outlook(letter) if end else self.advance(letter, step)
            if self.outlook is not OPEN:
                self.decided = step
        for cost in self.costs or ():
            self.cost += cost.of(letter, step, end)
        if self.state is state and self.outlook is OPEN and state.undecidable:
            state.self_loops.add(letter)  # valid as long as the episode continues
        self.counts = self.count(values)
        self.status = self.make_status()
        return self.status

    def count(self, values: Values) -> list[float]:
        return [value(values) for value in self.counter_values]

    def letter(self, values: Values) -> Letter:
        return tuple([holds(values) for holds in self.predicates])

    def advance(self, letter: Letter, step: int) -> Outlook:
        """Return the outlook after a state that is not the last."""
        after = self.state.next.get(letter)
        if after is None or after.to_true != after.to_true:  # not created yet, or without distances
            after = self.future.after(self.state, tuple(map(bool, letter)))
        self.state = after
        return self.outlook_after(step)

    def final_outlook(self, letter: Letter) -> Outlook:
        """Return the outlook after the last state."""
        holds = self.future.holds_at_end(self.state, tuple(map(bool, letter)))
        return Outlook.SATISFIED if holds else Outlook.VIOLATED

    def outlook_after(self, step: int) -> Outlook:
        left = self.horizon - step
        if self.state.to_false > left:
            return Outlook.SATISFIED
        return Outlook.VIOLATED if self.state.to_true > left else OPEN

    def critical(self, step: int) -> bool:
        """Return whether the state after this step could violate the formula, if no counter rises by more than 1."""
        if self.outlook is not OPEN:
            return self.outlook is Outlook.VIOLATED
        left, first = self.horizon - step - 1, len(self.future.atoms)
        counts = dict(zip(self.counters, self.counts, strict=True))
        possible = [_possible_values(latch, counts) for latch in self.future.latches]
        for letter in self.future.possible_letters(self.state.settled, end=left == 0):
            if all(map(contains, possible, letter[first:])):
                if left == 0 and not self.future.holds_at_end(self.state, letter):
                    return True
                if left > 0 and self.future.after(self.state, letter).to_true > left:
                    return True
        return False

    def make_status(self) -> ConstraintStatus:
        if self.costs is None:
            cost: float | None = None
        elif self.costs:
            cost = self.cost
        else:
            cost = float(self.outlook is Outlook.VIOLATED)
        known = dict(zip(self.counters, self.counts, strict=True))
        return ConstraintStatus(self.constraint, self.outlook, self.decided, cost, None, self.state.remainder, known)


def _possible_values(leaf: Formula, counts: Known) -> tuple[bool, ...]:
    """Return the values that a comparison can have in the next state, if no counter rises by more than 1."""
    match exact_comparison(leaf) if isinstance(leaf, Compare) else leaf:
        case Compare(operator, left, Number(limit)) if left in counts and operator in INEQUALITIES:
            return tuple(INEQUALITIES[operator](counts[left] + more, limit) for more in (0, 1))
    return True, False


class _StateCost(NamedTuple):
    """The cost of a state formula that has to hold from one step to another: 1 per state in which it fails."""

    atom: int
    negated: bool
    first: int
    last: float

    def of(self, letter: Letter, step: int, end: bool) -> float:
        """Return the cost of a state; the last one also counts for its repetitions within the window."""
        if bool(letter[self.atom]) != self.negated or step > self.last:
            return 0.0
        repeated = self.last - max(step, self.first - 1) if end and self.last < math.inf else 0.0
        return repeated + (step >= self.first)


def _state_costs(node: NnfNode, atoms: tuple[Formula, ...]) -> list[_StateCost] | None:
    """Return the state costs that add up to a formula's cost.

    The list is empty if the cost is 1 for a violation and 0 else; None if the cost is of neither kind.
    """
    match node:
        case NnfUnrolled("R", None, Atom(formula, negated), bound):
            window = (0, math.inf) if bound is None else (bound.lower, bound.upper)
            return [_StateCost(atoms.index(formula), negated, *window)]
        case NnfAnd(operands):
            parts = [_state_costs(operand, atoms) for operand in operands]
            return [cost for part in parts for cost in part or ()] if all(parts) else None
        case Atom() | NnfNext(Atom()) | NnfUnrolled("U", None, Atom()):
            return []
        case NnfOr(operands) if all(_state_costs(operand, atoms) == [] for operand in operands):
            return []
    return None


class _ValueTracker:
    """Tracks the value of the episode for a bound on an expected value."""

    def __init__(self, constraint: Expectation, evaluator: StepEvaluator) -> None:
        self.constraint, quantity = constraint, constraint.subject
        self.over = quantity.over
        self.reward = evaluator.reward(quantity.x)
        self.target = evaluator.predicate(self.over.body) if isinstance(self.over, Reaching) else None

    def start(self) -> ConstraintStatus:
        self.value, self.reached = 0.0, False
        return self.status(0)

    def update(self, values: Values, step: int, end: bool) -> ConstraintStatus:
        match self.over:
            case Instant(last):
                if step <= last:
                    self.value = self.reward(values)
            case Total(int(last)) if step > last:
                pass
            case _ if step > 0 and not self.reached:
                self.value += self.reward(values)
        if self.target is not None:
            self.reached = self.reached or bool(self.target(values))
        return self.status(step)

    def critical(self, step: int) -> bool:
        """No single episode violates a bound on an expected value."""
        return False

    def status(self, step: int) -> ConstraintStatus:
        value = self.value / max(step, 1) if isinstance(self.over, LongRun) else self.value
        return ConstraintStatus(self.constraint, Outlook.OPEN, None, None, value)
