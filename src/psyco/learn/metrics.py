"""The metrics table: one row per generation, tidy, as named columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco.learn.base import Generation

# Column names of the fields of Generation that are one number per row.
SCALARS = {
    "return": "ret",
    "length": "length",
    "satisfied": "satisfied",
    "lambda": "lam",
    "return_satisfying": "ret_satisfying",
    "return_violating": "ret_violating",
    "cost_satisfying": "cost_satisfying",
    "cost_violating": "cost_violating",
}
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
    """Rows for generations first, first+1, ..., with nothing verified yet."""
    count, demands = np.shape(generations.c_sat)
    columns: dict[str, NDArray[Any]] = {
        "generation": np.arange(first, first + count),
        "episodes": np.arange(first + 1, first + count + 1) * episodes_per_generation,
    }
    columns |= {name: np.asarray(getattr(generations, field)) for name, field in SCALARS.items()}
    columns["cost"] = np.asarray(generations.cost).sum(axis=1)
    columns["c_sat"] = np.asarray(generations.c_sat).min(axis=1, initial=1.0)
    if demands > 1:
        for i in range(demands):
            columns[f"satisfied[{i}]"] = np.asarray(generations.share)[:, i]
            columns[f"cost[{i}]"] = np.asarray(generations.cost)[:, i]
            columns[f"c_sat[{i}]"] = np.asarray(generations.c_sat)[:, i]
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


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.9g}"
    return str(value)
