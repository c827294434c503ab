"""The score of a trial, and pruning: a run that scores below the median of earlier trials is stopped early.

A certificate comes first, then the return; without a certificate, the distance from one. During learning the share of
satisfying episodes takes the place of the certificate.

A pruning threshold is data that is sent to the process of the run. It is made of trials that ended before the current
round began, so which runs are pruned depends neither on the number of workers nor on their speed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from psyco._src.core import files
from psyco._src.core.codec import decode, encode
from psyco._src.core.errors import RunError
from psyco._src.core.files import read_bytes
from psyco._src.learners.metrics import Metrics
from psyco._src.logic.ast import Requirement
from psyco._src.runs.problem import Problem
from psyco._src.runs.settings import Settings
from psyco._src.runs.store import load_metrics
from psyco._src.runs.train import Callback, RunProgress
from psyco._src.verification.base import Verdict
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.findings import Finding

WINDOW = 0.25  # fraction of learning over which metrics are averaged
# Tolerance on the share of satisfying episodes: a row rests on few episodes, so a smaller shortfall may be noise.
SHARE_TOLERANCE = 0.05
CHECKPOINTS = (0.5, 0.75)  # fractions of learning at which a run may be pruned
MIN_TRIALS = 5  # trials that must have passed a checkpoint before their median is a threshold
PRUNED_FILE = "pruned.json"  # in the folder of a pruned run


class Score(NamedTuple):
    """Score of a trial; larger is better, and every certified run is above all others."""

    certified: bool
    # The return, negated where it is minimised; without a certificate, minus the distance from one.
    number: float

    @property
    def value(self) -> float:
        """The same order as one number: certified scores lie in (1, 3), others at or below 0."""
        return 2.0 + self.number / (1.0 + abs(self.number)) if self.certified else self.number


def score_certificate(certificate: Certificate | None, requirement: Requirement) -> Score | None:
    """Return the score of a finished run; None if its certificate has no finite return."""
    if certificate is None or certificate.mean_return is None or not math.isfinite(certificate.mean_return):
        return None
    if certificate.verdict in (Verdict.SATISFIED, Verdict.ANSWERED):
        return Score(True, _signed(certificate.mean_return, requirement))
    return Score(False, -distance(certificate, requirement))


def distance(certificate: Certificate, requirement: Requirement) -> float:
    """Return how far a certificate is from SATISFIED: the largest shortfall of a bound.

    The shortfall is a difference of probabilities, or for an expected value a fraction of its declared range.
    """
    shortfalls = [0.0]
    for finding, constraint in zip(certificate.findings, requirement.constraints, strict=True):
        if finding.verdict is not Verdict.SATISFIED:
            low, high = (0.0, 1.0) if isinstance(finding, Finding) else finding.range
            # A share of environments is bounded from below.
            share = getattr(constraint, "environments", None)
            least, most = (constraint.lower, constraint.upper) if share is None else (share, 1.0)
            shortfall = max(least - finding.lower, finding.upper - most, 0.0)
            shortfalls.append(shortfall / max(high - low, 1e-12))
    return max(shortfalls)


def score_metrics(metrics: Metrics, requirement: Requirement, settings: Settings, fraction: float) -> Score | None:
    """Return the score of a run after a fraction of learning, from the rows before; None if it was not reached."""
    if not metrics.rows:
        return None
    episodes = np.diff(metrics["episodes"], prepend=0)
    done = np.cumsum(episodes * metrics["length"]) if settings.steps else metrics["episodes"]
    progress = done / (settings.steps or settings.episodes)
    rows = np.flatnonzero(progress >= fraction)
    if not len(rows):
        return None
    end = int(rows[0]) + 1
    first = min(int(np.searchsorted(progress, fraction - WINDOW)), end - 1)
    # Learners that evaluate the deployed policy are scored by that evaluation.
    returned, satisfied = (
        metrics.get(f"deployed_{name}", metrics[name])[first:end].mean() for name in ("return", "satisfied")
    )
    # All probability constraints hold at once in at least this share of episodes (union bound).
    required = max(0.0, 1.0 - sum(1.0 - constraint.p_req for constraint in requirement.probability_bounds))
    shortfall = required - float(satisfied)
    if shortfall <= SHARE_TOLERANCE:
        return Score(True, _signed(float(returned), requirement))
    return Score(False, -shortfall)


def _signed(returned: float, requirement: Requirement) -> float:
    return returned if requirement.goal.maximize else -returned


# ---- pruning -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PruningThreshold:
    """Score that a run must reach at each of CHECKPOINTS; None: no threshold yet."""

    scores: tuple[Score | None, ...] = (None,) * len(CHECKPOINTS)

    @property
    def digest(self) -> str:
        """Hash that tells apart runs which were pruned by different thresholds."""
        return files.digest(json.dumps(self.scores).encode())[:16]


def median_threshold(earlier: Sequence[Sequence[Score | None]]) -> PruningThreshold:
    """Return the median score of earlier trials at each checkpoint; of two middle scores the worse.

    Args:
        earlier: the scores of each trial, one per checkpoint.
    """
    medians: list[Score | None] = []
    for k in range(len(CHECKPOINTS)):
        known = sorted(score for scores in earlier if (score := scores[k]) is not None)
        medians.append(known[(len(known) - 1) // 2] if len(known) >= MIN_TRIALS else None)
    return PruningThreshold(tuple(medians))


def checkpoint_scores(folder: Path, requirement: Requirement, settings: Settings) -> tuple[Score | None, ...]:
    """Return the score of a run at each checkpoint that it passed."""
    try:
        metrics = load_metrics(folder)
    except RunError:
        metrics = Metrics({})
    return tuple(score_metrics(metrics, requirement, settings, fraction) for fraction in CHECKPOINTS)


@dataclass(frozen=True)
class PruningRecord:
    """Content of PRUNED_FILE."""

    fraction: float  # of learning after which the run was stopped
    threshold: str  # digest


@dataclass
class Pruner:
    """A callback that stops a run whose score at a checkpoint is below the threshold."""

    folder: Path  # of the run
    threshold: PruningThreshold
    pruned_at: float | None = None  # the fraction of learning after which the run was stopped
    _progress: float = 0.0
    _passed: set[float] = field(default_factory=set)

    @property
    def callback(self) -> Callback:
        """The callback for the training loop."""
        return Callback(
            on_metrics=self._check, on_progress=self._follow, should_stop=lambda: self.pruned_at is not None
        )

    def save(self) -> None:
        """Write down that the run was pruned, and by which threshold."""
        assert self.pruned_at is not None
        record = PruningRecord(self.pruned_at, self.threshold.digest)
        files.write(self.folder / PRUNED_FILE, (json.dumps(encode(record)) + "\n").encode())

    def _follow(self, stage: RunProgress) -> None:
        if stage.phase == "learning":
            self._progress = stage.done / stage.total

    def _check(self, problem: Problem, metrics: Metrics) -> None:
        for fraction, minimum in zip(CHECKPOINTS, self.threshold.scores, strict=True):
            if minimum is None or fraction in self._passed or self._progress < fraction:
                continue
            # The file has all rows, also those of earlier sessions; it is written before other callbacks are called.
            score = score_metrics(load_metrics(self.folder), problem.requirement, problem.settings, fraction)
            if score is not None:
                self._passed.add(fraction)
                if score < minimum and self.pruned_at is None:
                    self.pruned_at = fraction


def pruned_at(folder: Path, threshold: PruningThreshold | None) -> float | None:
    """Return the fraction of learning after which this threshold pruned the run; None if it did not."""
    path = folder / PRUNED_FILE
    try:
        record = decode(read_bytes(path, "description of a run", inside=folder), PruningRecord, str(path))
    except RunError:
        return None
    return record.fraction if threshold is not None and record.threshold == threshold.digest else None
