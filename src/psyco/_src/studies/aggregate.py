"""Aggregate the outcomes of cells into the tables of a study: plain rows for terminal, files and page."""

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

from psyco._src.core.errors import RunError
from psyco._src.learners.metrics import Metrics
from psyco._src.studies import statistics
from psyco._src.studies.collect import CellOutcome, Row, cell_row, time_row
from psyco._src.studies.statistics import IntervalEstimate, Scores
from psyco._src.studies.study_plan import ALL_TASKS

CURVES = {"return": (-math.inf, math.inf), "satisfied": (0.0, 1.0)}  # metrics and their limits
CURVE_POINTS = 50  # of a learning curve
CURVE_RESAMPLES = 500
PROFILE_POINTS = 61  # thresholds of a performance profile
MAX_COMPARED_METHODS = 50  # the number of pairs grows with the square
LAST_COLUMNS = ("policy", "domain", "requirement", "learner", "cell")

Groups = dict[tuple[str, str], list[CellOutcome]]  # by task and method
Scale = tuple[float, float]  # the scores that become 0 and 1


@dataclass(frozen=True)
class StudyTables:
    """All tables of a study, each a list of rows."""

    cells: list[Row]
    summary: list[Row]  # one row per task and method, and one per method over all tasks
    comparisons: list[Row]  # pairs of methods
    profiles: list[Row]
    curves: list[Row]
    times: list[Row]  # the only table that depends on the machine and on interruptions

    def files(self) -> dict[str, str]:
        """Return the tables as CSV text, by file name."""
        return {f"{name}.csv": to_csv(rows) for name, rows in vars(self).items()}


def make_tables(outcomes: Sequence[CellOutcome]) -> StudyTables:
    """Return all tables.

    Shares are of all runs that have ended, and a run without a result ranks below all others. Runs that wait or go on
    are counted as runs and contribute nothing else.
    """
    groups: Groups = {}
    for outcome in outcomes:
        groups.setdefault((outcome.cell.task, outcome.cell.method), []).append(outcome)
    tasks = list(dict.fromkeys(task for task, _ in groups))
    methods = list(dict.fromkeys(method for _, method in groups))
    summary = [_summary(t, m, [groups[t, m]]) for t in tasks for m in methods if (t, m) in groups]
    if len(tasks) > 1:
        scales = _scales(groups, tasks)
        on_all_tasks = [method for method in methods if all((task, method) in groups for task in tasks)]
        summary += [_summary(ALL_TASKS, m, [groups[task, m] for task in tasks], scales) for m in on_all_tasks]
    return StudyTables(
        cells=[cell_row(outcome) for outcome in outcomes],
        summary=summary,
        comparisons=_comparisons(groups, tasks, methods),
        profiles=[row for task in tasks for row in _profiles(task, groups)],
        curves=[row for (task, method), group in groups.items() for row in _curves(task, method, group)],
        times=[time_row(outcome) for outcome in outcomes],
    )


# ---- summary -----------------------------------------------------------------------------------------------------


def _summary(
    task: str, method: str, groups: Sequence[Sequence[CellOutcome]], scales: dict[str, Scale] | None = None
) -> Row:
    """Return one row; over several tasks (`groups`) returns are scaled to be comparable."""
    outcomes = [outcome for group in groups for outcome in group]
    ended = [outcome for outcome in outcomes if outcome.ended]
    certified = sum(outcome.certified for outcome in ended)
    scores = [scores for group in groups if len(scores := _scaled_scores(group, scales))]
    sign = -1.0 if scales is None and not outcomes[0].maximize else 1.0
    firsts = [(outcome.finished and outcome.first_satisfied) or (math.inf, math.inf) for outcome in ended]
    episodes, steps = ([first[k] for first in firsts] for k in (0, 1))
    return {
        "task": task,
        "method": method,
        "runs": len(outcomes),
        "ended": len(ended),
        "finished": sum(outcome.finished for outcome in ended),
        "certified": certified,
        **_columns("certified_share", statistics.proportion(certified, len(ended))),
        **_columns("return_iqm", _signed(statistics.iqm_estimate(scores), sign)),
        **_columns("return_median", _signed(statistics.median_estimate(scores), sign)),
        "scaled": int(scales is not None),
        "first_satisfied_runs": sum(math.isfinite(count) for count in episodes),
        "first_satisfied_episodes": _finite_median(episodes),
        "first_satisfied_steps": _finite_median(steps),
    }


