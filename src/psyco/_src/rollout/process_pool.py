"""Host episodes in several processes of one machine.

Chunks go out to whoever is idle and come back by number, so the result shows neither order nor number of the workers.
A worker that dies is replaced and its chunk is run again; an environment that hangs is ended and named. A worker leads
a process group of its own: whatever an environment has started ends with it.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import connection, get_context, parent_process
from threading import Thread
from types import ModuleType
from typing import Any, NamedTuple

import cloudpickle

from psyco._src.core.errors import EpisodeError, PsycoError, RunError, told
from psyco._src.envs.output_capture import know, shown
from psyco._src.envs.sandbox import CLOSE_SECONDS
from psyco._src.rollout.episodes import Episodes
from psyco._src.rollout.gym_sampler import IDLE, Chunk, EpisodeRunner, Job

ATTEMPTS = 3  # a chunk that has ended so many workers will end the next one too
PATROL = 1.0  # seconds between two looks at workers that may have died unheard
CLOSING = CLOSE_SECONDS + 2.0  # seconds for an idle worker to close its environments

_POSIX = os.name == "posix"
_spawn = get_context("spawn")  # a fork of a process with JAX's threads may hang


@cache
def in_processes(processes: int, step_timeout: float | None) -> ProcessPool:
    """The pool of that size; it starts at its first call and is kept, since starting takes a second or two."""
    return ProcessPool(processes, step_timeout)


class ProcessPool:
    """A Backend of worker processes."""

    def __init__(self, processes: int, step_timeout: float | None) -> None:
        self.processes, self.step_timeout = processes, step_timeout
        self._workers: list[_PoolWorker] = []
        atexit.register(self.close)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers now."""
        return [worker.process.pid or 0 for worker in self._workers]

    def __call__(self, job: Job, chunks: list[Chunk]) -> Iterator[tuple[int, Episodes]]:
        """Run all chunks; the number of each and its episodes, as they come."""
        try:
            yield from self._run(job, pack(job), chunks)
        except BaseException:
            self.close()  # others are still busy with what nobody waits for any more
            raise

    def close(self) -> None:
        """Let idle workers close their environments, and end them all."""
        for worker in self._workers:
            if worker.chunk is None:
                worker.pipe.close()
        for worker in self._workers:
            if worker.chunk is None:
                worker.process.join(CLOSING)
        while self._workers:
            self._workers.pop().end()

    def _run(self, job: Job, packed: PackedJob, chunks: list[Chunk]) -> Iterator[tuple[int, Episodes]]:
        todo = deque(range(len(chunks)))
        deaths, left = [0] * len(chunks), len(chunks)
        while left:
            while len(self._workers) < self.processes:
                self._workers.append(_started())
            idle = [worker for worker in self._workers if worker.chunk is None]
            for worker in idle[: len(todo)]:
                worker.start(todo.popleft(), packed, chunks)
            busy = {worker.pipe: worker for worker in self._workers if worker.chunk is not None}
            answered = connection.wait(list(busy), min(PATROL, (self.step_timeout or PATROL) / 4))
            for pipe, worker in busy.items():
                if pipe not in answered and worker.process.is_alive():
                    continue
                number = worker.chunk
                assert number is not None
                answer = worker.answer()
                worker.chunk = None
                if isinstance(answer, PsycoError):
                    raise answer
                if answer is not None:
                    left -= 1
                    yield number, answer
                    continue
                self._workers.remove(worker)
                todo.appendleft(number)
                deaths[number] += 1
                status = worker.end()
                if deaths[number] == ATTEMPTS:
                    problem = f"it ended its worker process {ATTEMPTS} times ({status}): it crashes, or memory runs out"
                    raise worker.error(job.domain.name, problem)
            if self.step_timeout is not None:
                for worker in busy.values():
                    if worker.chunk is not None and worker.hangs(self.step_timeout):
                        problem = f"no answer within the step timeout of {self.step_timeout:g} s"
                        raise worker.error(job.domain.name, problem)


def _started() -> _PoolWorker:
    try:
        return _PoolWorker()
    except OSError as error:
        raise RunError(
            f"cannot start a worker process: {error.strerror or error}; ask for fewer, or raise the limit (ulimit -a)"
        ) from error


