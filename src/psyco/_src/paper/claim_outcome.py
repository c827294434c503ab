"""Claims, and how they are decided.

A claim is one or more comparisons of an estimate with a limit. It holds where the whole interval of every estimate is
on the claimed side, it does not hold where one interval is wholly on the other side, and else it cannot be decided.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

LEVEL = 0.95  # of every interval


class ClaimOutcome(Enum):
    """What becomes of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "cannot be decided"


class ClaimEstimate(NamedTuple):
    """A mean over repetitions, and an interval for it at LEVEL."""

    value: float
    low: float
    high: float


class Comparison(NamedTuple):
    """An estimate, and the open range in which the claim wants it."""

    what: str
    estimate: ClaimEstimate
    above: float = -math.inf
    below: float = math.inf
    digits: int = 2

    @property
    def outcome(self) -> ClaimOutcome:
        """Whether the estimate lies in the range, uncertainty included."""
        _, low, high = self.estimate
        if self.above < low and high < self.below:
            return ClaimOutcome.HOLDS
        return ClaimOutcome.FAILS if high <= self.above or self.below <= low else ClaimOutcome.OPEN

    @property
    def measured(self) -> str:
        """`-24.75 [-26.10, -23.40]`."""
        value, low, high = (_number(x, self.digits) for x in self.estimate)
        return f"{value} [{low}, {high}]"

    @property
    def wanted(self) -> str:
        """`> 0`, `< 1` or `0.85 to 0.86`."""
        if math.isinf(self.below):
            return f"> {self.above:g}"
        return f"< {self.below:g}" if math.isinf(self.above) else f"{self.above:g} to {self.below:g}"


@dataclass(frozen=True)
class Claim:
    """A row of the table."""

    name: str
    where: str  # in the paper
    text: str  # the claim, in our words
    statistic: str  # what decides it
    comparisons: tuple[Comparison, ...]
    seen: str  # what we see

    @property
    def outcome(self) -> ClaimOutcome:
        """It holds if every comparison does, and fails if one does."""
        outcomes = {comparison.outcome for comparison in self.comparisons}
        if ClaimOutcome.FAILS in outcomes:
            return ClaimOutcome.FAILS
        return ClaimOutcome.OPEN if ClaimOutcome.OPEN in outcomes else ClaimOutcome.HOLDS


def mean_of(values: ArrayLike, *, share: bool = False) -> ClaimEstimate:
    """The mean of runs with Student's t interval, which is also the credible interval under the usual flat prior.

    With five repetitions a bootstrap interval would be much too narrow. A run without a value (NaN) does not count.
    The mean of a `share` lies in [0, 1], so its interval does too.
    """
    x = np.asarray(values, np.float64)
    x = x[np.isfinite(x)]
    if len(x) < 2:
        return ClaimEstimate(float(x.sum()) if len(x) else math.nan, -math.inf, math.inf)
    half = special.stdtrit(len(x) - 1, (1 + LEVEL) / 2) * x.std(ddof=1) / math.sqrt(len(x))
    low, high = x.mean() - half, x.mean() + half
    return ClaimEstimate(
        float(x.mean()), float(max(0.0, low) if share else low), float(min(1.0, high) if share else high)
    )


def posterior_of(satisfied: int, episodes: int) -> ClaimEstimate:
    """The share of episodes and the central credible interval of its probability, from a uniform prior."""
    tail = (1 - LEVEL) / 2
    low, high = special.betaincinv(satisfied + 1, episodes - satisfied + 1, (tail, 1 - tail))
    return ClaimEstimate(satisfied / episodes, float(low), float(high))


def summary(claims: list[Claim]) -> dict[ClaimOutcome, int]:
    """How many there are of each outcome."""
    return {outcome: sum(claim.outcome is outcome for claim in claims) for outcome in ClaimOutcome}


def to_csv(claims: list[Claim]) -> str:
    """One row per comparison."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ("claim", "outcome", "where", "text", "statistic", "comparison", "value", "low", "high", "above", "below",
         "comparison outcome", "seen")
    )  # fmt: skip
    for claim in claims:
        for c in claim.comparisons:
            numbers = [f"{x:.6g}" for x in (*c.estimate, c.above, c.below)]
            writer.writerow(
                (claim.name, claim.outcome.value, claim.where, claim.text, claim.statistic, c.what, *numbers,
                 c.outcome.value, claim.seen)
            )  # fmt: skip
    return out.getvalue()


def to_markdown(claims: list[Claim]) -> str:
    """A table to be quoted."""
    rows = [
        f"| {claim.outcome.value} | {claim.text} | "
        f"{'; '.join(f'{c.what}: {c.measured}' for c in claim.comparisons)} | {claim.where} |"
        for claim in claims
    ]
    return "\n".join(["| outcome | claim | measured | section |", "|---|---|---|---|", *rows]) + "\n"


def _number(x: float, digits: int) -> str:
    if math.isinf(x):
        return "-∞" if x < 0 else "∞"
    return f"{x:.{digits}f}" if x == x else "none"