def _scales(groups: Groups, tasks: Sequence[str]) -> dict[str, Scale]:
    """Return the lowest and the highest score of any finished run, for each task."""
    scales = {}
    for task in tasks:
        scores = np.concatenate([_scores(group) for (t, _), group in groups.items() if t == task])
        scores = scores[np.isfinite(scores)]
        scales[task] = (float(scores.min()), float(scores.max())) if len(scores) else (0.0, 1.0)
    return scales


def _scaled_scores(group: Sequence[CellOutcome], scales: dict[str, Scale] | None) -> Scores:
    scores = _scores(group)
    if scales is None:
        return scores
    low, high = scales[group[0].cell.task]
    return (scores - low) / (high - low) if high > low else np.where(np.isfinite(scores), 0.5, scores)


def _scores(group: Sequence[CellOutcome]) -> Scores:
    return np.array([outcome.score for outcome in group if outcome.ended], dtype=np.float64)


def _signed(estimate: IntervalEstimate, sign: float) -> IntervalEstimate:
    value, lower, upper = estimate
    return estimate if sign > 0 else IntervalEstimate(-value, -upper, -lower)


def _finite_median(values: Sequence[float]) -> float | None:
    """Return the median, where inf means never; None if the median is inf."""
    median = float(np.median(values)) if len(values) else math.inf
    return median if math.isfinite(median) else None


def _columns(name: str, estimate: IntervalEstimate) -> Row:
    return {name: estimate.value, f"{name}_lower": estimate.lower, f"{name}_upper": estimate.upper}


# ---- comparisons -------------------------------------------------------------------------------------------------


def _comparisons(groups: Groups, tasks: Sequence[str], methods: Sequence[str]) -> list[Row]:
    """Return one row for each pair of methods that have results on a common task; none where methods are too many."""
    known = [method for method in methods if any(o.ended for task in tasks for o in groups.get((task, method), ()))]
    if len(known) > MAX_COMPARED_METHODS:
        return []
    return [row for a, b in itertools.combinations(known, 2) if (row := _comparison(groups, tasks, a, b))]


def _comparison(groups: Groups, tasks: Sequence[str], a: str, b: str) -> Row | None:
    """Return the probability that a run of method a beats one of b, over the tasks that both have."""
    common = [t for t in tasks if all(len(_scores(groups.get((t, m), []))) for m in (a, b))]
    if not common:
        return None
    by_return = [[_scores(groups[t, m]) for t in common] for m in (a, b)]
    ranks = [_ranks(groups[t, a], groups[t, b]) for t in common]
    certified = statistics.improvement([ours for ours, _ in ranks], [theirs for _, theirs in ranks])
    return {
        "method": a,
        "other": b,
        "tasks": len(common),
        **_improvement_columns("better", statistics.improvement(*by_return), len(common)),
        **_improvement_columns("better_certified", certified, len(common)),
    }


def _improvement_columns(name: str, estimate: IntervalEstimate, tasks: int) -> Row:
    """Return an estimate; where it does not show which method is better, also how many runs of each would."""
    shown = estimate.lower > 0.5 or estimate.upper < 0.5
    needed = None if shown else statistics.runs_needed(estimate.value, tasks)
    return {**_columns(name, estimate), f"{name}_runs_needed": needed}


def missing_evidence(row: Row, name: str) -> str:
    """Return what a comparison lacks to show which method is better, as the end of a sentence; empty if it does."""
    lower, upper, needed = (row[f"{name}_{end}"] for end in ("lower", "upper", "runs_needed"))
    if lower > 0.5 or upper < 0.5:
        return ""
    return "no difference is shown" + (f"; {needed} runs of each would show one at this probability" if needed else "")


def _ranks(ours: Sequence[CellOutcome], theirs: Sequence[CellOutcome]) -> tuple[Scores, Scores]:
    """Return scores as ranks, in which every certified run is above all others, and every failed one below."""
    keys = [[(o.certified, o.score) for o in group if o.ended] for group in (ours, theirs)]
    order = {key: float(rank) for rank, key in enumerate(sorted({*keys[0], *keys[1]}))}
    our_ranks, their_ranks = (np.array([order[key] for key in group]) for group in keys)
    return our_ranks, their_ranks


