"""The outcome of a claim, from estimates with intervals.

A claim consists of comparisons of an estimate with limits. It holds if every interval lies within its limits, it fails
if an interval lies outside of them, and otherwise it cannot be decided.
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
    """Outcome of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "cannot be decided"


class ClaimEstimate(NamedTuple):
    """A mean over repetitions and its interval at LEVEL."""

    value: float
    low: float
    high: float


class Comparison(NamedTuple):
    """An estimate and the open interval in which the claim places it."""

    what: str  # name of the estimate
    estimate: ClaimEstimate
    above: float = -math.inf
    below: float = math.inf
    digits: int = 2

    @property
    def outcome(self) -> ClaimOutcome:
        """HOLDS if the whole interval of the estimate is in the range, FAILS if it is outside, else OPEN."""
        _, low, high = self.estimate
        if self.above < low and high < self.below:
            return ClaimOutcome.HOLDS
        return ClaimOutcome.FAILS if high <= self.above or self.below <= low else ClaimOutcome.OPEN

    @property
    def measured(self) -> str:
        """Estimate with its interval, as in `-24.75 [-26.10, -23.40]`."""
        value, low, high = (_number(x, self.digits) for x in self.estimate)
        return f"{value} [{low}, {high}]"

    @property
    def wanted(self) -> str:
        """Claimed range, as in `> 0`, `< 1` or `0.85 to 0.86`."""
        if math.isinf(self.below):
            return f"> {self.above:g}"
        return f"< {self.below:g}" if math.isinf(self.above) else f"{self.above:g} to {self.below:g}"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and the comparisons that decide it."""

    name: str
    where: str  # section and figure of the paper
    text: str  # the claim in one sentence
    statistic: str  # the quantity that is compared
    comparisons: tuple[Comparison, ...]
    seen: str  # our numbers in a sentence

    @property
    def outcome(self) -> ClaimOutcome:
        """HOLDS if every comparison holds, FAILS if one fails, else OPEN."""
        outcomes = {comparison.outcome for comparison in self.comparisons}
        if ClaimOutcome.FAILS in outcomes:
            return ClaimOutcome.FAILS
        return ClaimOutcome.OPEN if ClaimOutcome.OPEN in outcomes else ClaimOutcome.HOLDS


def mean_of(values: ArrayLike, *, share: bool = False) -> ClaimEstimate:
    """Return the mean of runs with Student's t interval, which is also the credible interval under a flat prior.

    With five repetitions a bootstrap interval would be much too narrow. NaN values are ignored. The interval of a
    `share` is cut to [0, 1].
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
    """Return the share of satisfying episodes and the central credible interval under a uniform prior."""
    tail = (1 - LEVEL) / 2
    low, high = special.betaincinv(satisfied + 1, episodes - satisfied + 1, (tail, 1 - tail))
    return ClaimEstimate(satisfied / episodes, float(low), float(high))


def summary(claims: list[Claim]) -> dict[ClaimOutcome, int]:
    """Return the number of claims with each outcome."""
    return {outcome: sum(claim.outcome is outcome for claim in claims) for outcome in ClaimOutcome}


def to_csv(claims: list[Claim]) -> str:
    """Return a table with one row per comparison."""
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
    """Return a table with one row per claim."""
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
