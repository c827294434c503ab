"""Cells of a study on a Ray cluster, without a shared file system: a node sends the files of a run back.

Ray runs a task again when its node is lost. A run is a function of its configuration, so that costs the time since
the cell began there, and no result. Every node needs PSyCo and the domain installed. A cell runs in a process beside
Ray's own, so that a crash is reported instead of retried without end.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from psyco._src.core.errors import PsycoError, RunError, format_exception
from psyco._src.rollout.ray_backend import connect_ray
from psyco._src.runs.lock import LOCK
from psyco._src.studies.study_plan import Cell
from psyco._src.studies.study_progress import StudyProgress
from psyco._src.studies.workers import PATROL_SECONDS, WorkerTeam

Files = dict[str, bytes]  # path below the run's folder -> content


def run_on_ray(
    cells: Sequence[Cell], folder: Path, progress: StudyProgress, *, address: str, trust: Collection[str]
) -> None:
    """Complete all cells on a cluster; an error of a cell is reported to `progress`.

    Args:
        cells: the cells to run.
        folder: folder of their runs; a run that has begun there is resumed.
        progress: receives all events.
        address: of the cluster, or "local".
        trust: the code that cells may name.
    """
    ray = connect_ray(address)
    # Unlimited: a node may be lost at any time, and errors of a cell are returned as values.
    task = ray.remote(max_retries=-1, num_cpus=1)(_task)
    reports = ray.remote(num_cpus=0, max_restarts=-1)(_ProgressActor).remote()
    open_tasks: dict[Any, Cell] = {}
    try:
        for cell in cells:
            open_tasks[task.remote(cell, _read_files(folder / cell.name), tuple(trust), reports)] = cell
        while open_tasks:
            ready, _ = ray.wait(list(open_tasks), timeout=PATROL_SECONDS)
            _forward_reports(ray, reports, progress)
            for done in ready:
                cell = open_tasks.pop(done)
                progress.mark_ended(cell.name, _store_result(ray, done, folder / cell.name))
            progress.notify()
    except BaseException:
        for open_task in open_tasks:
            ray.cancel(open_task, force=True)
        raise


def _store_result(ray: Any, done: Any, folder: Path) -> str:
    """Write the files of a completed cell; returns its error, or an empty text."""
    try:
        files, error = ray.get(done)
    except Exception as problem:  # errors of a cell are values: this one is the cluster's, or a node's
        return f"the Ray cluster failed: {format_exception(problem)}; every node needs PSyCo and what the domain needs"
    try:
        if files:
            _write_files(files, folder)
    except OSError as problem:
        return f"cannot write {folder}: {problem.strerror or problem}; fix it, then start the study again"
    return str(error)


def _forward_reports(ray: Any, reports: Any, progress: StudyProgress) -> None:
    with suppress(Exception):  # the actor of the reports may be on a lost node
        for name, (done, phase) in ray.get(reports.take.remote(), timeout=PATROL_SECONDS).items():
            if progress.cells[name].state == "waiting":
                progress.mark_started(name)
            progress.update(name, done, phase)


class _ProgressActor:
    """An actor that collects progress reports of cells."""

    def __init__(self) -> None:
        self.latest: dict[str, tuple[int, str]] = {}

    def put(self, name: str, done: int, phase: str) -> None:
        self.latest[name] = done, phase

    def take(self) -> dict[str, tuple[int, str]]:
        latest, self.latest = self.latest, {}
        return latest


# ---- on a node ---------------------------------------------------------------------------------------------------


def _task(cell: Cell, files: Files, trust: tuple[str, ...], reports: Any) -> tuple[Files, str]:
    """Run a cell in a Ray task; returns the files of its run, and its error or an empty text."""
    with tempfile.TemporaryDirectory(prefix="psyco-") as made:
        folder = Path(made)
        try:
            if files:
                _write_files(files, folder / cell.name)
            progress = StudyProgress.of([cell], lambda progress: _report(progress, reports))
            _team().run([cell], folder, progress, trust)
            error = progress.cells[cell.name].error
        except PsycoError as problem:
            error = str(problem)
        except OSError as problem:  # a full disk, or no processes
            error = f"{problem.strerror or problem}"
        place = f"on node {socket.gethostname()}: {error}" if error else ""
        return _read_files(folder / cell.name), place


def _report(progress: StudyProgress, reports: Any) -> None:
    for name, cell in progress.cells.items():
        reports.put.remote(name, cell.done, cell.phase)


@cache
def _team() -> WorkerTeam:
    """Return the worker process of this Ray process."""
    return WorkerTeam(1, Path(tempfile.gettempdir()) / f"psyco-study-{os.getpid()}.log")


# ---- a run as files ----------------------------------------------------------------------------------------------


def _read_files(folder: Path) -> Files:
    """Return all files of a run, or none."""
    if not folder.is_dir():
        return {}
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name != LOCK
    }


def _write_files(files: Files, folder: Path) -> None:
    """Replace a folder by one with these files, atomically."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    for name, content in files.items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise RunError(f"a node has sent a file outside of its folder: {name}")
        path = part / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    shutil.rmtree(folder, ignore_errors=True)  # an earlier, unfinished state of the same run
    part.rename(folder)
