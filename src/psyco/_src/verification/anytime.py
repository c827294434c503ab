"""Anytime-valid test of a probability: an e-process, the mixture likelihood ratio against the boundary.

For "p >= a" the evidence that p > a after s satisfied and v violated episodes is

    E(a) = 1/(1-a) ∫_a^1 (q/a)^s ((1-q)/(1-a))^v dq

Under any p <= a this is a nonnegative supermartingale that starts at 1, so the chance that it *ever* reaches 1/δ is at
most δ (Ville's inequality), under any stopping rule. With q = a + u(1-a) it is ∫_0^1 (1 + u(1/a - 1))^s (1-u)^v du:
decreasing in a, so the a with E(a) = 1/δ is a time-uniform lower confidence bound, and the test accepts exactly when
that bound has reached the requirement. Evidence that p < a is the same with the outcomes exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from psyco._src.verification.base import Counts, Guarantee, Task, decisions
from psyco._src.verification.rounding import percent


def log_evidence(counts: Counts, a: float) -> Any:
    """Return log E(a), the evidence that p > a: a mixture uniform over the alternative."""
    with np.errstate(divide="ignore"):  # where p < a is obvious the tail underflows: log 0 = -inf is right
        return _log_evidence_upper_bound(counts, a) + np.log(special.betainc(*_beta_parameters(counts)[::-1], 1.0 - a))


def _log_evidence_upper_bound(counts: Counts, a: float) -> Any:
    """Return an upper bound on log E(a): without the log posterior mass above a, which is slow to compute."""
    s, v = np.asarray(counts.satisfied, np.float64), np.asarray(counts.violated, np.float64)
    return special.betaln(*_beta_parameters(counts)) - s * np.log(a) - (v + 1.0) * np.log1p(-a)


def _beta_parameters(counts: Counts) -> tuple[Any, Any]:
    """Return the parameters of the posterior under a uniform prior."""
    return np.asarray(counts.satisfied, np.float64) + 1.0, np.asarray(counts.violated, np.float64) + 1.0


def lower_bound(counts: Counts, delta: float) -> float:
    """Return the a with E(a) = 1/δ; the true probability ever lies below it with probability at most δ."""
    from scipy.optimize import brentq  # takes long to import

    if counts.satisfied == 0 or delta >= 1.0:
        return 0.0

    def excess(log_a: float) -> float:
        return float(log_evidence(counts, np.exp(log_a))) + np.log(delta)

    share = counts.satisfied / (counts.satisfied + counts.violated)
    low, high = np.log(1e-300), np.log(min(share, np.nextafter(1.0, 0.0)))
    # At the share itself the evidence is at most 1, at 0 it is infinite.
    return float(np.exp(brentq(excess, low, high, xtol=1e-15)))


def confidence_sequence(counts: Counts, delta: float) -> tuple[float, float]:
    """Return time-uniform lower and upper bounds, each wrong at any time with probability at most δ."""
    return lower_bound(counts, delta), 1.0 - lower_bound(counts.swapped, delta)


@dataclass(frozen=True)
class Anytime:
    """Accept, or reject, when the evidence for that reaches 1/`false_accept`, or 1/`false_reject`.

    An interval is accepted when the evidence against each of its two outsides reaches 1/`false_accept`: only one of
    them can be true. It is rejected by the mean of the two evidences, which is an e-process itself.
    """

    task: Task
    error_rate: ClassVar[bool] = True
    sequential: ClassVar[bool] = True
    open_ended: ClassVar[bool] = True

    def decide(self, counts: Counts) -> NDArray[np.int8]:
        """Compare both evidences with their thresholds; the slow part only where the upper bound reaches one."""
        accept, reject = self._enough(_log_evidence_upper_bound, counts)
        possible = accept | reject
        if possible.any():
            s, v = (np.broadcast_to(x, possible.shape)[possible] for x in counts)
            accept[possible], reject[possible] = self._enough(log_evidence, Counts(s, v))
        return decisions(accept, reject)

    def _enough(self, evidence: Any, counts: Counts) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return where the evidence suffices to accept and to reject."""
        shape = np.broadcast_shapes(np.shape(counts.satisfied), np.shape(counts.violated))
        accept, total = np.ones(shape, bool), np.full(shape, -np.inf)
        sides = self.task.sides
        for side in sides:
            own = side.counts(counts)
            accept &= evidence(own, side.p_req) >= -np.log(self.task.false_accept)
            total = np.logaddexp(total, evidence(own.swapped, 1.0 - side.p_req))
        return accept, np.asarray(total - np.log(max(len(sides), 1)) >= -np.log(self.task.false_reject))

    def bounds(self, counts: Counts, delta: float) -> tuple[float, float]:
        """Return the current interval of the confidence sequence."""
        return confidence_sequence(counts, delta)

    @property
    def guarantee(self) -> Guarantee:
        """An error rate under optional stopping."""
        accept, reject = self.task.false_accept, self.task.false_reject
        return Guarantee(
            "anytime",
            f"If the constraint does not hold, the chance that this test ever calls it satisfied is at most "
            f"{percent(accept)}; if it holds, the chance that it ever calls it violated is at most {percent(reject)}. "
            "That is true however many episodes are looked at and whenever one stops.",
            accept,
            reject,
        )
