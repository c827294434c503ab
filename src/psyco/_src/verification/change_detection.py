"""An e-detector: has the mean of a stream of values left its bound, at a time that nobody knows?

After Shin, Ramdas and Rinaldo: evidence that is started anew at every time, and added up. For values in [lo, hi] that
should have a mean of at least m, somebody who bets the part u on the opposite multiplies his stake by

    L_u(x) = 1 + u (m - x) / (hi - m),    and with a new stake of 1 before every value    R_u <- L_u(x) (R_u + 1),

the sums of Shiryaev and Roberts, mixed to M = Σ_u w_u R_u. For outcomes 0 and 1 it is the likelihood ratio of the
probability q = (1-u) m to m: L(1) = q/m, L(0) = (1-q)/(1-m). The alarm T is raised when M reaches N.

While the mean is at least m, given whatever came before, E[L_u(x)] <= 1, so E[M] grows by at most 1 per value. Hence
N <= E[M_T] <= E[T]: on average false alarms come at most once in N values, whatever the distribution and dependence.

K detectors that all wait for K N share this: when one of them reaches that, the mean of all has reached N.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.verification.betting import BETS, SMALLEST


class DetectorState(NamedTuple):
    """Where a detector stands."""

    lost: bool  # the bound is not kept; else it is, as far as one knows
    sums: NDArray[np.float64]  # [bets] w_u R_u since the last change of that


@dataclass(frozen=True)
class Detector:
    """Waits until a bound is lost, then until it is kept again, and so on.

    Args:
        lo: no value can be smaller.
        hi: no value can be larger.
        bound: of the mean.
        at_least: the mean should be at least that, else at most.
        every: at most once in so many values does it say what is not so, on average.
    """

    lo: float
    hi: float
    bound: float
    at_least: bool
    every: float

    def init(self) -> DetectorState:
        """Nothing has happened yet."""
        return DetectorState(False, np.zeros(len(self.bets)))

    def update(self, standing: DetectorState, value: float) -> DetectorState:
        """After one more value; whoever has waited long enough starts to wait for the opposite."""
        waiting = self.opposite if standing.lost else self
        sums = waiting.added(standing.sums, value)
        if sums.sum() < self.every:
            return DetectorState(standing.lost, sums)
        return DetectorState(
            not standing.lost, np.zeros(len((self if standing.lost else self.opposite).bets))
        )

    def added(self, sums: NDArray[np.float64], values: Any) -> NDArray[np.float64]:
        """The sums `[..., bets]` after one more value each, `[...]`."""
        won = 1.0 + self._stakes * (np.asarray(values)[..., None] - self._bound)
        return (sums + self._weights) * won

    @cached_property
    def opposite(self) -> Detector:
        """Waits until the bound is kept: false news of that are as rare."""
        return replace(self, at_least=not self.at_least)

    @cached_property
    def bets(self) -> NDArray[np.float64]:
        """The u. The smallest one is for a change that it would find in a quarter of `every` values.

        The change from m to q = (1-u) m adds about s u²/2 per value to log R_u, with s = m/(1-m) (in general
        (m - lo)/(hi - m)), and what is needed is log N. Bets on smaller changes would find hardly anything but chance.

        The best of all values, over and over, bring R_u to (1-u)/u. That stays below N/2, so that they never raise an
        alarm, also where m is at the end of the range and any change would be found at once (`P>=1`).
        """
        near, far = self._bound - self.lo, self.hi - self._bound
        s = near / far if self.at_least else far / near
        smallest = np.sqrt(8.0 * np.log(self.every) / (self.every * s))
        return BETS[min(max(smallest, 2.0 / self.every), 0.5) <= BETS]

    @cached_property
    def _weights(self) -> NDArray[np.float64]:
        """As if log u were uniform: the size of a change is known by no more than its order of magnitude."""
        # From one bet to the next the log odds grow by the same, so log u grows by 1 - u times that.
        return (1.0 - self.bets) / np.sum(1.0 - self.bets)

    @cached_property
    def _bound(self) -> float:
        """At the end of the range the bound moves inward by next to nothing: a value beside it must tell something."""
        margin = SMALLEST * (self.hi - self.lo)
        return min(max(self.bound, self.lo + margin), self.hi - margin)

    @cached_property
    def _stakes(self) -> NDArray[np.float64]:
        """What is won for each unit above the bound, `[bets]`; negative: below it."""
        return -self.bets / (self.hi - self._bound) if self.at_least else self.bets / (self._bound - self.lo)
