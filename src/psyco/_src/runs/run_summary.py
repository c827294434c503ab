"""A run as a row of a table."""

from __future__ import annotations

import math
import time
from typing import Any

from psyco._src.core.errors import PsycoError
from psyco._src.learners.metrics import Metrics
from psyco._src.logic.parser import parse
from psyco._src.runs.store import Run


def summarize(record: Run) -> dict[str, Any]:
    """Return a run as a row of values."""
    certificate = record.certificate
    kind, latest = _latest_return(record.metrics)
    return {
        "run": str(record.folder),
        "domain": record.config.domain if record.config else "?",
        "requirement": _constraints(record),
        "return": certificate.mean_return if certificate else latest if math.isfinite(latest) else None,
        "return_of": "certified" if certificate else kind if math.isfinite(latest) else None,
        "verdict": certificate.verdict.name if certificate else None,
        "confidence": min((f.confidence for f in certificate.findings), default=None) if certificate else None,
        "created": record.info.created if record.info else None,
        "age_seconds": max(0, round(time.time() - record.info.created)) if record.info else None,
        "episodes": record.episodes,
        "progress": round(record.progress, 4),
        "state": record.state,
        "problems": list(record.problems),
    }


def _latest_return(metrics: Metrics) -> tuple[str, float]:
    """Return the latest return of the deployed policy, which its learner or a check has played; else of exploring."""
    for kind, column in (("deployed", "deployed_return"), ("deployed", "verified_return"), ("exploring", "return")):
        finite = [value for value in metrics[column].tolist() if math.isfinite(value)] if column in metrics else []
        if finite:
            return kind, finite[-1]
    return "", math.nan


def _constraints(record: Run) -> str:
    """Return the constraints of the requirement without comments and names."""
    if record.config is None:
        return "?"
    try:
        constraints = parse(record.config.requirement).constraints
    except PsycoError:
        return record.config.requirement
    return "; ".join(str(c).removeprefix(f'"{c.name}": ') for c in constraints) or "unconstrained"
