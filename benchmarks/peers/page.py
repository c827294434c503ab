"""The page of the comparison: return and certified probability over the time on the clock."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from string import ascii_lowercase
from typing import Any

from markupsafe import Markup

from psyco._src.reports.charts import ChartMark, element, scatter_chart
from psyco._src.reports.page import badge, render_page, table
from psyco._src.studies.statistics import IntervalEstimate

Row = dict[str, Any]

INTRODUCTION = """The same environments, horizons and steps of learning for all methods; exceptions are part of a
method's name. All policies were verified alike: 500 fresh episodes each, in one look. The certified probability is the
lower bound that these give at the required confidence. A point is the median over seeds, with the lowest and the
highest; the time is that of learning and verification, with compilation, and for PSyCo with its own selection and
certificate."""


def peers_page(rows: Sequence[Row], requirements: dict[str, str]) -> str:
    """Return the page of these rows, one for each run."""
    tasks = [_task(name, text, [row for row in rows if row["task"] == name]) for name, text in requirements.items()]
    top = Markup("").join(
        [
            element("p", "PSyCo benchmark", class_="kicker"),
            element("h1", "Beside its peers"),
            element("p", INTRODUCTION, class_="muted"),
            *tasks,
        ]
    )
    details = element("h2", "All runs") + _run_table(rows)
    return render_page("PSyCo beside its peers", {"top": top, "details": details})


def _task(name: str, requirement: str, rows: Sequence[Row]) -> Markup:
    """Return two charts; there are more methods than colours, so each method also has a letter."""
    methods = list(enumerate(dict.fromkeys(row["method"] for row in rows)))
    by_method = [[row for row in rows if row["method"] == method] for _, method in methods]
    keys = [(f"{ascii_lowercase[k]}: {method}", k) for k, method in methods]
    charts = [
        scatter_chart(
            f"{name}: {title}",
            [
                ChartMark(
                    _median_range(part, "seconds"),
                    _median_range(part, column),
                    label=ascii_lowercase[k],
                    colour=k,
                )
                for k, part in enumerate(by_method)
            ],
            x="seconds on the clock",
            y=title,
            keys=keys,
        )
        for column, title in (("return", "return"), ("certified", "certified probability"))
    ]
    text = element("pre", element("code", requirement), class_="requirement")
    return element("h2", name) + text + element("div", *charts, class_="grid")


def _median_range(rows: Sequence[Row], column: str) -> IntervalEstimate:
    values = [float(row[column]) for row in rows]
    return IntervalEstimate(median(values), min(values), max(values))


def _run_table(rows: Sequence[Row]) -> Markup:
    heads = (
        "task",
        "method",
        "seed",
        "steps",
        "verdict",
        "return",
        "certified",
        "share",
        "learning, s",
        "all, s",
    )
    body = [
        (
            row["task"],
            row["method"],
            str(row["seed"]),
            f"{row['steps']:,}",
            badge(row["verdict"]),
            f"{row['return']:.1f}",
            f"{row['certified']:.3f}",
            f"{row['share']:.3f}",
            f"{row['learning_seconds']:.1f}",
            f"{row['seconds']:.1f}",
        )
        for row in rows
    ]
    return table(heads, body)
