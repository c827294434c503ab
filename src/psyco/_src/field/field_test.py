"""Does a requirement still hold in the field? Sequential intervals, and an alarm when it no longer does.

Works with NumPy and SciPy alone. The evidence of a `FieldTest` is one immutable value, which each outcome replaces as a
whole: an interrupt, or a copy of the state in a file, never sees half an outcome.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from psyco._src.core.codec import decode, encode
from psyco._src.core.errors import RunError
from psyco._src.core.files import read_text
from psyco._src.core.wording import plural
from psyco._src.logic.ast import Constraint, Expectation, LongRun, Requirement
from psyco._src.logic.parser import parse
from psyco._src.logic.requirement import outcome_requirement
from psyco._src.verification.anytime import confidence_sequence
from psyco._src.verification.base import Counts, MeanTask, Task
from psyco._src.verification.betting import CELLS, ValuePoints, log_evidence, solve_lower_bound
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.change_detection import Detector, DetectorState
from psyco._src.verification.environments import refuse_environments
from psyco._src.verification.findings import MeanFinding

DEFAULT_FALSE_ALARM_EVERY, MAX_FALSE_ALARM_EVERY = 100_000, 1e15  # episodes
STATE_FORMAT = "psyco-watch-1"
RATE_GRID = (201, 51)  # positions and weights of a rate's values

CertificateLike: TypeAlias = Certificate | Requirement | str | Path
Range: TypeAlias = tuple[float, float]
EpisodeValue: TypeAlias = tuple[float, int]  # total and steps; 0 or 1, and 1, for an outcome
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
NonNegative: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0)]


class Interval(NamedTuple):
    """Bounds for a probability or an expected value in the field."""

    lower: float
    upper: float


@dataclass(frozen=True)
class Alarm:
    """The constraints whose status has changed with the last outcome."""

    episode: int  # number of outcomes so far
    lost: tuple[str, ...]  # constraints that hold no longer, by name or else as text
    recovered: tuple[str, ...]  # constraints that hold again

    def __str__(self) -> str:
        lost = [f"holds no longer: {label}" for label in self.lost]
        recovered = [f"holds again: {label}" for label in self.recovered]
        return f"after {plural(self.episode, 'episode')}: {'; '.join(lost + recovered)}"


# ---- one constraint ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MonitoredConstraint:
    """A constraint with its change detectors."""

    constraint: Constraint | Expectation
    value_range: Range  # of an episode's value; of a rate, of each step's
    horizon: int  # of a rate, the length of the longest episode; else 1
    detectors: tuple[Detector, ...]  # one for each bound

    @cached_property
    def label(self) -> str:
        """Its name, or else its text."""
        return self.constraint.name or str(self.constraint)

    @cached_property
    def is_outcome(self) -> bool:
        """Whether it bounds a probability: an episode satisfies its formula or not."""
        return isinstance(self.constraint, Constraint)

    @cached_property
    def is_rate(self) -> bool:
        """Whether it bounds a value per step instead of per episode."""
        return _is_rate(self.constraint)

    @property
    def with_range(self) -> Constraint | Expectation:
        """The constraint, with the range of its values stated."""
        if isinstance(self.constraint, Constraint):
            return self.constraint
        return replace(self.constraint, within=self.value_range)

    def init(self, episode: int = 0) -> ConstraintEvidence:
        """Return the evidence before the first outcome."""
        empty = Counts(0, 0) if isinstance(self.constraint, Constraint) else Grid.empty(self.is_rate)
        return ConstraintEvidence(episode, empty, tuple(detector.init() for detector in self.detectors))

    def update(
        self, evidence: ConstraintEvidence, episode: int, values: Sequence[EpisodeValue]
    ) -> tuple[ConstraintEvidence, int]:
        """Take further episodes, up to the first detected change; an alarm or a recovery restarts the interval.

        Args:
            evidence: the evidence so far.
            episode: number of episodes so far.
            values: of the further episodes.

        Returns:
            The evidence, and the number of episodes that were taken.
        """
        states, count = self._detect(evidence, values)
        if _lost(states) != _lost(evidence.detectors):
            return self.init(episode + count)._replace(detectors=states), count
        outcomes = evidence.outcomes
        if isinstance(outcomes, Counts):
            satisfied = sum([total == 1.0 for total, _ in values[:count]])
            outcomes = Counts(outcomes.satisfied + satisfied, outcomes.violated + count - satisfied)
        else:
            lo, hi = self.value_range
            outcomes = outcomes.with_values(
                ((total / steps - lo) / (hi - lo), steps / self.horizon) for total, steps in values[:count]
            )
        return ConstraintEvidence(evidence.since, outcomes, states), count

    def _detect(
        self, evidence: ConstraintEvidence, values: Sequence[EpisodeValue]
    ) -> tuple[tuple[DetectorState, ...], int]:
        """Return the states of all detectors after the first change in one of them, and the number of episodes."""
        # A rate r holds if the mean of total - r steps is within its bound: shift the total by r (steps - 1).
        found = [
            detector.update(state, [total - detector.bound * (steps - 1) for total, steps in values])
            for detector, state in zip(self.detectors, evidence.detectors, strict=True)
        ]
        count = min([taken for _, taken in found], default=len(values))
        if any(taken > count for _, taken in found):
            return self._detect(evidence, values[:count])
        return tuple([state for state, _ in found]), count

    def interval(self, evidence: ConstraintEvidence) -> Interval:
        """Return bounds that hold together at the constraint's confidence."""
        delta = (1.0 - self.constraint.confidence) / 2.0
        if isinstance(evidence.outcomes, Counts):
            return Interval(*confidence_sequence(evidence.outcomes, delta))
        points, (lo, hi) = evidence.outcomes.points, self.value_range
        above, below = (solve_lower_bound(partial(log_evidence, side), delta) for side in (points, points.mirrored))
        return Interval(lo + (hi - lo) * above, hi - (hi - lo) * below)

    def restore(self, record: _EvidenceRecord) -> ConstraintEvidence:
        """Return the evidence of a record; ValueError where it belongs to another constraint."""
        evidence = self.init(record.since)
        outcomes: Counts | Grid
        if isinstance(evidence.outcomes, Grid) and isinstance(record.outcomes, _GridRecord):
            outcomes = evidence.outcomes
            outcomes.number.flat[record.outcomes.cells] = record.outcomes.counts
        elif isinstance(evidence.outcomes, Counts) and isinstance(record.outcomes, tuple):
            outcomes = Counts(*record.outcomes)
        else:
            raise ValueError("its outcomes are those of another constraint")
        states = tuple(DetectorState(each.lost, np.array(each.sums, np.float64)) for each in record.detectors)
        for detector, state in zip(self.detectors, states, strict=True):
            if state.sums.shape != (detector.opposite if state.lost else detector).bets.shape:
                raise ValueError("its sums are those of another detector")
        return evidence._replace(outcomes=outcomes, detectors=states)


