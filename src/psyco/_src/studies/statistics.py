"""Statistics of a few runs, with their uncertainty.

After R. Agarwal, M. Schwarzer, P. S. Castro, A. Courville and M. G. Bellemare, *Deep Reinforcement Learning at the Edge
of the Statistical Precipice*, NeurIPS 2021: interquartile means, stratified bootstrap intervals, performance profiles
and the probability of improvement. Tests compare the formulas with the authors' library, rliable.

Scores are arrays `[N]`, one per task; runs are resampled within their task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.95  # of all intervals
RESAMPLES = 2000
SEED = 0  # of the resampling: the same runs give the same intervals

Scores = NDArray[np.float64]


class IntervalEstimate(NamedTuple):
    """A number and its interval at `LEVEL`; all NaN without data."""

    value: float
    lower: float
    upper: float


NO_ESTIMATE = IntervalEstimate(np.nan, np.nan, np.nan)


def proportion(successes: int, runs: int) -> IntervalEstimate:
    """Return a proportion with its exact interval (C. Clopper, E. S. Pearson, Biometrika 1934)."""
    if not runs:
        return NO_ESTIMATE
    interval = stats.binomtest(successes, runs).proportion_ci(LEVEL, method="exact")
    return IntervalEstimate(successes / runs, float(interval.low), float(interval.high))


def iqm(scores: Scores) -> Scores:
    """Return the interquartile mean over the last axis: the mean of the middle half of all runs (section 4.3)."""
    return np.asarray(stats.trim_mean(scores, 0.25, axis=-1), dtype=np.float64)


def median(scores: Scores) -> Scores:
    """Return the median over the last axis."""
    return np.median(scores, axis=-1)


def improvement_probability(ours: Scores, theirs: Scores) -> Scores:
    """Return P(X > Y) + P(X = Y)/2 over the last axes (section 4.3, Mann-Whitney U)."""
    x, y = ours[..., :, None], theirs[..., None, :]
    return ((x > y) + 0.5 * (x == y)).mean(axis=(-2, -1))


def performance_profile(scores: Scores, thresholds: Scores) -> Scores:
    """Return the share of runs above each threshold (section 4.2): `[..., N]` and `[T]` give `[..., T]`."""
    return (scores[..., None, :] > thresholds[:, None]).mean(axis=-1)


def bootstrap(statistic: Callable[[Scores], Scores], tasks: Sequence[Scores]) -> IntervalEstimate:
    """Return a statistic of the runs of all tasks with its stratified bootstrap interval (section 4.1).

    Args:
        statistic: of scores `[..., N]`, over the last axis.
        tasks: the scores of each task.
    """
    if not tasks or any(not len(scores) for scores in tasks):
        return NO_ESTIMATE
    value = float(statistic(np.concatenate(tasks)))
    resampled = statistic(np.concatenate([_resample(scores, k) for k, scores in enumerate(tasks)], axis=-1))
    return IntervalEstimate(value, *map(float, percentile_interval(resampled)))


def improvement(ours: Sequence[Scores], theirs: Sequence[Scores]) -> IntervalEstimate:
    """Return the probability that a run of ours beats one of theirs, averaged over tasks, with its interval.

    Args:
        ours: the scores of each task.
        theirs: the scores of the other method on the same tasks.
    """
    if not ours or any(not len(scores) for scores in (*ours, *theirs)):
        return NO_ESTIMATE
    value = np.mean([improvement_probability(x, y) for x, y in zip(ours, theirs, strict=True)])
    resampled = [
        improvement_probability(_resample(x, 2 * k), _resample(y, 2 * k + 1))
        for k, (x, y) in enumerate(zip(ours, theirs, strict=True))
    ]
    return IntervalEstimate(float(value), *map(float, percentile_interval(np.mean(resampled, axis=0))))


def rank_sum_p_value(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """Return the one-sided p-value of the rank-sum test that ours rank higher (Mann and Whitney 1947).

    It is exact, over all assignments of runs to the two groups, given the ties. With three runs each it is at least
    1/20, so such a comparison cannot be significant at 2.5%.

    Args:
        ours: comparable outcomes, one per run.
        theirs: the outcomes of the other method.
    """
    pooled = [*ours, *theirs]
    below = [sum(other < each for other in pooled) for each in pooled]
    ranks = [2 * low + sum(other == each for other in pooled) for low, each in zip(below, pooled, strict=True)]
    ways = np.zeros((len(ours) + 1, sum(ranks) + 1))  # [runs in our group, sum of their ranks]
    ways[0, 0] = 1.0
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank].copy()
    counts = ways[len(ours)]
    return float(counts[sum(ranks[: len(ours)]) :].sum() / counts.sum())


def bootstrap_band(statistic: Callable[[Any], Scores], scores: Scores) -> tuple[Scores, Scores, Scores]:
    """Return a statistic of curves with its pointwise interval: `[N, T]`, one curve per run, gives three `[T]`."""
    value = statistic(scores.T)
    rng = np.random.default_rng(SEED)
    chosen = rng.integers(0, len(scores), (RESAMPLES // 4, len(scores)))
    resampled = statistic(np.moveaxis(scores[chosen], 1, -1))  # [resamples, T, N] -> [resamples, T]
    return value, *percentile_interval(resampled)


def percentile_interval(resampled: Scores) -> tuple[Scores, Scores]:
    """Return the interval of a statistic from its values over resamples, the first axis."""
    tail = (1.0 - LEVEL) / 2.0
    lower, upper = np.quantile(resampled, [tail, 1.0 - tail], axis=0)
    return lower, upper


def _resample(scores: Scores, stratum: int) -> Scores:
    """Return `[RESAMPLES, N]`: the runs of one task, drawn with replacement."""
    rng = np.random.default_rng([SEED, stratum])
    return scores[rng.integers(0, len(scores), (RESAMPLES, len(scores)))]
