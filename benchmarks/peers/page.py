"""One page for all: return and certified probability against the time on the clock, in the look of a study's page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import median
from string import ascii_lowercase
from typing import Any

from psyco._src.reports.run_page import whole_page
from psyco._src.studies.charts import ChartMark, scatter
from psyco._src.studies.statistics import IntervalEstimate
from psyco._src.studies.study_page import DATA, table

Row = dict[str, Any]


def peers_page(rows: Sequence[Row], requirements: dict[str, str]) -> str:
    """The page of these rows, one for each run."""
    parts = [
        _task(name, text, [row for row in rows if row["task"] == name]) for name, text in requirements.items()
    ]
    top = f"""
<p class="kicker">PSyCo benchmark</p>
<h1>Beside its peers</h1>
<p class="muted">The same environments, horizons and steps of learning for everybody; where it was otherwise, the name
says so. All policies were verified alike: 500 fresh episodes each, in one look. The certified probability is the lower
bound that these give at the required confidence. A point is the median over seeds, with the lowest and the highest;
time is that of learning and verification, with compilation, and for PSyCo with its own selection and certificate.</p>
{"".join(parts)}"""
    return whole_page("PSyCo beside its peers", {"top": top, "details": _all(rows)}, DATA)


def _task(name: str, requirement: str, rows: Sequence[Row]) -> str:
    """Two charts; there are more methods than colours, so each has a letter, too."""
    methods = list(enumerate(dict.fromkeys(row["method"] for row in rows)))
    own = [[row for row in rows if row["method"] == method] for _, method in methods]
    keys = [(f"{ascii_lowercase[k]}: {method}", k) for k, method in methods]
    charts = "".join(
        scatter(
            f"{name}: {title}",
            [
                ChartMark(_span(part, "seconds"), _span(part, column), word=ascii_lowercase[k], colour=k)
                for k, part in enumerate(own)
            ],
            x="seconds on the clock",
            y=title,
            keys=keys,
        )
        for column, title in (("return", "return"), ("certified", "certified probability"))
    )
    return (
        f'<h2>{escape(name)}</h2><pre class="requirement"><code>{escape(requirement)}</code></pre>'
        f'<div class="grid">{charts}</div>'
    )


def _span(rows: Sequence[Row], column: str) -> IntervalEstimate:
    values = [float(row[column]) for row in rows]
    return IntervalEstimate(median(values), min(values), max(values))


def _all(rows: Sequence[Row]) -> str:
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
            escape(row["task"]),
            escape(row["method"]),
            str(row["seed"]),
            f"{row['steps']:,}",
            f'<span class="badge small {row["verdict"].lower()}">{row["verdict"]}</span>',
            f"{row['return']:.1f}",
            f"{row['certified']:.3f}",
            f"{row['share']:.3f}",
            f"{row['learning_seconds']:.1f}",
            f"{row['seconds']:.1f}",
        )
        for row in rows
    ]
    return f"<h2>All runs</h2>{table(heads, body)}"
