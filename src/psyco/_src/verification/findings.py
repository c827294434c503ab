"""Findings: the result for each constraint and question, in numbers and in words, and their joint guarantee."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.wording import plural
from psyco._src.envs.variants import describe_adversary, describe_family
from psyco._src.logic.ast import LongRun, Quantity, Reaching, Requirement
from psyco._src.verification.base import Counts, Guarantee, MeanTest, Test, Verdict
from psyco._src.verification.bayes import belief, posterior_mass
from psyco._src.verification.environments import EnvironmentsTally, EnvironmentsTest
from psyco._src.verification.rounding import confidence_percent, percent, rounded_down, rounded_up
from psyco._src.verification.tally import MeanTally, Tally, observed_value

MAX_BAD_ENVIRONMENTS = 5  # that a certificate lists


@dataclass(frozen=True)
class Finding:
    """The result for one constraint on a probability."""

    constraint: str  # as text
    name: str | None
    verdict: Verdict
    episodes: int
    satisfied: int  # episodes in which the formula held
    violated: int
    confidence: float  # posterior probability that the constraint holds (c_sat), from a uniform prior
    lower: float  # bounds on the true probability, in the sense of the guarantee
    upper: float
    guarantee: Guarantee
    interval_level: float  # of both bounds together

    @property
    def share(self) -> float:
        """The observed share of satisfying episodes; biased if the test is sequential."""
        return self.satisfied / self.episodes if self.episodes else float("nan")

    @property
    def label(self) -> str:
        """The name of the constraint, or its text."""
        return self.name or self.constraint

    @property
    def estimand(self) -> str:
        """The bounded quantity, in words."""
        return "probability"

    @property
    def statistic(self) -> str:
        """The observed quantity, in a word."""
        return "share"

    @property
    def observed(self) -> str:
        """The outcomes in words."""
        return f"{self.satisfied:,} satisfied, {self.violated:,} violated (share {self.share:.4f})"

    @property
    def interval(self) -> str:
        """The bounds in words, with their level."""
        return _interval(self, f"between {rounded_down(self.lower)} and {rounded_up(self.upper)}")


@dataclass(frozen=True)
class MeanFinding:
    """The result for one constraint on an expected value, a rate or a CVaR."""

    constraint: str  # as text
    name: str | None
    verdict: Verdict
    episodes: int
    mean: float  # of the episodes' values; for a rate, of all their steps; for a CVaR, of the worst values
    confidence: float  # posterior probability that the constraint holds (c_sat), by Student's t
    lower: float  # bounds on the true mean, in the sense of the guarantee
    upper: float
    interval_level: float  # of both bounds together
    range: tuple[float, float]  # of the value of an episode; for a rate, of the average of its steps
    unreached: int | None  # for [ F φ ]: episodes in which φ never held, whose value runs to their end
    restart: str | None  # for a rate: when the system starts again
    guarantee: Guarantee
    cvar: float | None = None  # the level of a CVaR

    @property
    def label(self) -> str:
        """The name of the constraint, or its text."""
        return self.name or self.constraint

    @property
    def estimand(self) -> str:
        """The bounded quantity, in words."""
        return "expected value" if self.statistic == "mean" else self.statistic

    @property
    def statistic(self) -> str:
        """The observed quantity, in a word."""
        return "CVaR" if self.cvar is not None else "mean" if self.restart is None else "rate"

    @property
    def observed(self) -> str:
        """The observed mean in words."""
        if self.cvar is not None:
            worst = f"the mean of the worst {percent(1.0 - self.cvar)}"
            return f"CVaR {format_mean(self)}, {worst}{_circumstances_text(self)}"
        average = f"mean {format_mean(self)}" if self.restart is None else f"{format_mean(self)} per step"
        return f"{average}{_circumstances_text(self)}"

    @property
    def interval(self) -> str:
        """The bounds in words, with their level."""
        return _interval(self, format_bounds(self))


@dataclass(frozen=True)
class BadEnvironment:
    """An environment that misses the bound by the test of its own episodes, which may err."""

    member: int  # its number in the family
    parameters: dict[str, float]
    satisfied: int
    violated: int


@dataclass(frozen=True)
class EnvironmentsFinding:
    """The result for one constraint on a share of environments."""

    constraint: str  # as text
    name: str | None
    verdict: Verdict
    episodes: int
    environments: int
    good: int  # environments whose own test says that they meet the bound
    bad: int  # environments whose own test says that they miss it
    worst: tuple[BadEnvironment, ...]  # those of the bad ones with the lowest observed shares
    confidence: float  # posterior probability (c_sat) of more good verdicts than too small a share could bring about
    lower: float  # bounds on the share of environments that meet the bound, in the sense of the guarantee
    upper: float
    guarantee: Guarantee
    interval_level: float  # of both bounds together

    @property
    def label(self) -> str:
        """The name of the constraint, or its text."""
        return self.name or self.constraint

    @property
    def estimand(self) -> str:
        """The bounded quantity, in words."""
        return "share of environments"

    @property
    def statistic(self) -> str:
        """The observed quantity, in words."""
        return "share of good environments"

    @property
    def consistent(self) -> bool:
        """Whether the numbers may be those of one test: a damaged or forged file may hold any."""
        counts = [self.good, self.bad, *(x for each in self.worst for x in (each.satisfied, each.violated))]
        return (
            min(counts) >= 0
            and self.good + self.bad <= self.environments <= self.episodes
            and len(self.worst) == min(self.bad, MAX_BAD_ENVIRONMENTS)
            and all(0 < each.satisfied + each.violated <= self.episodes for each in self.worst)
            and all(0.0 <= x <= 1.0 for x in (self.lower, self.upper, self.confidence))
        )

    @property
    def mean(self) -> float:
        """The share of environments whose test says that they meet the bound; 0 if none was finished."""
        return self.good / max(self.environments, 1)

    @property
    def range(self) -> tuple[float, float]:
        """The range of a share."""
        return 0.0, 1.0

    @property
    def observed(self) -> str:
        """The environments in words."""
        if not self.environments:
            return "the episodes did not suffice for the first environment"
        left = self.environments - self.good - self.bad
        text = f"{self.environments:,} environments, {self.good:,} good, {self.bad:,} bad, {left:,} given up"
        for each in self.worst[:1]:
            values = ", ".join(f"{name}={value:.4g}" for name, value in each.parameters.items())
            seen = f"{each.satisfied:,} of {each.satisfied + each.violated:,} satisfied"
            text += f"; the lowest observed share with {values}: {seen}"
        return text

    @property
    def interval(self) -> str:
        """The bounds in words, with their level."""
        return _interval(self, f"between {rounded_down(self.lower)} and {rounded_up(self.upper)}")


AnyFinding: TypeAlias = Finding | MeanFinding | EnvironmentsFinding


@dataclass(frozen=True)
class Answer:
    """An estimate with an interval; both bounds hold together at the level."""

    question: str  # as text
    name: str | None
    episodes: int
    mean: float  # a share of outcomes, a mean of values, or a rate
    lower: float  # bounds on the true value
    upper: float
    interval_level: float  # of both bounds together
    kind: str  # for programs: anytime, valid under any stopping rule; or width, of a rule for a width fixed beforehand
    range: tuple[float, float]  # as in MeanFinding
    unreached: int | None
    restart: str | None
    width: float | None  # requested width; None: as narrow as the episodes allow

    @property
    def summary(self) -> str:
        """The answer in one line."""
        low, high = self.range
        known = f", if no value can lie outside of [{low:.12g}, {high:.12g}]" * (self.range != (0.0, 1.0))
        when = "of a width fixed beforehand" if self.kind == "width" else "at all times"
        level = f"{confidence_percent(self.interval_level)} confidence interval, {when}{known}"
        wide = self.width is not None and self.upper - self.lower > self.width
        short = f"; not yet as narrow as {self.width:g}" if wide else ""
        seen = f"after {plural(self.episodes, 'episode')}{_circumstances_text(self)}"
        return f"{format_mean(self)}, {format_bounds(self)} ({level}{short}) {seen}"


@dataclass(frozen=True)
class ShareEstimate:
    """The share of episodes that satisfied one formula, with the interval of Clopper and Pearson."""

    satisfied: int
    lower: float
    upper: float
    interval_level: float  # of both bounds together


@dataclass(frozen=True)
class MeanEstimate:
    """The mean or rate of one constraint, with the interval of the method `fixed`."""

    mean: float
    lower: float
    upper: float
    interval_level: float  # of both bounds together


@dataclass(frozen=True)
class Estimate:
    """Estimates from a fixed number of further episodes of a look, after the decision: no stopping rule biases them."""

    episodes: int
    constraints: tuple[ShareEstimate | MeanEstimate, ...]  # one per constraint
    mean_return: float
    return_standard_error: float


# ---- words ------------------------------------------------------------------------------------------------------


def _interval(found: AnyFinding, bounds: str) -> str:
    kind = "credible" if found.guarantee.kind == "posterior" else "confidence"
    # A verdict spends the whole error on one side, so the requirement may still lie inside the two-sided interval.
    why = "" if found.verdict is Verdict.UNDECIDED else "; the verdict needs one side at a time"
    return f"{bounds} ({confidence_percent(found.interval_level)} {kind} interval, two-sided{why})"


def format_bounds(found: MeanFinding | Answer | MeanEstimate) -> str:
    """Return the bounds of a mean, rounded outward."""
    digits = _digits(found)
    return f"between {rounded_down(found.lower, digits)} and {rounded_up(found.upper, digits)}"


def format_mean(found: MeanFinding | Answer | MeanEstimate) -> str:
    """Return a mean with as many digits as its bounds."""
    return f"{found.mean:.{_digits(found)}f}"


def _digits(found: MeanFinding | Answer | MeanEstimate) -> int:
    """Return decimals that show three digits of the interval's width: rates are small, and costs may be large."""
    width = found.upper - found.lower
    return 4 if width <= 0.0 else min(max(2 - math.floor(math.log10(width)), 2), 12)


