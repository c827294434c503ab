"""What was found about one constraint or question, in numbers and in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from psyco._src.verification.base import Guarantee, Verdict, confidence_percent, rounded_down, rounded_up


@dataclass(frozen=True)
class Finding:
    """What was found about one constraint on a probability."""

    constraint: str  # as text
    name: str | None
    verdict: Verdict
    episodes: int
    satisfied: int  # episodes in which the formula held
    violated: int
    confidence: float  # posterior probability that the constraint holds (c_sat), from a uniform prior
    lower: float  # bounds for the true probability, in the sense of the guarantee
    upper: float
    guarantee: Guarantee
    level: float | None = (
        None  # of both bounds together; None: each of them holds at the confidence by itself
    )

    @property
    def share(self) -> float:
        """The observed share of satisfying episodes; where the test chose its end by looking, it is biased."""
        return self.satisfied / self.episodes if self.episodes else float("nan")

    @property
    def called(self) -> str:
        """A name for it in sentences."""
        return self.name or self.constraint

    @property
    def about(self) -> str:
        """What is bounded."""
        return "probability"

    @property
    def observed(self) -> str:
        """The outcomes in words."""
        return f"{self.satisfied:,} satisfied, {self.violated:,} violated (share {self.share:.4f})"

    @property
    def interval(self) -> str:
        """The bounds in words, with what they are worth."""
        return _interval(self, f"between {rounded_down(self.lower)} and {rounded_up(self.upper)}")


@dataclass(frozen=True)
class MeanFinding:
    """What was found about one constraint on an expected value, or on a rate."""

    constraint: str  # as text
    name: str | None
    verdict: Verdict
    episodes: int
    mean: float  # of the episodes' values; of a rate, of all their steps
    confidence: float  # posterior probability that the constraint holds (c_sat), by Student's t
    lower: float  # bounds for the true mean, in the sense of the guarantee
    upper: float
    level: float  # of both bounds together
    range: tuple[float, float]  # no episode can have a value outside of it; of a rate, no average of a step
    unreached: int | None  # of [ F φ ]: episodes in which φ never held, so that they count to their end
    restart: str | None  # of a rate: when the system starts again
    guarantee: Guarantee

    @property
    def called(self) -> str:
        """A name for it in sentences."""
        return self.name or self.constraint

    @property
    def about(self) -> str:
        """What is bounded."""
        return "expected value" if self.restart is None else "rate"

    @property
    def observed(self) -> str:
        """The values in words."""
        average = f"mean {shown(self)}" if self.restart is None else f"{shown(self)} per step"
        return f"{average}{_circumstances(self)}"

    @property
    def interval(self) -> str:
        """The bounds in words, with what they are worth."""
        return _interval(self, between(self))


@dataclass(frozen=True)
class Answer:
    """An estimate with an interval that holds at all times: whenever one stops, both bounds are right at the level."""

    question: str  # as text
    name: str | None
    episodes: int
    mean: float  # of the episodes' values: a share of outcomes, a mean or a rate
    lower: float  # bounds for the true one
    upper: float
    level: float  # of both bounds together
    range: tuple[float, float]  # no episode can have a value outside of it; of a rate, no average of a step
    unreached: int | None  # as in MeanFinding
    restart: str | None
    width: float | None  # that was asked for; None: as narrow as the episodes allowed

    @property
    def words(self) -> str:
        """All of it in one line."""
        low, high = self.range
        known = f", if no value can lie outside of [{low:.12g}, {high:.12g}]" * (self.range != (0.0, 1.0))
        level = f"{confidence_percent(self.level)} confidence interval, at all times{known}"
        wide = self.width is not None and self.upper - self.lower > self.width
        short = f"; not yet as narrow as {self.width:g}" if wide else ""
        seen = f"after {self.episodes:,} episodes{_circumstances(self)}"
        return f"{shown(self)}, {between(self)} ({level}{short}) {seen}"


def _interval(found: Finding | MeanFinding, between: str) -> str:
    if found.level is None:
        return f"{between} (each bound by itself)"
    kind = "credible" if found.guarantee.kind == "posterior" else "confidence"
    # A verdict spends the whole error on one side, so the requirement may still lie inside.
    why = "" if found.verdict is Verdict.UNDECIDED else "; the verdict needs one side at a time"
    return f"{between} ({confidence_percent(found.level)} {kind} interval, two-sided{why})"


def between(found: MeanFinding | Answer | MeanEstimate) -> str:
    """The bounds of a mean, rounded outward."""
    digits = _digits(found)
    return f"between {rounded_down(found.lower, digits)} and {rounded_up(found.upper, digits)}"


def shown(found: MeanFinding | Answer | MeanEstimate) -> str:
    """A mean with as many digits as its bounds have."""
    return f"{found.mean:.{_digits(found)}f}"


def _digits(found: MeanFinding | Answer | MeanEstimate) -> int:
    """So many that three of the interval's width are seen: rates are small, and costs may be large."""
    width = found.upper - found.lower
    return 4 if width <= 0.0 else min(max(2 - math.floor(math.log10(width)), 2), 12)