class Grid(NamedTuple):
    """Counts of values on a grid, from which `betting` computes bounds on their mean or rate, in constant memory.

    A value between grid points is shared by its neighbours such that the mean of the weight, and of position times
    weight, stay the same. The log of every factor of the evidence is concave in these two, so sharing can only lower
    the evidence, for either side: bounds are sound.
    """

    number: NDArray[np.float64]  # [P, W] values, by position in their range and by weight

    @classmethod
    def empty(cls, is_rate: bool) -> Grid:
        """Return a grid without values; only those of a rate differ in their weights."""
        return cls(np.zeros(RATE_GRID if is_rate else (CELLS + 1, 1)))

    def with_values(self, values: Iterable[tuple[float, float]]) -> Grid:
        """Return the grid with further values; position and weight of each are from 0 to 1."""
        number = self.number.copy()
        for position, weight in values:
            for (i, at), (j, heavy) in product(*map(_neighbours, (position, weight), number.shape)):
                number[i, j] += at * heavy
        return Grid(number)

    @property
    def points(self) -> ValuePoints:
        """The grid points that have values."""
        i, j = np.nonzero(self.number)
        rows, columns = self.number.shape
        weight = j / (columns - 1) if columns > 1 else np.ones(len(j))
        return ValuePoints(i / (rows - 1) * weight, weight, self.number[i, j])


