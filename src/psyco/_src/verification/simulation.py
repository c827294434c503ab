"""How a test of a mean will behave: simulated, since the values' distribution is known by two numbers only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.verification.base import MeanTask, Verdict, run_tests


@dataclass(frozen=True)
class SimulationResult:
    """How often each verdict came, and after how many episodes, if the values have this mean and spread."""

    mean: float
    spread: float  # standard deviation
    satisfied: float
    violated: float
    undecided: float
    median_episodes: float  # infinite if most streams ended undecided
    streams: int
    seed: int

    def to_json(self) -> dict[str, float | None]:
        """As plain data; None where more episodes than the cap are needed."""
        episodes = self.median_episodes if np.isfinite(self.median_episodes) else None
        shares = {name: getattr(self, name) for name in ("satisfied", "violated", "undecided")}
        return {**shares, "median_episodes": episodes}

    @property
    def note(self) -> str:
        """Where the numbers are from, for people."""
        return (
            f"simulated with {self.streams:,} streams of Beta-distributed values (seed {self.seed}): a share is known "
            f"up to {1 / np.sqrt(self.streams):.3f}, and other distributions may behave otherwise"
        )


def simulate(
    test: Any, *, mean: float, spread: float, max_episodes: int, streams: int = 400, seed: int = 0
) -> SimulationResult:
    """Run `test` on many streams of values with that mean and standard deviation, of a Beta distribution on the range.

    Args:
        test: a method, set up for a task about a mean.
        mean: the true mean.
        spread: the standard deviation; at most sqrt((mean - lo) (hi - mean)), where all values are lo or hi.
        max_episodes: at most so many values per stream.
        streams: how many of them.
        seed: of the random numbers; stream i has its own.
    """
    if max_episodes < 1 or streams < 1:
        raise RunError(f"max_episodes and streams must be at least 1, got {max_episodes} and {streams}")
    centre, size = _beta(test.task, mean, spread)
    found = []
    for stream in range(streams):
        rng = np.random.default_rng([seed, stream])
        batches = _batches(test.task, centre, size, rng, max_episodes)
        found += run_tests([test], batches, max_episodes=max_episodes)
    share = {v: sum(tally.verdict is v for tally in found) / streams for v in Verdict}
    episodes = [t.episodes if t.verdict is not Verdict.UNDECIDED else np.inf for t in found]
    return SimulationResult(
        mean,
        spread,
        share[Verdict.SATISFIED],
        share[Verdict.VIOLATED],
        share[Verdict.UNDECIDED],
        float(np.median(episodes)),
        streams,
        seed,
    )


def _beta(task: MeanTask, mean: float, spread: float) -> tuple[float, float]:
    """The mean's position in [0, 1], and a + b of Beta: 0 if all values are lo or hi, infinite if all are equal."""
    width = task.hi - task.lo
    centre, variance = (mean - task.lo) / width, (spread / width) ** 2
    largest = centre * (1.0 - centre)
    if not (0.0 <= centre <= 1.0 and 0.0 <= variance <= largest + 1e-9):
        raise RunError(
            f"no values in {task.range_text} have mean {mean:g} and standard deviation {spread:g}: the mean lies in "
            "the range, and the deviation is at most sqrt((mean - lo) (hi - mean))"
        )
    size = largest / variance - 1.0 if variance else np.inf
    return centre, size if size > 1e-6 else 0.0  # less is a rounding error


def _batches(
    task: MeanTask, centre: float, size: float, rng: np.random.Generator, cap: int
) -> Iterator[NDArray[np.float64]]:
    """Values `[B, 1]` in growing batches: most streams end early."""
    drawn = 0
    while drawn < cap:
        batch = min(max(drawn, 100), 10_000, cap - drawn)
        if size == 0.0:
            position = (rng.random(batch) < centre).astype(np.float64)
        elif np.isinf(size):
            position = np.full(batch, centre)
        else:
            position = rng.beta(centre * size, (1.0 - centre) * size, batch)
        values = task.lo + (task.hi - task.lo) * position
        yield np.minimum(values, task.hi)[:, None]  # rounding could have led beyond
        drawn += batch
