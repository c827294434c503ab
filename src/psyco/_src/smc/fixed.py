"""A fixed number of episodes, judged once, by Clopper and Pearson's exact interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from psyco._src.errors import RunError
from psyco._src.smc.base import Counts, Guarantee, Task, decisions, percent


def clopper_pearson(counts: Counts, delta: float) -> tuple[float, float]:
    """Exact bounds for a number of episodes that was fixed in advance, each wrong with a chance of at most δ."""
    s, v = counts.satisfied, counts.violated
    low = float(special.betaincinv(s, v + 1.0, delta)) if s else 0.0
    high = float(special.betainccinv(s + 1.0, v, delta)) if v else 1.0
    return low, high


@dataclass(frozen=True)
class Fixed:
    """Wait for all episodes; then accept if the lower bound meets the requirement, reject if the upper one fails.

    Args:
        task: what is to be settled; its maximum is the number of episodes, fixed in advance.
    """

    task: Task
    error_rate: ClassVar[bool] = True
    sequential: ClassVar[bool] = False
    open_ended: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.task.max_episodes is None:
            raise RunError("the method 'fixed' needs a number of episodes; give max_episodes")

    def decide(self, counts: Counts) -> NDArray[np.int8]:
        """Nothing until the last episode; then whether the outcome is too rare under the other hypothesis."""
        s, v = np.broadcast_arrays(*counts)
        accept, reject = np.ones(s.shape, bool), np.zeros(s.shape, bool)
        last = s + v >= self.task.max_episodes
        sides = self.task.sides
        for side in sides:
            own = side.counts(Counts(s, v))
            accept &= _tail(own, side.p_req) <= self.task.false_accept
            reject |= _tail(
                Counts(own.violated, own.satisfied), 1.0 - side.p_req
            ) <= self.task.false_reject / len(sides)
        return decisions(accept & last, reject & last)

    def bounds(self, counts: Counts, delta: float) -> tuple[float, float]:
        """Clopper and Pearson's."""
        return clopper_pearson(counts, delta)

    @property
    def guarantee(self) -> Guarantee:
        """An error rate for exactly this number of episodes."""
        accept, reject = self.task.false_accept, self.task.false_reject
        condition = f"with exactly {self.task.max_episodes:,} episodes, a number fixed in advance"
        return Guarantee(
            "fixed",
            f"If the constraint does not hold, the chance that this test calls it satisfied is at most "
            f"{percent(accept)}; if it holds, the chance that it calls it violated is at most {percent(reject)}. "
            f"This is so {condition}; it is void if the number was chosen by looking.",
            accept,
            reject,
            condition,
        )


def _tail(counts: Counts, p: float) -> NDArray[np.float64]:
    """The chance of at least so many satisfied episodes at probability p."""
    s = np.asarray(counts.satisfied, np.float64)
    return np.where(s > 0, special.betainc(np.maximum(s, 1.0), counts.violated + 1.0, p), 1.0)