def _neighbours(place: float, count: int) -> tuple[tuple[int, float], ...]:
    """Return the points of a grid over [0, 1] around a place, with the share of each."""
    if count == 1:
        return ((0, 1.0),)
    scaled = min(max(place, 0.0), 1.0) * (count - 1)
    left = min(int(scaled), count - 2)
    return (left, left + 1 - scaled), (left + 1, scaled - left)


class ConstraintEvidence(NamedTuple):
    """The evidence on one constraint."""

    since: int  # episode of the last alarm or recovery, from which outcomes are counted
    outcomes: Counts | Grid
    detectors: tuple[DetectorState, ...]

    @property
    def lost(self) -> bool:
        """Whether the constraint is in alarm."""
        return _lost(self.detectors)

    @property
    def record(self) -> _EvidenceRecord:
        """The evidence for a file."""
        outcomes: tuple[int, int] | _GridRecord
        if isinstance(self.outcomes, Counts):
            outcomes = tuple(self.outcomes)
        else:
            cells = np.flatnonzero(self.outcomes.number)
            outcomes = _GridRecord(cells.tolist(), self.outcomes.number.flat[cells].tolist())
        states = [_DetectorRecord(state.lost, state.sums.tolist()) for state in self.detectors]
        return _EvidenceRecord(self.since, outcomes, states)


def _lost(states: tuple[DetectorState, ...]) -> bool:
    return states[0].lost if len(states) == 1 else any(state.lost for state in states)  # one bound is most common


class FieldEvidence(NamedTuple):
    """The evidence on all constraints."""

    episodes: int
    constraints: tuple[ConstraintEvidence, ...]


# ---- the state as a file ----------------------------------------------------------------------------------------


class _GridRecord(NamedTuple):
    cells: list[Count]  # flat indices of the grid points that have values
    counts: list[NonNegative]


class _DetectorRecord(NamedTuple):
    lost: bool
    sums: list[NonNegative]


class _EvidenceRecord(NamedTuple):
    since: Count
    outcomes: _GridRecord | tuple[Count, Count]
    detectors: list[_DetectorRecord]


class _FieldTestRecord(NamedTuple):
    requirement: str
    false_alarm_every: float
    ranges: list[tuple[float, float, int]]  # of values, with the horizon: the counts are relative to these
    episodes: Count
    constraints: list[_EvidenceRecord]


def _decode_state(state: Mapping[str, Any]) -> _FieldTestRecord:
    found = state.get("format") if isinstance(state, Mapping) else None
    if found != STATE_FORMAT:
        raise RunError(f"the state has format {found!r:.100}; this version reads {STATE_FORMAT!r}")
    content = {name: value for name, value in state.items() if name != "format"}
    return decode(content, _FieldTestRecord, "the state")


# ---- all constraints --------------------------------------------------------------------------------------------


