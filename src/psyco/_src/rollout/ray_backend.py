"""Gymnasium episodes on a Ray cluster: tasks get parameters and seeds, and return Episodes.

A task whose node or process is lost is run again, and the loss is counted if its episodes count. An episode is a
function of its parameters and its seed, so that costs time and changes no result; with `seeded=False` a lost task of
counted episodes is an error. Every node needs PSyCo and the environment installed. A task steps its environments in a
process beside Ray's own, so that an environment that crashes or hangs is named.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from psyco._src.core.errors import PsycoError, RunError, format_exception
from psyco._src.rollout.gym_sampler import Backend, Chunk, Job
from psyco._src.rollout.process_pool import JobUnpacker, PackedJob, may_repeat, pack, shared_pool

MAX_LOSSES = 10  # a task that was lost so often is lost by what it does
CONNECT_SECONDS = 5.0  # for a connection to the address
HEALTH_CHECK_SECONDS = 20.0  # for the cluster's answer


def ray_backend(address: str, step_timeout: float | None) -> tuple[Backend, int]:
    """Return a Backend on the cluster at this address ("local": start one here), and its number of CPUs."""
    ray = connect_ray(address)
    return _RayBackend(ray, step_timeout), max(1, int(ray.cluster_resources().get("CPU", 1)))


class _RayBackend:
    """A Backend; `crashes` counts how often a process or a node ended while it played counted episodes."""

    def __init__(self, ray: Any, step_timeout: float | None) -> None:
        self.ray, self.step_timeout = ray, step_timeout
        self.crashes = 0
        # Ray's own retries could not be counted. Errors of an environment are returned as values.
        self.task = ray.remote(max_retries=0)(_run_chunk)
        self._stored: tuple[PackedJob | None, Any] = (
            None,
            None,
        )  # the last job, and its reference in the cluster

    def __call__(self, job: Job, chunks: list[Chunk]) -> Iterator[tuple[int, Any]]:
        """Run all chunks; yields the number of each with its result, as soon as it is finished."""
        packed = pack(job)
        if self._stored[0] != packed:
            self._stored = packed, self.ray.put(packed)

        def submit(number: int) -> Any:
            return self.task.remote(self._stored[1], chunks[number], self.step_timeout)

        pending = {submit(number): number for number in range(len(chunks))}
        losses = [0] * len(chunks)
        try:
            while pending:
                (task,), _ = self.ray.wait(list(pending))
                number = pending.pop(task)
                try:
                    crashes, result = self.ray.get(task)
                except Exception as error:
                    losses[number] += 1
                    if not may_repeat(job, chunks[number]) or losses[number] == MAX_LOSSES or not self._is_loss(error):
                        raise RunError(f"the Ray cluster failed: {format_exception(error)}") from error
                    self.crashes += bool(chunks[number].look)
                    pending[submit(number)] = number
                    continue
                self.crashes += crashes
                if isinstance(result, PsycoError):
                    raise result
                yield number, result
        except BaseException:
            for task in pending:
                self.ray.cancel(task, force=True)
            raise

    def _is_loss(self, error: Exception) -> bool:
        """Whether a task has ended with its process or its node, and not by an error of its own."""
        known = self.ray.exceptions
        return isinstance(error, known.RayError) and not isinstance(
            error, known.RayTaskError | known.TaskCancelledError
        )


@cache
def connect_ray(address: str) -> Any:
    """Return the module `ray`, connected to the cluster at this address; raise RunError with the reason if it fails."""
    try:
        import ray
    except ImportError:
        raise RunError('a Ray cluster needs Ray installed: pip install "psyco[ray]"') from None
    if not ray.is_initialized():
        check_cluster(address)
        try:
            ray.init(address=address, log_to_driver=False)
        except Exception as error:  # Ray raises errors of all its parts
            raise RunError(f"no Ray cluster at {address!r}: {error}") from error
    return ray


def check_cluster(address: str) -> None:
    """Raise RunError unless a Ray cluster answers at this address: `ray.init` would try for minutes, and then exit."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return  # "local", "auto", and what Ray refuses by itself
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise RunError(
            f"nothing answers at the Ray address {address!r}: {error}; start Ray there, or leave out --ray"
        ) from None
    if address.startswith("ray://"):
        return  # the Ray client raises an error within its own time-out
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        healthy = subprocess.run(command, capture_output=True, timeout=HEALTH_CHECK_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        healthy = False
    if not healthy:
        raise RunError(
            f"the server at {address!r} does not answer as a Ray cluster; give the address that `ray start` prints"
        )


def _run_chunk(packed: PackedJob, chunk: Chunk, step_timeout: float | None) -> tuple[int, Any]:
    """Run a chunk in a Ray task; returns how often its process has ended, and its result or a PsycoError."""
    pool = shared_pool(1, step_timeout)
    before = pool.crashes
    try:
        [(_, result)] = pool(_unpacker()(packed), [chunk])
    except PsycoError as error:
        result = error
    except Exception as error:  # as in a worker process
        result = RunError(f"a Ray worker failed: {format_exception(error)}")
    return pool.crashes - before, result


@cache
def _unpacker() -> JobUnpacker:
    """Return the unpacker of this Ray process, which serves many tasks in the same domain."""
    return JobUnpacker()
