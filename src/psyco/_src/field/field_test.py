"""Does a promise hold in the field? Outcomes one after the other, intervals, and an alarm when it is lost.

Works with NumPy and SciPy alone. What a watcher knows is one immutable value, `Knowledge`, which an outcome replaces as
a whole: whoever interrupts it, or keeps its state in a file, never has half an outcome.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import read_text
from psyco._src.logic.ast import Constraint, Expectation, LongRun, Requirement
from psyco._src.logic.bare import outcome_requirement
from psyco._src.logic.parser import parse
from psyco._src.verification.anytime import confidence_sequence
from psyco._src.verification.base import Counts, MeanTask, Task, update
from psyco._src.verification.betting import CELLS, ValuePoints, log_evidence, lowest
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.change_detection import Detector, DetectorState
from psyco._src.verification.findings import MeanFinding

FALSE_ALARM_EVERY, RAREST = 100_000, 1e15
FORMAT = "psyco-watch-1"
POSITIONS, WEIGHTS = 201, 51  # of the grid for a rate

Promise: TypeAlias = Certificate | Requirement | str | Path
Range: TypeAlias = tuple[float, float]


class Interval(NamedTuple):
    """Bounds for a probability or an expected value in the field."""

    lower: float
    upper: float


@dataclass(frozen=True)
class Alarm:
    """What has changed with the last outcome."""

    episode: int  # how many outcomes there had been
    lost: tuple[str, ...]  # the constraints that hold no longer, by name or else as text
    recovered: tuple[str, ...]  # those that hold again

    def __str__(self) -> str:
        lost = [f"holds no longer: {each}" for each in self.lost]
        again = [f"holds again: {each}" for each in self.recovered]
        return f"after {self.episode:,} episodes: {'; '.join(lost + again)}"


# ---- one constraint ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MonitoredConstraint:
    """A constraint, and what watches it."""

    stated: Constraint | Expectation
    span: Range  # where the value of every episode lies; of a rate, each step's
    horizon: int  # the longest episode, where steps count; else 1
    sides: tuple[Detector, ...]  # one for each bound

    @property
    def called(self) -> str:
        """Its name, or else its text."""
        return self.stated.name or str(self.stated)

    @property
    def is_rate(self) -> bool:
        """Does it count by steps instead of episodes?"""
        return _is_rate(self.stated)

    @property
    def ranged(self) -> Constraint | Expectation:
        """The same, with the range of its values stated."""
        if isinstance(self.stated, Constraint):
            return self.stated
        return replace(self.stated, within=self.span)

    def init(self, episode: int = 0) -> ConstraintRecord:
        """What is known before anything has come."""
        nothing = Counts(0, 0) if isinstance(self.stated, Constraint) else Grid.empty(self.is_rate)
        return ConstraintRecord(episode, nothing, tuple(side.init() for side in self.sides))

    def updated(self, kept: ConstraintRecord, episode: int, total: float, steps: int) -> ConstraintRecord:
        """After one more episode. With an alarm or a recovery the interval starts afresh."""
        # A rate r is kept if the mean of total - r steps is: as if the value were r off by so much.
        sides = tuple(
            side.update(standing, total - side.bound * (steps - 1))
            for side, standing in zip(self.sides, kept.sides, strict=True)
        )
        if any(side.lost for side in sides) != kept.lost:
            return self.init(episode)._replace(sides=sides)
        seen = kept.seen
        if isinstance(seen, Counts):
            seen = update(seen, bool(total))
        else:
            lo, hi = self.span
            seen = seen.with_value((total / steps - lo) / (hi - lo), steps / self.horizon)
        return ConstraintRecord(kept.since, seen, sides)

    def interval(self, kept: ConstraintRecord) -> Interval:
        """Both bounds hold together at the constraint's confidence."""
        delta = (1.0 - self.stated.confidence) / 2.0
        if isinstance(kept.seen, Counts):
            return Interval(*confidence_sequence(kept.seen, delta))
        points, (lo, hi) = kept.seen.points, self.span
        above, below = (lowest(partial(log_evidence, side), delta) for side in (points, points.mirrored))
        return Interval(lo + (hi - lo) * above, hi - (hi - lo) * below)


