"""One self-contained page about a front, in the look of a study's page."""

from __future__ import annotations

import math
from html import escape

from psyco._src.logic.ast import Number
from psyco._src.reports.run_page import whole_page
from psyco._src.studies.charts import ChartMark, scatter
from psyco._src.studies.collect import Row
from psyco._src.studies.pareto import ParetoFront, certified_probability
from psyco._src.studies.statistics import LEVEL, RESAMPLES, IntervalEstimate
from psyco._src.studies.study_page import DATA, cell_table, estimate, interval, of, table


def front_page(front: ParetoFront) -> str:
    """The page of a front as it stands."""
    title = front.study.plan.title
    return whole_page(title, {"top": _top(front, title), "details": _details(front)}, DATA)


def _top(front: ParetoFront, title: str) -> str:
    study, asked = front.study, front.asked
    runs, done = len(study.outcomes), sum(outcome.finished for outcome in study.outcomes)
    badge, kind = ("COMPLETE", "satisfied") if done == runs else (f"{done} OF {runs}", "undecided")
    meaning = f"{done:,} of {runs:,} runs have finished, and {study.certified:,} of them ended certified."
    failed = "".join(f"<li>{escape(name)}: {escape(error)}</li>" for name, error in study.failed.items())
    problems = (
        f'<div class="problems" role="alert"><strong>Runs that failed:</strong><ul>{failed}</ul></div>'
        * bool(failed)
    )
    notes = "".join(f'<p class="muted">Note: {escape(note)}.</p>' for note in front.notes)
    facts = {
        "points": str(len(asked.values)),
        "runs": f"{runs:,}",
        "confidence of all together": str(Number(asked.confidence)),
        "confidence of each certificate": str(Number(asked.each)),
    }
    listed = "".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in facts.items())
    formula = asked.formulas[0] if not asked.parameter else "\n".join(dict.fromkeys(asked.formulas))
    return f"""
<p class="kicker">PSyCo front</p>
<h1>{escape(title)}</h1>
<div class="verdict {kind}"><span class="badge">{badge}</span><p>{escape(meaning)}</p></div>
{problems}{notes}
<dl class="facts">{listed}</dl>
<pre class="requirement"><code>{escape(formula)}</code></pre>
<h2>What safety costs</h2>
<p class="muted">{escape(front.accounting)}.</p>
{_picture(front)}
{_points(front)}
<p class="muted">{_explained(front)}</p>"""


def _picture(front: ParetoFront) -> str:
    if front.asked.parameter:
        marks = [
            ChartMark(IntervalEstimate(*[value] * 3), of(row, "return"))
            for value, row in zip(front.asked.values, front.points, strict=True)
        ]
        single = [
            (value, outcome.score)
            for k, value in enumerate(front.asked.values)
            for outcome in front.runs_of(k)
        ]
        across = front.asked.parameter
    else:
        marks = [
            ChartMark(
                of(row, "certified"), of(row, "return"), row["dominated"] == 1, "knee" * (row["knee"] or 0)
            )
            for row in front.points
        ]
        single = [(certified_probability(o) or math.nan, o.score) for o in front.study.outcomes]
        across = "certified probability"
    single = [(x, y) for x, y in single if math.isfinite(x) and math.isfinite(y)]
    keys = [("learned", 0)] + [("best of any controller", 1)] * bool(front.exact)
    return scatter(
        f"return against {across}", marks, x=across, y="return", single=single, line=_line(front), keys=keys
    )


def _line(front: ParetoFront) -> list[tuple[float, float]]:
    """The exact front; where it begins later than what was required, the return before is the same."""
    line = list(front.exact)
    least = min(front.asked.required)
    return [(least, line[0][1]), *line] if line and not front.asked.parameter and least < line[0][0] else line


def _points(front: ParetoFront) -> str:
    asked = front.asked
    heads = [asked.parameter] * bool(asked.parameter) + [
        "required",
        "satisfied",
        "certified probability",
        "return",
    ]
    heads += ["best of any controller"] * bool(front.exact) + [""] * (not asked.parameter)
    rows = []
    for row in front.points:
        cells = [str(Number(row[asked.parameter]))] if asked.parameter else []
        cells += [
            str(Number(row["required"])),
            f"{row['satisfied']} of {row['finished']}",
            f"{row['certified']:.4f}{interval(row, 'certified', '.4f')}" if row["finished"] else "–",
            estimate(row, "return"),
        ]
        if front.exact:
            cells.append(f"{row['exact_return']:.2f}" if math.isfinite(row["exact_return"]) else "–")
        if not asked.parameter:
            cells.append(word_of(row))
        rows.append(cells)
    return table([escape(head) for head in heads], rows)


def word_of(row: Row) -> str:
    """What is to be said of a point."""
    return "dominated" if row["dominated"] else "knee" if row["knee"] else ""


def _explained(front: ParetoFront) -> str:
    text = (
        "A small dot is a run: what its certificate says the probability is at least (its lower bound or, if it is "
        "SATISFIED, what was required), and the mean return over the episodes of that. A certificate is issued as soon "
        "as the evidence suffices: where little is required, its return rests on few episodes. "
        "A point is the interquartile mean over its runs, whatever their verdicts, with the interval at "
        f"{LEVEL:.0%} by {RESAMPLES:,} bootstrap resamples of runs and, for the return, of each within its own error. "
    )
    if not front.asked.parameter:
        text += (
            "Dominated (hollow): another point has at least its certified probability and its return. The knee lies "
            "farthest above the line between the ends of the front; beyond it safety costs more. Both are judged by "
            "these estimates. "
        )
    if front.exact:
        text += (
            "“Best of any controller” is exact, by enumeration of the domain: nobody does better at that probability, "
            "also with memory and lots. The returns of learned points are estimates, so by luck one may lie above it. "
        )
        if not front.asked.parameter:
            text += "A certified probability is a lower bound, so even the best policy lies left of the line."
    return text


def _details(front: ParetoFront) -> str:
    return (
        f"<details><summary>All {len(front.study.outcomes):,} runs</summary>{cell_table(front.study)}</details>"
        "<details><summary>The study behind it, as a file</summary>"
        f"<pre><code>{escape(front.study.plan.to_toml())}</code></pre></details>"
    )
