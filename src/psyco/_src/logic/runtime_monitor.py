"""An episode while it runs: what each constraint of a requirement has come to, after every state.

`monitor` judges episodes that are over, `Monitor` here those that are not. It needs neither JAX nor SciPy, so that it
can go where a policy is deployed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
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
    roots,
)
from psyco._src.logic.nnf import Atom, NnfAnd, NnfNext, NnfOr, NnfUnrolled, Normal, normalize
from psyco._src.logic.progression import Letter, Remainder
from psyco._src.logic.requirement import AnyRequirement, as_requirement
from psyco._src.logic.scalar_eval import StepEvaluator, Values
from psyco._src.logic.verbalize import Known, counters_in, remaining


class Outlook(Enum):
    """What is known of an episode and a constraint."""

    SATISFIED = "satisfied, whatever comes"
    VIOLATED = "violated, whatever comes"
    OPEN = "still open"


OPEN = Outlook.OPEN  # asked for at every step, and members of an Enum are slow to find

ORDER = {"<": lt, "<=": le, ">": gt, ">=": ge}
FOREVER = 2**62  # steps of an episode without a limit: less than never
BELOW, ABOVE, YES = -math.inf, math.inf, np.True_  # around every finite number, of which NumPy says so
NOTHING: Mapping[str, float] = MappingProxyType({})
_new: Any = tuple.__new__  # how a NamedTuple is made, without the detour by its name


class ConstraintStatus(NamedTuple):
    """What one constraint has come to."""

    constraint: Constraint | Expectation
    outlook: Outlook  # of the episode; for an expected value always open, since no single episode decides
    decided: int | None  # the step at which the outlook ceased to be open
    cost: float | None  # of the states so far; None for a formula whose cost is known at the end only
    value: float | None  # of what an expected value is about, so far; None for a probability
    remainder: Remainder = frozenset()
    known: Known = NOTHING  # type: ignore[assignment]

    @property
    def left(self) -> str:
        """What has to happen yet for the episode to do what the constraint asks for, in words."""
        if self.outlook is not OPEN or not self.remainder:
            return "nothing"
        return remaining(self.remainder, self.known)

    def __str__(self) -> str:
        name = f"{self.constraint.name}: " if self.constraint.name else ""
        if self.value is not None:
            return f"{name}{self.value:g} so far"
        if self.outlook is OPEN:
            return f"{name}{self.outlook.value}; what is left: {self.left}"
        return f"{name}{self.outlook.value}, since step {self.decided}"


class Status(NamedTuple):
    """What is known after a state."""

    step: int  # of the state; -1 before the first
    over: bool  # it was the last
    constraints: tuple[ConstraintStatus, ...]  # in the order of the requirement
    aggregates: Mapping[str, float]  # count(...), sum(...) and so on, by their text

    @property
    def outlook(self) -> Outlook:
        """Of all that the episode can satisfy: violated if one is, satisfied if all are, else open."""
        judged = [each.outlook for each in self.constraints if each.value is None]
        if Outlook.VIOLATED in judged:
            return Outlook.VIOLATED
        return Outlook.OPEN if Outlook.OPEN in judged else Outlook.SATISFIED

    def __str__(self) -> str:
        return "\n".join([f"step {self.step}:", *(f"  {each}" for each in self.constraints)])


class Monitor:
    """Watches one episode at a time against a requirement.

    For every constraint it says as early as can be whether the episode satisfies or violates its formula whatever
    comes; of `P<=p [ φ ]`, which wants φ not to happen, that is `!φ`. See docs/deployment.md for what "as early as can
    be" means.
    """

    def __init__(
        self, requirement: AnyRequirement, *, horizon: int | None = None, counters: Collection[str] = ()
    ) -> None:
        """Prepare a monitor, before its first episode.

        Args:
            requirement: itself, its text, or the name of its file.
            horizon: the longest episode, in steps; None if there is no limit.
            counters: signals that never fall along an episode, such as a number of collisions.
        """
        if horizon is not None and (isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1):
            raise RequirementError(f"horizon must be a whole number of at least 1, or None; got {horizon!r}")
        # The letters of a text would be taken for names.
        if isinstance(counters, str) or not isinstance(counters, Collection):
            raise RequirementError(
                f"counters must be a list of names, such as ['collisions']; got {counters!r}"
            )
        self.requirement, self.horizon = as_requirement(requirement), horizon
        demanded = {d.constraint: d.formula for d in reversed(self.requirement.demands)}
        subjects = [
            each.subject if isinstance(each, Expectation) else demanded[i]
            for i, each in enumerate(self.requirement.constraints)
        ]
        self.trees = [root for subject in subjects for root in roots(subject)]  # all that it looks at
        self._reader = StepEvaluator(self.trees)
        self._named = tuple(map(str, self._reader.aggregates))
        self._tracks = [
            _Measure(each, self._reader)
            if isinstance(each, Expectation)
            else _Verdict(each, demanded[i], self._reader, horizon, counters)
            for i, each in enumerate(self.requirement.constraints)
        ]
        self._last, self._take = horizon or -1, self._reader.take
        # The entries of a vector are signals of their own, and no counters.
        self._counters = [s.name for s in self._reader.signals if s.index is None and s.name in counters]
        self.start()

    @property
    def signals(self) -> frozenset[str]:
        """The names of the signals that `update` needs; `step` is counted here."""
        return self._reader.names

    def another(self) -> Monitor:
        """One more of the same, for an episode beside this one; all that took time to prepare is shared."""
        twin = copy(self)
        twin._reader, twin._tracks = copy(self._reader), [copy(track) for track in self._tracks]
        twin.start()
        return twin

    @property
    def critical(self) -> bool:
        """Has the episode used up its slack? Then the very next state could violate a formula for good.

        Every comparison may come out either way in that state, but no counter rises by more than 1.
        """
        return any(track.critical(self._step) for track in self._tracks)

    def start(self) -> Status:
        """Begin a new episode: what is known before its first state."""
        self._step, self._over = -1, False
        self._last_counts: dict[str, float] = {}
        self._reader.start()
        # Mostly there is one constraint, about nothing but the signals of a state: so this is fast.
        simple = len(self._tracks) == 1 and not self._counters and not self._reader.remembers
        self._only = self._tracks[0] if simple else None
        return Status(-1, False, tuple([track.start() for track in self._tracks]), {})

    def update(self, signals: Mapping[str, Any], *, end: bool = False) -> Status:
        """What is known after the next state of the episode, of which the first is state 0.

        Args:
            signals: numbers, Booleans or vectors by name, as they are in this state. More than needed does no harm.
            end: whether the episode ends in this state. At the horizon it does.
        """
        if self._over:
            raise RequirementError("the episode is over", advice="call start() before the next one")
        step, only, take = self._step + 1, self._only, self._take
        if step == self._last:
            end = True
        try:  # written out here: at every step a call less is worth having
            values = take(signals)
            for value in values:
                finite = BELOW < value < ABOVE
                if finite is not True and finite is not YES:  # an array of one number is none
                    raise ValueError
        except (KeyError, IndexError, TypeError, ValueError):
            raise self._reader.complaint(signals, step) from None
        found: tuple[ConstraintStatus, ...]
        if only is not None:
            found, running = (only.update(values, step, end),), NOTHING
        else:
            found, running = self._update_all(values, signals, step, end)
        self._step, self._over = step, end
        return _new(Status, (step, end, found, running))

    def _update_all(
        self, values: Values, signals: Mapping[str, Any], step: int, end: bool
    ) -> tuple[tuple[ConstraintStatus, ...], Mapping[str, float]]:
        """What all constraints have come to, and the running aggregates."""
        self._check_counters(signals, step)
        if self._reader.remembers:
            values = self._reader.remembered(values, step, end)
        found = tuple([track.update(values, step, end) for track in self._tracks])
        running = dict(zip(self._named, self._reader.running(step), strict=True)) if self._named else NOTHING
        return found, running

    def _check_counters(self, signals: Mapping[str, Any], step: int) -> None:
        for name in self._counters:
            if (now := signals[name]) < self._last_counts.get(name, -math.inf):
                raise RequirementError(
                    f"the counter {name!r} fell from {self._last_counts[name]} to {now} at step {step}",
                    advice="name in `counters` only what never falls along an episode",
                )
            self._last_counts[name] = now


def decisions(monitor: Monitor, signals: Mapping[str, Any]) -> tuple[ConstraintStatus, ...]:
    """What a recorded episode comes to, with the steps at which that was decided.

    Args:
        monitor: of the requirement; it begins a new episode.
        signals: arrays `[n+1]`, or `[n+1, size]` for vectors.
    """
    status, last = monitor.start(), len(next(iter(signals.values()))) - 1
    for step in range(last + 1):
        now = {name: signals[name][step] for name in monitor.signals & signals.keys()}
        status = monitor.update(now, end=step == last)
    return status.constraints


def decision(monitor: Monitor, signals: Mapping[str, Any]) -> tuple[Outlook, int] | None:
    """What a recorded episode comes to as a whole, and at which step that was decided; None if nothing is asked of it.

    It is violated with the first constraint that is, and satisfied with the last.
    """
    found = [each for each in decisions(monitor, signals) if each.value is None]
    broken = [each for each in found if each.outlook is Outlook.VIOLATED]
    steps = [max(each.decided or 0, 0) for each in broken or found]  # -1: before it began
    if not steps:
        return None
    return (Outlook.VIOLATED, min(steps)) if broken else (Outlook.SATISFIED, max(steps))


# ---- one constraint --------------------------------------------------------------------------------------------------


class _Verdict:
    """A bound on a probability: does the episode satisfy its formula?"""

    def __init__(
        self,
        constraint: Constraint,
        formula: Formula,
        reader: StepEvaluator,
        horizon: int | None,
        counters: Collection[str],
    ) -> None:
        self.constraint, self.horizon = constraint, FOREVER if horizon is None else horizon
        self.future = Anticipation(formula, horizon, counters)
        self.truths = [reader.truth(each) for each in (*self.future.atoms, *self.future.latches)]
        self.truth = self.truths[0] if len(self.truths) == 1 else None
        self.costs = _costs(normalize(formula, False), self.future.atoms)
        self.counters = counters_in(formula, counters)
        self.count = [reader.value(each) for each in self.counters]

    def start(self) -> ConstraintStatus:
        self.situation, self.decided, self.cost = self.future.start, None, 0.0
        self.counts = [0.0] * len(self.count)
        self.outlook = self.expected(-1)
        if self.outlook is not OPEN:
            self.decided = -1
        self.status = self.described()
        return self.status

    def update(self, values: Values, step: int, end: bool) -> ConstraintStatus:
        # Mostly there is one state formula, and that changes nothing: so this is fast.
        truth, situation = self.truth, self.situation
        letter = (truth(values),) if truth else self.letter(values)
        if letter in situation.quiet and not end and (not self.count or self.counted(values) == self.counts):
            return self.status
        if self.outlook is OPEN:
            self.outlook = self.ended(letter) if end else self.going_on(letter, step)
            if self.outlook is not OPEN:
                self.decided = step
        for each in self.costs or ():
            self.cost += each.of(letter, step, end)
        if self.situation is situation and self.outlook is OPEN and situation.undecidable:
            situation.quiet.add(letter)  # it stays so, as long as the episode goes on
        self.counts = self.counted(values)
        self.status = self.described()
        return self.status

    def counted(self, values: Values) -> list[float]:
        """What the counters have come to."""
        return [value(values) for value in self.count]

    def letter(self, values: Values) -> Letter:
        """What the state is to the formula."""
        return tuple([holds(values) for holds in self.truths])

    def going_on(self, letter: Letter, step: int) -> Outlook:
        """What is known after a state that is not the last."""
        after = self.situation.next.get(letter)
        if after is None or after.to_true != after.to_true:  # not seen yet, or not yet asked about
            after = self.future.after(self.situation, tuple(map(bool, letter)))
        self.situation = after
        return self.expected(step)

    def ended(self, letter: Letter) -> Outlook:
        """What is known after the last state."""
        holds = self.future.final(self.situation, tuple(map(bool, letter)))
        return Outlook.SATISFIED if holds else Outlook.VIOLATED

    def expected(self, step: int) -> Outlook:
        """What the situation after this step comes to."""
        left = self.horizon - step
        if self.situation.to_false > left:
            return Outlook.SATISFIED
        return Outlook.VIOLATED if self.situation.to_true > left else OPEN

    def critical(self, step: int) -> bool:
        """Could the state after this step violate the formula, if no counter rises by more than 1?"""
        if self.outlook is not OPEN:
            return self.outlook is Outlook.VIOLATED
        left, first = self.horizon - step - 1, len(self.future.atoms)
        counted = dict(zip(self.counters, self.counts, strict=True))
        expected = [_soon(latch, counted) for latch in self.future.latches]
        for letter in self.future.letters(self.situation.settled, end=left == 0):
            if all(map(contains, expected, letter[first:])):
                if left == 0 and not self.future.final(self.situation, letter):
                    return True
                if left > 0 and self.future.after(self.situation, letter).to_true > left:
                    return True
        return False

    def described(self) -> ConstraintStatus:
        if self.costs is None:
            cost: float | None = None
        elif self.costs:
            cost = self.cost
        else:
            cost = float(self.outlook is Outlook.VIOLATED)
        known = dict(zip(self.counters, self.counts, strict=True))
        return ConstraintStatus(
            self.constraint, self.outlook, self.decided, cost, None, self.situation.remainder, known
        )


def _soon(leaf: Formula, counted: Known) -> tuple[bool, ...]:
    """What a comparison can come to in the next state, in which no counter has risen by more than 1."""
    match leaf:
        case Compare(operator, left, Number(limit)) if left in counted and operator in ORDER:
            return tuple(ORDER[operator](counted[left] + more, limit) for more in (0, 1))
    return True, False


class _Kept(NamedTuple):
    """A state formula that has to hold from one step to another: each state in which it does not costs 1."""

    atom: int
    negated: bool
    first: int
    last: float

    def of(self, letter: Letter, step: int, end: bool) -> float:
        """The cost of a state; that of the last one also counts for all that would follow in a window."""
        if bool(letter[self.atom]) != self.negated or step > self.last:
            return 0.0
        repeated = self.last - max(step, self.first - 1) if end and self.last < math.inf else 0.0
        return repeated + (step >= self.first)


def _costs(node: Normal, atoms: tuple[Formula, ...]) -> list[_Kept] | None:
    """What the cost of a formula adds up from; nothing if it is that of a violation, 0 or 1; None if neither."""
    match node:
        case NnfUnrolled("R", None, Atom(formula, negated), bound):
            window = (0, math.inf) if bound is None else (bound.lower, bound.upper)
            return [_Kept(atoms.index(formula), negated, *window)]
        case NnfAnd(operands):
            parts = [_costs(each, atoms) for each in operands]
            return [each for part in parts for each in part or ()] if all(parts) else None
        case Atom() | NnfNext(Atom()) | NnfUnrolled("U", None, Atom()):
            return []
        case NnfOr(operands) if all(_costs(each, atoms) == [] for each in operands):
            return []
    return None


class _Measure:
    """A bound on an expected value: what does the episode make of it?"""

    def __init__(self, constraint: Expectation, reader: StepEvaluator) -> None:
        self.constraint, quantity = constraint, constraint.subject
        self.over = quantity.over
        self.worth = reader.worth(quantity.x)
        self.reached_by = reader.truth(self.over.body) if isinstance(self.over, Reaching) else None

    def start(self) -> ConstraintStatus:
        self.value, self.reached = 0.0, False
        return self.status(0)

    def update(self, values: Values, step: int, end: bool) -> ConstraintStatus:
        match self.over:
            case Instant(last):
                if step <= last:
                    self.value = self.worth(values)
            case Total(int(last)) if step > last:
                pass
            case _ if step > 0 and not self.reached:
                self.value += self.worth(values)
        if self.reached_by is not None:
            self.reached = self.reached or bool(self.reached_by(values))
        return self.status(step)

    def critical(self, step: int) -> bool:
        """No single episode violates a bound on an expected value."""
        return False

    def status(self, step: int) -> ConstraintStatus:
        value = self.value / max(step, 1) if isinstance(self.over, LongRun) else self.value
        return ConstraintStatus(self.constraint, Outlook.OPEN, None, None, value)