# ---- profiles and curves -----------------------------------------------------------------------------------------


def _profiles(task: str, groups: Groups) -> list[Row]:
    """Return the share of runs above each return, failed ones included: of all, and of certified ones."""
    of_task = {method: [o for o in group if o.ended] for (t, method), group in groups.items() if t == task}
    scores = np.array([o.score for group in of_task.values() for o in group if math.isfinite(o.score)])
    if not len(scores):
        return []
    pad = 0.02 * float(scores.max() - scores.min()) or 1.0
    thresholds = np.linspace(scores.min() - pad, scores.max() + pad, PROFILE_POINTS)
    rows: list[Row] = []
    for method, group in of_task.items():
        if not group:
            continue
        sign = 1.0 if group[0].maximize else -1.0
        scores = np.array([o.score for o in group])
        certified = np.array([o.score if o.certified else -math.inf for o in group])
        above = statistics.performance_profile(scores, thresholds)
        lower, upper = statistics.proportion_bounds(np.rint(above * len(group)).astype(int), len(group))
        certified_above = statistics.performance_profile(certified, thresholds)
        rows += [
            {
                "task": task, "method": method, "return": sign * threshold, "share": above[k],
                "share_lower": lower[k], "share_upper": upper[k], "share_certified": certified_above[k],
            }
            for k, threshold in enumerate(thresholds)
        ]  # fmt: skip
    return rows


def _curves(task: str, method: str, group: Sequence[CellOutcome]) -> list[Row]:
    """Return interquartile means over finished runs during learning; the shortest run ends the curve."""
    tables = [outcome.metrics for outcome in group if outcome.finished and outcome.metrics.rows]
    if not tables:
        return []
    rows = min(table.rows for table in tables)
    ends = np.unique(np.linspace(0, rows, min(CURVE_POINTS, rows) + 1).astype(int))
    bands = {}
    for name, limits in CURVES.items():
        curves = np.stack([_window_means(table, name, ends) for table in tables], axis=-1)  # [T, N]
        bands[name] = np.clip(statistics.iqm_band([curves], CURVE_RESAMPLES), *limits)
    return [
        {
            "task": task,
            "method": method,
            "episodes": int(tables[0]["episodes"][end - 1]),
            **{f"{name}{side}": band[i][k]
               for name, band in bands.items() for i, side in enumerate(("", "_lower", "_upper"))},
        }
        for k, end in enumerate(ends[1:])
    ]  # fmt: skip


def _window_means(table: Metrics, name: str, ends: Any) -> Scores:
    return np.array([table[name][a:b].mean() for a, b in itertools.pairwise(ends)])


# ---- formats -----------------------------------------------------------------------------------------------------


def to_csv(rows: Sequence[Row]) -> str:
    """Return a table as CSV; None and NaN are empty. The same rows give the same bytes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = table_columns(rows)
    if names:
        writer.writerow(names)
    writer.writerows([_csv_value(row.get(name)) for name in names] for row in rows)
    return out.getvalue()


def to_html(caption: str, rows: Sequence[Row]) -> str:
    """Return an escaped HTML table for notebooks; numbers have four digits."""
    names = table_columns(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    cells = ([_html_value(row.get(name)) for name in names] for row in rows)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in cells)
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>"


def to_pandas(rows: Sequence[Row]) -> Any:
    """Return a table as a `pandas.DataFrame`."""
    try:
        import pandas
    except ImportError:
        raise RunError('a DataFrame needs pandas installed: pip install "psyco[pandas]"') from None
    return pandas.DataFrame(rows)


def to_json_rows(rows: Sequence[Row]) -> list[Row]:
    """Return rows for JSON, which has no NaN: it becomes null."""
    return [
        {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()}
        for row in rows
    ]


def table_columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns of a table: those of constraints by their index, long texts last."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    indexed = [name for name in names if name.endswith("]")]
    indexed.sort(key=lambda name: int(name[name.index("[") + 1 : -1]))
    return [
        *(name for name in names if name not in indexed and name not in LAST_COLUMNS),
        *indexed,
        *(name for name in names if name in LAST_COLUMNS),
    ]


def _csv_value(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _html_value(value: Any) -> str:
    return "" if value is None else escape(f"{value:.4g}" if isinstance(value, float) else str(value))
