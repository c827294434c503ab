"""Wald's sequential probability ratio test (SPRT), with an indifference region around the required probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.verification.anytime import confidence_sequence
from psyco._src.verification.base import Counts, Guarantee, Side, Task, decisions
from psyco._src.verification.rounding import percent


@dataclass(frozen=True)
class SPRT:
    """Accept when "p is p_req + ε" is 1/δ times as likely as "p is p_req - ε", reject in the opposite case.

    Wald's own thresholds (1-δ)/δ bound the error by δ/(1-δ); 1/δ bounds it by δ, at next to no cost.

    Args:
        task: the constraint and the permitted error rates.
        indifference: ε. Within ε of p_req either verdict is acceptable. Near 0 and 1 the region is cut to half the
            distance.
    """

    task: Task
    indifference: float = 0.02
    error_rate: ClassVar[bool] = True
    sequential: ClassVar[bool] = True
    open_ended: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.indifference, int | float) or not 0.0 < self.indifference < 0.5:
            raise RunError(f"indifference is a number between 0 and 0.5, got {self.indifference!r}")

    def region(self, side: Side) -> tuple[float, float]:
        """Return the two probabilities whose likelihoods are compared."""
        p = side.p_req
        return max(p - self.indifference, p / 2.0), min(p + self.indifference, (1.0 + p) / 2.0)

    def decide(self, counts: Counts) -> NDArray[np.int8]:
        """Compare the likelihood ratio with 1/δ; the two sides of an interval combine as in `Anytime`."""
        shape = np.broadcast_shapes(np.shape(counts.satisfied), np.shape(counts.violated))
        accept, total = np.ones(shape, bool), np.full(shape, -np.inf)
        sides = self.task.sides
        for side in sides:
            ratio = self._log_ratio(side, side.counts(counts))
            accept &= ratio >= -np.log(self.task.false_accept)
            total = np.logaddexp(total, -ratio)
        reject = total - np.log(max(len(sides), 1)) >= -np.log(self.task.false_reject)
        return decisions(accept, reject)

    def _log_ratio(self, side: Side, counts: Counts) -> Any:
        low, high = self.region(side)
        return counts.satisfied * np.log(high / low) + counts.violated * np.log((1.0 - high) / (1.0 - low))

    def bounds(self, counts: Counts, delta: float) -> tuple[float, float]:
        """Return the confidence sequence of `Anytime`: a likelihood ratio of two points gives no interval."""
        return confidence_sequence(counts, delta)

    @property
    def guarantee(self) -> Guarantee:
        """An error rate outside of the indifference region."""
        accept, reject = self.task.false_accept, self.task.false_reject
        regions = [sorted(map(side.bound, self.region(side))) for side in self.task.sides]
        where = " or ".join(f"between {low:.12g} and {high:.12g}" for low, high in regions)
        condition = f"unless a true probability lies {where}, where either verdict may come" if where else None
        return Guarantee(
            "indifference",
            f"If the constraint does not hold, the chance that this test ever calls it satisfied is at most "
            f"{percent(accept)}; if it holds, the chance that it ever calls it violated is at most {percent(reject)}."
            + (f" This is so {condition}." if condition else ""),
            accept,
            reject,
            condition,
        )
