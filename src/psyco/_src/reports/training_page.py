"""The page of learning in turn against adversaries or deviations: the violations of each round."""

from __future__ import annotations

from markupsafe import Markup

from psyco._src.core.wording import plural
from psyco._src.reports.charts import ChartLine, line_chart
from psyco._src.reports.page import render_page, render_sections, table
from psyco._src.runs.adversarial_training import AdversarialTraining


def training_page(result: AdversarialTraining) -> str:
    """Return the page: self-contained HTML."""
    first = result.certificates[0]
    title = f"Learning in turn in {first.domain}"
    sections = render_sections(
        "training.html",
        title=title,
        verdict=(result.verdict.name, result.verdict.name.lower(), f"Against {result.disturbance}."),
        facts={
            "rounds": len(result.rounds) - 1,
            "policy of round": result.chosen,
            "adversaries": len(result.certificates),
            "fresh episodes": f"{sum(each.episodes for each in result.certificates):,}",
        },
        requirement=first.requirement,
        chart=_chart(result),
        rows=_table(result),
        certificates=[
            (f"{each.verdict.name} after {plural(each.episodes, 'fresh episode')}", [f.interval for f in each.findings])
            for each in result.certificates
        ],
    )
    return render_page(title, sections)


def _chart(result: AdversarialTraining) -> Markup:
    rounds = list(range(len(result.rounds)))
    low, high = zip(*(each.worst.interval for each in result.rounds), strict=True)
    lines = [ChartLine("against the worst learned", 0, rounds, [r.worst.violation for r in result.rounds], low, high)]
    known = [(i, each.exact) for i, each in enumerate(result.rounds) if each.exact is not None]
    if known:
        at = [i for i, _ in known]
        lines += [
            ChartLine("exact, against the worst there is", 1, at, [exact.worst for _, exact in known]),
            ChartLine("exact, of the best policy", 2, at, [exact.game for _, exact in known]),
            ChartLine("exploitability", 3, at, [exact.exploitability for _, exact in known]),
        ]
    return line_chart("violations of the policy of each round", lines, x="round", y="share of episodes")


def _table(result: AdversarialTraining) -> Markup:
    rows = []
    for number, each in enumerate(result.rounds):
        low, high = each.worst.interval
        exact = [f"{each.exact.worst:.6f}", f"{each.exact.exploitability:.6f}"] if each.exact else ["", ""]
        measured = [f"{each.worst.violation:.4f}", f"{low:.4f} to {high:.4f}", f"{each.worst.mean_return:.2f}"]
        rows.append([f"{number}{' (chosen)' * (number == result.chosen)}", *measured, *exact])
    names = ["round", "violations", "95% interval", "mean return", "exact worst case", "exploitability"]
    return table(names, rows)