def _circumstances_text(found: MeanFinding | Answer) -> str:
    if found.unreached is not None:
        return f"; {found.unreached:,} of them did not get there, and count to their end"
    return "" if found.restart is None else f"; the system starts again {found.restart}"


# ---- from tests -------------------------------------------------------------------------------------------------


def make_findings(
    requirement: Requirement,
    tests: Sequence[Test | MeanTest] | Sequence[EnvironmentsTest],
    tallies: Sequence[Tally | MeanTally] | Sequence[EnvironmentsTally],
    reached: Any,
    horizon: int | None,
) -> tuple[AnyFinding, ...]:
    """Return one finding per constraint; `reached` and `horizon` are those of `circumstances`."""
    findings: list[AnyFinding] = []
    paired: Any = zip(requirement.constraints, tests, tallies, strict=True)
    for stated, test, tally in paired:
        if isinstance(tally, EnvironmentsTally):
            findings.append(_environments_finding(stated, test, tally))
            continue
        delta = test.task.false_accept
        common: dict[str, Any] = {
            "constraint": str(stated),
            "name": stated.name,
            "verdict": tally.verdict,
            "episodes": tally.episodes,
            "confidence": belief(test, tally),
            "guarantee": test.guarantee,
            "interval_level": 1.0 - delta,
        }
        state = tally.counts if isinstance(tally, Tally) else tally.state
        common["lower"], common["upper"] = test.bounds(state, delta / 2.0)  # half of the error for either side
        if isinstance(tally, Tally):
            satisfied, violated = map(int, tally.counts)
            findings.append(Finding(satisfied=satisfied, violated=violated, **common))
        else:
            task: Any = test.task
            unreached, restart = circumstances(requirement, stated, reached, tally.episodes, horizon)
            findings.append(
                MeanFinding(
                    mean=observed_value(test, tally),
                    range=(task.lo, task.hi),
                    unreached=unreached,
                    restart=restart,
                    cvar=task.cvar,
                    **common,
                )
            )
    return tuple(findings)


