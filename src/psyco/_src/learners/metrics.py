"""The metrics table: one row per generation, tidy, as named columns."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from html import escape
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError, check_has
from psyco._src.learners.base import Generation

VERIFICATION = (
    "verified_confidence",
    "verified_share",
    "verified_lower",  # a credible interval for the probability, at the required confidence
    "verified_upper",
    "verified_return",
    "verified_episodes",
    "verdict",  # where a check is a test: of snes, and of a run that ends when it is satisfied
)
WIDEST = 9  # characters of a verdict
LARGEST = 1e100  # of a number in the table: sums and means of such numbers are finite
COUNT, SHARE, COST, VALUE = (0, 2**53), (0, 1), (0, LARGEST), (-LARGEST, LARGEST)
COLUMNS = {  # those that every table has, and the range of each
    "generation": COUNT,
    "episodes": (1, 2**53),
    "return": VALUE,
    "length": COUNT,
    "satisfied": SHARE,
    "lambda": COST,
    "return_satisfying": VALUE,
    "return_violating": VALUE,
    "cost_satisfying": COST,
    "cost_violating": COST,
    "cost": COST,
    "c_sat": SHARE,
    "verified_confidence": SHARE,
    "verified_share": SHARE,
    "verified_lower": SHARE,
    "verified_upper": SHARE,
    "verified_return": VALUE,
    "verified_episodes": COUNT,
    "verdict": VALUE,
}
# What every table has; further columns are numbers, and these are in a range.
RANGES = {**COLUMNS, "deployed_return": VALUE, "deployed_satisfied": SHARE}
SHOWN = ("return", "satisfied", "c_sat", "lambda")  # of the last row, in one line


class Metrics(dict[str, NDArray[Any]]):
    """Columns of equal length, by name; `pandas.DataFrame(metrics)` is the same table.

    `c_sat` is the lowest confidence over all demands and `cost` the summed cost of their formulas; with several demands
    each has `c_sat[i]`, and those for probabilities, which come first, also `cost[i]` and `satisfied[i]`. `value[j]` is
    the mean of what the requirement measures, its expectations and then its questions; of a rate it is the mean total,
    which divided by `length` is the rate. Where a learner plays some episodes of the policy that would be deployed,
    they have columns of their own, `deployed_return` and `deployed_satisfied`; all others are about all episodes, those
    of exploring policies among them. Where the current policy was verified after a generation its row has the
    `verified_*` columns filled; elsewhere they are NaN. `verdict` is filled where that was a test: for the paper's
    learner, and in runs that end as soon as they are satisfied.
    """

    def __repr__(self) -> str:
        last = {name: column[-1] for name, column in self.items() if name in SHOWN} if self.rows else {}
        values = "".join(f", {name} {value:.4g}" for name, value in last.items())
        return f"<Metrics of {self.rows:,} generations{': the last has' + values[1:] if last else ''}>"

    def _repr_html_(self) -> str:
        """The first and last rows, for notebooks."""
        shown = [self.head(5), self.tail(5)] if self.rows > 10 else [self]
        body = "<tr><td>...</td></tr>".join(map(_html_rows, shown))
        heads = "".join(f"<th>{escape(name)}</th>" for name in self)
        return f"<table><caption>{self.rows:,} generations</caption><tr>{heads}</tr>{body}</table>"

    def to_pandas(self) -> Any:
        """The table as a `pandas.DataFrame`, indexed by generation; it needs pandas installed."""
        try:
            import pandas
        except ImportError:
            raise RunError("a DataFrame needs pandas installed: pip install pandas") from None
        return pandas.DataFrame(self).set_index("generation") if self else pandas.DataFrame()

    def plot(self, columns: str | Sequence[str] = SHOWN) -> Any:
        """Curves over training episodes, one panel per column, as a matplotlib figure; notebooks show it."""
        from matplotlib.figure import Figure

        columns = [columns] if isinstance(columns, str) else list(columns) or list(SHOWN)
        check_has("the table", "column", columns, self)
        figure = Figure(figsize=(8.0, 2.2 * len(columns)), layout="constrained")
        for panel, name in zip(figure.subplots(len(columns), squeeze=False)[:, 0], columns, strict=True):
            panel.plot(self["episodes"], self[name], linewidth=0.8)
            panel.set_ylabel(name)
        figure.axes[-1].set_xlabel("training episodes")
        return figure

    @property
    def rows(self) -> int:
        """How many generations there are."""
        return len(next(iter(self.values()), ()))

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


def tabulate(
    generations: Generation, *, first: int, episodes_per_generation: int, checks: int = 0
) -> Metrics:
    """Rows for generations first, first+1, ..., stacked `[G]`, with nothing verified yet.

    The last `checks` episodes of each generation show the policy that would be deployed.
    """
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
            if i < episodes.satisfied.shape[2]:
                columns[f"satisfied[{i}]"] = episodes.satisfied[:, :, i].mean(axis=1)
                columns[f"cost[{i}]"] = episodes.cost[:, :, i].mean(axis=1, dtype=np.float64)
            columns[f"c_sat[{i}]"] = c_sat[:, i]
    if episodes.value is not None:
        for j, value in enumerate(np.moveaxis(episodes.value, 2, 0)):
            columns[f"value[{j}]"] = value.mean(axis=1, dtype=np.float64)
    if checks:
        columns["deployed_return"] = episodes.ret[:, -checks:].mean(axis=1, dtype=np.float64)
        columns["deployed_satisfied"] = good[:, -checks:].mean(axis=1)
    for name in VERIFICATION:
        columns[name] = np.full(count, "", dtype="<U9") if name == "verdict" else np.full(count, np.nan)
    return Metrics(columns)


def from_csv(text: str) -> Metrics:
    """The table that `to_csv` has written; ValueError or csv.Error says why it can't be that."""
    rows = list(csv.reader(io.StringIO(text)))
    if not rows:
        return Metrics({})
    names, body = rows[0], rows[1:]
    if missing := COLUMNS.keys() - set(names):
        raise ValueError(f"it has no column {min(missing)!r}")
    if len(set(names)) < len(names):
        raise ValueError("a column stands in it twice")
    cells = dict(zip(names, zip(*body, strict=True), strict=True)) if body else dict.fromkeys(names, ())
    return Metrics({name: _column(name, column) for name, column in cells.items()})


def _column(name: str, cells: Sequence[str]) -> NDArray[Any]:
    """Numbers in the range that a column has; an empty cell is NaN."""
    if name == "verdict":
        if any(len(cell) > WIDEST for cell in cells):  # an array gives all of them the room of the longest
            raise ValueError("a verdict is one word")
        return np.array(cells, dtype=str)
    whole = name in ("generation", "episodes")
    values = [int(cell) if whole else _number(cell) for cell in cells]
    least, most = RANGES.get(name.partition("[")[0], (-LARGEST, LARGEST))
    if any(not least <= value <= most for value in values if value == value):
        raise ValueError(f"{name} has a value that is not between {least:g} and {most:g}")
    return np.array(values, np.int64 if whole else float)


def _number(cell: str) -> float:
    value = float(cell) if cell else math.nan
    return value if math.isfinite(value) else math.nan


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


def _html_rows(metrics: Metrics) -> str:
    cells = zip(*(map(_cell, column.tolist()) for column in metrics.values()), strict=True)
    return "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.9g}"
    return str(value)