class Grid(NamedTuple):
    """Values as the bets of `betting` need them for bounds on their mean, or rate; it does not grow with their number.

    A value between the points of the grid is shared by those around it such that the mean of the weight, and of
    position times weight, stay what they are. The log of every factor of the evidence is concave in these two, so
    sharing can only lower the evidence, for either side: bounds are sound.
    """

    number: NDArray[np.float64]  # [P, W] how many there were, by position in their range and by weight

    @classmethod
    def empty(cls, weighed: bool) -> Grid:
        """Before the first value; only those of a rate have weights that differ."""
        return cls(np.zeros((POSITIONS, WEIGHTS) if weighed else (CELLS + 1, 1)))

    def with_value(self, position: float, weight: float) -> Grid:
        """After one more value, at a position and with a weight from 0 to 1."""
        number = self.number.copy()
        for (i, at), (j, heavy) in product(*map(_neighbours, (position, weight), number.shape)):
            number[i, j] += at * heavy
        return Grid(number)

    @property
    def points(self) -> ValuePoints:
        """The values that it stands for."""
        i, j = np.nonzero(self.number)
        rows, columns = self.number.shape
        weight = j / (columns - 1) if columns > 1 else np.ones(len(j))
        return ValuePoints(i / (rows - 1) * weight, weight, self.number[i, j])


def _neighbours(place: float, count: int) -> tuple[tuple[int, float], ...]:
    """The points of a grid over [0, 1] around a place, and its share in each."""
    if count == 1:
        return ((0, 1.0),)
    scaled = min(max(place, 0.0), 1.0) * (count - 1)
    left = min(int(scaled), count - 2)
    return (left, left + 1 - scaled), (left + 1, scaled - left)


class ConstraintRecord(NamedTuple):
    """What is known of one constraint."""

    since: int  # how many outcomes there had been when it last was lost or recovered
    seen: Counts | Grid  # since then
    sides: tuple[DetectorState, ...]

    @property
    def lost(self) -> bool:
        """Is it in alarm?"""
        return any(side.lost for side in self.sides)


class FieldKnowledge(NamedTuple):
    """All that is known."""

    episodes: int
    kept: tuple[ConstraintRecord, ...]  # per constraint


# ---- all of them ------------------------------------------------------------------------------------------------


