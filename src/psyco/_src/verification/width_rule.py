"""How large is a mean? An estimate with an interval that holds at all times, until it is narrow enough.

The interval is the confidence sequence of `betting`. It is right at all times at once, so one may look at it whenever
one likes, and stop because of what it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RangeError
from psyco._src.verification.base import MeanTask, WeightedSums
from psyco._src.verification.betting import ValueStats, confidence_sequence, remember

# When the width is looked at: computing an interval takes longer than an episode of a fast simulator.
FIRST_LOOK, GROWTH = 100, 1.1


class MeanInterval(NamedTuple):
    """What is known of one mean."""

    task: MeanTask  # its bounds are of no interest; both errors are that of the interval
    moments: WeightedSums = WeightedSums()
    seen: ValueStats = ValueStats()

    @property
    def episodes(self) -> int:
        """How many values it has consumed."""
        return int(self.moments.count)

    @property
    def mean(self) -> float:
        """The mean, or the rate, of what was seen."""
        return self.task.mean(self.moments)

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound for the true mean, half of the error for either."""
        return confidence_sequence(self.task, self.seen, self.task.false_accept / 2.0)

    def fed(self, values: NDArray[np.float64]) -> MeanInterval:
        """After further values `[B]`, or pairs `[B, 2]`."""
        inside = self.task.inside(values)
        if not inside.all():
            at = int(np.argmin(inside))
            total, weight = self.task.weighed(values[at : at + 1])
            raise RangeError(self.episodes + at, float(total[0] / weight[0]), self.task.range_text)
        moments = WeightedSums(*(float(sums[-1]) for sums in self.task.running(self.moments, values)))
        return MeanInterval(self.task, moments, remember(self.task, self.seen, values))

    def narrow(self, width: float) -> bool:
        """Is the interval as narrow as that?"""
        lower, upper = self.bounds
        return upper - lower <= width


def estimate(
    tasks: Sequence[MeanTask],
    batches: Iterable[Sequence[NDArray[np.float64]]],
    *,
    width: float | None,
    max_episodes: int,
) -> list[MeanInterval]:
    """Feed values to each estimate, in their order, until its interval is narrow enough or the episodes are spent.

    Args:
        tasks: what is to be estimated.
        batches: one column per task: values `[B]`, of a rate totals and steps `[B, 2]`.
        width: of the interval; None: as narrow as all episodes make it.
        max_episodes: no more than so many.
    """
    found, going_on = [MeanInterval(task) for task in tasks], set(range(len(tasks)))
    used, look = 0, FIRST_LOOK
    for columns in batches:
        start = 0
        while going_on and start < len(columns[0]) and used < max_episodes:
            taken = min(len(columns[0]) - start, max_episodes - used, look - used)
            for k in going_on:
                found[k] = found[k].fed(columns[k][start : start + taken])
            start, used = start + taken, used + taken
            if used == look:
                look = int(np.ceil(GROWTH * look))
                going_on = {k for k in going_on if width is None or not found[k].narrow(width)}
        if not going_on or used == max_episodes:
            break
    return found