class _PoolWorker:
    """One process, as the parent sees it."""

    def __init__(self) -> None:
        self.pipe, theirs = _spawn.Pipe()
        self.whereabouts = _spawn.RawArray("q", [IDLE, 0, 0])  # seed, step, row
        # No daemon, since a daemon's environments could start no processes.
        # What environments print when they are made was printed here before, when the domain was tried out.
        arguments = theirs, self.whereabouts, shown()
        self.process = _spawn.Process(target=_work, args=arguments, daemon=False)
        with without_main(), one_thread():
            self.process.start()
        theirs.close()  # so that the death of the child is the end of the pipe
        self.chunk: int | None = None  # the number of the chunk it works on
        self._has: PackedJob | None = None
        self._seen: tuple[list[int], float] = [], 0.0

    def start(self, number: int, packed: PackedJob, chunks: list[Chunk]) -> None:
        self.chunk = number
        self._seen = [], 0.0
        try:
            self.pipe.send((None if packed == self._has else packed, chunks[number]))
            self._has = packed
        except OSError:
            pass  # it has died; waiting for its answer will show that

    def answer(self) -> Any:
        """Episodes, an error, or None from a worker that died."""
        try:
            # What an environment has forked may hold the other end of the pipe when the worker is gone.
            return self.pipe.recv() if self.pipe.poll() else None
        except (EOFError, OSError):
            return None

    def hangs(self, timeout: float) -> bool:
        """Has it been at the same step for so many seconds?"""
        now, place = time.monotonic(), list(self.whereabouts)
        if place != self._seen[0]:
            self._seen = place, now
        return place[0] != IDLE and now - self._seen[1] > timeout

    def error(self, environment: str, problem: str) -> RunError:
        """What to say of a problem where it is, or was when it died."""
        seed, step, _ = self.whereabouts
        if seed == IDLE:
            return RunError(f"{environment}, while it is made: {problem}")
        return EpisodeError(environment, seed, step, problem)

    def end(self) -> str:
        """End it for good, with all that its environments have started; returns how it ended."""
        assert self.process.pid is not None
        self.process.kill()
        if _POSIX:
            with suppress(
                ProcessLookupError, PermissionError
            ):  # it has not come to lead a group, or none is left
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.pipe.close()
        status = self.process.exitcode or 0
        return f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"


def _work(pipe: Any, whereabouts: Any, heard: frozenset[str]) -> None:
    """What a worker process does until its parent is gone."""
    _settle()
    know(heard)
    runner, unpack, job = EpisodeRunner(whereabouts), JobUnpacker(), None
    while True:
        try:
            packed, chunk = pipe.recv()
        except (EOFError, OSError):
            break
        try:
            if packed is not None:
                job = unpack(packed)
            assert job is not None, "the first message brings a job"
            answer: Any = runner(job, chunk)
        except PsycoError as error:
            answer = error
        except (
            Exception,
            SystemExit,
        ) as error:  # an environment that this process cannot import, for example
            answer = RunError(f"a worker process failed: {told(error)}")
        whereabouts[0] = IDLE
        try:
            pipe.send(answer)
        except OSError:
            break
    runner.close()
    _leave()


def _settle() -> None:
    """Become a process that Ctrl-C does not reach, that prints no results, and that does not outlive its parent."""
    if _POSIX:
        os.setsid()
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):  # there may be no standard error either
        os.dup2(2, 1)  # standard output is for results
    parent = parent_process()
    assert parent is not None

    def end_too() -> None:
        parent.join()
        time.sleep(CLOSING)  # what is not stuck in an environment ends by itself
        _leave()

    Thread(target=end_too, daemon=True).start()


def _leave() -> None:
    """End this process, with all that its environments have started."""
    if _POSIX:
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


class PackedJob(NamedTuple):
    """A job as it travels."""

    domain: bytes
    rest: bytes  # what acts there, and what judges it


def pack(job: Job) -> PackedJob:
    """The job as bytes; its domain apart, since its environments outlive the job."""
    return PackedJob(job.domain.packed, cloudpickle.dumps((job.network, job.monitor)))


class JobUnpacker:
    """The other end: a domain that comes again is the same object, so that its environments serve again."""

    def __init__(self) -> None:
        self._known: tuple[bytes, Any] = b"", None

    def __call__(self, packed: PackedJob) -> Job:
        """The job."""
        if packed.domain != self._known[0]:
            self._known = packed.domain, cloudpickle.loads(packed.domain)
        return Job(self._known[1], *cloudpickle.loads(packed.rest))


@contextmanager
def without_main() -> Iterator[None]:
    """Hide the main module: a spawned process would import it again, and scripts that have no guard would run again."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread per worker, and no accelerator: its products are small, and there are others."""
    wanted = {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
