"""A certificate as a piece of a page: self-contained, escaped, readable in light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from psyco._src.core.errors import RequirementError
from psyco._src.logic.ast import Constraint
from psyco._src.logic.parser import parse
from psyco._src.verification.base import percent, rounded_down
from psyco._src.verification.certificate import Certificate, Look
from psyco._src.verification.findings import Answer, Finding, MeanFinding
from psyco._src.verification.theme import CSS

STYLE = (
    f".psyco-certificate{{{CSS}}}"
    + """
.psyco-certificate{font:1rem/1.5 system-ui,sans-serif;border:1px solid #8888;border-left:.5rem solid var(--verdict);
border-radius:.5rem;padding:1rem 1.25rem;max-width:60rem;overflow-wrap:anywhere}
.psyco-certificate h2{margin:0;color:var(--verdict)}
.psyco-certificate h3{margin:1rem 0 .25rem;font-size:1rem}
.psyco-certificate code{font-family:ui-monospace,monospace;font-size:.9em}
.psyco-certificate table{border-collapse:collapse;margin:.25rem 0}
.psyco-certificate :is(td,th){padding:.1rem .9rem .1rem 0;text-align:left;vertical-align:top;font-weight:400}
.psyco-certificate th{opacity:.7}
.psyco-certificate th[scope=row]{white-space:nowrap}
.psyco-certificate .looks{font-size:.85em}
.psyco-certificate .looks :is(td,th){overflow-wrap:normal;padding-right:.6rem}
.psyco-certificate .looks code{overflow-wrap:anywhere}
.psyco-certificate svg{display:block;width:100%;max-width:36rem;height:auto}
"""
)


def certificate_html(certificate: Certificate) -> str:
    """One `<section>` with its own style; every text from outside is escaped."""
    c = certificate
    return "\n".join(
        [
            f'<section class="psyco-certificate" data-verdict="{c.verdict.name}" '
            f'style="--verdict:var(--{c.verdict.name.lower()})">',
            f"<style>{STYLE}</style>",
            f"<h2>{c.verdict.name}</h2>",
            f"<p>{escape(c.meaning[0].upper() + c.meaning[1:])}.</p>",
            *(_finding(f, explained=len(c.findings) > 1) for f in c.findings),
            *map(_answer, c.answers),
            "<h3>What this is worth</h3>",
            f"<p>{escape(c.guarantee.statement)}</p>",
            *(f"<p>{escape(note)}</p>" for note in c.notes),
            *(_looks(c.looks) if len(c.looks) > 1 else []),
            "<h3>What was tested, and how</h3>",
            _rows(_circumstances(c)),
            "</section>",
        ]
    )


def _finding(f: Finding | MeanFinding, *, explained: bool) -> str:
    prior = "from a uniform prior" if isinstance(f, Finding) else "by Student's t"
    rows = {
        "verdict": f"{f.verdict.name} after {f.episodes:,} episodes",
        "outcomes" if isinstance(f, Finding) else "values": f.observed,
        f"true {f.about}": f.interval,
        "posterior": f"c_sat {rounded_down(f.confidence, 6)}, {prior}",
    }
    if explained:
        rows["guarantee"] = f.guarantee.statement
    return "\n".join([f"<h3><code>{escape(f.constraint)}</code></h3>", _rows(rows), _finding_bar(f)])


def _answer(a: Answer) -> str:
    bar = _bar(_axis(a, []), (a.lower, a.upper), a.mean, [], "answered", a.words)
    return f"<h3><code>{escape(a.question)}</code></h3>\n<p>{escape(a.words)}</p>\n{bar}"


def _finding_bar(f: Finding | MeanFinding) -> str:
    required, colour = _required(f.constraint), f.verdict.name.lower()
    if isinstance(f, Finding):
        axis, seen, digits = (0.0, 1.0), f.share if f.episodes else 0.5, f"{f.share:.4f}"
    else:
        axis, seen, digits = _axis(f, required), f.mean, f"{f.mean:.4g}"
    label = f"{f.about} {f.interval}, observed {digits}"
    return _bar(axis, (f.lower, f.upper), seen, required, colour, label)


def _axis(found: MeanFinding | Answer, required: list[float]) -> tuple[float, float]:
    """The part of the range that is of interest: of costs up to 1000 it may be from 0 to 3."""
    if found.range == (0.0, 1.0):
        return found.range
    low, high = min(found.lower, *required, found.upper), max(found.upper, *required, found.lower)
    beside = (high - low) / 4.0 or 1.0
    return max(found.range[0], low - beside), min(found.range[1], high + beside)


def _bar(
    axis: tuple[float, float],
    bounds: tuple[float, float],
    seen: float,
    required: list[float],
    colour: str,
    label: str,
) -> str:
    """Bounds as a bar along an axis, with what was observed and dashes at what is required."""

    def at(value: float) -> float:
        return 10 + 380 * (value - axis[0]) / ((axis[1] - axis[0]) or 1.0)

    x = [at(value) for value in (*bounds, seen)]
    return (
        f'<svg viewBox="0 0 400 46" role="img" aria-label="{escape(label)}" font-size="10" fill="currentColor">'
        '<line x1="10" x2="390" y1="24" y2="24" stroke="currentColor" stroke-opacity=".35"/>'
        f'<line x1="{x[0]:.1f}" x2="{x[1]:.1f}" y1="24" y2="24" stroke-width="7" '
        f'style="stroke:var(--{colour})"/>'
        f"{''.join(_dash(at(value), value) for value in required)}"
        f'<circle cx="{x[2]:.1f}" cy="24" r="5"/>'
        f'<text x="7" y="43">{axis[0]:.4g}</text><text x="393" y="43" text-anchor="end">{axis[1]:.4g}</text></svg>'
    )


def _required(constraint: str) -> list[float]:
    """The bounds that it asks for; none where a damaged file holds something else."""
    try:
        stated = parse(constraint).constraints
    except RequirementError:
        return []
    ends = {0.0, 1.0} if all(isinstance(c, Constraint) for c in stated) else {-math.inf, math.inf}
    return sorted({bound for c in stated for bound in (c.lower, c.upper)} - ends)


def _dash(x: float, value: float) -> str:
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="13" y2="35" stroke="currentColor" stroke-width="1.5" '
        f'stroke-dasharray="3 2"/><text x="{x:.1f}" y="10" text-anchor="middle">{value:g}</text>'
    )


def _looks(looks: tuple[Look, ...]) -> list[str]:
    names = ("look", "policy", "verdict", "episodes", "share of the error")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = [
        f"<tr><td>{i}</td><td><code>{escape(str(look.policy)[:16])}</code></td><td>{look.verdict.name}</td>"
        f"<td>{look.episodes:,}</td><td>{percent(look.share)}</td></tr>"
        for i, look in enumerate(looks, 1)
    ]
    return ["<h3>All looks</h3>", f'<table class="looks"><tr>{head}</tr>{"".join(body)}</table>']


def _circumstances(c: Certificate) -> dict[str, str]:
    rows = {"requirement": c.requirement, "method": " ".join([c.method, *_settings(c.options)])}
    if c.policy is not None:
        rows |= {
            "policy": f"sha256:{c.policy}{c.qualification}",
            "domain": " ".join([str(c.domain), *_settings(c.parameters)]),
            "horizon": "not known" if c.horizon is None else f"{c.horizon:,} steps",
            "code": "not known" if c.code is None else f"sha256:{c.code}",
            "episodes": f"{c.looked_at:,} of at most {c.max_episodes:,}",
            "seed": f"{c.seed}, stream {c.stream}, block {c.block}",
        }
    else:
        rows["outcomes"] = f"sha256:{c.outcomes}"
    if c.mean_return is not None:
        rows["return"] = c.returned
    if c.estimated:
        rows["estimate"] = " ".join(map(str.strip, c.estimated))
    return rows | {"issued": c.issued, "versions": " ".join(_settings(c.versions))}


def _settings(values: Mapping[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in values.items()]


def _rows(rows: dict[str, str]) -> str:
    body = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td>{escape(text)}</td></tr>' for key, text in rows.items()
    )
    return f"<table>{body}</table>"
