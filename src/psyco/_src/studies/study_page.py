"""One self-contained page about a study, in the look of a run's report; plain HTML and SVG, which need no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from psyco._src.reports.run_page import whole_page
from psyco._src.studies.charts import ChartDot, ChartLine, dots, lines
from psyco._src.studies.collect import Row
from psyco._src.studies.statistics import LEVEL, RESAMPLES, IntervalEstimate
from psyco._src.studies.study_folder import Study
from psyco._src.studies.study_plan import ALL_TASKS

DATA: dict[str, Any] = {"runs": [], "limits": {}}  # nothing for the script to draw
SOURCE = (
    "R. Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice, NeurIPS 2021"
)


def study_page(study: Study) -> str:
    """The page of a study as it stands."""
    title = study.plan.title or study.folder.resolve().name
    return whole_page(title, {"top": _top(study, title), "details": _details(study)}, DATA)


def _top(study: Study, title: str) -> str:
    cells, done = len(study.outcomes), sum(outcome.finished for outcome in study.outcomes)
    badge, kind = ("COMPLETE", "satisfied") if done == cells else (f"{done} OF {cells}", "undecided")
    meaning = f"{done:,} of {cells:,} runs have finished, and {study.certified:,} of them ended certified."
    failed = "".join(f"<li>{escape(name)}: {escape(error)}</li>" for name, error in study.failed.items())
    problems = (
        f'<div class="problems" role="alert"><strong>Cells that failed:</strong><ul>{failed}</ul></div>'
        * bool(failed)
    )
    notes = "".join(f'<p class="muted">Note: {escape(note)}.</p>' for note in study.notes)
    episodes = sum(outcome.run.episodes for outcome in study.outcomes if outcome.run)
    facts = {
        "tasks": str(len(study.plan.tasks)),
        "methods": str(len(study.plan.methods)),
        "seeds": str(len({cell.seed for cell in study.plan.cells})),
        "training episodes": f"{episodes:,}",
        "time of all runs": _seconds(sum(outcome.times.seconds for outcome in study.outcomes)),
    }
    listed = "".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in facts.items())
    return f"""
