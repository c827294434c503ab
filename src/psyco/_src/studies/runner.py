"""Run the cells of a study, locally or on a cluster: finished cells are reused, started ones resumed, failures kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from psyco._src.core import files
from psyco._src.core.checks import check_count
from psyco._src.core.errors import RunError
from psyco._src.core.files import check_folder, read_text
from psyco._src.envs.registry import TRUST_NOTHING
from psyco._src.runs.lock import lock
from psyco._src.runs.session import WANDB
from psyco._src.runs.store import is_run, read_run
from psyco._src.studies.cell import belongs
from psyco._src.studies.objective import pruned_at
from psyco._src.studies.study_plan import Cell
from psyco._src.studies.study_progress import FINISHED, StudyProgress
from psyco._src.studies.workers import LOG, WorkerTeam, available_cores

CELLS, FAILURES = "cells", "failures"  # folders in the folder of a study
MAX_ERROR_LENGTH = 4000  # characters of a stored error


def make_folder(folder: Path) -> None:
    """Make a folder and its parents; raise RunError where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror}") from None


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Make the folder of a study, check it, and lock it until the block ends; nothing is written before.

    A link that leads out of it is refused wherever it is, since everything in the folder may be overwritten.
    """
    make_folder(folder)
    check_folder(folder, exclude=(WANDB,))
    with lock(folder):
        for place in (folder, folder / FAILURES):
            files.remove_leftovers(place)
        yield


def execute(
    cells: Sequence[Cell],
    folder: Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    trust: Collection[str] = TRUST_NOTHING,
    on_progress: Callable[[StudyProgress], None] = lambda progress: None,
    team: WorkerTeam | None = None,
) -> dict[str, str]:
    """Run all cells that have not finished; return the errors of failed cells by name.

    The call can be repeated after an interruption at any moment, and then runs only the missing cells.

    Args:
        cells: each is run in `folder`/cells/NAME.
        folder: of the study, locked by the caller.
        workers: number of processes; default: one per core.
        ray: address of a Ray cluster to use instead, or "local".
        trust: code that cells may import.
        on_progress: called after every change, and about twice a second.
        team: worker processes to reuse between calls.
    """
    if workers is not None:
        check_count("workers", workers, 1)
    runs = folder / CELLS
    make_folder(runs)
    progress = StudyProgress.of(cells, _storing_failures(folder, on_progress))
    missing = []
    for cell in cells:
        if has_finished(runs / cell.name, cell):
            progress.cells[cell.name].state, progress.cells[cell.name].reused = FINISHED, True
        else:
            missing.append(cell)
    progress.notify()
    if ray is not None and missing:
        from psyco._src.studies.workers import run_on_ray

        run_on_ray(missing, runs, progress, address=ray, trust=trust)
    elif missing and team is not None:
        team.run(missing, runs, progress, trust)
    elif missing:
        with WorkerTeam(workers or available_cores(), folder / LOG) as team:
            team.run(missing, runs, progress, trust)
    progress.notify()
    return {name: cell.error for name, cell in progress.cells.items() if cell.error}


def has_finished(folder: Path, cell: Cell) -> bool:
    """Return whether the run of a cell is complete, or was pruned by the cell's threshold."""
    if not is_run(folder):
        return False
    if pruned_at(folder, cell.pruning) is not None:
        return True
    run = read_run(folder)
    return run.state == "finished" and run.config is not None and belongs(run.config, cell.config)


def failure(folder: Path, name: str) -> str:
    """Return the error of a cell's last attempt; empty if there is none."""
    path = folder / FAILURES / f"{name}.txt"
    if not path.exists():
        return ""
    try:
        return read_text(path, "configuration", inside=folder).strip()
    except RunError:
        return ""


def _storing_failures(folder: Path, on_progress: Callable[[StudyProgress], None]) -> Callable[[StudyProgress], None]:
    """Wrap a callback: write the error of a failed cell to its file, and remove the file when the cell succeeds."""
    known: dict[str, str] = {}

    def store(progress: StudyProgress) -> None:
        for name, cell in progress.cells.items():
            if known.get(name) == cell.state:
                continue
            known[name] = cell.state
            path = folder / FAILURES / f"{name}.txt"
            with suppress(OSError, RunError):  # on a full disk the error is reported, but not stored
                if cell.error:
                    path.parent.mkdir(exist_ok=True)
                    files.write(path, (cell.error[:MAX_ERROR_LENGTH] + "\n").encode(errors="replace"))
                elif cell.state == FINISHED:
                    path.unlink(missing_ok=True)
        on_progress(progress)

    return store
