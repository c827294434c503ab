"""A study in its folder: plan, run, collect, aggregate.

    study.toml           the plan; `psyco study FOLDER` continues it
    cells/NAME/          the run of each cell, an ordinary run folder
    failures/NAME.txt    the error of a failed cell
    cells.csv            one row per cell: verdict, return, certified bounds, episodes, steps
    summary.csv          one row per task and method, with intervals
    comparisons.csv      probability that one method beats another
    profiles.csv, curves.csv   data of the charts
    times.csv            durations: the only table that depends on the machine
    study.html           the page
    study.log            output of the worker processes

With further seeds or cells, only those are run. Runs of an earlier plan stay in `cells` and are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from psyco._src.core import files
from psyco._src.core.errors import RunError, check_known
from psyco._src.envs.registry import TRUST_NOTHING
from psyco._src.runs.lock import LOCK
from psyco._src.studies.aggregate import StudyTables, make_tables, to_html, to_json_rows, to_pandas
from psyco._src.studies.collect import CellOutcome, collect, versions_used
from psyco._src.studies.runner import CELLS, execute, failure, locked_folder
from psyco._src.studies.study_plan import PLAN_FILE, StudyPlan, check_plan, read_plan
from psyco._src.studies.study_progress import StudyProgress

PAGE = "study.html"
PARENT = Path("studies")


@dataclass(frozen=True, repr=False)
class Study:
    """A study and the outcomes of its cells so far."""

    folder: Path
    plan: StudyPlan
    outcomes: tuple[CellOutcome, ...]  # one per cell, in the order of the plan

    def __repr__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in self.counts.items())
        return f"<Study {self.folder}: {len(self.outcomes)} cells, {states}>"

    def _repr_html_(self) -> str:
        """Return the summary for notebooks: one row per task and method."""
        return to_html(repr(self), self.tables.summary)

    @property
    def counts(self) -> dict[str, int]:
        """Number of cells in each state."""
        states = [outcome.state for outcome in self.outcomes]
        return {state: states.count(state) for state in dict.fromkeys(states)}

    @property
    def complete(self) -> bool:
        """Whether every cell has finished."""
        return all(outcome.finished for outcome in self.outcomes)

    @property
    def failed(self) -> dict[str, str]:
        """Errors of failed cells, by the label of the cell."""
        return {o.cell.label: o.error for o in self.outcomes if o.state in ("failed", "damaged")}

    @property
    def certified(self) -> int:
        """Number of cells whose certificate says SATISFIED."""
        return sum(outcome.certified for outcome in self.outcomes)

    @property
    def page(self) -> Path:
        """Path of the HTML page."""
        return self.folder / PAGE

    @cached_property
    def tables(self) -> StudyTables:
        """All tables."""
        return make_tables(self.outcomes)

    @property
    def notes(self) -> list[str]:
        """Remarks on the runs, such as different package versions."""
        return [
            f"runs were started with different versions of {name}: {', '.join(sorted(versions))}"
            for name, versions in versions_used(self.outcomes).items()
            if len(versions) > 1
        ]

    def to_pandas(self, table: str = "cells") -> Any:
        """Return a table as a `pandas.DataFrame`: cells, summary, comparisons, profiles, curves or times."""
        check_known("table", table, vars(self.tables))
        return to_pandas(getattr(self.tables, table))

    def to_json(self) -> str:
        """Return all tables except curves and profiles as JSON."""
        content = {
            "study": str(self.folder),
            "title": self.plan.title,
            "complete": self.complete,
            "counts": self.counts,
            "failed": self.failed,
            "notes": self.notes,
            "page": str(self.page) if self.page.exists() else None,
            **{name: to_json_rows(getattr(self.tables, name)) for name in ("summary", "comparisons", "cells", "times")},
        }
        return json.dumps(content, indent=2, allow_nan=False) + "\n"


def run_study(
    plan: StudyPlan,
    folder: Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    trust: Collection[str] = TRUST_NOTHING,
    on_progress: Callable[[StudyProgress], None] = lambda progress: None,
) -> Study:
    """Run all cells of a study that have not finished, then write its tables and its page.

    Args:
        plan: of the study.
        folder: of the study; one with other content is refused.
        workers: number of processes; default: one per core.
        ray: address of a Ray cluster to use instead, or "local".
        trust: code that cells may import.
        on_progress: called after every change, and about twice a second.
    """
    text = plan.to_toml()
    check_target(folder, PLAN_FILE)
    check_plan(plan, trust)
    with locked_folder(folder):
        files.write(folder / PLAN_FILE, text.encode())
        execute(plan.cells, folder, workers=workers, ray=ray, trust=trust, on_progress=on_progress)
        study = read_study(folder, plan)
        for name, table in study.tables.files().items():
            files.write(folder / name, table.encode())
        from psyco._src.studies.study_page import study_page

        files.write(study.page, study_page(study).encode())
    return study


def read_study(folder: Path, plan: StudyPlan | None = None) -> Study:
    """Read a study, also one that is running; nothing is written.

    Args:
        folder: of the study.
        plan: default: that of the folder's file.
    """
    plan = read_plan(folder) if plan is None else plan
    return Study(folder, plan, tuple(collect(plan.cells, folder / CELLS, partial(failure, folder))))


def default_folder(source: str | Path | Mapping[str, Any]) -> Path:
    """Return the folder of a study: `studies/` and the name of the file; a folder is returned unchanged."""
    if isinstance(source, Mapping):
        raise RunError("a study given as a dictionary needs a folder: folder=...")
    path = Path(source)
    return path if path.is_dir() else PARENT / path.stem


def check_target(folder: Path, marker: str) -> None:
    """Raise RunError if a folder is neither empty nor marked by the file `marker`."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; give the name of a folder")
    if folder.is_dir() and not (folder / marker).exists():
        names = (path.name for path in folder.iterdir())
        others = sorted(name for name in names if name not in (CELLS, LOCK) and files.target_of(name) is None)
        if others:
            raise RunError(
                f"{folder} is not empty and not a {Path(marker).stem} ({', '.join(others[:3])}, ...); choose another"
            )
