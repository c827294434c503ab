"""Where episodes are computed: in this process, in worker processes, on a cluster. No result depends on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from psyco._src.core.options import check_declared, option

if TYPE_CHECKING:
    from psyco._src.rollout.episodes import Episodes


class EpisodeCache(Protocol):
    """Store of finished Gymnasium episodes, which are not played again after an interruption."""

    seconds_per_episode: float  # recent time of one worker for an episode; infinite before the first
    verified: bool  # a replay has shown that the simulator still gives the stored episodes

    def get(self, identity: str, /) -> Episodes | None:
        """Return the episode with this identity, or None."""

    def put(self, identity: str, episode: Episodes, /) -> None:
        """Store one episode."""

    def clear(self) -> None:
        """Drop all episodes, because they come from another simulator."""


@dataclass(frozen=True)
class Execution:
    """Devices, processes and time-outs of a computation. No result depends on them."""

    devices: int = option(1, "JAX devices for a compiled domain.", minimum=1)
    workers: int = option(1, "Processes for a Gymnasium environment.", minimum=1)
    ray: str | None = option(None, "Ray cluster for a Gymnasium environment; local: start one here.", kind=str)
    step_timeout: float | None = option(
        None,
        "Time after which a step of a Gymnasium environment is an error.",
        kind=float,
        above=0,
    )
    checkpoint_every: float = option(2.0, "Seconds between checkpoints.", minimum=0)
    # Episodes that were played before an interruption; they are not played again.
    episode_cache: EpisodeCache | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_declared(self)

    @property
    def uses_workers(self) -> bool:
        """Whether episodes are made in other processes than this one."""
        return self.workers > 1 or self.ray is not None or self.step_timeout is not None


IN_PROCESS = Execution()
