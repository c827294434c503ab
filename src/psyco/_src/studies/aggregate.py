"""From what became of the cells to the answers of a study: tables of plain rows, for terminal, files and page."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from psyco._src.learners.metrics import Metrics
from psyco._src.studies import statistics
from psyco._src.studies.collect import CellOutcome, Row, groups, row, time_row
from psyco._src.studies.statistics import IntervalEstimate, Scores
from psyco._src.studies.study_plan import ALL_TASKS

POINTS = 50  # of a learning curve
THRESHOLDS = 61  # of a profile
LAST = ("policy", "domain", "requirement", "learner", "cell")  # columns


@dataclass(frozen=True)
class StudyTables:
    """All tables of a study, each a list of rows with the same keys."""

    cells: list[Row]
    summary: list[Row]  # one row per task and method, and one per method over all tasks
    comparisons: list[Row]  # pairs of methods
    profiles: list[Row]
    curves: list[Row]
    times: list[Row]  # the only table that depends on the machine, and on interruptions

    def files(self) -> dict[str, str]:
        """The tables as CSV files, by name."""
        return {f"{name}.csv": to_csv(rows) for name, rows in vars(self).items()}


def answer(outcomes: Sequence[CellOutcome]) -> StudyTables:
    """Everything that is said about a study; a cell that has not finished is counted, and says nothing else."""
    own = groups(outcomes)
    tasks = list(dict.fromkeys(task for task, _ in own))
    methods = list(dict.fromkeys(method for _, method in own))
    summary = [_summary(t, m, [own[t, m]]) for t in tasks for m in methods if (t, m) in own]
    if len(tasks) > 1:
        scales = _scales(own, tasks)
        everywhere = [method for method in methods if all((task, method) in own for task in tasks)]
        summary += [_summary(ALL_TASKS, m, [own[task, m] for task in tasks], scales) for m in everywhere]
    return StudyTables(
        cells=[row(outcome) for outcome in outcomes],
        summary=summary,
        comparisons=[
            compared
            for a, b in itertools.combinations(methods, 2)
            if (compared := _compared(own, tasks, a, b))
        ],
        profiles=[each for task in tasks for each in _profiles(task, own)],
        curves=[each for (task, method), part in own.items() for each in _curves(task, method, part)],
        times=[time_row(outcome) for outcome in outcomes],
    )


# ---- summaries ---------------------------------------------------------------------------------------------------


def _summary(
    task: str, method: str, parts: Sequence[Sequence[CellOutcome]], scales: dict[str, Scale] | None = None
) -> Row:
    """One row; over several tasks, returns are scaled so that they can be put together."""
    every = [outcome for part in parts for outcome in part]
    done = [outcome for outcome in every if outcome.finished]
    certified = sum(outcome.certified for outcome in done)
    scores = [scores for part in parts if len(scores := _scaled(part, scales))]
    sign = -1.0 if scales is None and not every[0].maximize else 1.0
    firsts = [outcome.first or (math.inf, math.inf) for outcome in done]
    episodes, steps = ([first[k] for first in firsts] for k in (0, 1))
    return {
        "task": task,
        "method": method,
        "runs": len(every),
        "finished": len(done),
        "certified": certified,
        **_columns("certified_share", statistics.share(certified, len(done))),
        **_columns("return_iqm", _signed(statistics.estimated(statistics.iqm, scores), sign)),
        **_columns("return_median", _signed(statistics.estimated(statistics.median, scores), sign)),
        "scaled": int(scales is not None),
        "reached": sum(math.isfinite(each) for each in episodes),
        "first_satisfied_episodes": _middle(episodes),
        "first_satisfied_steps": _middle(steps),
    }


Scale = tuple[float, float]  # the score that becomes 0, and that which becomes 1


def _scales(own: dict[tuple[str, str], list[CellOutcome]], tasks: Sequence[str]) -> dict[str, Scale]:
    """Of each task, the lowest and the highest score of any run in this study."""
    found = {}
    for task in tasks:
        scores = np.concatenate([_scores(part) for (t, _), part in own.items() if t == task])
        found[task] = (float(scores.min()), float(scores.max())) if len(scores) else (0.0, 1.0)
    return found


def _scaled(part: Sequence[CellOutcome], scales: dict[str, Scale] | None) -> Scores:
    scores = _scores(part)
    if scales is None:
        return scores
    low, high = scales[part[0].cell.task]
    return (scores - low) / (high - low) if high > low else np.full_like(scores, 0.5)


def _scores(part: Sequence[CellOutcome]) -> Scores:
    found = np.array([outcome.score for outcome in part], dtype=np.float64)
    return found[np.isfinite(found)]


def _signed(estimate: IntervalEstimate, sign: float) -> IntervalEstimate:
    value, lower, upper = estimate
    return estimate if sign > 0 else IntervalEstimate(-value, -upper, -lower)


def _middle(values: Sequence[float]) -> float | None:
    """The median where what was not reached counts as later than everything; None if that is not reached."""
    middle = float(np.median(values)) if len(values) else math.inf
    return middle if math.isfinite(middle) else None


def _columns(name: str, estimate: IntervalEstimate) -> Row:
    return {name: estimate.value, f"{name}_lower": estimate.lower, f"{name}_upper": estimate.upper}


# ---- pairs -------------------------------------------------------------------------------------------------------


def _compared(
    own: dict[tuple[str, str], list[CellOutcome]], tasks: Sequence[str], a: str, b: str
) -> Row | None:
    """How likely a run of the one method beats a run of the other, over the tasks that both have."""
    common = [t for t in tasks if all(len(_scores(own.get((t, m), []))) for m in (a, b))]
    if not common:
        return None
    by_return = [[_scores(own[t, m]) for t in common] for m in (a, b)]
    ranks = [_ranked(own[t, a], own[t, b]) for t in common]
    return {
        "method": a,
        "other": b,
        "tasks": len(common),
        **_columns("better", statistics.improvement(*by_return)),
        **_columns(
            "better_certified",
            statistics.improvement([mine for mine, _ in ranks], [other for _, other in ranks]),
        ),
    }


def _ranked(ours: Sequence[CellOutcome], theirs: Sequence[CellOutcome]) -> tuple[Scores, Scores]:
    """Scores as ranks in which every certified run stands above all others."""
    keys = [[(o.certified, o.score) for o in part if math.isfinite(o.score)] for part in (ours, theirs)]
    order = {key: float(rank) for rank, key in enumerate(sorted({*keys[0], *keys[1]}))}
    mine, other = (np.array([order[key] for key in part]) for part in keys)
    return mine, other


# ---- curves ------------------------------------------------------------------------------------------------------


def _profiles(task: str, own: dict[tuple[str, str], list[CellOutcome]]) -> list[Row]:
    """The share of runs above each return, of all runs and of those that are certified, too."""
    parts = {
        method: [o for o in part if math.isfinite(o.score)] for (t, method), part in own.items() if t == task
    }
    every = np.array([o.score for part in parts.values() for o in part])
    if not len(every):
        return []
    pad = 0.02 * float(every.max() - every.min()) or 1.0
    thresholds = np.linspace(every.min() - pad, every.max() + pad, THRESHOLDS)
    rows: list[Row] = []
    for method, part in parts.items():
        if not part:
            continue
        sign = 1.0 if part[0].maximize else -1.0
        scores = np.array([o.score for o in part])
        certified = np.array([o.score if o.certified else -math.inf for o in part])
        above, lower, upper = statistics.band(
            lambda again: again.mean(axis=-1), (scores[:, None] > thresholds).astype(float)
        )
        good = statistics.profile(certified, thresholds)
        rows += [
            {
                "task": task, "method": method, "return": sign * threshold,
                "share": above[k], "share_lower": lower[k], "share_upper": upper[k], "share_certified": good[k],
            }
            for k, threshold in enumerate(thresholds)
        ]  # fmt: skip
    return rows


def _curves(task: str, method: str, part: Sequence[CellOutcome]) -> list[Row]:
    """Interquartile means over the runs as learning goes on; runs that ended early cut the curve where they did."""
    tables = [outcome.metrics for outcome in part if outcome.finished and outcome.metrics.rows]
    if not tables:
        return []
    rows = min(table.rows for table in tables)
    ends = np.unique(np.linspace(0, rows, min(POINTS, rows) + 1).astype(int))
    curves = {
        name: np.stack([_binned(table, name, ends) for table in tables]) for name in ("return", "satisfied")
    }
    found = {name: statistics.band(statistics.iqm, values) for name, values in curves.items()}
    return [
        {
            "task": task,
            "method": method,
            "episodes": int(tables[0]["episodes"][end - 1]),
            **{f"{name}{side}": found[name][i][k]
               for name in found for i, side in enumerate(("", "_lower", "_upper"))},
        }
        for k, end in enumerate(ends[1:])
    ]  # fmt: skip


def _binned(table: Metrics, name: str, ends: Any) -> Scores:
    """Means between consecutive rows."""
    return np.array([table[name][a:b].mean() for a, b in itertools.pairwise(ends)])


# ---- files -------------------------------------------------------------------------------------------------------


def to_csv(rows: Sequence[Row]) -> str:
    """A table as text; what is not there is an empty cell. The same rows give the same bytes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = columns_of(rows)
    if names:
        writer.writerow(names)
    writer.writerows([_cell(each.get(name)) for name in names] for each in rows)
    return out.getvalue()


def to_html(caption: str, rows: Sequence[Row]) -> str:
    """A table for notebooks, escaped; numbers have four digits."""
    names = columns_of(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    cells = ([_shown(each.get(name)) for name in names] for each in rows)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in cells)
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>"


def _shown(value: Any) -> str:
    return "" if value is None else escape(f"{value:.4g}" if isinstance(value, float) else str(value))


def columns_of(rows: Sequence[Row]) -> list[str]:
    """The columns of a table: what is there for every constraint in the order of constraints, long texts last."""
    names = list(dict.fromkeys(name for each in rows for name in each))
    own = [name for name in names if name.endswith("]")]
    own.sort(key=lambda name: int(name[name.index("[") + 1 : -1]))
    return [
        *(name for name in names if name not in own and name not in LAST),
        *own,
        *(name for name in names if name in LAST),
    ]


def plain(value: Any) -> Any:
    """For JSON, which has no NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)