class FieldTest:
    """Tests whether a deployed policy still satisfies the requirement of its certificate.

    Args:
        certificate: a certificate, its file or text; or a requirement, its file or text, where `P>=0.85` suffices.
        false_alarm_every: while all constraints hold, the mean number of episodes to a false alarm is at least this,
            whatever the dependence between episodes; default 100,000, or the value of the state.
        ranges: of the values of expectations, in their order, where neither `within` nor the certificate states the
            range of an episode's value; of a rate, of each step's value.
        horizon: the longest episode, for rates; default: the horizon of the certificate.
        state: the state of an earlier test, to continue from.
    """

    def __init__(
        self,
        certificate: CertificateLike,
        false_alarm_every: float | None = None,
        *,
        ranges: Sequence[Range] | None = None,
        horizon: int | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.requirement, self.certificate = read_certificate(certificate)
        record = None if state is None else _decode_state(state)
        if false_alarm_every is None:
            false_alarm_every = record.false_alarm_every if record else DEFAULT_FALSE_ALARM_EVERY
        self.false_alarm_every = _check_false_alarm_every(false_alarm_every)
        if horizon is None and self.certificate is not None:
            horizon = self.certificate.horizon
        if ranges is None and self.certificate is not None:
            ranges = [f.range for f in self.certificate.findings if isinstance(f, MeanFinding)]
        self.constraints = _monitored(self.requirement, self.false_alarm_every, ranges, horizon)
        self._known = FieldEvidence(0, tuple(constraint.init() for constraint in self.constraints))
        if record is not None:
            self._known = self._restored(record)

    def update(self, outcome: Any) -> Alarm | None:
        """Add one episode; return the alarm or recovery that it causes, if any.

        Args:
            outcome: whether the formula held; for an expectation, the episode's value; for a rate, the pair
                `(total, steps)`. With several constraints a list of these, or a dictionary by name.
        """
        return self.count([self.check_outcome(outcome)])[1]

    def count(self, values: Sequence[Sequence[EpisodeValue]]) -> tuple[int, Alarm | None]:
        """Add episodes up to the first alarm or recovery; return their number, and that alarm, if any.

        Args:
            values: of each episode, what `check_outcome` returns.
        """
        counted = 0
        while counted < len(values):
            before, columns = self.evidence, list(zip(*values[counted:], strict=True))
            found = self._advance(columns)
            count = min([taken for _, taken in found])
            if any(taken > count for _, taken in found):
                found = self._advance([column[:count] for column in columns])
            counted += count
            self._known = FieldEvidence(self.episodes + count, tuple([evidence for evidence, _ in found]))
            changed = [
                (constraint.label, new.lost)
                for constraint, old, new in zip(self.constraints, before, self.evidence, strict=True)
                if old.lost != new.lost
            ]
            if changed:
                lost = tuple(label for label, lost in changed if lost)
                return counted, Alarm(self.episodes, lost, tuple(label for label, lost in changed if not lost))
        return counted, None

    def _advance(self, columns: Sequence[Sequence[EpisodeValue]]) -> list[tuple[ConstraintEvidence, int]]:
        """Return the evidence on each constraint after its first change, and the number of episodes until then."""
        return [
            constraint.update(evidence, self.episodes, column)
            for constraint, evidence, column in zip(self.constraints, self.evidence, columns, strict=True)
        ]

    def check_outcome(self, outcome: Any) -> list[EpisodeValue]:
        """Return the value of an episode for each constraint; RunError where it is no outcome."""
        arranged = self._arranged(outcome)
        return [_value(constraint, given) for constraint, given in zip(self.constraints, arranged, strict=True)]

    def check_values(self, values: Sequence[EpisodeValue]) -> None:
        """Raise RunError where these are not the values of an episode."""
        pairs = zip(self.constraints, values, strict=False)
        outcome: list[Any] = [value if constraint.is_rate else value[0] for constraint, value in pairs]
        if len(values) != len(outcome) or self.check_outcome(outcome) != list(values):
            raise RunError(f"these are not the values of an episode: {values!r:.100}")

    @property
    def episodes(self) -> int:
        """Number of outcomes so far."""
        return self._known.episodes

    @property
    def evidence(self) -> tuple[ConstraintEvidence, ...]:
        """Evidence on each constraint."""
        return self._known.constraints

    @property
    def in_alarm(self) -> tuple[str, ...]:
        """Constraints that hold no longer, according to the evidence."""
        pairs = zip(self.constraints, self.evidence, strict=True)
        return tuple(constraint.label for constraint, evidence in pairs if evidence.lost)

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """For each constraint, the interval of its probability, expected value or rate in the field.

        It is valid at all times at once, at the constraint's confidence, *if the probability has not changed since the
        start or the last alarm or recovery of this constraint*, from which it is counted.
        """
        pairs = zip(self.constraints, self.evidence, strict=True)
        return tuple(constraint.interval(evidence) for constraint, evidence in pairs)

    @property
    def interval(self) -> Interval:
        """The interval of the only constraint."""
        if len(self.constraints) != 1:
            raise RunError(f"there are {len(self.constraints)} constraints: use intervals")
        return self.intervals[0]

    @property
    def state(self) -> dict[str, Any]:
        """Everything needed to continue elsewhere, as plain data for JSON."""
        records = [evidence.record for evidence in self.evidence]
        record = _FieldTestRecord(str(self.requirement), self.false_alarm_every, self._ranges, self.episodes, records)
        return {"format": STATE_FORMAT, **encode(record)}

    @property
    def _ranges(self) -> list[tuple[float, float, int]]:
        return [(*constraint.value_range, constraint.horizon) for constraint in self.constraints]

    def _restored(self, record: _FieldTestRecord) -> FieldEvidence:
        """Return the evidence of an earlier test; RunError where it was another test."""
        if record.requirement != str(self.requirement):
            raise RunError(
                "the state is of another requirement; give the certificate that it was begun with, or a new state:\n"
                f"{record.requirement}\ninstead of\n{self.requirement}"
            )
        if record.false_alarm_every != self.false_alarm_every:
            raise RunError(
                f"the state was begun with a false alarm every {record.false_alarm_every:,} episodes, not "
                f"{self.false_alarm_every:,}; leave that out, or begin a new state"
            )
        if record.ranges != self._ranges:
            raise RunError(
                f"the state was begun with other ranges or horizons, {record.ranges!r:.200} instead of "
                f"{self._ranges}; give the same, or begin a new state"
            )
        try:
            pairs = zip(self.constraints, record.constraints, strict=True)
            evidence = tuple(constraint.restore(each) for constraint, each in pairs)
        except (ValueError, IndexError) as error:
            raise RunError(f"the state is damaged ({error!s:.200}); begin a new one") from None
        return FieldEvidence(record.episodes, evidence)

    def _arranged(self, outcome: Any) -> Sequence[Any]:
        """Return an outcome for each constraint, in their order."""
        if isinstance(outcome, list) and len(outcome) == len(self.constraints):
            return outcome
        labels = [constraint.label for constraint in self.constraints]
        if isinstance(outcome, Mapping):
            if set(outcome) != set(labels):
                given = ", ".join(map(str, outcome)) or "nothing"
                raise RunError(f"an outcome has an entry for each constraint, {', '.join(labels)}; got {given}")
            return [outcome[label] for label in labels]
        if isinstance(outcome, np.ndarray) and outcome.ndim == 1:
            outcome = outcome.tolist()
        if not isinstance(outcome, list) and len(labels) == 1:
            return [outcome]
        if not isinstance(outcome, list) or len(outcome) != len(labels):
            raise RunError(
                f"there are {len(labels)} constraints; give a list of as many outcomes, got {outcome!r:.100}"
            )
        return outcome


def read_certificate(given: CertificateLike) -> tuple[Requirement, Certificate | None]:
    """Return a requirement, and the certificate that states it, if any.

    Raises:
        RunError: `given` is neither a certificate nor a requirement, nor the file or text of one.
    """
    if isinstance(given, Certificate):
        return parse(given.requirement), given
    if isinstance(given, Requirement):
        return given, None
    if not isinstance(given, str | Path):
        raise RunError(f"{given!r:.100} is neither a certificate nor a requirement, nor the file or text of one")
    text, origin = str(given), "the certificate"
    if isinstance(given, Path) or text.strip().endswith((".json", ".props", ".prop", ".pctl", ".txt")):
        text, origin = read_text(given, "certificate"), str(given)
    elif len(text) < 4096 and "\0" not in text and os.path.isfile(text):
        text, origin = read_text(given, "certificate"), text
    if text.lstrip().startswith("{"):
        certificate = Certificate.from_json(text, origin=origin)
        return parse(certificate.requirement), certificate
    return outcome_requirement(text), None


def _check_false_alarm_every(given: float) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 1 <= given <= MAX_FALSE_ALARM_EVERY:
        raise RunError(f"false_alarm_every is a number of episodes, 1 to {MAX_FALSE_ALARM_EVERY:g}; got {given!r:.100}")
    return given


def _monitored(
    requirement: Requirement, every: float, ranges: Sequence[Range] | None, horizon: int | None
) -> tuple[MonitoredConstraint, ...]:
    """Return all constraints with detectors whose false alarms together come at most once in `every` episodes."""
    if not requirement.constraints:
        raise RunError("the requirement has no constraint: there is nothing to watch")
    refuse_environments(requirement, "in the field there is one environment")
    expectations = [each for each in requirement.constraints if isinstance(each, Expectation)]
    given = list(ranges) if ranges is not None else [each.within for each in expectations]
    if len(given) != len(expectations):
        raise RunError(f"there are {len(expectations)} expected values; give a range (lo, hi) for each, got {given}")
    remaining = iter(given)
    found = []
    for constraint in requirement.constraints:
        value_range = (0.0, 1.0) if isinstance(constraint, Constraint) else next(remaining)
        if value_range is None:
            raise RunError(
                f"the range of an episode's value is not known: {constraint}\nstate it with `within [lo,hi]` in the "
                "requirement, or with ranges=[(lo, hi)] (--range LO,HI)"
            )
        if isinstance(constraint, Expectation) and constraint.subject.cvar is not None:
            raise RunError(f"a CVaR is not watched; leave it out, or watch the mean: {constraint}")
        if _is_rate(constraint) and horizon is None:
            raise RunError(f"a rate needs the longest episode; give horizon (--horizon): {constraint}")
        steps = horizon if _is_rate(constraint) and horizon is not None else 1
        found.append((constraint, value_range, steps, list(_bounds(constraint, value_range))))
    # K detectors with K times the run length have it together (see `change_detection`).
    run_length = every * max(sum(len(bounds) for *_, bounds in found), 1)
    return tuple(
        MonitoredConstraint(
            constraint,
            value_range,
            steps,
            tuple(_detector(bound, at_least, value_range, steps, run_length) for bound, at_least in bounds),
        )
        for constraint, value_range, steps, bounds in found
    )


def _bounds(constraint: Constraint | Expectation, value_range: Range) -> Iterator[tuple[float, bool]]:
    """Yield each bound that can be violated, and whether it is a lower bound."""
    if isinstance(constraint, Constraint):
        for side in Task(constraint, 1.0, 1.0).sides:
            yield side.bound(side.p_req), not side.negated
    else:
        yield from MeanTask(*value_range, constraint.lower, constraint.upper, false_accept=1.0, false_reject=1.0).sides


def _detector(bound: float, at_least: bool, value_range: Range, steps: int, run_length: float) -> Detector:
    lo, hi = (bound + steps * (end - bound) for end in value_range)
    return Detector(lo, hi, bound, at_least, run_length)


def _is_rate(constraint: Constraint | Expectation) -> bool:
    return isinstance(constraint, Expectation) and isinstance(constraint.subject.over, LongRun)


def _value(constraint: MonitoredConstraint, outcome: Any) -> EpisodeValue:
    """Return an outcome as total and steps; RunError where it is no outcome of the constraint."""
    if constraint.is_outcome and isinstance(outcome, bool):
        return float(outcome), 1
    total, steps, label = outcome, 1, constraint.label
    if constraint.is_rate:
        if not isinstance(outcome, tuple) or len(outcome) != 2:
            raise RunError(f"an episode of {label} is a pair (total, steps), got {outcome!r:.100}")
        total, steps = outcome
        is_count = isinstance(steps, int | np.integer) and not isinstance(steps, bool)
        if not is_count or not 1 <= steps <= constraint.horizon:
            raise RunError(f"an episode has 1 to {constraint.horizon:,} steps, got {steps!r:.100}")
    if constraint.is_outcome:
        if not isinstance(total, bool | int | float | np.bool_ | np.number) or total not in (0, 1):
            raise RunError(f"an outcome of {label} is 0 or 1, true or false; got {outcome!r:.100}")
        return float(total), 1
    lo, hi = constraint.value_range
    if isinstance(total, bool) or not isinstance(total, int | float | np.number):
        raise RunError(f"an outcome of {label} is a number, got {outcome!r:.100}")
    if not lo * steps <= total <= hi * steps:  # also NaN
        raise RunError(
            f"the value {outcome!r:.100} of {label} lies outside of its range [{lo:g}, {hi:g}]; guarantees hold for "
            "values in their range only, so state a wider one"
        )
    return float(total), int(steps)
