"""Statistics of a few runs, with their uncertainty.

After R. Agarwal, M. Schwarzer, P. S. Castro, A. Courville and M. G. Bellemare, *Deep Reinforcement Learning at the Edge
of the Statistical Precipice*, NeurIPS 2021: interquartile means, performance profiles and the probability of
improvement. Tests compare the values with the authors' library, rliable. The intervals are other ones: percentile
bootstrap intervals cover far less than their level where there are few runs. docs/studies.md has the measured coverage.

Scores are arrays `[N]`, one per task, of independent runs. A failed run has the score -inf: it ranks below all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

LEVEL = 0.95  # of all intervals
TAIL = (1.0 - LEVEL) / 2.0  # error on each side
RESAMPLES = 2000
SEED = 0  # of the resampling: the same runs give the same intervals
MAX_RUNS_NEEDED = 500
EQUAL = 1e-9  # relative spread of runs that differ by rounding only

Scores = NDArray[np.float64]


class IntervalEstimate(NamedTuple):
    """A number and its interval at `LEVEL`; all NaN without data, and NaN bounds for too few runs."""

    value: float
    lower: float
    upper: float


NO_ESTIMATE = IntervalEstimate(np.nan, np.nan, np.nan)


def proportion(successes: int, runs: int) -> IntervalEstimate:
    """Return a proportion with its exact interval (C. Clopper, E. S. Pearson, Biometrika 1934)."""
    if not runs:
        return NO_ESTIMATE
    lower, upper = proportion_bounds(np.array(successes), runs)
    return IntervalEstimate(successes / runs, float(lower), float(upper))


def proportion_bounds(successes: NDArray[np.int_], runs: int) -> tuple[Scores, Scores]:
    """Return the bounds of `proportion` for an array of successes."""
    lower = np.nan_to_num(stats.beta.ppf(TAIL, successes, runs - successes + 1), nan=0.0)
    upper = np.nan_to_num(stats.beta.ppf(1.0 - TAIL, successes + 1, runs - successes), nan=1.0)
    return lower, upper


# ---- returns -----------------------------------------------------------------------------------------------------


def iqm(scores: Scores) -> Scores:
    """Return the interquartile mean over the last axis: the mean of the middle half of all runs (section 4.3)."""
    return np.asarray(stats.trim_mean(scores, 0.25, axis=-1), dtype=np.float64)


def median(scores: Scores) -> Scores:
    """Return the median over the last axis."""
    return np.median(scores, axis=-1)


def performance_profile(scores: Scores, thresholds: Scores) -> Scores:
    """Return the share of runs above each threshold (section 4.2): `[..., N]` and `[T]` give `[..., T]`."""
    return (scores[..., None, :] > thresholds[:, None]).mean(axis=-1)


def iqm_estimate(tasks: Sequence[Scores]) -> IntervalEstimate:
    """Return the interquartile mean of the runs of all tasks with its interval.

    There is none if a failed run belongs to the middle half; and no interval for a single run of a task, or without
    any spread.
    """
    if not tasks or any(not len(scores) for scores in tasks):
        return NO_ESTIMATE
    value, lower, upper = (float(number[0]) for number in iqm_band([scores[None] for scores in tasks]))
    return IntervalEstimate(value, lower, upper) if np.isfinite(value) else NO_ESTIMATE


def share_estimate(estimate: IntervalEstimate) -> IntervalEstimate:
    """Return an estimate of a share, whose interval ends at 0 and 1."""
    return IntervalEstimate(*(float(number) for number in np.clip(estimate, 0.0, 1.0)))


def iqm_band(tasks: Sequence[Scores], resamples: int = RESAMPLES) -> tuple[Scores, Scores, Scores]:
    """Return interquartile means `[T]` of curves with their pointwise intervals.

    On each side the wider one of two intervals counts: that of J. Tukey and D. McLaughlin (Sankhya 1963), a t-interval
    from the winsorized variance, with half of the error, which covers returns with one mode; and the stratified
    bootstrap interval (section 4.1), which covers returns with two.

    Args:
        tasks: the scores `[T, N]` of each task.
        resamples: of the bootstrap.
    """
    pooled = np.concatenate(tasks, axis=-1)
    runs = pooled.shape[-1]
    cut = runs // 4
    kept = runs - 2 * cut
    value = iqm(pooled)
    ordered = np.sort(pooled, axis=-1)
    with np.errstate(all="ignore"):  # failed runs, tasks with a single run, and returns that overflow
        inner = (np.clip(scores, ordered[:, [cut]], ordered[:, [runs - cut - 1]]) for scores in tasks)
        error = np.sqrt(sum(map(_variance_of_sum, inner)) * (runs - 1) / (runs * kept * np.float64(kept - 1)))
        reach = stats.t.ppf(1.0 - TAIL / 2.0, max(1, kept - len(tasks))) * error
        resampled = iqm(np.concatenate([_resample(scores, k, resamples) for k, scores in enumerate(tasks)], axis=-1))
        low, high = np.quantile(resampled, [TAIL, 1.0 - TAIL], axis=0, method="inverted_cdf")
        lower, upper = np.fmin(value - reach, low), np.fmax(value + reach, high)
        known = np.isfinite(reach) & (upper - lower > EQUAL * np.abs(value))
    return value, np.where(known, lower, np.nan), np.where(known, upper, np.nan)


def _variance_of_sum(scores: Scores) -> Scores:
    """Return the estimated variance of the sum over the last axis; NaN for a single run."""
    runs = np.float64(scores.shape[-1])
    return np.asarray(scores.var(axis=-1) * runs**2 / (runs - 1.0))


def median_estimate(tasks: Sequence[Scores]) -> IntervalEstimate:
    """Return the median of the runs of all tasks with its exact interval between two of them; below 6 runs none.

    The number of runs below the true median is binomial or, over several tasks, less dispersed (W. Hoeffding 1956).
    """
    if not tasks or any(not len(scores) for scores in tasks):
        return NO_ESTIMATE
    ordered = np.sort(np.concatenate(tasks))
    value = float(median(ordered))
    below = int(stats.binom.ppf(TAIL, len(ordered), 0.5))
    if not np.isfinite(value):
        return NO_ESTIMATE
    if not below:
        return IntervalEstimate(value, np.nan, np.nan)
    return IntervalEstimate(value, float(ordered[below - 1]), float(ordered[-below]))


def _resample(scores: Scores, stratum: int, resamples: int) -> Scores:
    """Return `[resamples, T, N]`: the runs of one task, drawn with replacement."""
    rng = np.random.default_rng([SEED, stratum])
    runs = scores.shape[-1]
    return np.moveaxis(scores[:, rng.integers(0, runs, (resamples, runs))], 1, 0)


# ---- comparisons -------------------------------------------------------------------------------------------------


def improvement_probability(ours: Scores, theirs: Scores) -> float:
    """Return P(X > Y) + P(X = Y)/2, the share of pairs that ours win (section 4.3, Mann-Whitney U)."""
    ordered = np.sort(theirs)
    below, up_to = (np.searchsorted(ordered, ours, side).mean() for side in ("left", "right"))
    return float((below + up_to) / (2.0 * len(theirs)))


def improvement(ours: Sequence[Scores], theirs: Sequence[Scores]) -> IntervalEstimate:
    """Return the probability that a run of ours beats one of theirs, averaged over tasks, with its interval.

    The interval holds for all distributions and never has width zero. The share of won pairs is the average, over all
    ways to pair n runs with n others, of the mean of n independent comparisons (W. Hoeffding 1963). So in the convex
    order it lies below a binomial share of n trials with the same mean, where n is the smallest number of runs times
    the number of tasks, and `_tail_bound` applies.

    Args:
        ours: the scores of each task.
        theirs: the scores of the other method on the same tasks.
    """
    if not ours or any(not len(scores) for scores in (*ours, *theirs)):
        return NO_ESTIMATE
    value = float(np.mean([improvement_probability(x, y) for x, y in zip(ours, theirs, strict=True)]))
    trials = len(ours) * min(len(scores) for scores in (*ours, *theirs))
    return IntervalEstimate(value, _lower_bound(value, trials), 1.0 - _lower_bound(1.0 - value, trials))


def runs_needed(value: float, tasks: int = 1) -> int | None:
    """Return how many runs of each method show that one is better, if the share of won pairs stays at `value`.

    None: more than MAX_RUNS_NEEDED, or the methods are equal.
    """
    share = max(value, 1.0 - value)
    needed = (n for n in range(2, MAX_RUNS_NEEDED + 1) if _tail_bound(share, n * tasks, 0.5) <= TAIL)
    return next(needed, None) if share > 0.5 else None


def _lower_bound(share: float, trials: int) -> float:
    """Return the smallest probability under which so large a share is not too unlikely."""
    if share <= 0.0 or _tail_bound(share, trials, 0.0) > TAIL:
        return 0.0
    return float(optimize.brentq(lambda p: _tail_bound(share, trials, p) - TAIL, 0.0, share))


def _tail_bound(share: float, trials: int, p: float) -> float:
    """Bound the probability of at least this share, for all that lies below Binomial(trials, p)/trials in convex order.

    P(S >= s) <= E max(B - k, 0) / (s - k) for every k < s (V. Bentkus, Annals of Probability 2004); between whole k
    the bound is monotone, so that whole ones suffice.
    """
    count = share * trials
    k = np.arange(np.ceil(count - 1e-9))
    excess = np.cumsum(stats.binom.sf(np.arange(trials), trials, p)[::-1])[::-1]  # E max(B - k, 0) for each k
    return float(np.min(excess[: len(k)] / (count - k), initial=1.0))
