"""Intervals of a width fixed beforehand: sampling stops as soon as the interval is that narrow.

For a probability, after s of n episodes satisfied the formula, let k = min(s, n - s) be the count of the rarer outcome.
A rule fixed before the first episode stops at n if k is below a limit that depends on n only. Ordered along the edge of
the states at which sampling goes on (few satisfying episodes first, by n; then the others, by falling n), the states X
at which it stops have a property that holds for any such rule: turning violations into satisfied episodes moves X up.
So P_p(X <= x) falls as p rises, and

    P_U(X <= x) = δ/2,    P_L(X >= x) = δ/2

give an interval [L, U] that misses the true p with probability at most δ, for every p: Clopper and Pearson's argument,
for a stopping rule in place of a number of episodes. The rule here stops at the first n at which this interval is
narrow enough. The probabilities are exact, by dynamic programming. The interval of a state depends only on the states
before it, so it does not change if the maximum number of episodes does.

For a mean, bets with stakes that fit the width: see `WidthMean`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from psyco._src.verification.base import MeanTask, WeightedSums
from psyco._src.verification.betting import solve_lower_bound
from psyco._src.verification.fixed_sample import log_wealth, variance_before

LONGEST_RULE = 50_000  # episodes of the longest rule for a probability: it takes about two seconds to compute
SMALLEST_ERROR = 1e-8  # for which there are rules: rounding errors of the probabilities are below 1e-10
_SLACK = 1e-6  # the rule aims at a width smaller by this fraction, since it solves for L with a few steps of Newton's
_CERTAIN = 1e-15  # a state whose paths stopped before with a smaller probability counts as untouched by the rule
_NEGLIGIBLE = 1e-14  # states of smaller probability don't influence when the rule stops


class WidthRule(NamedTuple):
    """When to stop, and the states with at most n/2 satisfying episodes at which it stops; the others mirror them."""

    delta: float
    limit: NDArray[np.int64]  # [N+1] after n episodes: stop if the count of the rarer outcome is smaller than this
    episodes: NDArray[np.float64]  # [J] n of each such state, in their order
    rarer: NDArray[np.float64]  # [J] k of each
    log_paths: NDArray[np.float64]  # [J] log of the number of paths that end there

    def stops(self, satisfied: NDArray[np.int64], episodes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return where the rule stops, at the latest after its last episode."""
        last = len(self.limit) - 1
        rarer = np.minimum(satisfied, episodes - satisfied)
        return (episodes >= last) | (rarer < self.limit[np.minimum(episodes, last)])

    def bounds(self, satisfied: int, episodes: int) -> tuple[float, float]:
        """Return the interval of a state at which the rule stops, both bounds together wrong in at most δ."""
        from scipy.optimize import brentq  # takes long to import

        rarer = min(satisfied, episodes - satisfied)
        (at,) = np.flatnonzero((self.episodes == episodes) & (self.rarer == rarer))
        tail = self.delta / 2.0
        below = partial(self._probability, int(at))  # of the states before this one
        lower = brentq(lambda p: below(p) - (1.0 - tail), 0.0, 1.0, xtol=1e-14) if at else 0.0
        upper = brentq(lambda p: self._probability(int(at) + 1, p) - tail, 0.0, 1.0, xtol=1e-14)
        return (lower, upper) if rarer == satisfied else (1.0 - upper, 1.0 - lower)

    def _probability(self, states: int, p: float) -> float:
        """Return the probability of the first states at a true probability p."""
        n, k, log_paths = self.episodes[:states], self.rarer[:states], self.log_paths[:states]
        return float(np.exp(log_paths + special.xlogy(k, p) + special.xlog1py(n - k, -p)).sum())

    def narrow_by(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability of a narrow interval after at most n episodes, `[N+1, P]`, at true probabilities p."""
        at = self.episodes.astype(np.int64)
        narrow = self.rarer < self.limit[at]  # not merely at the maximum
        n, k, log_paths = (column[narrow, None] for column in (self.episodes, self.rarer, self.log_paths))
        mirrored = np.where(2 * k == n, -np.inf, 0.0)  # the middle is its own mirror
        chance = np.zeros((len(self.limit), len(p)))
        for first, second, once in ((k, n - k, 0.0), (n - k, k, mirrored)):
            terms = log_paths + special.xlogy(first, p) + special.xlog1py(second, -p)
            np.add.at(chance, at[narrow], np.exp(terms + once))
        return np.minimum(np.cumsum(chance, axis=0), 1.0)


def has_width_rule(delta: float, width: float) -> bool:
    """Return whether there is a rule for a probability: it must not need more than `LONGEST_RULE` episodes."""
    return delta >= SMALLEST_ERROR and float(special.ndtri(delta / 2.0)) ** 2 <= LONGEST_RULE * width**2


@lru_cache(maxsize=32)
def width_rule(delta: float, width: float, max_episodes: int) -> WidthRule:
    """Return the rule for an interval that misses with probability at most δ; it stops at the maximum in any case."""
    builder = _RuleBuilder(delta, width * (1.0 - _SLACK))
    while builder.open and builder.n < max_episodes:
        builder.advance()
    while builder.open:
        builder.stop()
    return WidthRule(delta, np.array(builder.limit), *(column[: builder.states].copy() for column in builder.columns))


class _RuleBuilder:
    """Find, episode by episode, the states at which the interval is narrow enough.

    `survive[k]` is the probability that a path to k rarer outcomes among n has not stopped before, given that it leads
    there: the same for every p. It is a mean of its two predecessors; nearly everywhere it is 1.
    """

    def __init__(self, delta: float, width: float) -> None:
        self.tail, self.width = delta / 2.0, width
        self.n, self.first, self.touched = 0, 0, 0  # survive is 0 below `first`, and 1 from `touched` on
        self.survive, self.counts = np.ones(64), np.arange(64.0)
        self.columns, self.states, self.relevant = np.zeros((3, 64)), 0, 0
        self.limit = [0]
        self.lower, self.step, self.below = 0.0, 0.0, 0.0  # L of the next state; P(X < it) at L + width

    @property
    def open(self) -> bool:
        """Whether there are states at n at which sampling goes on."""
        return 2 * self.first <= self.n

    def advance(self) -> None:
        """Play one more episode, and stop where the interval has become narrow enough."""
        self.n += 1
        n, half = self.n, self.n // 2
        if half + 2 > len(self.survive):
            self.survive = np.append(self.survive, np.ones(len(self.survive)))
            self.counts = np.arange(float(len(self.survive)))
        survive, first, end = self.survive, self.first, min(self.touched + 1, half + 1)
        if end > first > 0:  # nothing has stopped before the first state does
            if n % 2 == 0 and end == half + 1:
                survive[half] = survive[half - 1]  # before this episode, the mirror of the state beyond the middle
            survive[first:end] += self.counts[first:end] / n * (survive[first - 1 : end - 1] - survive[first:end])
            while end > first and survive[end - 1] > 1.0 - _CERTAIN:
                end -= 1
            self.touched = end
        while self.open and self._is_narrow():
            self.stop()
        self.limit.append(self.first)

    def _log_paths(self) -> float:
        n, k = self.n, self.first
        return math.log(self.survive[k]) + math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    def _is_narrow(self) -> bool:
        """Return whether U - L is at most the width for the first open state: P(X <= it) at L + width is small."""
        p = self.lower + self.width
        if p >= 1.0:
            return True
        log_chance = self._log_paths() + self.first * math.log(p) + (self.n - self.first) * math.log1p(-p)
        return self.below + math.exp(log_chance) <= self.tail

    def stop(self) -> None:
        """Stop at the first open state."""
        if self.states == self.columns.shape[1]:
            self.columns = np.concatenate([self.columns, np.zeros_like(self.columns)], axis=1)
        self.columns[:, self.states] = self.n, self.first, self._log_paths()
        self.states += 1
        self.survive[self.first] = 0.0
        self.first += 1
        self.touched = max(self.touched, self.first)
        self._find_next_lower()

    def _find_next_lower(self) -> None:
        """Solve P(X <= the last state) = 1 - δ/2 for the L of the next state."""
        n, k, log_paths = self.columns[:, self.relevant : self.states]
        # L grows steadily: from the expected next one, few steps of Newton's suffice.
        guess, old = max(self.lower + self.step, 1e-9), self.lower
        for _ in range(100):
            chance = np.exp(log_paths + k * math.log(guess) + (n - k) * math.log1p(-guess))
            excess = float(chance.sum()) - (1.0 - self.tail)
            slope = float(chance @ (k - n * guess)) / (guess * (1.0 - guess))
            better = guess - excess / slope if slope < 0.0 else np.inf
            if not old < better < 1.0:
                better = (guess + (1.0 if excess > 0.0 else old)) / 2.0
            done, guess = abs(better - guess) <= 0.01 * _SLACK * self.width, better
            if done:
                break
        self.relevant += int(np.argmax(chance > _NEGLIGIBLE))
        self.lower, self.step, p = guess, guess - old, guess + self.width
        if p < 1.0:
            n, k, log_paths = self.columns[:, self.relevant : self.states]
            self.below = float(np.exp(log_paths + k * math.log(p) + (n - k) * math.log1p(-p)).sum())


@dataclass(frozen=True)
class WidthShare:
    """Estimate of a probability by a `WidthRule`."""

    task: MeanTask
    rule: WidthRule
    satisfied: int = 0
    episodes: int = 0

    kind: ClassVar[str] = "width"

    @property
    def mean(self) -> float:
        """The observed share."""
        return self.satisfied / self.episodes if self.episodes else float("nan")

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound of the true probability."""
        return self.rule.bounds(self.satisfied, self.episodes) if self.episodes else (0.0, 1.0)

    def feed(self, values: NDArray[np.float64]) -> tuple[WidthShare, bool]:
        """Count outcomes `[B]` until the rule stops; return the estimate and whether it has stopped."""
        satisfied = self.satisfied + np.cumsum(values != 0)
        episodes = self.episodes + np.arange(1, len(values) + 1)
        stops = self.rule.stops(satisfied, episodes)
        last = int(np.argmax(stops)) if stops.any() else len(values) - 1
        return replace(self, satisfied=int(satisfied[last]), episodes=int(episodes[last])), bool(stops[last])


# ---- means and rates ------------------------------------------------------------------------------------------------

FIRST_WIDTH_CHECK, WIDTH_CHECK_GROWTH = 50, 1.02  # episodes at which the width of the interval of a mean is computed


@dataclass(frozen=True)
class WidthMean:
    """Estimate of a mean or a rate by bets whose stakes fit a wanted width.

    With a variance v, bets of size b distinguish means at a distance h best if b = h / v. Here h is half of the width,
    and v the variance of the values so far. Such bets are valid at all times: the width decides only how soon they pay.
    """

    task: MeanTask
    width: float
    sums: WeightedSums = field(default_factory=WeightedSums)
    batches: tuple[NDArray[np.float64], ...] = ()  # all values, as pairs of position and weight [B, 2]
    next_check: int = FIRST_WIDTH_CHECK

    kind: ClassVar[str] = "anytime"

    @property
    def episodes(self) -> int:
        """Number of values consumed."""
        return int(self.sums.count)

    @property
    def mean(self) -> float:
        """The observed mean, or rate."""
        return self.task.mean(self.sums)

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound of the true mean, half of the error for either."""
        if not self.batches:
            return self.task.lo, self.task.hi
        position, weight = np.concatenate(self.batches).T
        span, delta = self.task.hi - self.task.lo, self.task.false_accept / 2.0
        heaviness = np.append(1.0, 1.0 + np.cumsum(weight[:-1])) / np.arange(1, len(weight) + 1)  # before each value
        bets = self.width / (2.0 * span) * heaviness / variance_before(position, weight)
        above, below = (
            solve_lower_bound(partial(log_wealth, side, weight, bets), delta)
            for side in (position, np.maximum(weight - position, 0.0))
        )
        return self.task.lo + span * above, self.task.hi - span * below

    def feed(self, values: NDArray[np.float64]) -> tuple[WidthMean, bool]:
        """Consume values `[B]`, or pairs `[B, 2]`, until the interval is narrow; return the estimate and whether so."""
        estimate, start = self, 0
        while start < len(values):
            part = values[start : start + estimate.next_check - estimate.episodes]
            sums = self.task.add_checked(estimate.sums, part)
            pairs = np.stack(self.task.normalize(part), axis=1)
            estimate = replace(estimate, sums=sums, batches=(*estimate.batches, pairs))
            start += len(part)
            if estimate.episodes == estimate.next_check:
                if estimate._is_narrow():
                    return estimate, True
                estimate = replace(estimate, next_check=math.ceil(WIDTH_CHECK_GROWTH * estimate.next_check))
        return estimate, False

    def _is_narrow(self) -> bool:
        position, weight = np.concatenate(self.batches).T
        spread = np.sqrt(variance_before(position, weight)[-1] / len(weight)) / weight.mean()
        z = -float(special.ndtri(self.task.false_accept / 2.0))
        if 2.0 * z * spread * (self.task.hi - self.task.lo) > self.width:
            return False  # not even the normal approximation is: the interval takes long to compute
        lower, upper = self.bounds
        return upper - lower <= self.width
