"""Host episodes in several processes of one machine.

Chunks go out to whoever is idle and come back by number, so the result shows neither order nor number of the workers.
A worker that dies is replaced and its chunk is run again; an environment that hangs is ended and named.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing import connection, get_context
from types import ModuleType
from typing import Any, NamedTuple

import cloudpickle

from psyco._src.errors import EpisodeError, PsycoError, RunError
from psyco._src.rollout.episodes import Episodes
from psyco._src.rollout.host import IDLE, Chunk, Job, Runner

ATTEMPTS = 3  # a chunk that has ended so many workers will end the next one too

_spawn = get_context("spawn")  # a fork of a process with JAX's threads may hang


@cache
def in_processes(processes: int, step_timeout: float | None) -> Pool:
    """The pool of that size; it starts at its first call and is kept, since starting takes a second or two."""
    return Pool(processes, step_timeout)


class Pool:
    """A Backend of worker processes."""

    def __init__(self, processes: int, step_timeout: float | None) -> None:
        self.processes, self.step_timeout = processes, step_timeout
        self._workers: list[_Worker] = []
        atexit.register(self.close)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers now."""
        return [worker.process.pid or 0 for worker in self._workers]

    def __call__(self, job: Job, chunks: list[Chunk]) -> list[Episodes]:
        """Run all chunks; their episodes in the order of the chunks."""
        try:
            return self._run(job, pack(job), chunks)
        except BaseException:
            self.close()  # others are still busy with what nobody waits for any more
            raise

    def close(self) -> None:
        """End the workers."""
        while self._workers:
            self._workers.pop().end()

    def _run(self, job: Job, packed: Packed, chunks: list[Chunk]) -> list[Episodes]:
        todo = deque(range(len(chunks)))
        deaths = [0] * len(chunks)
        done: dict[int, Episodes] = {}
        while len(done) < len(chunks):
            self._workers += [_Worker() for _ in range(self.processes - len(self._workers))]
            idle = [worker for worker in self._workers if worker.chunk is None]
            for worker in idle[: len(todo)]:
                worker.start(todo.popleft(), packed, chunks)
            busy = {worker.pipe: worker for worker in self._workers if worker.chunk is not None}
            for pipe in connection.wait(list(busy), self.step_timeout and self.step_timeout / 4):
                worker = busy[pipe]  # type: ignore[index]
                number, worker.chunk = worker.chunk, None
                assert number is not None
                answer = worker.answer()
                if isinstance(answer, PsycoError):
                    raise answer
                if answer is not None:
                    done[number] = answer
                    continue
                self._workers.remove(worker)
                todo.appendleft(number)
                deaths[number] += 1
                if deaths[number] == ATTEMPTS:
                    raise RunError(
                        f"{job.domain.name} ended its worker process {ATTEMPTS} times (exit status {worker.end()}) in "
                        f"the episodes with seeds {_listed(chunks[number].seeds)}: it crashes, or memory runs out"
                    )
            if self.step_timeout is not None:
                for worker in busy.values():
                    hanging = worker.chunk is not None and worker.hangs(self.step_timeout)
                    if hanging:
                        seed, step, _ = worker.whereabouts
                        problem = f"no answer within the step timeout of {self.step_timeout:g} s"
                        raise EpisodeError(job.domain.name, seed, step, problem)
        return [done[number] for number in range(len(chunks))]


class _Worker:
    """One process, as the parent sees it."""

    def __init__(self) -> None:
        self.pipe, theirs = _spawn.Pipe()
        self.whereabouts = _spawn.RawArray("q", [IDLE, 0, 0])  # seed, step, row
        self.process = _spawn.Process(target=_work, args=(theirs, self.whereabouts), daemon=True)
        with _no_main(), _small():
            self.process.start()
        theirs.close()  # so that the death of the child is the end of the pipe
        self.chunk: int | None = None  # the number of the chunk it works on
        self._has: Packed | None = None
        self._seen: tuple[list[int], float] = [], 0.0

    def start(self, number: int, packed: Packed, chunks: list[Chunk]) -> None:
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
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def hangs(self, timeout: float) -> bool:
        """Has it been at the same step for so many seconds?"""
        now, place = time.monotonic(), list(self.whereabouts)
        if place != self._seen[0]:
            self._seen = place, now
        return place[0] != IDLE and now - self._seen[1] > timeout

    def end(self) -> int | None:
        """End it for good; returns its exit status."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        return self.process.exitcode


def _work(pipe: Any, whereabouts: Any) -> None:
    """What a worker process does until its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    runner, unpack, job = Runner(whereabouts), Unpacker(), None
    while True:
        try:
            packed, chunk = pipe.recv()
        except EOFError:
            return
        try:
            if packed is not None:
                job = unpack(packed)
            assert job is not None, "the first message brings a job"
            answer: Any = runner(job, chunk)
        except PsycoError as error:
            answer = error
        except Exception as error:  # an environment that this process cannot import, for example
            answer = RunError(f"a worker process failed: {type(error).__name__}: {error}")
        whereabouts[0] = IDLE
        pipe.send(answer)


class Packed(NamedTuple):
    """A job as it travels."""

    domain: bytes
    rest: bytes  # what acts there, and what judges it


def pack(job: Job) -> Packed:
    """The job as bytes; its domain apart, since its environments outlive the job."""
    return Packed(job.domain.packed, cloudpickle.dumps((job.network, job.monitor)))


class Unpacker:
    """The other end: a domain that comes again is the same object, so that its environments serve again."""

    def __init__(self) -> None:
        self._known: tuple[bytes, Any] = b"", None

    def __call__(self, packed: Packed) -> Job:
        """The job."""
        if packed.domain != self._known[0]:
            self._known = packed.domain, cloudpickle.loads(packed.domain)
        return Job(self._known[1], *cloudpickle.loads(packed.rest))


@contextmanager
def _no_main() -> Iterator[None]:
    """Hide the main module: a spawned process would import it again, and scripts that have no guard would run again."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _small() -> Iterator[None]:
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


def _listed(seeds: list[int]) -> str:
    shown = ", ".join(map(str, seeds[:4]))
    return shown if len(seeds) <= 4 else f"{shown}, ... ({len(seeds)} in all)"
