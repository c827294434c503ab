"""Cells on the cores of this machine: one process per core, each with one thread and no pools of its own.

A process does one cell after the other, by choice those that need the code which it has compiled already. One that
dies is replaced, and its cell goes on from its last checkpoint; when this process dies, they end at once.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

from psyco._src.core.errors import PsycoError, RunError, told
from psyco._src.rollout.process_pool import ATTEMPTS, one_thread, without_main
from psyco._src.runs.config import Config
from psyco._src.runs.lock import NO_LINK
from psyco._src.studies.pruning import PruningThreshold
from psyco._src.studies.study_plan import Cell
from psyco._src.studies.study_progress import StudyProgress

LOG = "study.log"  # what processes print, in the study's folder
PATROL = 0.5  # seconds between two words about how it goes
MANY_MAPS = 20_000  # of memory
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"

_POSIX = os.name == "posix"
_spawn = get_context("spawn")  # a fork of a process with JAX's threads may hang


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerTeam:
    """Processes that bring cells to their end; as a context it ends them.

    Args:
        workers: how many processes.
        log: the file that gets what they print.
    """

    def __init__(self, workers: int, log: Path) -> None:
        self.workers, self.log = workers, log
        self._team: list[_CellWorker] = []

    def __enter__(self) -> WorkerTeam:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        while self._team:
            self._team.pop().end()

    def run(
        self, cells: Collection[Cell], folder: Path, progress: StudyProgress, trust: Collection[str]
    ) -> None:
        """Bring all cells to their end, or to an error that `progress` tells.

        Args:
            cells: what is to be run.
            folder: that holds their runs.
            progress: is told all that happens.
            trust: the code that cells may name.
        """
        todo, team = list(cells), self._team
        deaths = dict.fromkeys((cell.name for cell in cells), 0)
        while todo or any(worker.cell for worker in team):
            while len(team) < min(self.workers, len(todo) + sum(worker.cell is not None for worker in team)):
                team.append(_started(self.log))
            for worker in team:
                if worker.cell is None and todo:
                    cell = _next(todo, worker, team)
                    worker.start(cell, folder, trust)
                    progress.started(cell.name)
            connection.wait([worker.pipe for worker in team], PATROL)
            for worker in [worker for worker in team if worker.cell is not None]:
                alive = worker.process.is_alive()  # asked first: its last words may still be in the pipe
                for message in worker.messages():
                    _hear(message, worker, progress)
                if worker.cell is not None and not alive:
                    team.remove(worker)
                    cell, status = worker.cell, worker.end()
                    deaths[cell.name] += 1
                    if deaths[cell.name] < ATTEMPTS:
                        todo.insert(0, cell)
                        progress.again(cell.name)
                    else:
                        why = f"it ended its process {ATTEMPTS} times ({status})"
                        progress.ended(cell.name, f"{why}: it crashes, or memory runs out; see {self.log}")
            progress.tell()


def _next(todo: list[Cell], worker: _CellWorker, team: list[_CellWorker]) -> Cell:
    """A cell whose code this worker has compiled, or else one whose code nobody is compiling, or else any."""
    busy = {other.kind for other in team if other.cell is not None}
    chosen = min(todo, key=lambda cell: (cell.kind != worker.kind, cell.kind in busy, todo.index(cell)))
    todo.remove(chosen)
    return chosen


def _hear(message: Any, worker: _CellWorker, progress: StudyProgress) -> None:
    assert worker.cell is not None
    match message:
        case ("reached", int(done), str(doing)):
            progress.reached(worker.cell.name, done, doing)
        case ("ended", str(error)):
            progress.ended(worker.cell.name, error)
            worker.cell = None


def _started(log: Path) -> _CellWorker:
    try:
        return _CellWorker(log)
    except OSError as error:
        raise RunError(
            f"cannot start a process: {error.strerror or error}; ask for fewer workers, or raise the limit (ulimit -a)"
        ) from error


class _CellWorker:
    """One process, as the parent sees it."""

    def __init__(self, log: Path) -> None:
        self.pipe, theirs = _spawn.Pipe()
        # No daemon, since a daemon's environments could start no processes.
        self.process = _spawn.Process(target=_work, args=(theirs, str(log), sys.path[:]), daemon=False)
        with without_main(), one_thread(), _one_thread_of_jax():
            self.process.start()
        theirs.close()
        self.cell: Cell | None = None  # that it works on
        self.kind = ""  # of the cells that it has compiled for

    def start(self, cell: Cell, folder: Path, trust: Collection[str]) -> None:
        self.cell, self.kind = cell, cell.kind
        with suppress(OSError):  # it has died, which will be seen
            self.pipe.send((str(folder / cell.name), cell.config, tuple(trust), cell.bar))

    def messages(self) -> Iterator[Any]:
        try:
            while self.cell is not None and self.pipe.poll():
                yield self.pipe.recv()
        except (EOFError, OSError):
            pass

    def end(self) -> str:
        """End it for good, with all that its environments have started; returns how it ended."""
        assert self.process.pid is not None
        self.process.kill()
        if _POSIX:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.pipe.close()
        status = self.process.exitcode or 0
        return f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"


def _work(pipe: Any, log: str, path: list[str]) -> None:
    """What a process does until its parent is gone."""
    _settle(Path(log))
    sys.path[:] = path  # modules of the user's own may lie in the working folder
    from psyco._src.studies.cell import complete  # imports JAX, in an environment that is set up

    while True:
        try:
            folder, config, trust, bar = pipe.recv()
        except (EOFError, OSError):
            break
        error = run_cell(
            complete, Path(folder), config, trust, lambda done, _, doing: _say(pipe, done, doing), bar
        )
        try:
            pipe.send(("ended", error))
        except OSError:
            break
        make_room()
    _leave()


def make_room() -> bool:
    """Forget compiled programs if there are many: they take memory maps, and a process that has too many of them dies.

    Linux gives a process 65,530; a run takes about a thousand, unless one like it ran before. Returns whether it did.
    """
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") <= MANY_MAPS:
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
    tell: Any,
    bar: PruningThreshold | None = None,
) -> str:
    """Bring a cell to its end; returns what went wrong, or nothing."""
    try:
        complete(folder, config, trust=trust, tell=tell, bar=bar)
    except PsycoError as error:
        return str(error) or type(error).__name__
    except (Exception, SystemExit) as error:  # of others: an environment, a library, memory
        import traceback

        traceback.print_exc()  # to the log
        return told(error)
    return ""


def _say(pipe: Any, done: int, doing: str) -> None:
    with suppress(OSError):
        pipe.send(("reached", done, doing))


def _settle(log: Path) -> None:
    """Become a process that Ctrl-C does not reach, that prints into a file, and that does not outlive its parent."""
    if _POSIX:
        os.setsid()
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):  # no file: then what is printed stands between the results
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_LINK, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
    parent = parent_process()
    assert parent is not None

    def end_too() -> None:
        parent.join()
        _leave()

    Thread(target=end_too, daemon=True).start()


def _leave() -> None:
    """End this process, with all that its environments have started."""
    if _POSIX:
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


@contextmanager
def _one_thread_of_jax() -> Iterator[None]:
    before = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = " ".join(filter(None, [before, ONE_THREAD]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = before