def _environments_finding(stated: Any, test: Any, tally: EnvironmentsTally) -> EnvironmentsFinding:
    from psyco._src.envs.family import member_parameters  # reading a certificate needs no JAX

    good, delta = tally.count(Verdict.SATISFIED), test.false_accept
    rejected = [i for i, score in enumerate(tally.scores) if score.verdict is Verdict.VIOLATED]
    rejected.sort(key=lambda i: tally.scores[i].satisfied / (tally.scores[i].satisfied + tally.scores[i].violated))
    lower, upper = test.bounds(tally.table, delta / 2.0)
    return EnvironmentsFinding(
        str(stated),
        stated.name,
        tally.verdict,
        tally.episodes,
        len(tally.scores),
        good,
        len(rejected),
        tuple(
            BadEnvironment(
                tally.members[i],
                member_parameters(tally.family, tally.members[i]),
                tally.scores[i].satisfied,
                tally.scores[i].violated,
            )
            for i in rejected[:MAX_BAD_ENVIRONMENTS]
        ),
        float(posterior_mass(Counts(good, len(tally.scores) - good), test.largest_good_share, 1.0)),
        lower,
        upper,
        test.guarantee,
        1.0 - delta,
    )


def circumstances(
    requirement: Requirement, stated: Any, reached: Any, episodes: int, horizon: int | None
) -> tuple[int | None, str | None]:
    """Return the number of episodes that never reached their target, and when a rate's system starts again.

    Args:
        requirement: the measured requirement.
        stated: its expectation or question.
        reached: `Episodes.reached` `[B, M]`; None if unknown.
        episodes: number of episodes consumed, the first ones of `reached`.
        horizon: maximum length of an episode; None if unknown.
    """
    match stated.subject:
        case Quantity(_, Reaching()) if reached is not None:
            return int((~reached[:episodes, requirement.measured.index(stated)]).sum()), None
        case Quantity(_, LongRun()):
            limit = "" if horizon is None else f", by itself or after {horizon:,} steps"
            return None, f"whenever an episode ends{limit}"
    return None, None


