"""Sequential change detection: an e-detector for the time at which the mean of a stream leaves its bound.

After Shin, Ramdas and Rinaldo: e-processes that start at every time, added up. For values in [lo, hi] whose mean should
be at least m, a bet of size u on the opposite multiplies its stake by

    L_u(x) = 1 + u (m - x) / (hi - m),    and with a new stake of 1 before every value    R_u <- L_u(x) (R_u + 1),

the Shiryaev-Roberts sums, mixed to M = Σ_u w_u R_u. For outcomes 0 and 1 it is the likelihood ratio of the
probability q = (1-u) m to m: L(1) = q/m, L(0) = (1-q)/(1-m). The alarm is raised at the time T
at which M reaches N.

While the conditional mean is at least m, E[L_u(x)] <= 1, so E[M] grows by at most 1 per value. Hence
N <= E[M_T] <= E[T]: the average run length to a false alarm is at least N, for any distribution and dependence.

K detectors with the threshold K N have this average run length together: when one of them reaches K N, the mean of all
has reached N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.verification.betting import BETS, SMALLEST


class DetectorState(NamedTuple):
    """State of a detector."""

    lost: bool  # the detected state: the mean has left its bound
    sums: NDArray[np.float64]  # [bets] w_u R_u since the last detected change


@dataclass(frozen=True)
class Detector:
    """Detect when the mean leaves its bound, then when it meets the bound again, and so on.

    Args:
        lo: smallest possible value.
        hi: largest possible value.
        bound: bound on the mean.
        at_least: whether it is a lower bound; else an upper bound.
        average_run_length: least expected number of values to a false alarm.
    """

    lo: float
    hi: float
    bound: float
    at_least: bool
    average_run_length: float

    def init(self) -> DetectorState:
        """Return the initial state: the bound is met."""
        return DetectorState(False, np.zeros(len(self.bets)))

    def update(self, state: DetectorState, values: Sequence[float]) -> tuple[DetectorState, int]:
        """Take further values, up to the first detected change, which starts the detection of the opposite one.

        Returns:
            The state, and the number of values that were taken.
        """
        current, sums = self.opposite if state.lost else self, state.sums
        weights, end_factors = current._weights, current._end_factors
        for count, value in enumerate(values, 1):
            factor = end_factors.get(value)
            sums = (sums + weights) * (current._factor(value) if factor is None else factor)
            if sums.sum() >= self.average_run_length:
                return DetectorState(not state.lost, np.zeros(len(current.opposite.bets))), count
        return DetectorState(state.lost, sums), len(values)

    def update_sums(self, sums: NDArray[np.float64], values: Any) -> NDArray[np.float64]:
        """Return the sums `[..., bets]` after one more value each, `[...]`."""
        return (sums + self._weights) * self._factor(np.asarray(values)[..., None])

    def _factor(self, values: Any) -> NDArray[np.float64]:
        """Return L_u(x) for values `[..., 1]` or a single one, `[..., bets]`."""
        return 1.0 + self._stakes * (values - self._bound)

    @cached_property
    def _end_factors(self) -> dict[float, NDArray[np.float64]]:
        """L_u(x) at the ends of the range: all values of outcomes are there, so this saves most of their time."""
        return {end: self._factor(end) for end in (self.lo, self.hi)}

    @cached_property
    def opposite(self) -> Detector:
        """The detector of a return to the bound, with the same average run length."""
        return replace(self, at_least=not self.at_least)

    @cached_property
    def bets(self) -> NDArray[np.float64]:
        """Bet sizes u. The smallest one detects its change in a quarter of the average run length N.

        The change from m to q = (1-u) m adds about s u²/2 per value to log R_u, with s = m/(1-m) (in general
        (m - lo)/(hi - m)), and log N is needed. Bets on smaller changes would mostly detect noise.

        A stream of only the best possible value brings R_u to (1-u)/u. That stays below N/2, so that it never raises an
        alarm, even where m is at the end of the range and any change is detected at once (`P>=1`).
        """
        near, far = self._bound - self.lo, self.hi - self._bound
        s = near / far if self.at_least else far / near
        n = self.average_run_length
        smallest = np.sqrt(8.0 * np.log(n) / (n * s))
        return BETS[min(max(smallest, 2.0 / n), 0.5) <= BETS]

    @cached_property
    def _weights(self) -> NDArray[np.float64]:
        """Weights of a uniform log u: only the order of magnitude of a change is known."""
        # From one bet to the next the log odds grow by the same, so log u grows by 1 - u times that.
        return (1.0 - self.bets) / np.sum(1.0 - self.bets)

    @cached_property
    def _bound(self) -> float:
        """The bound, moved inward by a tiny margin at the end of the range, so that every value is informative."""
        margin = SMALLEST * (self.hi - self.lo)
        return min(max(self.bound, self.lo + margin), self.hi - margin)

    @cached_property
    def _stakes(self) -> NDArray[np.float64]:
        """Gain per unit above the bound, `[bets]`; negative: per unit below it."""
        return -self.bets / (self.hi - self._bound) if self.at_least else self.bets / (self._bound - self.lo)
