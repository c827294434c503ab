"""Cells on a Ray cluster. Nothing is shared but Ray: a run's folder is made on the node, and its files come home.

Ray runs a task again when its node is lost. A run is a function of its configuration, so that costs the time since
the cell began there, and no result. Every node needs PSyCo and the domain installed. A cell runs in a process beside
Ray's own, which is kept for the next: one that crashes is named instead of tried without end.
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

from psyco._src.core.errors import PsycoError, RunError, told
from psyco._src.rollout.ray_backend import connected
from psyco._src.runs.lock import LOCK
from psyco._src.studies.study_plan import Cell
from psyco._src.studies.study_progress import StudyProgress
from psyco._src.studies.workers import PATROL, WorkerTeam

Files = dict[str, bytes]  # path below the run's folder -> content


def on_ray(
    cells: Sequence[Cell], folder: Path, progress: StudyProgress, *, address: str, trust: Collection[str]
) -> None:
    """Bring all cells to their end on a cluster, or to an error that `progress` tells.

    Args:
        cells: what is to be run.
        folder: that gets their runs; one that has begun there goes on.
        progress: is told all that happens.
        address: of the cluster, or "local".
        trust: the code that cells may name.
    """
    ray = connected(address)
    # Without end: a node may be lost at any time, and what fails by itself comes back as a value.
    task = ray.remote(max_retries=-1, num_cpus=1)(_task)
    news = ray.remote(num_cpus=0, max_restarts=-1)(_ProgressActor).remote()
    open_tasks: dict[Any, Cell] = {}
    try:
        for cell in cells:
            open_tasks[task.remote(cell, _packed(folder / cell.name), tuple(trust), news)] = cell
        while open_tasks:
            ready, _ = ray.wait(list(open_tasks), timeout=PATROL)
            _hear(ray, news, progress)
            for done in ready:
                cell = open_tasks.pop(done)
                progress.ended(cell.name, _home(ray, done, folder / cell.name))
            progress.tell()
    except BaseException:
        for each in open_tasks:
            ray.cancel(each, force=True)
        raise


def _home(ray: Any, done: Any, folder: Path) -> str:
    """Put the files of a cell in their place; returns what went wrong, or nothing."""
    try:
        files, error = ray.get(done)
    except Exception as problem:  # what a cell does wrong is a value: this is the cluster's, or a node's
        return f"the Ray cluster failed: {told(problem)}; every node needs PSyCo and what the domain needs"
    try:
        if files:
            _unpack(files, folder)
    except OSError as problem:
        return f"cannot write {folder}: {problem.strerror or problem}; make room or mend it, then start the study again"
    return str(error)


def _hear(ray: Any, news: Any, progress: StudyProgress) -> None:
    with suppress(Exception):  # it is only news: whoever tells it may be on a node that was lost
        for name, (done, doing) in ray.get(news.take.remote(), timeout=PATROL).items():
            if progress.cells[name].state == "waiting":
                progress.started(name)
            progress.reached(name, done, doing)


class _ProgressActor:
    """An actor that hears how far cells are, until somebody asks."""

    def __init__(self) -> None:
        self.latest: dict[str, tuple[int, str]] = {}

    def tell(self, name: str, done: int, doing: str) -> None:
        self.latest[name] = done, doing

    def take(self) -> dict[str, tuple[int, str]]:
        latest, self.latest = self.latest, {}
        return latest


# ---- on a node ---------------------------------------------------------------------------------------------------


def _task(cell: Cell, files: Files, trust: tuple[str, ...], news: Any) -> tuple[Files, str]:
    """What a task does: the files of a run that has come to its end, or as far as it came and what went wrong."""
    with tempfile.TemporaryDirectory(prefix="psyco-") as made:
        folder = Path(made)
        try:
            if files:
                _unpack(files, folder / cell.name)
            progress = StudyProgress.of([cell], lambda progress: _tell(progress, news))
            _team().run([cell], folder, progress, trust)
            error = progress.cells[cell.name].error
        except PsycoError as problem:
            error = str(problem)
        except OSError as problem:  # no room, or no processes
            error = f"{problem.strerror or problem}"
        place = f"on node {socket.gethostname()}: {error}" if error else ""
        return _packed(folder / cell.name), place


def _tell(progress: StudyProgress, news: Any) -> None:
    for name, standing in progress.cells.items():
        news.tell.remote(name, standing.done, standing.doing)


@cache
def _team() -> WorkerTeam:
    """The process that this one of Ray's gives its cells to."""
    return WorkerTeam(1, Path(tempfile.gettempdir()) / f"psyco-study-{os.getpid()}.log")


# ---- a run as files ----------------------------------------------------------------------------------------------


def _packed(folder: Path) -> Files:
    """All files of a run, or none."""
    if not folder.is_dir():
        return {}
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name != LOCK
    }


def _unpack(files: Files, folder: Path) -> None:
    """A folder with these files instead of what was there, whole or not at all."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    for name, content in files.items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise RunError(f"a node has sent a file that leads out of its folder: {name}")
        path = part / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    shutil.rmtree(folder, ignore_errors=True)  # it had not finished: this is it, further on
    part.rename(folder)
