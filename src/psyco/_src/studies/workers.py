"""Cells of a study on the cores of this machine: one single-threaded process per core.

A process completes one cell after the other, preferably cells that need the code which it has compiled. One that
crashes is replaced, and its cell resumes from its last checkpoint; when this process dies, they end at once.
"""

from __future__ import annotations

import gc
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from psyco._src.core.errors import PsycoError, RunError, format_exception
from psyco._src.rollout.ray_backend import connect_ray
from psyco._src.rollout.worker_pool import ONE_THREAD, Crash, Worker, WorkerPool, detach, exit_group, serve
from psyco._src.runs.config import Config
from psyco._src.runs.lock import LOCK, NO_LINK
from psyco._src.studies.objective import PruningThreshold
from psyco._src.studies.study_plan import Cell
from psyco._src.studies.study_progress import StudyProgress

LOG = "study.log"  # output of the processes, in the study's folder
PATROL_SECONDS = 0.5  # between two progress reports
MAX_MEMORY_MAPS = 20_000
XLA_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerTeam:
    """Processes that complete cells; as a context manager it ends them.

    Args:
        workers: number of processes.
        log: file for their output.
    """

    def __init__(self, workers: int, log: Path) -> None:
        self.log = log
        self._pool = WorkerPool(workers, self._start_worker, patrol=PATROL_SECONDS)

    def __enter__(self) -> WorkerTeam:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes at once."""
        self._pool.close()

    def run(self, cells: Collection[Cell], folder: Path, progress: StudyProgress, trust: Collection[str]) -> None:
        """Complete all cells; an error of a cell is reported to `progress`.

        Args:
            cells: the cells to run.
            folder: folder of their runs.
            progress: receives all events.
            trust: the code that cells may name.
        """
        todo = list(cells)

        def message(task: int, worker: Worker) -> tuple[str, Config, tuple[str, ...], PruningThreshold | None]:
            cell = todo[task]
            worker.label = cell.compile_key  # for which it compiles code
            progress.mark_started(cell.name)
            return str(folder / cell.name), cell.config, tuple(trust), cell.pruning

        def choose(waiting: Sequence[int], worker: Worker) -> int:
            """Prefer a cell whose code this worker has compiled, then one whose code no other is compiling."""
            compiling = {other.label for other in self._pool.busy}
            keys = {task: todo[task].compile_key for task in waiting}
            return min(waiting, key=lambda task: (keys[task] != worker.label, keys[task] in compiling))

        for events in self._pool.run(len(todo), message, choose):
            for event in events:
                name = todo[event.task].name
                if isinstance(event, Crash):
                    if event.final:
                        problem = f"it ended its process {event.crashes} times ({event.status})"
                        progress.mark_ended(name, f"{problem}: it crashes, or memory runs out; see {self.log}")
                    else:
                        progress.mark_waiting(name)
                elif event.finished:
                    progress.mark_ended(name, event.content)
                else:
                    progress.update(name, *event.content)
            progress.notify()

    def _start_worker(self) -> Worker:
        flags = " ".join(filter(None, [os.environ.get("XLA_FLAGS"), XLA_ONE_THREAD]))
        return Worker(_work, (str(self.log), sys.path[:]), {**ONE_THREAD, "XLA_FLAGS": flags})


def _work(pipe: Any, _: Any, log: str, path: list[str]) -> None:
    """Complete cells until the parent is gone."""
    file = None
    with suppress(OSError):  # without the file, output stays on the parent's streams
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_LINK, 0o644)
        os.dup2(file, 2)
    detach(file)
    sys.path[:] = path  # the user's modules may lie in the working folder
    from psyco._src.studies.cell import complete  # imports JAX, after the environment variables are set

    def handle(task: Any, report: Callable[[tuple[int, str]], None]) -> str:
        clear_compiled_programs()
        folder, config, trust, threshold = task
        return run_cell(complete, Path(folder), config, trust, lambda done, _, phase: report((done, phase)), threshold)

    serve(pipe, handle)
    exit_group()


def clear_compiled_programs() -> bool:
    """Drop compiled programs if there are many; returns whether it did.

    They take memory maps, of which Linux allows a process 65,530, and a process with more dies. A run takes about a
    thousand, unless a similar one ran before.
    """
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") <= MAX_MEMORY_MAPS:
        return False
    import jax

    jax.clear_caches()
    gc.collect()
    return True


def run_cell(
    complete: Any,
    folder: Path,
    config: Config,
    trust: Collection[str],
    report: Any,
    threshold: PruningThreshold | None = None,
) -> str:
    """Complete a cell; returns its error, or an empty text."""
    try:
        complete(folder, config, trust=trust, report=report, threshold=threshold)
    except PsycoError as error:
        return str(error) or type(error).__name__
    except (Exception, SystemExit) as error:  # of an environment, a library, or out of memory
        import traceback

        traceback.print_exc()  # to the log
        return format_exception(error)
    return ""


# Cells of a study on a Ray cluster, without a shared file system: a node sends the files of a run back.
#
# Ray runs a task again when its node is lost. A run is a function of its configuration, so that costs the time since
# the cell began there, and no result. Every node needs PSyCo and the domain installed. A cell runs in a process beside
# Ray's own, so that a crash is reported instead of retried without end.


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
