"""The page of a search for the worst environment: the statement, and a map of the family."""

from __future__ import annotations

from markupsafe import Markup

from psyco._src.core.wording import plural
from psyco._src.envs.variants import describe_family
from psyco._src.reports.charts import ChartMark, scatter_chart
from psyco._src.reports.page import render_page, render_sections, table
from psyco._src.verification.rounding import rounded_down, rounded_up
from psyco._src.verification.stress import StressResult, TriedEnvironment

MARKED, LISTED = 12, 40  # worst environments with intervals in the map, and rows of the table


def stress_page(result: StressResult) -> str:
    """Return the page: self-contained HTML."""
    values = ", ".join(f"{name}={value:.6g}" for name, value in result.found.parameters.items())
    title = f"The worst environment found of {result.domain}"
    sections = render_sections(
        "stress.html",
        title=title,
        verdict=(result.verdict.name, result.verdict.name.lower(), f"In the environment with {values}."),
        facts={
            "environments tried": f"{len(result.tried):,}",
            "episodes of the search": f"{result.search_episodes:,}",
            "fresh episodes": f"{max((f.episodes for f in result.findings), default=0):,}",
            "member of the family": result.found.member,
        },
        requirement=result.requirement,
        family=describe_family(result.parameters["vary"]),
        findings=[
            (f.constraint, f"{f.verdict.name} after {plural(f.episodes, 'fresh episode')}: {f.observed}", f.interval)
            for f in result.findings
        ],
        statement=result.statement,
        charts=[_chart(result, name) for name in result.found.parameters],
        rows=_table(result),
    )
    return render_page(title, sections)


def _chart(result: StressResult, name: str) -> Markup:
    def mark(tried: TriedEnvironment) -> ChartMark:
        x, found = tried.parameters[name], tried.member == result.found.member
        return ChartMark((x, x, x), (tried.share, *tried.interval), hollow=not found, label="found" * found)

    marked = [each for each in result.tried[:MARKED] if each.member != result.found.member]
    points = [(each.parameters[name], each.share) for each in result.tried]
    return scatter_chart(
        f"satisfied share over {name}",
        [*map(mark, [*marked, result.found])],
        x=name,
        y="satisfied share",
        points=points,
    )


def _table(result: StressResult) -> Markup:
    rows = []
    for each in result.tried[:LISTED]:
        low, high = each.interval
        rows.append(
            [
                *(f"{value:.6g}" for value in each.parameters.values()),
                f"{each.satisfied:,} of {each.satisfied + each.violated:,}",
                f"{rounded_down(low)} to {rounded_up(high)}",
            ]
        )
    return table([*result.found.parameters, "satisfied", "95% interval"], rows)
