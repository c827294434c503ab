"""The test of a share of environments: P>=p in 95% of environments, with optional stopping at both levels.

Environments are drawn from a family, and each plays episodes until its own test ends. Let the inner test be the
e-process E of `anytime` for "this environment meets the bound", stopped at any time τ, and X = min(E_τ, 1/α) α its
score in [0, 1]. In an environment that misses the bound E[E_τ] <= 1, so E[X] <= α; in one that meets it X <= 1. If a
share b > β = 1 - g of the environments misses the bound, then

    E[X] <= 1 - b + b α <= 1 - β (1 - α) = m,

and scores of environments are independent. So the wealth Π (1 + u (X_i / m - 1)) of bets 0 <= u <= 1 is an e-process
over environments: whenever it reaches 1/δ, at least a share g meets the bound, except with probability δ (Ville's
inequality). Where and why the inner tests stop does not matter, so hopeless environments are dropped early and
environments near the bound are given up: their low score only counts against the claim. VIOLATED is the same with the
evidence that an environment misses the bound, whose mean score is at most β + (1 - β) α if g holds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from psyco._src.core.errors import RequirementError, RunError
from psyco._src.envs.variants import is_family
from psyco._src.logic.ast import Constraint, Requirement
from psyco._src.verification.anytime import Anytime, log_evidence
from psyco._src.verification.base import (
    ACCEPT,
    CONTINUE,
    REJECT,
    Counts,
    Guarantee,
    Task,
    Verdict,
    decisions,
    first_decision,
)
from psyco._src.verification.betting import BETS, WEIGHTS
from psyco._src.verification.methods import DEFAULT_METHOD
from psyco._src.verification.rounding import percent

if TYPE_CHECKING:
    from psyco._src.envs.base import Domain

# α of the inner tests: at most MAX_INNER_ERROR, and at most INNER_SLACK / β. A small one makes an environment
# expensive. A large one leaves room between the share that is needed and g: β α. At β = 0.05 and α from 0.1 to 0.5 the
# number of episodes changes by a fifth.
MAX_INNER_ERROR, INNER_SLACK = 0.2, 0.02
INNER_REJECT_ERROR = 0.05  # at most; where g is larger than 95%, 1 - g
GIVE_UP = 200.0  # an environment plays at most this over 1 - p episodes
VERDICTS = {ACCEPT: Verdict.SATISFIED, REJECT: Verdict.VIOLATED, CONTINUE: Verdict.UNDECIDED}
# Half of the wealth bets all on every environment: most families that pass have hardly a bad one.
LOG_WEIGHTS = np.log(np.append(WEIGHTS, 1.0) / 2.0)
ALL_BETS = np.append(BETS, 1.0)


class EnvironmentScore(NamedTuple):
    """The result of one environment for one constraint."""

    satisfied: int
    violated: int
    accept: float  # score for "it meets the bound"
    reject: float  # score for "it misses the bound"
    verdict: Verdict


@dataclass(frozen=True)
class EnvironmentsTest:
    """The test of one constraint on a share of environments."""

    constraint: Constraint
    false_accept: float
    false_reject: float
    error_rate: ClassVar[bool] = True
    sequential: ClassVar[bool] = True
    open_ended: ClassVar[bool] = True

    @property
    def required(self) -> float:
        """The share of environments that must meet the bound."""
        assert self.constraint.environments is not None
        return self.constraint.environments

    @property
    def inner_error(self) -> float:
        """The α of the evidence that an environment meets the bound."""
        return min(MAX_INNER_ERROR, INNER_SLACK / (1.0 - self.required))

    @property
    def inner_reject_error(self) -> float:
        """The α of the evidence that an environment misses the bound."""
        return min(INNER_REJECT_ERROR, 1.0 - self.required)

    @property
    def largest_good_share(self) -> float:
        """The m above: where too few environments meet the bound, no larger share is called good on average."""
        return 1.0 - (1.0 - self.required) * (1.0 - self.inner_error)

    @cached_property
    def inner(self) -> Anytime:
        """The test of one environment."""
        alone = dataclasses.replace(self.constraint, environments=None)
        return Anytime(Task(alone, self.inner_error, self.inner_reject_error))

    @cached_property
    def largest(self) -> int:
        """Number of episodes after which an environment is given up."""
        room = min((min(side.p_req, 1.0 - side.p_req) for side in self.inner.task.sides), default=0.5)
        return math.ceil(GIVE_UP / max(room, 1e-6))

    @property
    def fewest_episodes(self) -> int:
        """The smallest number of episodes that can end in SATISFIED: in all environments the best outcomes."""
        middle = 0.5 * (max(self.constraint.lower, 0.0) + min(self.constraint.upper, 1.0))
        best = 1.0 if self.constraint.upper >= 1.0 else 0.0 if self.constraint.lower <= 0.0 else middle
        n = np.arange(1, self.largest + 1)
        s = np.rint(best * n).astype(np.int64)
        alone = first_decision(self.inner.decide(Counts(s, n - s))) + 1
        count = math.ceil(2.0 * math.log(2.0 / self.false_accept) / (1.0 - self.required)) + 1
        good = np.tile([1.0, 0.0], (count, 1))
        return alone * (first_decision(self.decide(self.log_evidence(good, self.required))) + 1)

    def score(self, outcomes: NDArray[np.bool_]) -> EnvironmentScore | None:
        """Return the result of an environment after these outcomes `[n]`; None: it needs more of them."""
        outcomes = outcomes[: self.largest]
        s = np.cumsum(outcomes, dtype=np.int64)
        codes = self.inner.decide(Counts(s, np.arange(1, len(s) + 1) - s))
        last = first_decision(codes)
        if codes[last] == CONTINUE and len(outcomes) < self.largest:
            return None
        return self.result(Counts(int(s[last]), last + 1 - int(s[last])), int(codes[last]))

    def result(self, counts: Counts, code: int) -> EnvironmentScore:
        """Return the result of an environment whose test has ended at these counts with this decision."""
        accept, reject = (float(score) for score in self.scores(counts))
        return EnvironmentScore(*counts, accept, reject, VERDICTS[code])

    def scores(self, counts: Counts) -> tuple[Any, Any]:
        """Return the scores at these counts, which may be arrays: that the bound is met, and that it is missed."""
        sides = self.inner.task.sides
        if not sides:  # every probability meets the bound
            return np.ones(np.shape(counts.satisfied)), np.zeros(np.shape(counts.satisfied))
        met = np.min([log_evidence(side.counts(counts), side.p_req) for side in sides], axis=0)
        missed = [log_evidence(side.counts(counts).swapped, 1.0 - side.p_req) for side in sides]
        log_reject = special.logsumexp(missed, axis=0) - math.log(len(sides))
        return (
            np.exp(np.minimum(0.0, met + math.log(self.inner_error))),
            np.exp(np.minimum(0.0, log_reject + math.log(self.inner_reject_error))),
        )

    def log_evidence(self, scores: NDArray[np.float64], share: float) -> NDArray[np.float64]:
        """Return log evidence after each environment, `[E, 2]`: that the share is at least, and at most, `share`.

        Args:
            scores: `[E, 2]`, to accept and to reject.
            share: of environments that meet the bound.
        """
        evidence: NDArray[np.float64] = special.logsumexp(
            np.cumsum(self.growth(scores, share), axis=0) + LOG_WEIGHTS, axis=-1
        )
        return evidence

    def growth(self, scores: NDArray[np.float64], share: float) -> NDArray[np.float64]:
        """Return what each environment adds to the log wealth of each bet, `[E, 2, BETS]`."""
        bad = 1.0 - share
        limits = np.array([1.0 - bad * (1.0 - self.inner_error), bad + share * self.inner_reject_error])
        with np.errstate(divide="ignore"):  # a bet of everything may be lost
            added: NDArray[np.float64] = np.log1p(ALL_BETS * (scores[..., None] / limits[:, None] - 1.0))
        return added

    def decide(self, log_evidence: NDArray[np.float64]) -> NDArray[np.int8]:
        """Return ACCEPT, REJECT or CONTINUE for the log evidence `[E, 2]` at the required share."""
        enough = log_evidence >= -np.log([self.false_accept, self.false_reject])
        return decisions(enough[:, 0], enough[:, 1])

    def bounds(self, scores: NDArray[np.float64], delta: float) -> tuple[float, float]:
        """Return bounds on the share of environments that meet the bound, each wrong at any time with error `delta`."""
        if not len(scores):
            return 0.0, 1.0
        low = _boundary(lambda g: self.log_evidence(scores, g)[-1, 0] + math.log(delta))
        high = 1.0 - _boundary(lambda b: self.log_evidence(scores, 1.0 - b)[-1, 1] + math.log(delta))
        return low, high

    @property
    def guarantee(self) -> Guarantee:
        """An error rate under optional stopping of environments and episodes."""
        bound = dataclasses.replace(self.constraint, environments=None, name=None)
        probability = str(bound).partition(" [")[0]
        return Guarantee(
            "anytime",
            f"If fewer than {percent(self.required)} of the environments have {probability}, the chance that this test "
            f"ever calls the constraint satisfied is at most {percent(self.false_accept)}; if at least that many have "
            f"it, the chance that it ever calls it violated is at most {percent(self.false_reject)}. That is true "
            "however many environments and episodes are looked at and whenever one stops. The test of a single "
            f"environment has errors of its own: it calls one that misses the bound good with a chance of at most "
            f"{percent(self.inner_error)}, and one that meets it bad with at most {percent(self.inner_reject_error)}; "
            "the errors above allow for that.",
            self.false_accept,
            self.false_reject,
        )


def _boundary(excess: Callable[[float], float]) -> float:
    """Return the largest share in [0, 1] at which the evidence suffices, by bisection; the evidence falls with it."""
    low, high = 0.0, 1.0
    if excess(1e-9) < 0.0:
        return 0.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) >= 0.0 else (low, middle)
    return low


class EnvironmentsTally(NamedTuple):
    """Environments, episodes and verdict of one test."""

    scores: tuple[EnvironmentScore, ...]
    episodes: int
    verdict: Verdict
    members: tuple[int, ...]  # numbers of the environments
    family: Domain

    @property
    def table(self) -> NDArray[np.float64]:
        """The scores `[E, 2]`."""
        return np.array([[score.accept, score.reject] for score in self.scores]).reshape(-1, 2)

    def count(self, verdict: Verdict) -> int:
        """Return the number of environments with this verdict."""
        return sum(score.verdict is verdict for score in self.scores)


def check_environments(requirement: Requirement, domain: Domain | None = None, method: str = DEFAULT_METHOD) -> bool:
    """Return whether a requirement is about a share of environments; raise for one that cannot be tested.

    Args:
        requirement: the requirement.
        domain: where episodes take place; None: unknown.
        method: the verification method.
    """
    stated = [getattr(each, "environments", None) for each in (*requirement.constraints, *requirement.questions)]
    if not any(share is not None for share in stated):
        return False
    if not all(share is not None for share in stated):
        raise RequirementError(
            "a requirement is about a share of environments in all of its properties or in none",
            advice="verify the other properties by themselves: their episodes draw an environment each",
        )
    if domain is not None and not is_family(domain):
        raise RequirementError(
            f"{domain.name} is a single environment, so it has no share of environments",
            advice="let parameters vary: psyco.vary(domain, max_speed=(0.08, 0.12)), or --vary max_speed=0.08..0.12",
        )
    if method != DEFAULT_METHOD:
        raise RunError(f"a share of environments is tested by the method {DEFAULT_METHOD!r}, not by {method!r}")
    return True


def refuse_environments(requirement: Requirement, why: str) -> None:
    """Raise RequirementError for a requirement about a share of environments, where there is no family."""
    if check_environments(requirement):
        raise RequirementError(
            f"{why}, so a share of environments cannot be tested", advice="leave it out: P>=p [ ... ]"
        )


def make_environment_tests(requirement: Requirement, share: float = 1.0) -> list[EnvironmentsTest]:
    """Return one test per constraint, with the levels of `make_tests`."""
    stated = requirement.probability_constraints
    deltas = [share * (1.0 - each.confidence) for each in stated]
    return [EnvironmentsTest(each, delta, delta / len(stated)) for each, delta in zip(stated, deltas, strict=True)]


# ---- prediction -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EnvironmentsPrediction:
    """Simulated behaviour of a test in environments of one probability, except for a share of hopeless ones."""

    p: float  # probability in the good environments
    bad: float  # share of hopeless environments
    satisfied: float
    violated: float
    undecided: float
    environments: float  # median; infinite if most streams end undecided
    episodes: float
    streams: int

    def to_json(self) -> dict[str, float | None]:
        """Return plain data; None where more episodes than the maximum are needed."""
        return {name: x if math.isfinite(x) else None for name, x in dataclasses.asdict(self).items()}


PREDICTION_STREAMS, PREDICTION_POOL = 100, 200  # simulated tests, and environments that they draw from


def predict_all(test: EnvironmentsTest, p: Sequence[float] | None, max_episodes: int) -> list[EnvironmentsPrediction]:
    """Return predictions for true probabilities, each with three shares of bad ones; default: some beyond the bound."""
    low, high = test.constraint.lower, test.constraint.upper
    if p is None:
        steps = (0.25, 0.5, 0.75, 0.9)
        if test.constraint.comparison == "in":
            p = [low + 0.5 * (high - low)]
        else:
            p = [low + x * (1.0 - low) if low > 0.0 else high - x * high for x in steps]
    if not all(0.0 <= each <= 1.0 for each in p):
        raise RunError(f"a true probability lies between 0 and 1, got {list(p)}")
    allowed = 1.0 - test.required
    return [each for q in p for each in predict(test, float(q), (0.0, allowed / 5.0, 4.0 * allowed), max_episodes)]


def predict(
    test: EnvironmentsTest, p: float, bad: Sequence[float], max_episodes: int
) -> Iterator[EnvironmentsPrediction]:
    """Simulate the test on environments with probability p, of which a share `bad` is hopeless."""
    rng = np.random.default_rng(0)
    pool = [_simulated(test, rng.random(test.largest) < p) for _ in range(PREDICTION_POOL)]
    pool.append(_simulated(test, np.full(test.largest, test.constraint.upper < 1.0)))  # hopeless
    growth = test.growth(np.array([[score.accept, score.reject] for score in pool]), test.required)
    episodes_of = np.array([score.satisfied + score.violated for score in pool])
    most = min(5 * math.ceil(math.log(1.0 / test.false_accept) / (1.0 - test.required)), max_episodes)
    for share in bad:
        results = []
        for _ in range(PREDICTION_STREAMS):
            drawn = rng.integers(PREDICTION_POOL, size=most)
            drawn[rng.random(most) < share] = PREDICTION_POOL
            used = np.cumsum(episodes_of[drawn])
            codes = test.decide(special.logsumexp(np.cumsum(growth[drawn], axis=0) + LOG_WEIGHTS, axis=-1))
            codes[used > max_episodes] = CONTINUE
            last = first_decision(codes)
            results.append((int(codes[last]), last + 1, int(used[last])))
        counts = [sum(row[0] == code for row in results) / len(results) for code in (ACCEPT, REJECT, CONTINUE)]
        ended = np.array([row[1:] if row[0] else (np.inf, np.inf) for row in results])
        environments, episodes = np.median(ended, axis=0).tolist()
        yield EnvironmentsPrediction(
            p, min(share, 1.0), counts[0], counts[1], counts[2], environments, episodes, len(results)
        )


def _simulated(test: EnvironmentsTest, outcomes: NDArray[np.bool_]) -> EnvironmentScore:
    size, score = 64, None
    while score is None:  # at the latest when the environment is given up
        score, size = test.score(outcomes[:size]), 2 * size
    return score
