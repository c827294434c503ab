"""Host episodes on a Ray cluster: tasks get parameters and seeds, and give Episodes back.

Ray runs a task again when its node is lost. An episode is a function of its parameters and its seed, so that costs time
and changes nothing. Every node needs PSyCo and the environment installed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from psyco._src.errors import PsycoError, RunError
from psyco._src.rollout.episodes import Episodes
from psyco._src.rollout.host import Backend, Chunk, Job, Runner
from psyco._src.rollout.pool import Packed, Unpacker, in_processes, pack

LOCAL = "local"


def on_ray(address: str, step_timeout: float | None) -> tuple[Backend, int]:
    """A Backend on the cluster at that address ("local": one of its own here), and how many CPUs it has."""
    ray = _connected(address)
    return _Cluster(ray, step_timeout), max(1, int(ray.cluster_resources().get("CPU", 1)))


class _Cluster:
    def __init__(self, ray: Any, step_timeout: float | None) -> None:
        self.ray, self.step_timeout = ray, step_timeout
        # Without end: a node may be lost at any time, and what fails by itself comes back as a value.
        self.task = ray.remote(max_retries=-1)(_episodes)
        self._kept: tuple[Packed | None, Any] = None, None  # the last job, and where the cluster keeps it

    def __call__(self, job: Job, chunks: list[Chunk]) -> list[Episodes]:
        """Run all chunks; their episodes in the order of the chunks."""
        packed = pack(job)
        if self._kept[0] != packed:
            self._kept = packed, self.ray.put(packed)
        tasks = [self.task.remote(self._kept[1], chunk, self.step_timeout) for chunk in chunks]
        try:
            answers = self.ray.get(tasks)
        except BaseException:
            for task in tasks:
                self.ray.cancel(task, force=True)
            raise
        for answer in answers:
            if isinstance(answer, PsycoError):
                raise answer
        return answers


@cache
def _connected(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise RunError('a Ray cluster needs Ray installed: pip install "psyco[ray]"') from None
    if not ray.is_initialized():
        try:
            ray.init(address=None if address == LOCAL else address, log_to_driver=False)
        except Exception as error:  # Ray raises whatever its parts raise
            raise RunError(f"no Ray cluster at {address!r}: {error}") from error
    return ray


def _episodes(packed: Packed, chunk: Chunk, step_timeout: float | None) -> Episodes | PsycoError:
    """What a task does."""
    try:
        runner, unpack = _station()
        job = unpack(packed)
        if step_timeout is None:
            return runner(job, chunk)
        return in_processes(1, step_timeout)(job, [chunk])[0]
    except PsycoError as error:
        return error
    except Exception as error:  # as in a worker process
        return RunError(f"a Ray worker failed: {type(error).__name__}: {error}")


@cache
def _station() -> tuple[Runner, Unpacker]:
    """A Ray process serves many tasks; it keeps its environments."""
    return Runner(), Unpacker()