def standard_error(returns: NDArray[np.float64]) -> float:
    """Return the standard error of the mean; 0 for a single value."""
    return float(returns.std(ddof=1) / np.sqrt(len(returns))) if len(returns) > 1 else 0.0


# ---- the joint guarantee ----------------------------------------------------------------------------------------


def joint_guarantee(
    findings: Sequence[AnyFinding],
    *,
    answered: bool,
    looks: int,
    share: float,
    family: Mapping[str, str] | None = None,
    adversary: Mapping[str, Any] | None = None,
) -> Guarantee:
    """Return the guarantee of the verdict about the whole requirement, over all looks.

    Args:
        findings: one per constraint.
        answered: whether the requirement has questions only.
        looks: number of looks that share the permitted error.
        share: fraction of the permitted error of the last look.
        family: distributions of the parameters that vary, by name; None: there is one environment.
        adversary: kind, size and policy of an adversary that acted in the episodes; None: there is none.
    """
    if not findings:
        statement = (
            "There is no constraint, so no verdict can be wrong; each answer says what it is worth."
            if answered
            else "There is no constraint, so there is nothing to be wrong about."
        )
        return Guarantee("exact", statement, 0.0, 0.0)
    own = findings[0].guarantee
    if own.false_accept is None:
        accept = reject = None
        statement = own.statement if len(findings) == 1 else _joint_beliefs(findings)
        jointly = "so each of them holds the belief to a stricter level than a single one would have."
    else:
        accept = max(f.guarantee.false_accept or 0.0 for f in findings)
        reject = sum(f.guarantee.false_reject or 0.0 for f in findings)
        statement = own.statement if len(findings) == 1 else _joint_error_rates(findings, accept, reject)
        # This look has its share of the error; all looks together have the whole.
        accept, reject = accept / share, reject / share
        jointly = (
            f"so the chance that any of them wrongly ends in SATISFIED is at most {percent(accept)} in total, "
            f"and that any wrongly ends in VIOLATED at most {percent(reject)}."
        )
    if looks > 1:
        statement += (
            f" There were {looks} looks, each at fresh episodes of its own. They share the permitted error, {jointly}"
        )
    elif share < 1.0:
        statement += f" This look used {percent(share)} of the permitted error; the rest was kept for further looks."
    if family:
        statement += f" {_family_statement(findings, family)}"
    if adversary:
        other = "another deviation" if "agent" in adversary else "another adversary of this kind and size"
        statement += (
            f" All of this is about episodes against {describe_adversary(adversary)}: {other} may do more harm, and "
            "without one the probabilities are others."
        )
    return Guarantee(own.kind, statement, accept, reject, _joint_condition(findings))


def _family_statement(findings: Sequence[AnyFinding], family: Mapping[str, str]) -> str:
    """Return what a guarantee about a family is about."""
    members = f"the family {describe_family(family)}"
    if any(isinstance(f, EnvironmentsFinding) for f in findings):
        return f"The environments are drawn from {members}."
    return (
        f"Each episode took place in an environment of its own, drawn from {members}: the statement is about such "
        "episodes, and single environments may do worse."
    )


def _joint_error_rates(findings: Sequence[AnyFinding], accept: float, reject: float) -> str:
    condition = _joint_condition(findings)
    return (
        f"If at least one of the {len(findings)} constraints fails, the chance that all are called satisfied "
        f"is at most {percent(accept)}; if all hold, the chance that one is called violated is at most "
        f"{percent(reject)}. "
        + (f"This is so {condition}. " if condition else "")
        + "The statement about each constraint by itself is listed with it."
    )


def _joint_beliefs(findings: Sequence[AnyFinding]) -> str:
    levels = ", ".join(f"{confidence_percent(f.interval_level)} for {f.label}" for f in findings)
    return (
        f"Each of the {len(findings)} constraints is judged by itself: SATISFIED or VIOLATED is said as soon as the "
        f"belief in it reaches its own level ({levels}). Wrong verdicts can be more frequent than these numbers "
        "suggest, and of all constraints together no belief is stated."
    )


def _joint_condition(findings: Sequence[AnyFinding]) -> str | None:
    """Return the conditions of all constraints, under which their error rates hold together."""
    conditions = {f.label: f.guarantee.condition for f in findings}
    if len(set(conditions.values())) == 1:
        return findings[0].guarantee.condition
    return "; ".join(f"for {name}, {condition}" for name, condition in conditions.items() if condition)
