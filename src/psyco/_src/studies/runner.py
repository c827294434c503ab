"""Cells are run, wherever that is: what has finished before is kept, what has begun goes on, what fails is told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from psyco._src.core import atomic_io
from psyco._src.core.checks import check_count
from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import read_text
from psyco._src.envs.trust import NOBODY
from psyco._src.runs.lock import lock
from psyco._src.runs.store import is_run, read_run
from psyco._src.studies.cell import belongs
from psyco._src.studies.pruning import pruned_at
from psyco._src.studies.study_plan import Cell
from psyco._src.studies.study_progress import FINISHED, StudyProgress
from psyco._src.studies.workers import LOG, WorkerTeam, cores

CELLS, FAILURES = "cells", "failures"  # folders in that of a study
LONGEST_ERROR = 4000  # characters that are kept


def execute(
    cells: Sequence[Cell],
    folder: Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    trust: Collection[str] = NOBODY,
    on_progress: Callable[[StudyProgress], None] = lambda progress: None,
    team: WorkerTeam | None = None,
) -> dict[str, str]:
    """Bring all cells to their end; returns the errors of those that failed, by name.

    The same again, also after an interruption at any moment, computes only what is missing.

    Args:
        cells: what is to be run; each is in `folder`/cells/NAME.
        folder: of the study.
        workers: processes at the same time; default: one for each core.
        ray: the address of a Ray cluster to use instead, or "local".
        trust: the code that cells may name.
        on_progress: called when something has happened, and about twice a second.
        team: processes that are there already, for who executes cells again and again.
    """
    if workers is not None:
        check_count("workers", workers, 1)
    runs = folder / CELLS
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {runs}: {error.strerror}") from None
    with lock(folder):
        progress = StudyProgress.of(cells, _keeping_failures(folder, on_progress))
        missing = []
        for cell in cells:
            if has_finished(runs / cell.name, cell):
                progress.cells[cell.name].state, progress.cells[cell.name].kept = FINISHED, True
            else:
                missing.append(cell)
        progress.tell()
        if ray is not None and missing:
            from psyco._src.studies.ray_workers import on_ray

            on_ray(missing, runs, progress, address=ray, trust=trust)
        elif missing and team is not None:
            team.run(missing, runs, progress, trust)
        elif missing:
            with WorkerTeam(workers or cores(), folder / LOG) as team:
                team.run(missing, runs, progress, trust)
        progress.tell()
    return {name: standing.error for name, standing in progress.cells.items() if standing.error}


def has_finished(folder: Path, cell: Cell) -> bool:
    """Whether a cell's run is there, and whole; or was ended before its time by the bar that the cell has."""
    if not is_run(folder):
        return False
    if pruned_at(folder, cell.bar) is not None:
        return True
    run = read_run(folder)
    return run.state == "finished" and run.config is not None and belongs(run.config, cell.config)


def failure(folder: Path, name: str) -> str:
    """The error with which a cell of a study failed when it was last tried; empty if it did not."""
    try:
        return read_text(folder / FAILURES / f"{name}.txt", "configuration", inside=folder).strip()
    except RunError:
        return ""


def _keeping_failures(
    folder: Path, listener: Callable[[StudyProgress], None]
) -> Callable[[StudyProgress], None]:
    """What failed is written down as it happens, and forgotten when it is mended."""
    known: dict[str, str] = {}

    def hear(progress: StudyProgress) -> None:
        for name, standing in progress.cells.items():
            if known.get(name) == standing.state:
                continue
            known[name] = standing.state
            path = folder / FAILURES / f"{name}.txt"
            with suppress(OSError, RunError):  # on a full disk it is told, and not kept
                if standing.error:
                    path.parent.mkdir(exist_ok=True)
                    atomic_io.write(path, (standing.error[:LONGEST_ERROR] + "\n").encode(errors="replace"))
                elif standing.state == FINISHED:
                    path.unlink(missing_ok=True)
        listener(progress)

    return hear
