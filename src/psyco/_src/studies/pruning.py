"""Ending trials that lead nowhere: at some points of learning a run must not be worse than half of those before it.

A bar is data that goes to wherever the run is, and is made of trials that had ended before any trial of the same round
began. So which runs are ended depends neither on how many there are at the same time nor on how fast they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from psyco._src.core import atomic_io
from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import from_json, read_bytes
from psyco._src.learners.metrics import Metrics
from psyco._src.logic.ast import Requirement
from psyco._src.runs.problem import Problem
from psyco._src.runs.settings import Settings
from psyco._src.runs.store import load_metrics
from psyco._src.runs.train import Callback, RunProgress
from psyco._src.studies.objective import Score, score_at

PARTS = (0.5, 0.75)  # of learning, at which a run is looked at
ENOUGH = 5  # trials that must have come so far before others are measured by them
PRUNED = "pruned.json"  # in the folder of a run that was ended


@dataclass(frozen=True)
class PruningThreshold:
    """What a run must reach, point by point; None: nothing yet."""

    scores: tuple[Score | None, ...] = (None,) * len(PARTS)

    @property
    def digest(self) -> str:
        """In one word, so that a run that was ended by another bar can be told."""
        return atomic_io.digest(json.dumps(self.scores).encode())[:16]


class Pruned(Exception):
    """A run is below its bar; it ends here."""

    def __init__(self, point: int) -> None:
        super().__init__(f"below the bar at {PARTS[point]:.0%} of learning")
        self.point = point


def raised(before: Sequence[Sequence[Score | None]]) -> PruningThreshold:
    """The bar that trials make for those that come after them: the median of each point, the worse of two.

    Args:
        before: what each of them had reached, point by point.
    """
    bars: list[Score | None] = []
    for point in range(len(PARTS)):
        known = sorted(score for reached in before if (score := reached[point]) is not None)
        bars.append(known[(len(known) - 1) // 2] if len(known) >= ENOUGH else None)
    return PruningThreshold(tuple(bars))


def reached(folder: Path, requirement: Requirement, settings: Settings) -> tuple[Score | None, ...]:
    """What a run has shown at each point of learning that it came to."""
    try:
        metrics = load_metrics(folder)
    except RunError:
        metrics = Metrics({})
    return tuple(score_at(metrics, requirement, settings, part) for part in PARTS)


def jump(folder: Path, bar: PruningThreshold) -> Callback:
    """A sink that ends the run with `Below` where it is below the bar; it looks at the run's own table."""
    looked = [score is None for score in bar.scores]
    share = 0.0

    def progress(stage: RunProgress) -> None:
        nonlocal share
        share = stage.done / stage.of if stage.phase == "learning" else share

    def rows(problem: Problem, metrics: Metrics) -> None:
        for point, (part, wanted) in enumerate(zip(PARTS, bar.scores, strict=True)):
            if looked[point] or share < part:
                continue
            # All rows, those of an earlier session too; the folder hears of new ones before any other sink.
            found = score_at(load_metrics(folder), problem.requirement, problem.settings, part)
            looked[point] = found is not None
            if found is not None and wanted is not None and found < wanted:
                raise Pruned(point)

    return Callback(rows=rows, progress=progress)


def keep_pruned(folder: Path, bar: PruningThreshold, below: Pruned) -> None:
    """Write down that a run was ended, and by what."""
    content = {"part": PARTS[below.point], "bar": bar.digest}
    atomic_io.write(folder / PRUNED, (json.dumps(content) + "\n").encode())


def pruned_at(folder: Path, bar: PruningThreshold | None) -> float | None:
    """The part of learning after which this bar has ended a run; None if it has not."""
    try:
        content = from_json(
            read_bytes(folder / PRUNED, "description of a run", inside=folder), str(folder / PRUNED)
        )
        part = float(content["part"])
        return part if bar is not None and content["bar"] == bar.digest and part in PARTS else None
    except (RunError, KeyError, TypeError, ValueError):
        return None
