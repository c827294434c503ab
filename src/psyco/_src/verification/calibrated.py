"""The paper's posterior test with a true error rate: thresholds calibrated for a cap by dynamic programming."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from psyco._src.core.errors import RunError
from psyco._src.verification.anytime import confidence_sequence
from psyco._src.verification.base import Counts, Guarantee, Task, decisions
from psyco._src.verification.methods import LARGEST_CAP
from psyco._src.verification.rounding import percent


@lru_cache(maxsize=1024)
def calibrated_doubt(p_req: float, delta: float, cap: int) -> float:
    """Return the largest doubt (posterior mass below p_req) at which a test may accept within `cap` episodes.

    At the boundary p = p_req, the worst case, the doubt falls that low at any time with probability at most δ. A
    smaller p is accepted less often: turning outcomes into violations moves every path away from the boundary.
    """
    if delta >= 1.0:
        return 1.0
    # The doubt is P(Bin(n+1, p) > s), so P(S_n >= s) <= doubt / p, and δ p / cap is safe by the union over n.
    low, high = np.log(delta * p_req / cap), 0.0
    fewest, most = np.zeros(cap + 1, np.int64), np.arange(cap + 1, 0, -1)
    while high - low > 1e-6:
        middle = (low + high) / 2.0
        needed = needed_successes(p_req, np.exp(middle), fewest, most)
        if crossing_probability(needed, p_req) <= delta:
            low, most = middle, needed
        else:
            high, fewest = middle, needed
    return float(np.exp(low))


def needed_successes(
    p_req: float, doubt: float, fewest: NDArray[np.int64], most: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number of successes, `[cap+1]`, that make the doubt small enough at 0, 1, ... violations.

    Bisects between `fewest` and `most` for all violations at once; a sum above `cap` means never.
    """
    violations = np.arange(len(most))
    low, high = fewest, most
    while (open_ := low < high).any():
        middle = (low + high) // 2
        enough = np.zeros(len(most), bool)
        enough[open_] = special.betainc(middle[open_] + 1.0, violations[open_] + 1.0, p_req) <= doubt
        low, high = np.where(open_ & ~enough, middle + 1, low), np.where(enough, middle, high)
    return low


def crossing_probability(needed: NDArray[np.int64], p: float) -> float:
    """Return the exact probability that outcomes of probability p ever reach the boundary `needed` `[cap+1]`.

    Column by column: `arrive[s]` is the probability of reaching v violations with s successes without having crossed.
    At a fixed v successes come one by one, `alive[s] = arrive[s] + p alive[s-1]`, a recursive filter.
    """
    from scipy.signal import lfilter  # takes long to import, and few runs need it

    cap = len(needed) - 1
    crossed = 0.0
    arrive = np.zeros(cap + 1)
    arrive[0] = 1.0
    for violations, target in enumerate(needed):
        if target + violations > cap:
            break
        if target == 0:
            return 1.0
        alive = lfilter([1.0], [1.0, -p], arrive[:target])
        crossed += p * alive[-1]
        arrive[:target] = (1.0 - p) * alive
    return crossed


@dataclass(frozen=True)
class Calibrated:
    """Threshold the posterior after every episode, as the paper does, at levels that hold the error rate.

    Args:
        task: the constraint and the permitted error rates; the thresholds are calibrated for its `max_episodes`.
    """

    task: Task
    error_rate: ClassVar[bool] = True
    sequential: ClassVar[bool] = True
    open_ended: ClassVar[bool] = False

    def __post_init__(self) -> None:
        cap = self.task.max_episodes
        if cap is None or cap > LARGEST_CAP:
            raise RunError(
                f"the method 'calibrated' needs a maximum of at most {LARGEST_CAP:,} episodes, "
                f"{'none is given' if cap is None else f'got {cap:,}'}; beyond that use 'anytime', which needs none"
            )

    @property
    def thresholds(self) -> tuple[tuple[float, float], ...]:
        """Posterior probabilities at which to accept and to reject, for each side."""
        return tuple((1.0 - accept, 1.0 - reject) for accept, reject in self._doubts)

    @property
    def _doubts(self) -> list[tuple[float, float]]:
        task, sides, cap = self.task, self.task.sides, self.task.max_episodes or 0
        return [
            (
                calibrated_doubt(side.p_req, task.false_accept, cap),
                calibrated_doubt(1.0 - side.p_req, task.false_reject / len(sides), cap),
            )
            for side in sides
        ]

    def decide(self, counts: Counts) -> NDArray[np.int8]:
        """Compare the posterior on either side of each bound with its calibrated level."""
        s, v = np.broadcast_arrays(*counts)
        accept, reject = np.ones(s.shape, bool), np.zeros(s.shape, bool)
        for side, (accept_at, reject_at) in zip(self.task.sides, self._doubts, strict=True):
            own = side.counts(Counts(s, v))
            below = special.betainc(own.satisfied + 1.0, own.violated + 1.0, side.p_req)
            above = special.betainc(own.violated + 1.0, own.satisfied + 1.0, 1.0 - side.p_req)
            accept &= below <= accept_at
            reject |= above <= reject_at
        within = s + v <= self.task.max_episodes  # no guarantee beyond the cap
        return decisions(accept & within, reject & within)

    def bounds(self, counts: Counts, delta: float) -> tuple[float, float]:
        """Return the confidence sequence of `Anytime`: these thresholds are calibrated for one probability only."""
        return confidence_sequence(counts, delta)

    @property
    def guarantee(self) -> Guarantee:
        """An error rate for this cap."""
        accept, reject = self.task.false_accept, self.task.false_reject
        condition = f"with at most {self.task.max_episodes:,} episodes"
        return Guarantee(
            "capped",
            f"If the constraint does not hold, the chance that this test calls it satisfied at any time is at most "
            f"{percent(accept)}; if it holds, the chance that it calls it violated is at most {percent(reject)}. "
            f"This is so {condition}; going on beyond that number would void it.",
            accept,
            reject,
            condition,
        )
