"""What a page about a run shows, as plain data: numbers for the charts, posteriors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import PsycoError
from psyco._src.learners.metrics import Metrics
from psyco._src.logic.ast import Requirement
from psyco._src.logic.parser import parse
from psyco._src.runs.store import Run
from psyco._src.verification.base import Counts
from psyco._src.verification.bayes import posterior_mass
from psyco._src.verification.findings import Finding

POINTS = 1000  # of a curve; a longer one is averaged in bins
CURVES = (
    "return",
    "satisfied",
    "c_sat",
    "lambda",
    "cost",
    "return_satisfying",
    "return_violating",
)
CHECKS = (
    "verified_confidence",
    "verified_share",
    "verified_lower",
    "verified_upper",
    "verified_return",
    "verified_episodes",
)


def curves(metrics: Metrics) -> dict[str, list[float | None]]:
    """The curves over training episodes, binned by averaging to at most `POINTS` points."""
    if not metrics.rows:
        return {}
    bins = np.array_split(np.arange(metrics.rows), min(POINTS, metrics.rows))
    found: dict[str, list[float | None]] = {"episodes": [float(metrics["episodes"][b[-1]]) for b in bins]}
    for name in CURVES:
        if name in metrics:
            found[name] = [_number(_mean(metrics[name][b])) for b in bins]
    return found


def checks(metrics: Metrics) -> list[dict[str, Any]]:
    """The verifications during learning."""
    if not metrics.rows or "verified_share" not in metrics:
        return []
    rows = np.flatnonzero(~np.isnan(metrics["verified_share"]))
    if len(rows) > POINTS:
        rows = rows[np.linspace(0, len(rows) - 1, POINTS).astype(int)]
    return [
        {
            "episodes": float(metrics["episodes"][i]),
            "verdict": str(metrics["verdict"][i]),
            **{name: _number(metrics[name][i]) for name in CHECKS if name in metrics},
        }
        for i in rows
    ]


def posteriors(run: Run) -> list[dict[str, Any]]:
    """Beta(a, b) for every constraint on a probability: from the certificate, or else from the last check."""
    requirement = requirement_of(run)
    if requirement is None:
        return []
    constraints = requirement.probabilities
    findings = [f for f in run.certificate.findings if isinstance(f, Finding)] if run.certificate else []
    if len(findings) == len(constraints) > 0:
        counts, source = [(f.satisfied, f.violated) for f in findings], "certificate"
    elif len(constraints) == 1 and (done := checks(run.metrics)):
        episodes = round(done[-1]["verified_episodes"] or 0)
        satisfied = round(episodes * (done[-1]["verified_share"] or 0.0))
        counts, source = [(satisfied, episodes - satisfied)], "last check"
    else:
        return []
    return [
        {
            "label": constraint.name or f"constraint {i + 1}",
            "satisfied": s,
            "violated": v,
            "lower": constraint.lower,
            "upper": constraint.upper,
            "confidence": constraint.confidence,
            "mass": float(posterior_mass(Counts(s, v), constraint.lower, constraint.upper)),
            "source": source,
        }
        for i, (constraint, (s, v)) in enumerate(zip(constraints, counts, strict=True))
    ]


def requirement_of(run: Run) -> Requirement | None:
    """The requirement, if it can be read."""
    try:
        return parse(run.config.requirement) if run.config else None
    except PsycoError:
        return None


def _mean(values: NDArray[Any]) -> float:
    """Of the numbers among them; NaN if there are none."""
    good = values[~np.isnan(values)]
    return float(good.mean()) if len(good) else math.nan


def _number(value: float) -> float | None:
    """Five digits are enough for a picture, and JSON has no NaN."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
