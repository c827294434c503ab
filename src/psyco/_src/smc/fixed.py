"""A fixed number of episodes, judged once, by Clopper and Pearson's exact interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from psyco._src.errors import RunError
from psyco._src.smc.base import Counts, Guarantee, Task, decisions, percent


@dataclass(frozen=True)
class Fixed:
    """Wait for all episodes; then accept if the lower bound meets the requirement, reject if the upper one fails.

    Args:
        task: what is to be settled; its maximum is the number of episodes, fixed in advance.
    """

    task: Task
    error_rate: ClassVar[bool] = True

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

    def bounds(self, counts: Counts) -> tuple[float, float]:
        """Clopper and Pearson's bounds, each at the task's confidence."""
        s, v, delta = counts.satisfied, counts.violated, self.task.false_accept
        low = float(special.betaincinv(s, v + 1.0, delta)) if s else 0.0
        high = float(special.betainccinv(s + 1.0, v, delta)) if v else 1.0
        return low, high

    @property
    def guarantee(self) -> Guarantee:
        """An error rate for exactly this number of episodes."""
        accept, reject = self.task.false_accept, self.task.false_reject
        return Guarantee(
            "fixed",
            f"With exactly {self.task.max_episodes:,} episodes, a number fixed in advance: if the constraint does not "
            f"hold, the chance that it is called satisfied is at most {percent(accept)}; if it holds, the chance that "
            f"it is called violated is at most {percent(reject)}. It is void if the number was chosen by looking.",
            accept,
            reject,
        )


def _tail(counts: Counts, p: float) -> NDArray[np.float64]:
    """The chance of at least so many satisfied episodes at probability p."""
    s = np.asarray(counts.satisfied, np.float64)
    return np.where(s > 0, special.betainc(np.maximum(s, 1.0), counts.violated + 1.0, p), 1.0)