def _circumstances(found: MeanFinding | Answer) -> str:
    if found.unreached is not None:
        return f"; {found.unreached:,} of them did not get there, and count to their end"
    return "" if found.restart is None else f"; the system starts again {found.restart}"


# ---- estimates --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShareEstimate:
    """How often one constraint's formula held, with Clopper and Pearson's interval."""

    satisfied: int
    lower: float
    upper: float
    level: float  # of both bounds together


@dataclass(frozen=True)
class MeanEstimate:
    """The mean, or rate, that one constraint is about, with the interval of the method `fixed`."""

    mean: float
    lower: float
    upper: float
    level: float  # of both bounds together


@dataclass(frozen=True)
class Estimate:
    """Further episodes of the same look, as many as were asked for: no stopping rule biases them.

    They come after the decision and are no part of it.
    """

    episodes: int
    shares: tuple[ShareEstimate | MeanEstimate, ...]  # per constraint
    mean_return: float
    return_error: float  # standard error of that mean


# ---- reading ----------------------------------------------------------------------------------------------------


def read_finding(content: dict[str, Any]) -> Finding | MeanFinding:
    """From JSON."""
    verdict, guarantee = Verdict[content["verdict"]], Guarantee(**content["guarantee"])
    check(content, str, "constraint")
    check(content, int, "episodes")
    check(content, int | float, "confidence", "lower", "upper")
    if "mean" in content:
        check(content, int | float, "mean", "level")
        return MeanFinding(
            **{**content, "verdict": verdict, "guarantee": guarantee, "range": _range(content)}
        )
    check(content, int, "satisfied", "violated")
    return Finding(**{**content, "verdict": verdict, "guarantee": guarantee})


def read_answer(content: dict[str, Any]) -> Answer:
    """From JSON."""
    check(content, str, "question")
    check(content, int, "episodes")
    check(content, int | float, "mean", "lower", "upper", "level")
    return Answer(**{**content, "range": _range(content)})


def read_estimate(content: dict[str, Any] | None) -> Estimate | None:
    """From JSON."""
    if content is None:
        return None
    check(content, int, "episodes")
    check(content, int | float, "mean_return", "return_error")
    shares = tuple((MeanEstimate if "mean" in each else ShareEstimate)(**each) for each in content["shares"])
    return Estimate(**{**content, "shares": shares})


def _range(content: dict[str, Any]) -> tuple[float, float]:
    low, high = content["range"]
    check({"low": low, "high": high}, int | float, "low", "high")
    return low, high


def check(content: dict[str, Any], kind: Any, *names: str) -> None:
    """A damaged file may hold anything anywhere; what reads it counts on numbers."""
    for name in names:
        if not isinstance(content[name], kind):
            raise TypeError(f"{name} is {content[name]!r}")