class FieldTest:
    """Watches whether a policy keeps in the field what its certificate says.

    Args:
        promise: a certificate, its file or text; or a requirement, its file or text, where `P>=0.85` will do.
        false_alarm_every: while all constraints hold, a false alarm comes on average at most once in so many
            episodes, whatever the episodes depend on; default 100,000, or as the state has it.
        ranges: of the expected values, in their order, where neither `within` nor the certificate says where an
            episode's value lies; of a rate, each step's.
        horizon: the longest episode, for rates; by default that of the certificate.
        state: of an earlier watcher, to go on from there.
    """

    def __init__(
        self,
        promise: Promise,
        false_alarm_every: float | None = None,
        *,
        ranges: Sequence[Range] | None = None,
        horizon: int | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.requirement, self.certificate = as_promise(promise)
        if state is not None and false_alarm_every is None:
            false_alarm_every = _part(state, "false_alarm_every", int, float)
        every = FALSE_ALARM_EVERY if false_alarm_every is None else false_alarm_every
        if isinstance(every, bool) or not isinstance(every, int | float) or not 1 <= every <= RAREST:
            raise RunError(f"false_alarm_every is a number of episodes, 1 to {RAREST:g}; got {every!r:.100}")
        self.false_alarm_every = every
        if horizon is None and self.certificate is not None:
            horizon = self.certificate.horizon
        if ranges is None and self.certificate is not None:
            ranges = _certified_ranges(self.certificate)
        self.watched = _watched(self.requirement, every, ranges, horizon)
        self._known = FieldKnowledge(0, tuple(each.init() for each in self.watched))
        if state is not None:
            self._known = self._restored(state)

    def update(self, outcome: Any) -> Alarm | None:
        """One more episode; returns what has changed by it, if anything has.

        Args:
            outcome: did the formula hold? Of an expected value, the episode's number; of a rate, the pair
                `(total, steps)`. With several constraints a list of these, or a dictionary by name.
        """
        values = [
            _value(each, given)
            for each, given in zip(self.watched, self._arranged(outcome), strict=True)
        ]  # fmt: skip
        before, episodes = self._known, self._known.episodes + 1
        kept = tuple(
            each.updated(known, episodes, *value)
            for each, known, value in zip(self.watched, before.kept, values, strict=True)
        )
        self._known = FieldKnowledge(episodes, kept)
        changed = [
            (each.called, now.lost)
            for each, old, now in zip(self.watched, before.kept, kept, strict=True)
            if old.lost != now.lost
        ]
        if not changed:
            return None
        return Alarm(
            episodes,
            lost=tuple(called for called, lost in changed if lost),
            recovered=tuple(called for called, lost in changed if not lost),
        )

    @property
    def episodes(self) -> int:
        """How many outcomes there have been."""
        return self._known.episodes

    @property
    def in_alarm(self) -> tuple[str, ...]:
        """The constraints that do not hold, as far as is known."""
        pairs = zip(self.watched, self._known.kept, strict=True)
        return tuple(each.called for each, kept in pairs if kept.lost)

    @property
    def known(self) -> tuple[ConstraintRecord, ...]:
        """What is known of each constraint."""
        return self._known.kept

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """For each constraint, where its probability, expected value or rate in the field lies.

        At the constraint's confidence it is right at all times at once, *if the probability has stayed what it is since
        the watch began, or since the last alarm or recovery of this constraint*, from which it is counted.
        """
        return tuple(each.interval(kept) for each, kept in zip(self.watched, self.known, strict=True))

    @property
    def interval(self) -> Interval:
        """The interval of the only constraint."""
        if len(self.watched) != 1:
            raise RunError(f"there are {len(self.watched)} constraints: use intervals")
        return self.intervals[0]

    @property
    def state(self) -> dict[str, Any]:
        """All that is needed to go on elsewhere, as plain data for JSON."""
        return {
            "format": FORMAT,
            "requirement": str(self.requirement),
            "false_alarm_every": self.false_alarm_every,
            "ranges": self._ranges,
            "episodes": self.episodes,
            "constraints": [
                {
                    "since": kept.since,
                    "seen": _plain(kept.seen),
                    "sides": [{"lost": side.lost, "sums": side.sums.tolist()} for side in kept.sides],
                }
                for kept in self.known
            ],
        }

    @property
    def _ranges(self) -> list[list[float]]:
        """Where values lie, and of rates the longest episode: what was counted means something for these alone."""
        return [[*each.span, each.horizon] for each in self.watched]

    def _restored(self, state: Mapping[str, Any]) -> FieldKnowledge:
        """What a state says, if it is one of this watcher."""
        if _part(state, "format", str) != FORMAT:
            raise RunError(f"the state has format {state['format']!r}; this version reads {FORMAT!r}")
        if _part(state, "requirement", str) != str(self.requirement):
            raise RunError(
                "the state is of another requirement; give the certificate that it was begun with, or a new state:\n"
                f"{state['requirement']}\ninstead of\n{self.requirement}"
            )
        every = _part(state, "false_alarm_every", int, float)
        if every != self.false_alarm_every:
            raise RunError(
                f"the state was begun with a false alarm every {every:,} episodes, not {self.false_alarm_every:,}; "
                "leave that out, or begin a new state"
            )
        if (ranges := _part(state, "ranges", list)) != self._ranges:
            raise RunError(
                f"the state was begun with other ranges or horizons, {ranges!r:.200} instead of {self._ranges}; give "
                "the same, or begin a new state"
            )
        try:
            pairs = zip(self.watched, state["constraints"], strict=True)
            return FieldKnowledge(_part(state, "episodes", int), tuple(_kept(*pair) for pair in pairs))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise RunError(f"the state is damaged ({error!r:.200}); begin a new one") from None

    def _arranged(self, outcome: Any) -> Sequence[Any]:
        """An outcome for each constraint, in their order."""
        names = [each.called for each in self.watched]
        if isinstance(outcome, Mapping):
            if set(outcome) != set(names):
                given = ", ".join(map(str, outcome)) or "nothing"
                raise RunError(
                    f"an outcome has an entry for each constraint, {', '.join(names)}; got {given}"
                )
            return [outcome[name] for name in names]
        if isinstance(outcome, np.ndarray) and outcome.ndim == 1:
            outcome = outcome.tolist()
        if not isinstance(outcome, list) and len(names) == 1:
            return [outcome]
        if not isinstance(outcome, list) or len(outcome) != len(names):
            raise RunError(
                f"there are {len(names)} constraints; give a list of as many, got {outcome!r:.100}"
            )
        return outcome


def as_promise(promise: Promise) -> tuple[Requirement, Certificate | None]:
    """What must hold, and the certificate that says so, if it is one."""
    if isinstance(promise, Certificate):
        return parse(promise.requirement), promise
    if isinstance(promise, Requirement):
        return promise, None
    if not isinstance(promise, str | Path):
        raise RunError(
            f"{promise!r:.100} is neither a certificate nor a requirement, nor the file or text of one"
        )
    text, origin = str(promise), "the certificate"
    if isinstance(promise, Path) or text.strip().endswith((".json", ".props", ".prop", ".pctl", ".txt")):
        text, origin = read_text(promise, "certificate"), str(promise)
    elif len(text) < 4096 and "\0" not in text and os.path.isfile(text):
        text, origin = read_text(promise, "certificate"), text
    if text.lstrip().startswith("{"):
        certificate = Certificate.from_json(text, origin=origin)
        return parse(certificate.requirement), certificate
    return outcome_requirement(text), None


def _certified_ranges(certificate: Certificate) -> list[Range]:
    """Where the expected values of a certificate lie."""
    return [found.range for found in certificate.findings if isinstance(found, MeanFinding)]


def _watched(
    requirement: Requirement, every: float, ranges: Sequence[Range] | None, horizon: int | None
) -> tuple[MonitoredConstraint, ...]:
    """All constraints with their detectors, whose thresholds are such that together they keep to `every`."""
    if not requirement.constraints:
        raise RunError("the requirement has no constraint: there is nothing to watch")
    stated = [each for each in requirement.constraints if isinstance(each, Expectation)]
    given = list(ranges) if ranges is not None else [each.within for each in stated]
    if len(given) != len(stated):
        raise RunError(
            f"there are {len(stated)} expected values; give a range (lo, hi) for each, got {given}"
        )
    left = iter(given)
    found = []
    for each in requirement.constraints:
        span = (0.0, 1.0) if isinstance(each, Constraint) else next(left)
        if span is None:
            raise RunError(
                f"no range is known of an episode's value: {each}\nsay where it lies with `within [lo,hi]` in the "
                "requirement, or with ranges=[(lo, hi)] (--range LO,HI)"
            )
        if _is_rate(each) and horizon is None:
            raise RunError(f"a rate is watched knowing the longest episode; give horizon (--horizon): {each}")
        found.append((each, span, horizon if _is_rate(each) and horizon is not None else 1))
    bounds = [list(_bounds(each, span)) for each, span, _ in found]
    share = every * max(sum(map(len, bounds)), 1)
    return tuple(
        MonitoredConstraint(
            each, span, steps, tuple(_detector(bound, at_least, span, steps, share) for bound, at_least in sides)
        )
        for (each, span, steps), sides in zip(found, bounds, strict=True)
    )  # fmt: skip


def _bounds(stated: Constraint | Expectation, span: Range) -> Iterator[tuple[float, bool]]:
    """Each bound that can be missed, and whether the mean should be at least that."""
    if isinstance(stated, Constraint):
        for side in Task(stated, 1.0, 1.0).sides:
            yield side.bound(side.p_req), not side.negated
    else:
        yield from MeanTask(*span, stated.lower, stated.upper, false_accept=1.0, false_reject=1.0).sides


def _detector(bound: float, at_least: bool, span: Range, steps: int, every: float) -> Detector:
    lo, hi = (bound + steps * (end - bound) for end in span)
    return Detector(lo, hi, bound, at_least, every)


def _is_rate(stated: Constraint | Expectation) -> bool:
    return isinstance(stated, Expectation) and isinstance(stated.subject.over, LongRun)


def _value(watched: MonitoredConstraint, outcome: Any) -> tuple[float, int]:
    """An outcome as total and steps; what is no outcome is never taken for one."""
    total, steps = outcome, 1
    if watched.is_rate:
        if not isinstance(outcome, tuple) or len(outcome) != 2:
            raise RunError(f"an episode of {watched.called} is a pair (total, steps), got {outcome!r:.100}")
        total, steps = outcome
        if (
            isinstance(steps, bool)
            or not isinstance(steps, int | np.integer)
            or not 1 <= steps <= watched.horizon
        ):
            raise RunError(f"an episode has 1 to {watched.horizon:,} steps, got {steps!r:.100}")
    if isinstance(watched.stated, Constraint):
        if not isinstance(total, bool | int | float | np.bool_ | np.number) or total not in (0, 1):
            raise RunError(f"an outcome of {watched.called} is 0 or 1, true or false; got {outcome!r:.100}")
        return float(total), 1
    lo, hi = watched.span
    if isinstance(total, bool) or not isinstance(total, int | float | np.number):
        raise RunError(f"an outcome of {watched.called} is a number, got {outcome!r:.100}")
    if not lo * steps <= total <= hi * steps:  # NaN among them
        raise RunError(
            f"the value {outcome!r:.100} of {watched.called} lies outside of its range [{lo:g}, {hi:g}]; what is "
            "promised is promised for values in their range, so state a wider one"
        )
    return float(total), int(steps)


def _plain(seen: Counts | Grid) -> Any:
    if isinstance(seen, Counts):
        return list(seen)
    places = np.flatnonzero(seen.number)
    return {"places": places.tolist(), "counts": seen.number.flat[places].tolist()}


def _kept(watched: MonitoredConstraint, content: dict[str, Any]) -> ConstraintRecord:
    """What `Watcher.state` has made plain."""
    fresh = watched.init(_part(content, "since", int))
    seen = fresh.seen
    if isinstance(seen, Counts):
        seen = Counts(*map(int, content["seen"]))
        fine = min(seen) >= 0
    else:
        seen.number.flat[content["seen"]["places"]] = content["seen"]["counts"]
        fine = bool((seen.number >= 0.0).all())
    if not fine:
        raise ValueError("less than nothing was counted")
    sides = []
    for detector, side in zip(watched.sides, content["sides"], strict=True):
        lost = _part(side, "lost", bool)
        sums = np.array(side["sums"], np.float64)
        if sums.shape != (detector.opposite if lost else detector).bets.shape or not (sums >= 0.0).all():
            raise ValueError("sums of another detector")
        sides.append(DetectorState(lost, sums))
    return fresh._replace(seen=seen, sides=tuple(sides))


def _part(content: Mapping[str, Any], name: str, *kinds: type) -> Any:
    """An entry of a state, of one of these kinds."""
    found = content.get(name) if isinstance(content, Mapping) else None
    if type(found) not in kinds:
        raise RunError(f"the state is damaged: its {name} is {found!r:.100}; begin a new one")
    return found
