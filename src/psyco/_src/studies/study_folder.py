"""A study in its folder: planned, executed, collected, answered.

    study.toml           the plan; `psyco study FOLDER` goes on with it
    cells/NAME/          the run of each cell, a run like any other
    failures/NAME.txt    the error of a cell that failed
    cells.csv            one row per cell: verdict, return, certified bounds, episodes, steps
    summary.csv          one row per task and method, with intervals
    comparisons.csv      how likely one method beats another
    profiles.csv, curves.csv   what the page draws
    times.csv            how long everything took: the only table that depends on that
    study.html           all of it to look at
    study.log            what the processes printed

Extended by seeds or cells, a study computes those alone. Runs of an earlier plan stay in `cells` and are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from psyco._src.core import atomic_io
from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import check_folder
from psyco._src.envs.trust import NOBODY
from psyco._src.runs.lock import is_locked
from psyco._src.studies.aggregate import StudyTables, answer, plain, to_html
from psyco._src.studies.collect import CellOutcome, collect, versions_of
from psyco._src.studies.runner import CELLS, execute, failure
from psyco._src.studies.study_plan import STUDY, StudyPlan, check_plan, read_plan
from psyco._src.studies.study_progress import StudyProgress

PAGE = "study.html"
PARENT = Path("studies")


@dataclass(frozen=True, repr=False)
class Study:
    """A study as it stands in its folder."""

    folder: Path
    plan: StudyPlan
    outcomes: tuple[CellOutcome, ...]  # one per cell, in the order of the plan

    def __repr__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in self.counts.items())
        return f"<Study {self.folder}: {len(self.outcomes)} cells, {states}>"

    def _repr_html_(self) -> str:
        """The summary, for notebooks: one row per task and method."""
        return to_html(repr(self), self.answers.summary)

    @property
    def counts(self) -> dict[str, int]:
        """How many cells are in each state."""
        states = [outcome.state for outcome in self.outcomes]
        return {state: states.count(state) for state in dict.fromkeys(states)}

    @property
    def complete(self) -> bool:
        """Whether every cell has finished."""
        return all(outcome.finished for outcome in self.outcomes)

    @property
    def failed(self) -> dict[str, str]:
        """The errors of cells that failed, by what the cells are called."""
        return {o.cell.called: o.error for o in self.outcomes if o.state in ("failed", "damaged")}

    @property
    def certified(self) -> int:
        """How many cells ended with a certificate that says SATISFIED."""
        return sum(outcome.certified for outcome in self.outcomes)

    @property
    def page(self) -> Path:
        """Where its page is."""
        return self.folder / PAGE

    @cached_property
    def answers(self) -> StudyTables:
        """Its tables."""
        return answer(self.outcomes)

    @property
    def notes(self) -> list[str]:
        """What a reader should know besides."""
        mixed = {n: v for n, v in versions_of(self.outcomes).items() if len(v) > 1}
        return [
            f"runs were begun with different versions of {name}: {', '.join(sorted(found))}"
            for name, found in mixed.items()
        ]

    def to_pandas(self, table: str = "cells") -> Any:
        """One of its tables as a `pandas.DataFrame`: cells, summary, comparisons, profiles, curves, times."""
        from psyco._src.core.errors import check_known

        check_known("table", table, vars(self.answers))
        try:
            import pandas
        except ImportError:
            raise RunError("a DataFrame needs pandas installed: pip install pandas") from None
        return pandas.DataFrame(getattr(self.answers, table))

    def to_json(self) -> str:
        """All that the tables say but curves and profiles, as JSON."""
        tables = {name: getattr(self.answers, name) for name in ("summary", "comparisons", "cells", "times")}
        content = {
            "study": str(self.folder),
            "title": self.plan.title,
            "complete": self.complete,
            "counts": self.counts,
            "failed": self.failed,
            "notes": self.notes,
            "page": str(self.page) if self.page.exists() else None,
            **{
                name: [{k: plain(v) for k, v in row.items()} for row in rows] for name, rows in tables.items()
            },
        }
        return json.dumps(content, indent=2, allow_nan=False) + "\n"


def run_study(
    plan: StudyPlan,
    folder: Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    trust: Collection[str] = NOBODY,
    on_progress: Callable[[StudyProgress], None] = lambda progress: None,
) -> Study:
    """Bring a study to its end and write its answers; as `execute`, it computes what is missing and nothing twice.

    Args:
        plan: what is run.
        folder: of the study; one that holds something else is refused.
        workers: processes at the same time; default: one for each core.
        ray: the address of a Ray cluster to use instead, or "local".
        trust: the code that cells may name.
        on_progress: called when something has happened, and about twice a second.
    """
    text = plan.to_toml()
    check_place(folder, STUDY)
    check_plan(plan, trust)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror}") from None
    check_folder(folder, but=(CELLS,))  # each run looks after its own
    if is_locked(folder):
        raise RunError(f"{folder} is in use by another process; wait until it ends, or stop it first")
    atomic_io.write(folder / STUDY, text.encode())
    execute(plan.cells, folder, workers=workers, ray=ray, trust=trust, on_progress=on_progress)
    study = read_study(folder, plan)
    write_answers(study)
    return study


def read_study(folder: Path, plan: StudyPlan | None = None) -> Study:
    """A study as it stands, also one that is going on; nothing is changed.

    Args:
        folder: of the study.
        plan: what it is to be; default: what its file says.
    """
    plan = read_plan(folder) if plan is None else plan
    return Study(folder, plan, tuple(collect(plan.cells, folder / CELLS, partial(failure, folder))))


def write_answers(study: Study) -> None:
    """Write the tables and the page."""
    for name, text in study.answers.files().items():
        atomic_io.write(study.folder / name, text.encode())
    from psyco._src.studies.study_page import study_page

    atomic_io.write(study.page, study_page(study).encode())


def default_folder(source: str | Path | Mapping[str, Any]) -> Path:
    """Where a study goes: a file's into `studies/`, under its name; that of a folder is the folder."""
    if isinstance(source, Mapping):
        raise RunError("say where the study is to be kept: folder=...")
    path = Path(source)
    return path if path.is_dir() else PARENT / path.stem


def check_place(folder: Path, mark: str) -> None:
    """Refuse a folder that holds something else than what has the file `mark` in it, or nothing."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; give the name of a folder")
    if folder.is_dir() and not (folder / mark).exists():
        ours = (CELLS, f".{mark}.tmp", ".lock")
        strangers = [path.name for path in folder.iterdir() if path.name not in ours]
        if strangers:
            what = Path(mark).stem
            raise RunError(
                f"{folder} is not empty and not a {what} ({', '.join(sorted(strangers)[:3])}, ...); choose another"
            )
