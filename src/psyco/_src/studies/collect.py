"""Collect the outcomes of cells from their folders: one row per cell, independent of order, interruptions and time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from psyco._src.core.errors import RunError
from psyco._src.learners.metrics import Metrics
from psyco._src.logic.ast import Requirement
from psyco._src.logic.parser import parse
from psyco._src.runs.store import Run, is_run, read_run
from psyco._src.studies.cell import RunTimes, belongs, first_satisfied_row, load_times
from psyco._src.studies.study_plan import Cell
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.findings import Finding

Row = dict[str, Any]


@dataclass(frozen=True)
class CellOutcome:
    """Outcome of one cell."""

    cell: Cell
    state: str  # "finished", "failed", "stopped" (started, not finished), "waiting", "running", "damaged"
    error: str  # of a failed cell, or of a damaged folder
    run: Run | None  # None: not started
    times: RunTimes

    @property
    def finished(self) -> bool:
        """Whether the run has finished."""
        return self.state == "finished"

    @property
    def ended(self) -> bool:
        """Whether the run was started and does not go on: finished, failed, damaged or stopped."""
        return self.state not in ("waiting", "running")

    @property
    def certificate(self) -> Certificate | None:
        """Certificate of a finished run."""
        return self.run.certificate if self.finished and self.run else None

    @property
    def certified(self) -> bool:
        """Whether the verdict of the certificate is SATISFIED."""
        return self.certificate is not None and self.certificate.verdict.name == "SATISFIED"

    @property
    def score(self) -> float:
        """Mean return on the episodes of the certificate, negated where it is minimised.

        Without one it is -inf, so that a failed run ranks below all others; NaN before the run has ended.
        """
        if self.certificate is None or self.certificate.mean_return is None:
            return -np.inf if self.ended else np.nan
        return self.certificate.mean_return if self.maximize else -self.certificate.mean_return

    @property
    def requirement(self) -> Requirement:
        """Requirement of the cell."""
        return parse(self.cell.config.requirement)

    @property
    def maximize(self) -> bool:
        """Whether the goal is to maximise the return."""
        return self.requirement.goal.maximize

    @property
    def metrics(self) -> Metrics:
        """Learning metrics of the run."""
        return self.run.metrics if self.run else Metrics({})

    @property
    def first_satisfied(self) -> tuple[int, int] | None:
        """Training episodes and steps after which a check first found the requirement satisfied."""
        row = first_satisfied_row(self.metrics, self.requirement)
        if row is None:
            return None
        episodes = np.diff(self.metrics["episodes"], prepend=0)
        steps = float((self.metrics["length"] * episodes)[: row + 1].sum())
        return int(self.metrics["episodes"][row]), round(steps)


def collect(cells: Iterable[Cell], folder: Path, failure: Callable[[str], str] = lambda name: "") -> list[CellOutcome]:
    """Return the outcomes of cells in their order, from files only: no domain is made, no code imported.

    Args:
        cells: of a plan.
        folder: that contains their runs.
        failure: returns the error of a cell by its name, or an empty text.
    """
    if os.path.islink(folder):
        raise RunError(f"{folder} is a link; put the folder itself in its place")
    return [_outcome(cell, folder / cell.name, failure(cell.name)) for cell in cells]


def _outcome(cell: Cell, folder: Path, error: str) -> CellOutcome:
    if os.path.islink(folder):
        error = f"{folder} is a link, which is not followed; put the folder itself in its place"
        return CellOutcome(cell, "damaged", error, None, RunTimes())
    if not is_run(folder):
        return CellOutcome(cell, "failed" if error else "waiting", error, None, RunTimes())
    run = read_run(folder)
    if run.config is not None and not belongs(run.config, cell.config):
        error = f"{folder} contains a run that is not part of this study"
        return CellOutcome(cell, "damaged", error, None, RunTimes())
    state = "failed" if error and run.state == "stopped" else run.state
    return CellOutcome(cell, state, error or "; ".join(run.problems), run, load_times(folder))


def cell_row(outcome: CellOutcome) -> Row:
    """Return everything about a cell that its configuration determines."""
    certificate = outcome.certificate
    run = outcome.run if outcome.finished else None
    episodes, steps = (outcome.first_satisfied if run else None) or (None, None)
    row: Row = {
        "task": outcome.cell.task,
        "method": outcome.cell.method,
        "seed": outcome.cell.seed,
        "state": outcome.state if outcome.finished else "unfinished",
        "verdict": certificate.verdict.name if certificate else None,
        "return": certificate.mean_return if certificate else None,
        "return_standard_error": certificate.return_standard_error if certificate else None,
        "episodes": run.episodes if run else None,
        "steps": run.steps if run else None,
        "first_satisfied_episodes": episodes,
        "first_satisfied_steps": steps,
        "certificate_episodes": certificate.episodes if certificate else None,
        "looks": len(certificate.looks) if certificate else None,
    }
    for k, finding in enumerate(certificate.findings if certificate else ()):
        row |= {
            f"value[{k}]": finding.share if isinstance(finding, Finding) else finding.mean,
            f"lower[{k}]": finding.lower,
            f"upper[{k}]": finding.upper,
            f"confidence[{k}]": finding.confidence,
        }
    return row | {
        "policy": certificate.policy if certificate else None,
        "domain": outcome.cell.config.domain,
        "requirement": " ".join(outcome.cell.config.requirement.split()),
        "learner": outcome.cell.config.settings.learner,
        "cell": outcome.cell.name,
    }


def time_row(outcome: CellOutcome) -> Row:
    """Return the duration of a cell over all sessions, which depends on the machine and on interruptions."""
    times = outcome.times
    first = times.first_satisfied
    steps = outcome.run.steps if outcome.run else 0
    return {
        "cell": outcome.cell.name,
        "task": outcome.cell.task,
        "method": outcome.cell.method,
        "seed": outcome.cell.seed,
        "seconds": round(times.seconds, 3),
        "processor_seconds": round(times.processor, 3),
        "seconds_to_first_satisfied": None if first is None else round(first, 3),
        "seconds_to_certificate": round(times.seconds, 3) if outcome.certified else None,
        "steps_per_second": round(steps / times.seconds) if steps and times.seconds else None,
    }


def versions_used(outcomes: Sequence[CellOutcome]) -> Mapping[str, set[str]]:
    """Return the versions of each package that the runs were started with."""
    versions: dict[str, set[str]] = {}
    for outcome in outcomes:
        about = outcome.run.info if outcome.run else None
        for name, version in (about.versions if about else {}).items():
            versions.setdefault(name, set()).add(version)
    return versions
