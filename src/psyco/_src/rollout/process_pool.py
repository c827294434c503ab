"""Gymnasium episodes in several processes of one machine.

Chunks go to idle workers and come back by number, so the result depends neither on the order nor on the number of the
workers. The chunk of a worker that ends is run again, unless its episodes count and the environment crashed or could
play other ones; an environment that hangs is ended and named.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import cloudpickle

from psyco._src.core.errors import EpisodeError, PsycoError, RunError, format_exception
from psyco._src.envs.sandbox import CLOSE_TIMEOUT, mark_printed, printed_lines
from psyco._src.rollout.gym_sampler import Chunk, EpisodeRunner, Job
from psyco._src.rollout.worker_pool import (
    IDLE,
    ONE_THREAD,
    Crash,
    Worker,
    WorkerPool,
    detach,
    exit_group,
    serve,
)

PATROL_SECONDS = 1.0  # between two looks at the workers
CLOSING_SECONDS = CLOSE_TIMEOUT + 2.0  # for an idle worker to close its environments


@cache
def shared_pool(processes: int, step_timeout: float | None) -> ProcessPool:
    """Return the pool of this size; it is kept, since a process takes a second or two to start."""
    return ProcessPool(processes, step_timeout)


class ProcessPool:
    """A Backend of worker processes.

    `crashes` counts how often a process ended while it played counted episodes.
    """

    def __init__(self, processes: int, step_timeout: float | None) -> None:
        patrol = min(PATROL_SECONDS, (step_timeout or PATROL_SECONDS) / 4)
        self.step_timeout, self._pool = step_timeout, WorkerPool(processes, _start_worker, patrol=patrol)
        self.crashes = 0
        atexit.register(self.close)

    @property
    def pids(self) -> list[int]:
        """The process ids of the current workers."""
        return [worker.process.pid or 0 for worker in self._pool.workers]

    def __call__(self, job: Job, chunks: list[Chunk]) -> Iterator[tuple[int, Any]]:
        """Run all chunks; yields the number of each with its result, as soon as it is finished."""
        try:
            yield from self._run(job, chunks)
        except BaseException:
            self.close()  # the other workers are busy with chunks that are not needed any more
            raise

    def close(self) -> None:
        """End all workers; idle ones close their environments first."""
        self._pool.close(CLOSING_SECONDS)

    def _run(self, job: Job, chunks: list[Chunk]) -> Iterator[tuple[int, Any]]:
        environment, packed = job.domain.name, pack(job)

        def message(number: int, worker: Worker) -> tuple[PackedJob | None, Chunk]:
            is_known, worker.label = worker.label == packed, packed
            return None if is_known else packed, chunks[number]

        for events in self._pool.run(len(chunks), message):
            for event in events:
                if isinstance(event, Crash):
                    chunk = chunks[event.task]
                    self.crashes += bool(chunk.look)
                    if chunk.look and not (event.from_outside and may_repeat(job, chunk)):
                        problem = (
                            f"it ended its worker process ({event.status}) in an episode that counts: it crashes, or "
                            "memory runs out. What would have happened is not known, and another try could leave out "
                            "what went wrong. Make the crash an outcome: catch it and report it in info"
                        )
                        raise _error(event.worker, environment, problem)
                    if event.final:
                        problem = (
                            f"it ended its worker process {event.crashes} times ({event.status}): it crashes, or "
                            "memory runs out"
                        )
                        raise _error(event.worker, environment, problem)
                elif isinstance(event.content, PsycoError):
                    raise event.content
                else:
                    yield event.task, event.content
            for worker in self._pool.busy:
                if self.step_timeout is not None and worker.hangs(self.step_timeout):
                    problem = f"no answer within the step timeout of {self.step_timeout:g} s"
                    raise _error(worker, environment, problem)


def may_repeat(job: Job, chunk: Chunk) -> bool:
    """Whether a chunk whose process was ended may be run again: not if other episodes would count in place of its."""
    return job.domain.seeded or not chunk.look


def _start_worker() -> Worker:
    # The lines that environments print when they are made were shown when the domain was inspected.
    return Worker(_work, (printed_lines(),), ONE_THREAD)


def _error(worker: Worker, environment: str, problem: str) -> RunError:
    """Return the error for a worker, located by its heartbeat."""
    seed, step, _ = worker.heartbeat
    if seed == IDLE:
        return RunError(f"{environment}, while it is made: {problem}")
    return EpisodeError(environment, seed, step, problem)


def _work(pipe: Any, heartbeat: Any, shown_lines: frozenset[str]) -> None:
    """Run chunks until the parent is gone."""
    detach(grace=CLOSING_SECONDS)
    mark_printed(shown_lines)
    runner, unpack = EpisodeRunner(heartbeat), JobUnpacker()
    job: Job | None = None

    def handle(message: tuple[PackedJob | None, Chunk], _: Any) -> Any:
        nonlocal job
        packed, chunk = message
        try:
            if packed is not None:
                job = unpack(packed)
            assert job is not None, "the first message brings a job"
            return runner(job, chunk)
        except PsycoError as error:
            return error
        except (Exception, SystemExit) as error:  # such as an environment that this process cannot import
            return RunError(f"a worker process failed: {format_exception(error)}")
        finally:
            heartbeat[0] = IDLE

    serve(pipe, handle)
    runner.close()
    exit_group()


class PackedJob(NamedTuple):
    """A serialized job."""

    domain: bytes
    rest: bytes  # network and monitor


def pack(job: Job) -> PackedJob:
    """Serialize a job; its domain separately, since the domain's environments outlive the job."""
    return PackedJob(job.domain.packed, cloudpickle.dumps((job.network, job.monitor)))


class JobUnpacker:
    """Deserializes jobs; jobs in the same domain share one domain object, so that its environments are kept."""

    def __init__(self) -> None:
        self._domain: tuple[bytes, Any] = b"", None

    def __call__(self, packed: PackedJob) -> Job:
        """Return the job."""
        if packed.domain != self._domain[0]:
            self._domain = packed.domain, cloudpickle.loads(packed.domain)
        return Job(self._domain[1], *cloudpickle.loads(packed.rest))
