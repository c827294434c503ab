"""The metrics table: one row per generation, tidy, as named columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from psyco._src.learn.base import Generation

VERIFICATION = ("verified_confidence", "verified_share", "verified_return", "verified_episodes", "verdict")


class Metrics(Mapping[str, NDArray[Any]]):
    """Columns of equal length, by name; `to_csv` writes them.

    `c_sat` is the lowest confidence and `cost` the summed cost over all demands; with several demands each has
    `c_sat[i]`, `cost[i]` and `satisfied[i]` of its own. Where the current policy was verified after a generation
    its row has the `verified_*` columns filled; elsewhere they are NaN, and `verdict` is empty.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def rows(self) -> int:
        """How many generations there are."""
        return len(next(iter(self._columns.values()), ()))

    def head(self, count: int) -> Metrics:
        """The first `count` rows."""
        return Metrics({name: column[:count] for name, column in self.items()})

    def tail(self, count: int) -> Metrics:
        """The last `count` rows."""
        return Metrics({name: column[max(0, self.rows - count) :] for name, column in self.items()})

    def to_csv(self, *, header: bool = True) -> str:
        """The table as text; NaN becomes an empty cell."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        if header:
            writer.writerow(self)
        writer.writerows(zip(*(map(_cell, column.tolist()) for column in self.values()), strict=True))
        return out.getvalue()


def tabulate(generations: Generation, *, first: int, episodes_per_generation: int) -> Metrics:
    """Rows for generations first, first+1, ..., stacked `[G]`, with nothing verified yet."""
    episodes, (lam, c_sat) = jax.tree.map(np.asarray, tuple(generations))
    count, demands = c_sat.shape
    cost = episodes.cost.sum(axis=2, dtype=np.float64)  # [G, B], as everything of an episode
    good = episodes.satisfied.all(axis=2)
    columns: dict[str, NDArray[Any]] = {
        "generation": np.arange(first, first + count),
        "episodes": np.arange(first + 1, first + count + 1) * episodes_per_generation,
        "return": episodes.ret.mean(axis=1, dtype=np.float64),
        "length": episodes.length.mean(axis=1),
        "satisfied": good.mean(axis=1),
        "lambda": lam,
        "return_satisfying": _mean_where(episodes.ret, good),
        "return_violating": _mean_where(episodes.ret, ~good),
        "cost_satisfying": _mean_where(cost, good),
        "cost_violating": _mean_where(cost, ~good),
        "cost": cost.mean(axis=1),
        "c_sat": c_sat.min(axis=1, initial=1.0),
    }
    if demands > 1:
        for i in range(demands):
            columns[f"satisfied[{i}]"] = episodes.satisfied[:, :, i].mean(axis=1)
            columns[f"cost[{i}]"] = episodes.cost[:, :, i].mean(axis=1, dtype=np.float64)
            columns[f"c_sat[{i}]"] = c_sat[:, i]
    for name in VERIFICATION:
        columns[name] = np.full(count, "", dtype="<U9") if name == "verdict" else np.full(count, np.nan)
    return Metrics(columns)


def concatenate(parts: list[Metrics]) -> Metrics:
    """Tables below each other."""
    return (
        Metrics({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
        if parts
        else Metrics({})
    )


def _mean_where(values: NDArray[Any], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The mean of the chosen values in each row, NaN where there are none."""
    count = chosen.sum(axis=1)
    total = np.where(chosen, values, 0.0).sum(axis=1)
    return np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.9g}"
    return str(value)
