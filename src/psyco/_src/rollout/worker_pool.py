"""Supervised worker processes: start, tasks and answers, heartbeat, restart after a crash, end.

Rollouts (`process_pool.py`) and studies (`studies/workers.py`) run their tasks here. A worker leads its own process
group, so that whatever an environment has started ends with it, and it does not outlive its parent.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context, parent_process
from threading import Thread
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from psyco._src.core.errors import RunError

MAX_CRASHES = 3  # a task that has crashed this many workers would crash the next one too
IDLE = -1  # seed in the heartbeat while no environment is stepped

# One thread per worker and no accelerator: its products are small, and there are other workers.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
}

_POSIX = os.name == "posix"
_spawn = get_context("spawn")  # a fork of a process with JAX's threads may hang


class Heartbeat(Protocol):
    """Shared array in which a worker announces its next environment call: [seed, step, row]."""

    def __setitem__(self, index: int, value: int, /) -> None: ...


class Worker:
    """One worker process, as its parent sees it.

    Args:
        target: function of module level that the process runs, with a pipe, the heartbeat and `arguments`.
        arguments: further arguments of `target`.
        environment: environment variables of the process.
    """

    def __init__(self, target: Callable[..., None], arguments: tuple[Any, ...], environment: Mapping[str, str]) -> None:
        self.task: int | None = None  # index of the current task
        self.label: Any = None  # any state that the pool's owner keeps about this process
        self._closed = False  # the worker's end of the pipe is closed
        self._last_beat: tuple[list[int], float] = [], 0.0
        try:
            self.pipe, theirs = _spawn.Pipe()
            self.heartbeat = _spawn.RawArray("q", [IDLE, 0, 0])
            # Not a daemon: the environments of a daemon could not start processes.
            self.process = _spawn.Process(target=target, args=(theirs, self.heartbeat, *arguments), daemon=False)
            with _hidden_main(), _environment(environment):
                self.process.start()
        except OSError as error:
            raise RunError(
                f"cannot start a worker process: {error.strerror or error}; ask for fewer workers, or raise the limit "
                "(ulimit -a)"
            ) from error
        theirs.close()  # so that the pipe ends when the worker dies

    def start(self, task: int, message: Any) -> None:
        """Send a task to the worker."""
        self.task, self._last_beat = task, ([], 0.0)
        with suppress(OSError):  # it has died, which the next look at it shows
            self.pipe.send(message)

    def answers(self) -> Iterator[TaskResult]:
        """Yield the messages that have arrived for the current task."""
        try:
            # After the death of the worker a process forked by an environment may hold the pipe open: never block.
            while self.task is not None and self.pipe.poll():
                finished, content = self.pipe.recv()
                answer = TaskResult(self.task, finished, content)
                if finished:
                    self.task = None
                yield answer
        except (EOFError, OSError):
            self._closed = True

    def has_crashed(self, was_alive: bool) -> bool:
        """Whether the worker ended without an answer; `was_alive` was read before its answers."""
        return self.task is not None and (self._closed or not was_alive)

    def hangs(self, timeout: float) -> bool:
        """Whether the heartbeat has named the same environment call for more than `timeout` seconds."""
        now, beat = time.monotonic(), list(self.heartbeat)
        if beat != self._last_beat[0]:
            self._last_beat = beat, now
        return beat[0] != IDLE and now - self._last_beat[1] > timeout

    def kill(self) -> str:
        """Kill the worker with all processes that its environments have started; returns its exit status."""
        assert self.process.pid is not None
        self.process.kill()
        if _POSIX:
            with suppress(ProcessLookupError, PermissionError):  # it does not lead a group yet, or none is left
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.pipe.close()
        status = self.process.exitcode or 0
        return f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"


class TaskResult(NamedTuple):
    """A message of a worker about its task: a progress report, or with `finished` the result."""

    task: int
    finished: bool
    content: Any


class Crash(NamedTuple):
    """A worker ended without a result. Its task is started again unless `final`."""

    task: int
    worker: Worker
    status: str  # exit status
    crashes: int  # of this task so far
    final: bool

    @property
    def from_outside(self) -> bool:
        """Whether another process ended it, such as a system without memory; crashes have other signals."""
        return self.status in ("killed by SIGKILL", "killed by SIGTERM")


class WorkerPool:
    """Worker processes that are started on demand and replaced when they crash.

    Args:
        size: maximum number of processes.
        start: starts one.
        patrol: seconds between two looks at workers that may have died or hang.
    """

    def __init__(self, size: int, start: Callable[[], Worker], *, patrol: float) -> None:
        self.size, self.start, self.patrol = size, start, patrol
        self.workers: list[Worker] = []

    @property
    def busy(self) -> list[Worker]:
        """The workers that have a task."""
        return [worker for worker in self.workers if worker.task is not None]

    def run(
        self,
        count: int,
        message: Callable[[int, Worker], Any],
        choose: Callable[[Sequence[int], Worker], int] = lambda waiting, worker: waiting[0],
    ) -> Iterator[list[TaskResult | Crash]]:
        """Run tasks 0 to count-1; yields the events after every poll of the workers.

        Args:
            count: number of tasks.
            message: what a worker is sent for a task.
            choose: the next task of an idle worker, from those that wait.
        """
        waiting, crashes = list(range(count)), [0] * count
        while waiting or self.busy:
            while len(self.workers) < min(self.size, len(waiting) + len(self.busy)):
                self.workers.append(self.start())
            for worker in self.workers:
                if worker.task is None and waiting:
                    task = choose(waiting, worker)
                    waiting.remove(task)
                    worker.start(task, message(task, worker))
            connection.wait([worker.pipe for worker in self.busy], self.patrol)
            events: list[TaskResult | Crash] = []
            for worker in self.busy:
                was_alive = worker.process.is_alive()  # read first: its last message may still be in the pipe
                events += worker.answers()
                if worker.has_crashed(was_alive):
                    assert worker.task is not None
                    task, status = worker.task, worker.kill()
                    self.workers.remove(worker)
                    crashes[task] += 1
                    final = crashes[task] == MAX_CRASHES
                    if not final:
                        waiting.insert(0, task)
                    events.append(Crash(task, worker, status, crashes[task], final))
            yield events

    def close(self, grace: float = 0.0) -> None:
        """End all workers; idle ones get `grace` seconds to close their environments."""
        idle = [worker for worker in self.workers if worker.task is None] if grace else []
        for worker in idle:
            worker.pipe.close()
        for worker in idle:
            worker.process.join(grace)
        while self.workers:
            self.workers.pop().kill()


# ---- in a worker ------------------------------------------------------------------------------------------------


def detach(output: int | None = 2, *, grace: float = 0.0) -> None:
    """Shield this worker from Ctrl-C, keep its prints off standard output, and end it when its parent ends.

    Args:
        output: file descriptor that receives standard output, which is for results.
        grace: seconds after the parent's end in which a worker that does not hang ends by itself.
    """
    if _POSIX:
        os.setsid()
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):  # there may be no such file
        if output is not None:
            os.dup2(output, 1)
    parent = parent_process()
    assert parent is not None

    def end_too() -> None:
        parent.join()
        time.sleep(grace)
        exit_group()

    Thread(target=end_too, daemon=True).start()


def serve(pipe: Any, handle: Callable[[Any, Callable[[Any], None]], Any]) -> None:
    """Answer tasks until the parent closes the pipe; `handle` gets a task and a function that reports progress."""

    def report(content: Any) -> None:
        with suppress(OSError):
            pipe.send((False, content))

    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        result = handle(task, report)
        try:
            pipe.send((True, result))
        except OSError:
            return


def exit_group() -> None:
    """End this process, with all processes that its environments have started."""
    if _POSIX:
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


# ---- the start of a process -------------------------------------------------------------------------------------


@contextmanager
def _hidden_main() -> Iterator[None]:
    """Hide the main module: a spawned process would import it, and run scripts without a `__main__` guard again."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a process that is started inside."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
