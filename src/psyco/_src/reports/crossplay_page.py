"""The page of a cross-play: a matrix for each constraint, and one of the returns."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from psyco._src.reports.charts import ChartDot, element, interval_chart
from psyco._src.reports.page import badge, render_page, render_sections, table
from psyco._src.verification.crossplay import CrossPlay, observed_mean, pairing_text
from psyco._src.verification.findings import AnyFinding


def crossplay_page(result: CrossPlay) -> str:
    """Return the page: self-contained HTML."""
    title = f"Agents with partners of other policies in {result.domain}"
    sections = render_sections(
        "crossplay.html",
        title=title,
        verdict=(result.verdict.name, result.verdict.name.lower(), f"{result.summary[0].upper()}{result.summary[1:]}."),
        facts={
            "of the row's policy": ", ".join(result.agents),
            "of the column's policy": ", ".join(result.partners),
            "episodes of each pairing": f"{result.episodes:,}",
            "seed": result.seed,
        },
        requirement=result.requirement,
        matrices=[
            (constraint, _table(result, [[_pairing(found) for found in row] for row in result.findings(k)]),
             _chart(result, constraint, result.findings(k)))
            for k, constraint in enumerate(result.constraints)
        ],
        returns=_table(result, result.returns),
        statement=result.statement,
        policies=table(["policy", "sha256"], [list(pair) for pair in zip(result.names, result.policies, strict=True)]),
        notes=list(dict.fromkeys(note.rstrip(".") for row in result.pairings for each in row for note in each.notes)),
    )  # fmt: skip
    return render_page(title, sections)


def _pairing(found: AnyFinding) -> Markup:
    return badge(found.verdict.name) + element("div", pairing_text(found), class_="muted")


def _table(result: CrossPlay, rows: Sequence[Sequence[str]]) -> Markup:
    return table(["", *result.names], [[name, *row] for name, row in zip(result.names, rows, strict=True)])


def _chart(result: CrossPlay, constraint: str, rows: list[list[AnyFinding]]) -> Markup:
    """Return the bounds of all pairings on one scale; a row has one colour."""
    dots = [
        ChartDot(
            f"{result.names[i]} with {'itself' if i == j else result.names[j]}",
            i,
            (observed_mean(found), found.lower, found.upper),
        )
        for i, row in enumerate(rows)
        for j, found in enumerate(row)
    ]
    return interval_chart(constraint, dots, x=rows[0][0].estimand)
