"""The page of a study: one self-contained file of plain HTML and SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from psyco._src.reports.charts import ChartDot, ChartLine, element, interval_chart, line_chart
from psyco._src.reports.page import badge, keyed, render_page, render_sections, table
from psyco._src.studies.aggregate import missing_evidence
from psyco._src.studies.collect import Row
from psyco._src.studies.statistics import LEVEL, IntervalEstimate
from psyco._src.studies.study_folder import Study
from psyco._src.studies.study_plan import ALL_TASKS


def study_page(study: Study) -> str:
    """Return the page of a study, finished or not."""
    title, plan = study.plan.title or study.folder.resolve().name, study.plan
    episodes = sum(outcome.run.episodes for outcome in study.outcomes if outcome.run)
    configs = ((o.cell.task, o.cell.config) for o in study.outcomes)
    sections = render_sections(
        "study.html",
        title=title,
        verdict=completeness(study),
        failed=study.failed,
        notes=study.notes,
        facts={
            "tasks": len(plan.tasks),
            "methods": len(plan.methods),
            "seeds": len({cell.seed for cell in plan.cells}),
            "training episodes": f"{episodes:,}",
            "time of all runs": _duration(sum(outcome.times.seconds for outcome in study.outcomes)),
        },
        tasks=dict.fromkeys((task, config.domain, config.requirement.strip()) for task, config in configs),
        level=f"{LEVEL:.0%}",
        all_tasks=ALL_TASKS,
        summary=_summary_table(study),
        estimate_charts=_estimate_charts(study),
        comparisons=_comparison_table(study),
        profile_charts=_profile_charts(study),
        learning_charts=_learning_charts(study),
        times=_time_table(study),
        cell_count=f"{len(study.outcomes):,}",
        cells=cell_table(study),
        toml=plan.to_toml(),
    )
    return render_page(title, sections)


# ---- tables ----------------------------------------------------------------------------------------------------


def _summary_table(study: Study) -> Markup:
    rows = [
        (
            row["task"],
            _method(study, row["method"]),
            certified_share(row),
            estimate(row, "return_iqm") + " (scaled)" * row["scaled"],
            estimate(row, "return_median") + " (scaled)" * row["scaled"],
            _first_satisfied(row),
        )
        for row in study.tables.summary
    ]
    return table(("task", "method", "certified", "return, IQM", "return, median", "first satisfied after"), rows)


def _comparison_table(study: Study) -> Markup | None:
    rows = [
        (
            _method(study, row["method"]),
            _method(study, row["other"]),
            f"{row['better']:.2f}{interval(row, 'better', '.2f')}",
            f"{row['better_certified']:.2f}{interval(row, 'better_certified', '.2f')}",
            missing_evidence(row, "better_certified"),
            str(row["tasks"]),
        )
        for row in study.tables.comparisons
    ]
    heads = ("A", "B", "P(A beats B) by return", "P(A beats B), a certificate first", "", "tasks")
    return table(heads, rows) if rows else None


def _time_table(study: Study) -> Markup:
    columns = {
        "seconds": "seconds",
        "processor seconds": "processor_seconds",
        "to first satisfied": "seconds_to_first_satisfied",
        "to a certificate": "seconds_to_certificate",
        "steps per second": "steps_per_second",
    }
    rows = [
        (task, _method(study, method), *(_median(part, name) for name in columns.values()))
        for task in study.plan.tasks
        for method, part in _by_method(study.tables.times, task)
    ]
    return table(("task", "method", *columns), rows)


def cell_table(study: Study) -> Markup:
    """Return a table with one row for each run."""
    rows = []
    for outcome, row in zip(study.outcomes, study.tables.cells, strict=True):
        bounds = ", ".join(
            f"{row[f'lower[{k}]']:.4g} to {row[f'upper[{k}]']:.4g}" for k in range(10) if f"lower[{k}]" in row
        )
        rows.append(
            (
                row["task"],
                _method(study, row["method"]),
                str(row["seed"]),
                badge(row["verdict"] or outcome.state),
                "–" if row["return"] is None else f"{row['return']:.2f} ± {row['return_standard_error'] or 0.0:.2f}",
                bounds or "–",
                _count(row["episodes"]),
                _count(row["steps"]),
                element("code", row["cell"]),
            )
        )
    heads = ("task", "method", "seed", "verdict", "return", "certified bounds", "episodes", "steps", "folder")
    return table(heads, rows)


# ---- charts ----------------------------------------------------------------------------------------------------


def _estimate_charts(study: Study) -> list[Markup]:
    charts = []
    for task in (*study.plan.tasks, *([ALL_TASKS] if len(study.plan.tasks) > 1 else [])):
        rows = [row for row in study.tables.summary if row["task"] == task and row["ended"]]
        returns = "scaled return, IQM" if task == ALL_TASKS else "return, IQM"
        colours = [study.plan.methods.index(row["method"]) for row in rows]
        charts += summary_charts(rows, colours, returns, prefix=f"{task}: ")
    return charts


def summary_charts(
    rows: Sequence[Row], colours: Sequence[int], returns: str = "return, IQM", prefix: str = ""
) -> list[Markup]:
    """Return the charts of the certified share and of the return of each method; none without rows.

    Args:
        rows: of the summary, one for each method.
        colours: of the methods.
        returns: title of the axis of returns.
        prefix: of the charts' titles.
    """
    charts = []
    for name, title, axis in (
        ("certified_share", "certified", "share of runs that ended certified"),
        ("return_iqm", "return", returns),
    ):
        dots = [
            ChartDot(row["method"], colour, drawn_estimate(row, name))
            for row, colour in zip(rows, colours, strict=True)
        ]
        charts.append(interval_chart(f"{prefix}{title}", dots, x=axis, share=name == "certified_share"))
    return charts if rows else []


def _profile_charts(study: Study) -> list[Markup]:
    columns = ("return", "share", "share_lower", "share_upper", "share_certified")
    found = ((task, _lines(study, study.tables.profiles, task, columns)) for task in study.plan.tasks)
    return [line_chart(task, lines, x="return", y="share of runs", share=True) for task, lines in found if lines]


def _learning_charts(study: Study) -> list[Markup]:
    charts = []
    for task in study.plan.tasks:
        for name, title in (("return", "return"), ("satisfied", "satisfied share")):
            columns = ("episodes", name, f"{name}_lower", f"{name}_upper")
            lines = _lines(study, study.tables.curves, task, columns)
            if lines:
                share = name == "satisfied"
                charts.append(line_chart(f"{task}: {title}", lines, x="training episodes", y=title, share=share))
    return charts


def _lines(study: Study, rows: Sequence[Row], task: str, columns: Sequence[str]) -> list[ChartLine]:
    """Return one line for each method, from columns in the order of `ChartLine`: x, y, lower, upper, dashed."""
    return [
        ChartLine(
            method,
            study.plan.methods.index(method),
            *([float(row[name]) for row in part] for name in columns),
        )
        for method, part in _by_method(rows, task)
    ]


# ---- formats ---------------------------------------------------------------------------------------------------


def completeness(study: Study) -> tuple[str, str, str]:
    """Return the badge of a study, its kind, and a sentence."""
    runs, done = len(study.outcomes), sum(outcome.finished for outcome in study.outcomes)
    badge, kind = ("COMPLETE", "satisfied") if done == runs else (f"{done} OF {runs}", "undecided")
    meaning = f"{done:,} of {runs:,} runs have finished, and {study.certified:,} of them ended certified."
    return badge, kind, meaning


def interval_estimate(row: Row, name: str) -> IntervalEstimate:
    """Return an estimate of a row with its interval."""
    return IntervalEstimate(row[name], row[f"{name}_lower"], row[f"{name}_upper"])


def drawn_estimate(row: Row, name: str) -> IntervalEstimate:
    """Return an estimate for a chart, which draws no line to a bound that is missing or infinite."""
    value, *bounds = interval_estimate(row, name)
    return IntervalEstimate(value, *(bound if math.isfinite(bound) else value for bound in bounds))


def estimate(row: Row, name: str) -> str:
    """Return an estimate with its interval as text."""
    return f"{row[name]:.2f}{interval(row, name, '.2f')}" if math.isfinite(row[name]) else "–"


def interval(row: Row, name: str, form: str) -> str:
    """Return the interval of an estimate in brackets; empty where there is none, or where it has no width."""
    low, high = (format(bound, form) for bound in interval_estimate(row, name)[1:])
    return f" ({low} to {high})" if low != high else ""  # where all runs agree, or both are NaN


def certified_share(row: Row) -> str:
    """Return how many of the runs that have ended are certified."""
    return f"{row['certified']} of {row['ended']}{interval(row, 'certified_share', '.0%')}"


def _first_satisfied(row: Row) -> str:
    episodes, runs = (
        row["first_satisfied_episodes"],
        f"({row['first_satisfied_runs']} of {row['ended']} runs)",
    )
    return f"– {runs}" if episodes is None else f"{episodes:,.0f} episodes {runs}"


def _by_method(rows: Sequence[Row], task: str) -> list[tuple[str, list[Row]]]:
    own = [row for row in rows if row["task"] == task]
    methods = dict.fromkeys(row["method"] for row in own)
    return [(method, [row for row in own if row["method"] == method]) for method in methods]


def _method(study: Study, method: str) -> Markup:
    return keyed(method, study.plan.methods.index(method))


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _median(rows: Sequence[Row], name: str) -> str:
    """Return the median over the runs that have a value, and their number where these are not all."""
    values = sorted(row[name] for row in rows if row[name] is not None)
    if not values:
        return "–"
    median = format(values[len(values) // 2], ",.0f" if name == "steps_per_second" else ".1f")
    return median if len(values) == len(rows) else f"{median} ({len(values)} of {len(rows)} runs)"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
