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
from psyco._src.core.wording import plural
from psyco._src.learners.base import Generation

MAX_VERDICT_LENGTH = 9  # characters
LARGEST = 1e100  # absolute value of a number in the table: sums and means of such numbers are finite
COUNT, SHARE, COST, VALUE = (0, 2**53), (0, 1), (0, LARGEST), (-LARGEST, LARGEST)
VERIFICATION = {
    "verified_confidence": SHARE,
    "verified_share": SHARE,
    "verified_lower": SHARE,  # credible interval of the probability, at the required confidence
    "verified_upper": SHARE,
    "verified_return": VALUE,
    "verified_episodes": COUNT,
    "verdict": VALUE,  # only if the check is a test: with snes, and in runs with until_satisfied
}
# The columns of every table, and the range of each.
COLUMNS = {
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
    **VERIFICATION,
}
# The ranges of all columns; further columns may have any number.
RANGES = {**COLUMNS, "deployed_return": VALUE, "deployed_satisfied": SHARE}
MAIN_COLUMNS = ("return", "satisfied", "c_sat", "lambda")


class Metrics(dict[str, NDArray[Any]]):
    """Columns of equal length, by name; `pandas.DataFrame(metrics)` is the same table.

    `c_sat` is the lowest confidence over all constraints and `cost` the summed cost of their formulas. With several
    constraints each has `c_sat[i]`, and probabilities, which come first, also `cost[i]` and `satisfied[i]`. `value[j]`
    is the mean of each measured value: expectations, then questions. For a rate it is the mean total, which divided by
    `length` is the rate. Columns are over all episodes, exploring ones included; `deployed_return` and
    `deployed_satisfied`, which learners with check episodes have, are over episodes of the deployed policy.

    The `verified_*` columns have values in the rows after which the current policy was checked, and NaN elsewhere.
    `verdict` has a value where that check was a test: with the paper's learner, and in runs with `until_satisfied`.
    """

    def __repr__(self) -> str:
        last = {name: column[-1] for name, column in self.items() if name in MAIN_COLUMNS} if self.rows else {}
        values = "".join(f", {name} {value:.4g}" for name, value in last.items())
        return f"<Metrics of {plural(self.rows, 'generation')}{': the last has' + values[1:] if last else ''}>"

    def _repr_html_(self) -> str:
        """Return the first and last rows as HTML, for notebooks."""
        shown = [self.head(5), self.tail(5)] if self.rows > 10 else [self]
        body = "<tr><td>...</td></tr>".join(map(_html_rows, shown))
        heads = "".join(f"<th>{escape(name)}</th>" for name in self)
        return f"<table><caption>{plural(self.rows, 'generation')}</caption><tr>{heads}</tr>{body}</table>"

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` indexed by generation; it needs pandas installed."""
        try:
            import pandas
        except ImportError:
            raise RunError('a DataFrame needs pandas installed: pip install "psyco[pandas]"') from None
        return pandas.DataFrame(self).set_index("generation") if self else pandas.DataFrame()

    def plot(self, columns: str | Sequence[str] = MAIN_COLUMNS) -> Any:
        """Plot columns over training episodes, one panel each; return the matplotlib figure, which notebooks show."""
        from matplotlib.figure import Figure

        columns = [columns] if isinstance(columns, str) else list(columns) or list(MAIN_COLUMNS)
        check_has("the table", "column", columns, self)
        figure = Figure(figsize=(8.0, 2.2 * len(columns)), layout="constrained")
        for panel, name in zip(figure.subplots(len(columns), squeeze=False)[:, 0], columns, strict=True):
            panel.plot(self["episodes"], self[name], linewidth=0.8)
            panel.set_ylabel(name)
        figure.axes[-1].set_xlabel("training episodes")

        def png() -> bytes:
            figure.savefig(out := io.BytesIO(), format="png", dpi=100)
            return out.getvalue()

        figure._repr_png_ = png  # type: ignore[attr-defined]  # notebooks show only pyplot's figures by themselves
        return figure

    @property
    def rows(self) -> int:
        """The number of generations."""
        return len(next(iter(self.values()), ()))

    @property
    def violations(self) -> int:
        """The number of episodes that violated a constraint on a probability."""
        if not self.rows:
            return 0
        size = self["episodes"] / (self["generation"] + 1)  # of a generation
        return int(np.rint(size * (1.0 - self["satisfied"])).sum())

    def head(self, count: int) -> Metrics:
        """Return the first `count` rows."""
        return Metrics({name: column[:count] for name, column in self.items()})

    def tail(self, count: int) -> Metrics:
        """Return the last `count` rows."""
        return Metrics({name: column[max(0, self.rows - count) :] for name, column in self.items()})

    def to_csv(self, *, header: bool = True) -> str:
        """Return the table as CSV; NaN becomes an empty cell."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        if header:
            writer.writerow(self)
        writer.writerows(zip(*(map(_cell, column.tolist()) for column in self.values()), strict=True))
        return out.getvalue()


def tabulate(generations: Generation, *, first: int, episodes_per_generation: int, checks: int = 0) -> Metrics:
    """Return a row for each generation, stacked `[G]` from number `first` on, with empty `verified_*` columns.

    The last `checks` episodes of each generation are those of the deployed policy.
    """
    episodes, (lam, c_sat) = jax.tree.map(np.asarray, tuple(generations))
    count, constraints = c_sat.shape
    cost = episodes.cost.sum(axis=2, dtype=np.float64)  # [G, B]
    good = episodes.satisfied.all(axis=2)
    columns: dict[str, NDArray[Any]] = {
        "generation": np.arange(first, first + count),
        "episodes": np.arange(first + 1, first + count + 1) * episodes_per_generation,
        "return": episodes.returns.mean(axis=1, dtype=np.float64),
        "length": episodes.length.mean(axis=1),
        "satisfied": good.mean(axis=1),
        "lambda": lam,
        "return_satisfying": _mean_where(episodes.returns, good),
        "return_violating": _mean_where(episodes.returns, ~good),
        "cost_satisfying": _mean_where(cost, good),
        "cost_violating": _mean_where(cost, ~good),
        "cost": cost.mean(axis=1),
        "c_sat": c_sat.min(axis=1, initial=1.0),
    }
    if constraints > 1:
        for i in range(constraints):
            if i < episodes.satisfied.shape[2]:
                columns[f"satisfied[{i}]"] = episodes.satisfied[:, :, i].mean(axis=1)
                columns[f"cost[{i}]"] = episodes.cost[:, :, i].mean(axis=1, dtype=np.float64)
            columns[f"c_sat[{i}]"] = c_sat[:, i]
    if episodes.value is not None:
        for j, value in enumerate(np.moveaxis(episodes.value, 2, 0)):
            columns[f"value[{j}]"] = value.mean(axis=1, dtype=np.float64)
    if checks:
        columns["deployed_return"] = episodes.returns[:, -checks:].mean(axis=1, dtype=np.float64)
        columns["deployed_satisfied"] = good[:, -checks:].mean(axis=1)
    for name in VERIFICATION:
        columns[name] = np.full(count, "", dtype="<U9") if name == "verdict" else np.full(count, np.nan)
    return Metrics(columns)


def from_csv(text: str) -> Metrics:
    """Read a table of `to_csv`; raise ValueError or csv.Error for any other text."""
    rows = list(csv.reader(io.StringIO(text)))
    if not rows:
        return Metrics({})
    names, body = rows[0], rows[1:]
    if missing := COLUMNS.keys() - set(names):
        raise ValueError(f"it has no column {min(missing)!r}")
    if len(set(names)) < len(names):
        raise ValueError("it has a column twice")
    cells = dict(zip(names, zip(*body, strict=True), strict=True)) if body else dict.fromkeys(names, ())
    return Metrics({name: _column(name, column) for name, column in cells.items()})


def _column(name: str, cells: Sequence[str]) -> NDArray[Any]:
    """Return the numbers of a column, checked against its range; an empty cell is NaN."""
    if name == "verdict":
        # An array reserves the length of the longest cell for each.
        if any(len(cell) > MAX_VERDICT_LENGTH for cell in cells):
            raise ValueError("a verdict is one word")
        return np.array(cells, dtype=str)
    whole = name in ("generation", "episodes")
    values = [int(cell) if whole else _number(cell) for cell in cells]
    if name == "length" and any(math.isnan(value) for value in values):  # numbers of steps are computed from it
        raise ValueError("a cell of length is no number")
    low, high = RANGES.get(name.partition("[")[0], (-LARGEST, LARGEST))
    if any(not low <= value <= high for value in values if value == value):
        raise ValueError(f"{name} has a value that is not between {low:g} and {high:g}")
    return np.array(values, np.int64 if whole else float)


def _number(cell: str) -> float:
    value = float(cell) if cell else math.nan
    return value if math.isfinite(value) else math.nan


def concatenate(parts: list[Metrics]) -> Metrics:
    """Return the rows of all tables as one table."""
    return (
        Metrics({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}) if parts else Metrics({})
    )


def _mean_where(values: NDArray[Any], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the mean of the chosen values in each row, NaN if there are none."""
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