<p class="kicker">PSyCo study</p>
<h1>{escape(title)}</h1>
<div class="verdict {kind}"><span class="badge">{badge}</span><p>{escape(meaning)}</p></div>
{problems}{notes}
<dl class="facts">{listed}</dl>
{_requirements(study)}
<h2>Answers</h2>
<p class="muted">Intervals are at {LEVEL:.0%}: exact (Clopper and Pearson) for shares, by {RESAMPLES:,} stratified
bootstrap resamples for returns. The return of a run is the mean over the episodes of its certificate; IQM is the
interquartile mean over runs ({escape(SOURCE)}).</p>
{_summary(study)}
<div class="grid">{_estimates(study)}</div>
{_comparisons(study)}"""


def _requirements(study: Study) -> str:
    """What each task asks for, in full."""
    asked = dict.fromkeys(
        (o.cell.task, o.cell.config.domain, o.cell.config.requirement.strip()) for o in study.outcomes
    )
    return "<h2>Tasks</h2>" + "".join(
        f'<p>{escape(task)}<span class="muted"> on {escape(domain)}</span></p>'
        f'<pre class="requirement"><code>{escape(text)}</code></pre>'
        for task, domain, text in asked
    )


def _summary(study: Study) -> str:
    rows = [
        (
            escape(row["task"]),
            _key(study, row["method"]),
            f"{row['certified']} of {row['finished']}{interval(row, 'certified_share', '.0%')}",
            estimate(row, "return_iqm") + " (scaled)" * row["scaled"],
            estimate(row, "return_median") + " (scaled)" * row["scaled"],
            _first(row),
        )
        for row in study.answers.summary
    ]
    heads = ("task", "method", "certified", "return, IQM", "return, median", "first satisfied after")
    note = (
        f'<p class="muted">Over {ALL_TASKS} returns are scaled: of each task, 0 is the worst run of this study and 1 '
        "the best. “First satisfied” is the median over runs of the training episodes after which a check while "
        "learning first found the requirement satisfied; such a check is no certificate.</p>"
    )
    return table(heads, rows) + note


def _estimates(study: Study) -> str:
    charts = []
    for task in (*study.plan.tasks, *([ALL_TASKS] if len(study.plan.tasks) > 1 else [])):
        rows = [row for row in study.answers.summary if row["task"] == task and row["finished"]]
        if not rows:
            continue
        for name, title, axis in (
            ("certified_share", "certified", "share of runs that ended certified"),
            ("return_iqm", "return", "scaled return, IQM" if task == ALL_TASKS else "return, IQM"),
        ):
            series = [ChartDot(row["method"], _colour(study, row["method"]), of(row, name)) for row in rows]
            charts.append(dots(f"{task}: {title}", series, x=axis, share=name == "certified_share"))
    return "".join(charts)


def _comparisons(study: Study) -> str:
    if not study.answers.comparisons:
        return ""
    rows = [
        (
            _key(study, row["method"]),
            _key(study, row["other"]),
            f"{row['better']:.2f}{interval(row, 'better', '.2f')}",
            f"{row['better_certified']:.2f}{interval(row, 'better_certified', '.2f')}",
            str(row["tasks"]),
        )
        for row in study.answers.comparisons
    ]
    heads = ("A", "B", "P(A beats B) by return", "P(A beats B), a certificate first", "tasks")
    return (
        "<h2>Which is better</h2>"
        + table(heads, rows)
        + '<p class="muted">The chance that a run of A beats a run of B '
        "on the same task, ties counted half, averaged over tasks. “A certificate first”: a run that ended certified "
        "beats one that did not, whatever their returns.</p>"
    )


def _details(study: Study) -> str:
    return (
        f'<h2>Profiles</h2><p class="muted">The share of runs whose return is better than what stands below, with its '
        f'band; dashed: and that ended certified.</p><div class="grid">{_profiles(study)}</div>'
        f'<h2 class="apart">Learning</h2><p class="muted">Interquartile means over runs, with bands; what is drawn are '
        f'the episodes of learning, not those of a certificate.</p><div class="grid">{_curves(study)}</div>'
        f'<h2 class="apart">Time</h2>{_times(study)}'
        f"<details><summary>All {len(study.outcomes):,} cells</summary>{cell_table(study)}</details>"
        "<details><summary>The study as a file</summary>"
        f"<pre><code>{escape(study.plan.to_toml())}</code></pre></details>"
    )


def _profiles(study: Study) -> str:
    charts = []
    for task in study.plan.tasks:
        series = [
            ChartLine(
                method,
                _colour(study, method),
                *_columns(rows, "return", "share", "share_lower", "share_upper", "share_certified"),
            )
            for method, rows in _by_method(study.answers.profiles, task)
        ]
        if series:
            charts.append(lines(task, series, x="return", y="share of runs", share=True))
    return "".join(charts)


def _curves(study: Study) -> str:
    charts = []
    for task in study.plan.tasks:
        found = _by_method(study.answers.curves, task)
        for name, title, share in (("return", "return", False), ("satisfied", "satisfied share", True)):
            series = [
                ChartLine(
                    method,
                    _colour(study, method),
                    *_columns(rows, "episodes", name, f"{name}_lower", f"{name}_upper"),
                )
                for method, rows in found
            ]
            if series:
                charts.append(lines(f"{task}: {title}", series, x="training episodes", y=title, share=share))
    return "".join(charts)


def _times(study: Study) -> str:
    rows = []
    for task in study.plan.tasks:
        for method, part in _by_method(study.answers.times, task):
            rows.append(
                (
                    escape(task),
                    _key(study, method),
                    _middle(part, "seconds"),
                    _middle(part, "processor_seconds"),
                    _middle(part, "seconds_to_first_satisfied"),
                    _middle(part, "seconds_to_certificate"),
                    _middle(part, "steps_per_second", ",.0f"),
                )
            )
    heads = (
        "task", "method", "seconds", "processor seconds", "to first satisfied", "to a certificate", "steps per second",
    )  # fmt: skip
    return table(heads, rows) + (
        '<p class="muted">Medians over runs, compilation and certification included. They depend on the machine and on '
        "what else it does; nothing else on this page does.</p>"
    )


def cell_table(study: Study) -> str:
    """All runs, one row each."""
    rows = []
    for outcome, row in zip(study.outcomes, study.answers.cells, strict=True):
        bounds = ", ".join(
            f"{row[f'lower[{k}]']:.4g} to {row[f'upper[{k}]']:.4g}" for k in range(10) if f"lower[{k}]" in row
        )
        word = row["verdict"] or outcome.state
        rows.append(
            (
                escape(row["task"]),
                _key(study, row["method"]),
                str(row["seed"]),
                f'<span class="badge small {escape(word.lower())}">{escape(word)}</span>',
                "–" if row["return"] is None else f"{row['return']:.2f} ± {row['return_error'] or 0.0:.2f}",
                bounds or "–",
                _count(row["episodes"]),
                _count(row["steps"]),
                f"<code>{escape(row['cell'])}</code>",
            )
        )
    heads = ("task", "method", "seed", "verdict", "return", "certified bounds", "episodes", "steps", "folder")
    return table(heads, rows)


# ---- small things ------------------------------------------------------------------------------------------------


def _by_method(rows: Sequence[Row], task: str) -> list[tuple[str, list[Row]]]:
    own = [row for row in rows if row["task"] == task]
    return [
        (m, [row for row in own if row["method"] == m]) for m in dict.fromkeys(row["method"] for row in own)
    ]


def _columns(rows: Sequence[Row], *names: str) -> list[list[float]]:
    return [[float(row[name]) for row in rows] for name in names]


def _colour(study: Study, method: str) -> int:
    return study.plan.methods.index(method)


def _key(study: Study, method: str) -> str:
    return f'<span class="key s{_colour(study, method) % 6}"></span>{escape(method)}'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of HTML that may be wider than a phone."""
    head = "".join(f"<th>{text}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def of(row: Row, name: str) -> IntervalEstimate:
    """An estimate of a row."""
    return IntervalEstimate(row[name], row[f"{name}_lower"], row[f"{name}_upper"])


def estimate(row: Row, name: str) -> str:
    """It and its interval, in two digits."""
    return f"{row[name]:.2f}{interval(row, name, '.2f')}" if math.isfinite(row[name]) else "–"


def interval(row: Row, name: str, form: str) -> str:
    """Its interval in brackets, or nothing."""
    _, lower, upper = of(row, name)
    return f" ({format(lower, form)} to {format(upper, form)})" if math.isfinite(lower) else ""


def _first(row: Row) -> str:
    if row["first_satisfied_episodes"] is None:
        return f"– ({row['reached']} of {row['finished']} runs)"
    return f"{row['first_satisfied_episodes']:,.0f} episodes ({row['reached']} of {row['finished']} runs)"


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _middle(rows: Sequence[Row], name: str, form: str = ".1f") -> str:
    values = sorted(row[name] for row in rows if row[name] is not None)
    return format(values[len(values) // 2], form) if values else "–"


def _seconds(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )
