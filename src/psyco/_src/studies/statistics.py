"""What can be said from a handful of runs, with its uncertainty.

After R. Agarwal, M. Schwarzer, P. S. Castro, A. Courville and M. G. Bellemare, *Deep Reinforcement Learning at the Edge
of the Statistical Precipice*, NeurIPS 2021: interquartile means, stratified bootstrap intervals, performance profiles
and the probability of improvement. Tests hold the formulas to their own library, rliable.

Scores are arrays `[N]` of one task each, in a list with one array per task: runs are drawn again within their task.
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
    """A number and its interval at `LEVEL`; all NaN where there is nothing to estimate from."""

    value: float
    lower: float
    upper: float


NOTHING = IntervalEstimate(np.nan, np.nan, np.nan)


def share(successes: int, runs: int) -> IntervalEstimate:
    """A share of runs with its exact interval (C. Clopper, E. S. Pearson, Biometrika 1934)."""
    if not runs:
        return NOTHING
    interval = stats.binomtest(successes, runs).proportion_ci(LEVEL, method="exact")
    return IntervalEstimate(successes / runs, float(interval.low), float(interval.high))


def iqm(scores: Scores) -> Scores:
    """The interquartile mean over the last axis: the mean of the middle half of all runs (section 4.3)."""
    return np.asarray(stats.trim_mean(scores, 0.25, axis=-1), dtype=np.float64)


def median(scores: Scores) -> Scores:
    """The median of all runs, over the last axis."""
    return np.median(scores, axis=-1)


def better(ours: Scores, theirs: Scores) -> Scores:
    """P(X > Y) + P(X = Y)/2 for a run of ours and one of theirs, over the last axes (section 4.3, Mann-Whitney U)."""
    x, y = ours[..., :, None], theirs[..., None, :]
    return ((x > y) + 0.5 * (x == y)).mean(axis=(-2, -1))


def profile(scores: Scores, thresholds: Scores) -> Scores:
    """The share of runs with a score above each threshold (section 4.2): `[..., N]` and `[T]` give `[..., T]`."""
    return (scores[..., None, :] > thresholds[:, None]).mean(axis=-1)


def estimated(statistic: Callable[[Scores], Scores], tasks: Sequence[Scores]) -> IntervalEstimate:
    """A statistic of all runs together, with its stratified bootstrap interval (section 4.1).

    Args:
        statistic: of scores `[..., N]`, over the last axis.
        tasks: the scores of each task.
    """
    if not tasks or any(not len(scores) for scores in tasks):
        return NOTHING
    value = float(statistic(np.concatenate(tasks)))
    again = statistic(np.concatenate([_resampled(scores, k) for k, scores in enumerate(tasks)], axis=-1))
    return IntervalEstimate(value, *map(float, bounds(again)))


def improvement(ours: Sequence[Scores], theirs: Sequence[Scores]) -> IntervalEstimate:
    """The probability that a run of ours beats one of theirs, averaged over tasks, with its interval.

    Args:
        ours: the scores of each task.
        theirs: those of the other method on the same tasks.
    """
    if not ours or any(not len(scores) for scores in (*ours, *theirs)):
        return NOTHING
    value = np.mean([better(x, y) for x, y in zip(ours, theirs, strict=True)])
    again = [
        better(_resampled(x, 2 * k), _resampled(y, 2 * k + 1))
        for k, (x, y) in enumerate(zip(ours, theirs, strict=True))
    ]
    return IntervalEstimate(float(value), *map(float, bounds(np.mean(again, axis=0))))


def luck(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """The chance that ours rank as high among all as they do, or higher, if both were of one kind.

    That is the one-sided rank-sum test (Mann and Whitney 1947), exact: over all ways to say which runs are ours, given
    the ties. With three runs each it is at least 1/20, whatever they are: so few runs show nothing.

    Args:
        ours: what can be compared, one for each run.
        theirs: the same of the others.
    """
    every = [*ours, *theirs]
    below = [sum(other < each for other in every) for each in every]
    ranks = [2 * low + sum(other == each for other in every) for low, each in zip(below, every, strict=True)]
    ways = np.zeros((len(ours) + 1, sum(ranks) + 1))  # [how many are ours, the sum of their ranks]
    ways[0, 0] = 1.0
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank].copy()
    counts = ways[len(ours)]
    return float(counts[sum(ranks[: len(ours)]) :].sum() / counts.sum())


def band(statistic: Callable[[Any], Scores], scores: Scores) -> tuple[Scores, Scores, Scores]:
    """A statistic of curves with its pointwise interval: `[N, T]`, one curve per run, gives three of `[T]`."""
    value = statistic(scores.T)
    rng = np.random.default_rng(SEED)
    chosen = rng.integers(0, len(scores), (RESAMPLES // 4, len(scores)))
    again = statistic(np.moveaxis(scores[chosen], 1, -1))  # [resamples, T, N] -> [resamples, T]
    return value, *bounds(again)


def bounds(again: Scores) -> tuple[Scores, Scores]:
    """The interval of a statistic from its values over resamples, by percentiles; over the first axis."""
    beside = (1.0 - LEVEL) / 2.0
    lower, upper = np.quantile(again, [beside, 1.0 - beside], axis=0)
    return lower, upper


def _resampled(scores: Scores, stratum: int) -> Scores:
    """`[RESAMPLES, N]`: runs of one task, drawn again with replacement."""
    rng = np.random.default_rng([SEED, stratum])
    return scores[rng.integers(0, len(scores), (RESAMPLES, len(scores)))]
