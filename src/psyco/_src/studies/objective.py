"""How good a run is for who tunes: a certificate first, then the return; without one, how far it is from one.

The same is asked of a run that is still learning, by the rows of its table, in order to end what leads nowhere: there a
share of episodes stands for the certificate.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from psyco._src.learners.metrics import Metrics
from psyco._src.logic.ast import Requirement
from psyco._src.runs.settings import Settings
from psyco._src.verification.base import Verdict
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.findings import Finding, MeanFinding

WINDOW = 0.25  # of learning, over which rows are averaged
SLACK = 0.05  # of a share: rows are few episodes, and what is missing by less may be luck


class Score(NamedTuple):
    """Better is larger: every certified run stands above all others."""

    certified: bool
    number: float  # the return, more being better; without a certificate minus the distance from one

    @property
    def value(self) -> float:
        """The same order as one number: certified ones lie in (1, 3), others at 0 and below."""
        return 2.0 + self.number / (1.0 + abs(self.number)) if self.certified else self.number


def score_of(certificate: Certificate | None, requirement: Requirement) -> Score | None:
    """Of a run that has finished, by its certificate; None where that says nothing."""
    if certificate is None or certificate.mean_return is None or not math.isfinite(certificate.mean_return):
        return None
    if certificate.verdict in (Verdict.SATISFIED, Verdict.ANSWERED):
        return Score(True, _signed(certificate.mean_return, requirement))
    return Score(False, -distance(certificate, requirement))


def distance(certificate: Certificate, requirement: Requirement) -> float:
    """How far a certificate is from SATISFIED: by how much the worst bound misses what is required.

    Of a probability that is a difference of probabilities, of a mean a part of the range in which its values lie.
    """
    missing = [0.0]
    for finding, constraint in zip(certificate.findings, requirement.constraints, strict=True):
        if finding.verdict is not Verdict.SATISFIED:
            short = max(constraint.lower - finding.lower, finding.upper - constraint.upper, 0.0)
            missing.append(short / _span(finding))
    return max(missing)


def score_at(metrics: Metrics, requirement: Requirement, settings: Settings, part: float) -> Score | None:
    """Of a run that has done this part of learning, by the rows before that; None where it has not come so far."""
    if not metrics.rows:
        return None
    each = np.diff(metrics["episodes"], prepend=0)
    done = np.cumsum(each * metrics["length"]) if settings.steps else metrics["episodes"]
    share = done / (settings.steps or settings.episodes)
    rows = np.flatnonzero(share >= part)
    if not len(rows):
        return None
    end = int(rows[0]) + 1
    first = min(int(np.searchsorted(share, part - WINDOW)), end - 1)
    # Where a learner shows the policy that would be deployed, that is what counts.
    returned, satisfied = (
        metrics.get(f"deployed_{name}", metrics[name])[first:end].mean() for name in ("return", "satisfied")
    )
    short = _needed(requirement) - float(satisfied)
    return Score(True, _signed(float(returned), requirement)) if short <= SLACK else Score(False, -short)


def _needed(requirement: Requirement) -> float:
    """The share of episodes that must satisfy all demands for probabilities at once, at least."""
    return max(0.0, 1.0 - sum(1.0 - demand.p_req for demand in requirement.demands))


def _signed(returned: float, requirement: Requirement) -> float:
    return returned if requirement.goal.maximize else -returned


def _span(finding: Finding | MeanFinding) -> float:
    low, high = (0.0, 1.0) if isinstance(finding, Finding) else finding.range
    return max(high - low, 1e-12)
