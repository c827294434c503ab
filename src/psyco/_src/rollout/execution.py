"""How episodes are computed: here, in processes, on a cluster. No result depends on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from psyco._src.core.checks import check_positive, check_whole
from psyco._src.rollout.episodes import Episodes


class EpisodeCache(Protocol):
    """Where episodes of a Gymnasium environment are kept that need not be played again after an interruption."""

    seconds: float  # that one worker took of late for an episode; infinite before the first
    proven: bool  # the simulator is known to be still the same; if not, some episodes have to be played again

    def get(self, identity: str, /) -> Episodes | None:
        """The one episode that is called so; None: it is not there."""

    def put(self, identity: str, episode: Episodes, /) -> None:
        """Keep one episode."""

    def clear(self) -> None:
        """All of them were played by another simulator."""


@dataclass(frozen=True)
class Execution:
    """Where episodes are made.

    Args:
        devices: over how many JAX devices the episodes of a compiled domain are split.
        workers: processes that step a Gymnasium environment; 1: this one.
        ray: an address of a Ray cluster for that, "local" to start one here, None for no Ray.
        step_timeout: seconds after which a step counts as hanging; it needs a process that can be ended.
        memory: of episodes that were played before, which are not played again; None: there is none.
    """

    devices: int = 1
    workers: int = 1
    ray: str | None = None
    step_timeout: float | None = None
    memory: EpisodeCache | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_whole("execution", devices=self.devices, workers=self.workers)
        if self.step_timeout is not None:
            check_positive("execution", step_timeout=self.step_timeout)

    @property
    def elsewhere(self) -> bool:
        """Does it ask for other processes than this one?"""
        return self.workers > 1 or self.ray is not None or self.step_timeout is not None


HERE = Execution()
