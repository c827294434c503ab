"""From the folders of runs to a table: one row per cell, which neither order nor interruptions nor time can change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from psyco._src.learners.metrics import Metrics
from psyco._src.logic.parser import parse
from psyco._src.runs.store import Run, is_run, read_run
from psyco._src.studies.cell import RunTimes, belongs, first_check, load_times
from psyco._src.studies.study_plan import Cell
from psyco._src.verification.findings import Finding

Row = dict[str, Any]


@dataclass(frozen=True)
class CellOutcome:
    """What became of one cell."""

    cell: Cell
    state: str  # "finished", "failed", "stopped" (begun, not finished), "waiting", "running", "damaged"
    error: str  # of one that failed, or what is wrong with its folder
    run: Run | None  # of one that has begun
    times: RunTimes

    @property
    def finished(self) -> bool:
        """Whether it has come to its end."""
        return self.state == "finished"

    @property
    def certified(self) -> bool:
        """Whether it ended with a certificate that says SATISFIED."""
        return (
            self.finished
            and self.run is not None
            and self.run.certificate is not None
            and (self.run.certificate.verdict.name == "SATISFIED")
        )

    @property
    def score(self) -> float:
        """The mean return of its policy on the episodes of its certificate, more being better; NaN if there is none."""
        certificate = self.run.certificate if self.finished and self.run else None
        if certificate is None or certificate.mean_return is None:
            return np.nan
        return certificate.mean_return if self.maximize else -certificate.mean_return

    @property
    def maximize(self) -> bool:
        """Whether more return is better."""
        return parse(self.cell.config.requirement).goal.maximize

    @property
    def metrics(self) -> Metrics:
        """Its table of learning."""
        return self.run.metrics if self.run else Metrics({})

    @property
    def first(self) -> tuple[int, int] | None:
        """Episodes and steps of learning before a check first found the requirement satisfied."""
        row = first_check(self.metrics, parse(self.cell.config.requirement))
        if row is None:
            return None
        return int(self.metrics["episodes"][row]), steps_until(self.metrics, row + 1)


def collect(
    cells: Iterable[Cell], folder: Path, failure: Callable[[str], str] = lambda name: ""
) -> list[CellOutcome]:
    """What became of the cells, in their order; nothing is made, imported or changed for that.

    Args:
        cells: of a plan.
        folder: that holds their runs.
        failure: the error with which a cell failed, by its name.
    """
    return [_outcome(cell, folder / cell.name, failure(cell.name)) for cell in cells]


def _outcome(cell: Cell, folder: Path, error: str) -> CellOutcome:
    if not is_run(folder):
        return CellOutcome(cell, "failed" if error else "waiting", error, None, RunTimes())
    run = read_run(folder)
    if run.config is not None and not belongs(run.config, cell.config):
        return CellOutcome(
            cell, "damaged", f"{folder} holds another run than that of this study", None, RunTimes()
        )
    state = "failed" if error and run.state == "stopped" else run.state
    return CellOutcome(cell, state, error or "; ".join(run.problems), run, load_times(folder))


def steps_until(metrics: Metrics, rows: int) -> int:
    """Steps of the episodes of the first rows."""
    episodes = np.diff(metrics["episodes"], prepend=0)
    return round(float((metrics["length"] * episodes)[:rows].sum()))


# ---- rows --------------------------------------------------------------------------------------------------------


def row(outcome: CellOutcome) -> Row:
    """Everything about one cell that is a function of its configuration."""
    certificate = outcome.run.certificate if outcome.finished and outcome.run else None
    findings = certificate.findings if certificate else ()
    first = outcome.first if outcome.finished else None
    found: Row = {
        "task": outcome.cell.task,
        "method": outcome.cell.method,
        "seed": outcome.cell.seed,
        "state": outcome.state if outcome.finished else "unfinished",
        "verdict": certificate.verdict.name if certificate else None,
        "return": certificate.mean_return if certificate else None,
        "return_error": certificate.return_error if certificate else None,
        "episodes": outcome.run.episodes if outcome.finished and outcome.run else None,
        "steps": outcome.run.steps if outcome.finished and outcome.run else None,
        "first_satisfied_episodes": first[0] if first else None,
        "first_satisfied_steps": first[1] if first else None,
        "certificate_episodes": certificate.episodes if certificate else None,
        "looks": len(certificate.looks) if certificate else None,
    }
    for k, each in enumerate(findings):
        found |= {
            f"value[{k}]": each.share if isinstance(each, Finding) else each.mean,
            f"lower[{k}]": each.lower,
            f"upper[{k}]": each.upper,
            f"confidence[{k}]": each.confidence,
        }
    return found | {
        "policy": certificate.policy if certificate else None,
        "domain": outcome.cell.config.domain,
        "requirement": " ".join(outcome.cell.config.requirement.split()),
        "learner": outcome.cell.config.settings.learner,
        "cell": outcome.cell.name,
    }


def time_row(outcome: CellOutcome) -> Row:
    """How long one cell took, over all sessions; this does depend on the machine and on interruptions."""
    times = outcome.times
    steps, certified = outcome.run.steps if outcome.run else 0, outcome.certified
    return {
        "cell": outcome.cell.name,
        "task": outcome.cell.task,
        "method": outcome.cell.method,
        "seed": outcome.cell.seed,
        "seconds": round(times.seconds, 3),
        "processor_seconds": round(times.processor, 3),
        "seconds_to_first_satisfied": None if times.first_check is None else round(times.first_check, 3),
        "seconds_to_certificate": round(times.seconds, 3) if certified else None,
        "steps_per_second": round(steps / times.seconds) if steps and times.seconds else None,
    }


def groups(outcomes: Sequence[CellOutcome]) -> dict[tuple[str, str], list[CellOutcome]]:
    """The cells of each task and method, which differ in their seeds alone."""
    found: dict[tuple[str, str], list[CellOutcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.cell.task, outcome.cell.method), []).append(outcome)
    return found


def versions_of(outcomes: Sequence[CellOutcome]) -> Mapping[str, set[str]]:
    """With which versions the runs were begun: of each package, all that there are."""
    found: dict[str, set[str]] = {}
    for outcome in outcomes:
        for name, version in (
            outcome.run.about.versions if outcome.run and outcome.run.about else {}
        ).items():
            found.setdefault(name, set()).add(version)
    return found
