"""Host episodes on a Ray cluster: tasks get parameters and seeds, and give Episodes back.

Ray runs a task again when its node is lost. An episode is a function of its parameters and its seed, so that costs time
and changes nothing. Every node needs PSyCo and the environment installed. A task steps its environments in a process
beside Ray's own: one that crashes or hangs is named instead of tried without end.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from functools import cache
from typing import Any

from psyco._src.core.errors import PsycoError, RunError, told
from psyco._src.rollout.episodes import Episodes
from psyco._src.rollout.gym_sampler import Backend, Chunk, Job
from psyco._src.rollout.process_pool import JobUnpacker, PackedJob, in_processes, pack

ANSWER_WITHIN = 5.0  # seconds
SETTINGS = (
    b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # a frame of HTTP/2: its length, its kind (4), flags, stream
)
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS


def on_ray(address: str, step_timeout: float | None) -> tuple[Backend, int]:
    """A Backend on the cluster at that address ("local": one of its own here), and how many CPUs it has."""
    ray = connected(address)
    return _Cluster(ray, step_timeout), max(1, int(ray.cluster_resources().get("CPU", 1)))


class _Cluster:
    def __init__(self, ray: Any, step_timeout: float | None) -> None:
        self.ray, self.step_timeout = ray, step_timeout
        # Without end: a node may be lost at any time, and what fails by itself comes back as a value.
        self.task = ray.remote(max_retries=-1)(_episodes)
        self._kept: tuple[PackedJob | None, Any] = None, None  # the last job, and where the cluster keeps it

    def __call__(self, job: Job, chunks: list[Chunk]) -> Iterator[tuple[int, Episodes]]:
        """Run all chunks; the number of each and its episodes, as they come."""
        packed = pack(job)
        if self._kept[0] != packed:
            self._kept = packed, self.ray.put(packed)
        tasks = [self.task.remote(self._kept[1], chunk, self.step_timeout) for chunk in chunks]
        left = tasks
        try:
            while left:
                (task,), left = self.ray.wait(left)
                answer = self._answer(task)
                if isinstance(answer, PsycoError):
                    raise answer
                yield tasks.index(task), answer
        except BaseException:
            for task in left:
                self.ray.cancel(task, force=True)
            raise

    def _answer(self, task: Any) -> Episodes | PsycoError:
        try:
            return self.ray.get(task)
        except Exception as error:  # an environment's errors are answers: this is the cluster's own
            raise RunError(f"the Ray cluster failed: {told(error)}") from error


@cache
def connected(address: str) -> Any:
    """The module `ray`, connected to the cluster at that address; RunError says why it is not."""
    try:
        import ray
    except ImportError:
        raise RunError('a Ray cluster needs Ray installed: pip install "psyco[ray]"') from None
    if not ray.is_initialized():
        _check_answers(address)
        try:
            ray.init(address=address, log_to_driver=False)
        except Exception as error:  # Ray raises whatever its parts raise
            raise RunError(f"no Ray cluster at {address!r}: {error}") from error
    return ray


def _check_answers(address: str) -> None:
    """Refuse an address at which nobody or somebody else listens: Ray itself would try for minutes, and then exit.

    Ray speaks gRPC, whose servers answer the greeting of HTTP/2 with their settings.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal() or os.environ.get("RAY_USE_TLS", "0") != "0":
        return  # "local", "auto", what Ray refuses by itself, and what is encrypted
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_WITHIN) as connection:
            connection.sendall(GREETING)
            answer = connection.recv(4)
    except (OSError, OverflowError, UnicodeError) as error:
        raise RunError(
            f"nobody answers at the Ray address {address!r}: {error}; start Ray there, or leave out --ray"
        ) from None
    if answer[3:] != SETTINGS[3:4]:
        raise RunError(
            f"what listens at {address!r} is no Ray cluster; give the address that `ray start` prints"
        )


def _episodes(packed: PackedJob, chunk: Chunk, step_timeout: float | None) -> Episodes | PsycoError:
    """What a task does."""
    try:
        [(_, episodes)] = in_processes(1, step_timeout)(_unpacker()(packed), [chunk])
        return episodes
    except PsycoError as error:
        return error
    except Exception as error:  # as in a worker process
        return RunError(f"a Ray worker failed: {told(error)}")


@cache
def _unpacker() -> JobUnpacker:
    """A Ray process serves many tasks in the same domain."""
    return JobUnpacker()
