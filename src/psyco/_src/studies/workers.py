"""Cells of a study on the cores of this machine: one single-threaded process per core.

A process completes one cell after the other, preferably cells that need the code which it has compiled. One that
crashes is replaced, and its cell resumes from its last checkpoint; when this process dies, they end at once.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from psyco._src.core.errors import PsycoError, format_exception
from psyco._src.rollout.worker_pool import ONE_THREAD, Crash, Worker, WorkerPool, detach, exit_group, serve
from psyco._src.runs.config import Config
from psyco._src.runs.lock import NO_LINK
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
