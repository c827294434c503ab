"""The page of a Pareto front: one self-contained file."""

from __future__ import annotations

import math

from markupsafe import Markup

from psyco._src.logic.ast import Number
from psyco._src.reports.charts import ChartMark, scatter_chart
from psyco._src.reports.page import render_page, render_sections, table
from psyco._src.studies.collect import Row
from psyco._src.studies.pareto import ParetoFront, certified_probability
from psyco._src.studies.statistics import LEVEL, IntervalEstimate
from psyco._src.studies.study_page import (
    cell_table,
    completeness,
    drawn_estimate,
    estimate,
    interval,
)


def pareto_page(front: ParetoFront) -> str:
    """Return the page of a front, finished or not."""
    study, spec = front.study, front.spec
    sections = render_sections(
        "pareto.html",
        title=study.plan.title,
        verdict=completeness(study),
        failed=study.failed,
        notes=front.notes,
        facts={
            "points": len(spec.values),
            "runs": f"{len(study.outcomes):,}",
            "confidence of all together": Number(spec.confidence),
            "confidence of each certificate": Number(spec.confidence_each),
        },
        formula="\n".join(dict.fromkeys(spec.formulas)) if spec.parameter else spec.formulas[0],
        joint_guarantee=front.joint_guarantee,
        chart=_chart(front),
        points=_point_table(front),
        level=f"{LEVEL:.0%}",
        parameter=spec.parameter,
        exact=front.exact,
        run_count=f"{len(study.outcomes):,}",
        runs=cell_table(study),
        toml=study.plan.to_toml(),
    )
    return render_page(study.plan.title, sections)


def _chart(front: ParetoFront) -> Markup:
    if front.spec.parameter:
        marks = [
            ChartMark(IntervalEstimate(value, value, value), drawn_estimate(row, "return"))
            for value, row in zip(front.spec.values, front.points, strict=True)
        ]
        points = [(value, outcome.score) for k, value in enumerate(front.spec.values) for outcome in front.runs_of(k)]
        across = front.spec.parameter
    else:
        marks = [
            ChartMark(
                drawn_estimate(row, "certified"),
                drawn_estimate(row, "return"),
                hollow=row["dominated"] == 1,
                label="knee" if row["knee"] else "",
            )
            for row in front.points
        ]
        points = [(certified_probability(o), o.score) for o in front.study.outcomes]
        across = "certified probability"
    points = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    keys = [("learned", 0)] + [("best of any controller", 1)] * bool(front.exact)
    return scatter_chart(
        f"return against {across}", marks, x=across, y="return", points=points, line=_line(front), keys=keys
    )


def _line(front: ParetoFront) -> list[tuple[float, float]]:
    """Return the exact front, extended to the least required probability at constant return."""
    line = list(front.exact)
    least = min(front.spec.required)
    return [(least, line[0][1]), *line] if line and not front.spec.parameter and least < line[0][0] else line


def _point_table(front: ParetoFront) -> Markup:
    parameter = front.spec.parameter
    heads = ["required", "satisfied", "certified probability", "return"]
    heads = [parameter, *heads] if parameter else heads
    heads += ["best of any controller"] * bool(front.exact) + [""] * (not parameter)
    rows = []
    for row in front.points:
        cells = [str(Number(row[parameter]))] if parameter else []
        cells += [
            str(Number(row["required"])),
            f"{row['satisfied']} of {row['ended']}",
            f"{row['certified']:.4f}{interval(row, 'certified', '.4f')}" if row["ended"] else "–",
            estimate(row, "return"),
        ]
        if front.exact:
            cells.append(f"{row['exact_return']:.2f}" if math.isfinite(row["exact_return"]) else "–")
        if not parameter:
            cells.append(_remark(row))
        rows.append(cells)
    return table(heads, rows)


def _remark(row: Row) -> str:
    return "dominated" if row["dominated"] else "knee" if row["knee"] else ""
