"""Learning curves: means over windows of episodes, and mean and standard deviation over repetitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.learners.metrics import Metrics
from psyco._src.paper.experiments import POPULATION, Experiment
from psyco._src.paper.repetitions import Repetition

Floats = NDArray[np.float64]
KINDS = ("satisfying", "violating")


class Curve(NamedTuple):
    """A quantity during learning, for every repetition of a variant; NaN for a window without such an episode."""

    episodes: NDArray[np.int64]  # [T] learning episodes at the end of each window
    values: Floats  # [R, T]

    @property
    def mean(self) -> Floats:
        """Mean over repetitions, `[T]`."""
        count = np.isfinite(self.values).sum(axis=0)
        return np.where(count > 0, np.nansum(self.values, axis=0) / np.maximum(count, 1), np.nan)

    @property
    def deviation(self) -> Floats:
        """Standard deviation over repetitions, `[T]`; NaN where fewer than two have a value."""
        count = np.isfinite(self.values).sum(axis=0)
        squares = np.nansum((self.values - self.mean) ** 2, axis=0)
        return np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1)), np.nan)


@dataclass(frozen=True)
class Results:
    """The runs of an experiment: variant -> repetitions in the order of the seeds."""

    experiment: Experiment
    runs: dict[str, list[Repetition]]

    def curve(self, variant: str, column: str) -> Curve:
        """Return a column of the metrics as means over the windows of the experiment."""
        return self._windows(variant, lambda m, starts: _mean(m[column], np.ones(m.rows), starts))

    def split_curve(self, variant: str, quantity: str, kind: str) -> Curve:
        """Return the curve of `return` or `cost` for satisfying or for violating episodes."""
        return self._windows(variant, lambda m, starts: _split(m, quantity, kind, starts))

    def share_so_far(self, variant: str) -> Curve:
        """Return the share of satisfying episodes since the start, on which the belief is based."""

        def share(m: Metrics, starts: NDArray[np.int64]) -> Floats:
            return np.cumsum(m["satisfied"], dtype=np.float64)[_ends(starts, m.rows)] / _ends(starts, m.rows, 1)

        return self._windows(variant, share)

    def verified(self, variant: str, column: str = "verified_confidence") -> Curve:
        """Return a column of the verifications during learning."""
        metrics = [run.metrics for run in self.runs[variant]]
        rows = np.flatnonzero(metrics[0]["verdict"] != "")
        return Curve(metrics[0]["episodes"][rows], _stack([m[column][rows] for m in metrics]))

    def over(self, variant: str, column: str, first: int | None = None, last: int | None = None) -> Floats:
        """Return the mean of a column over the `first` or the `last` episodes (default: all), `[R]`."""
        rows = slice(-last // POPULATION, None) if last else slice(0, first and max(1, first // POPULATION))
        return np.array([np.mean(run.metrics[column][rows], dtype=np.float64) for run in self.runs[variant]])

    def final(self, variant: str, column: str) -> Floats:
        """Return the mean of a column over the end of learning, `[R]`."""
        return self.over(variant, column, last=self.experiment.final)

    def final_split(self, variant: str, quantity: str, kind: str) -> Floats:
        """Return the mean `return` or `cost` of one kind of episodes at the end of learning, `[R]`; NaN without any."""
        tail = self.experiment.final // POPULATION
        whole = np.zeros(1, np.int64)
        return np.array([_split(r.metrics.tail(tail), quantity, kind, whole)[0] for r in self.runs[variant]])

    def _windows(self, variant: str, mean: Callable[[Metrics, NDArray[np.int64]], Floats]) -> Curve:
        metrics = [run.metrics for run in self.runs[variant]]
        starts = np.arange(0, metrics[0].rows, self.experiment.window // POPULATION)
        return Curve(_ends(starts, metrics[0].rows, 1) * POPULATION, _stack([mean(m, starts) for m in metrics]))


def _ends(starts: NDArray[np.int64], rows: int, beyond: int = 0) -> NDArray[np.int64]:
    """Return the last row of each window, plus `beyond`."""
    return np.append(starts[1:], rows) - 1 + beyond


def _mean(values: NDArray[np.float32], weight: Floats, starts: NDArray[np.int64]) -> Floats:
    """Return weighted means over windows; NaN for a window of weight 0. Rows of weight 0 may be NaN."""
    total = np.add.reduceat(np.where(weight > 0, values, 0.0) * weight, starts)
    weights = np.add.reduceat(weight, starts)
    return np.where(weights > 0, total / np.where(weights > 0, weights, 1.0), np.nan)


def _split(metrics: Metrics, quantity: str, kind: str, starts: NDArray[np.int64]) -> Floats:
    satisfied = np.round(metrics["satisfied"].astype(np.float64) * POPULATION)  # episodes, not a share
    weight = satisfied if kind == "satisfying" else POPULATION - satisfied
    return _mean(metrics[f"{quantity}_{kind}"], weight, starts)


def _stack(rows: Sequence[NDArray[np.float64]]) -> Floats:
    return np.stack(rows).astype(np.float64)
