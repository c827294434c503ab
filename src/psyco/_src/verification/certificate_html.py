"""A certificate as HTML: self-contained, escaped, readable in light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from psyco._src.core.errors import RequirementError
from psyco._src.core.templates import template_environment
from psyco._src.core.wording import plural
from psyco._src.logic.ast import Constraint
from psyco._src.logic.parser import parse
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.findings import Answer, AnyFinding, EnvironmentsFinding, Finding, MeanFinding
from psyco._src.verification.rounding import percent, rounded_down
from psyco._src.verification.theme import CSS


def certificate_html(certificate: Certificate) -> str:
    """Return one `<section>` with its own style; every text in it is escaped."""
    c = certificate
    template = template_environment("psyco._src.verification").get_template("certificate.html")
    return template.render(
        colours=CSS,
        certificate=c,
        percent=percent,
        findings=[(f, _finding_rows(f, explained=len(c.findings) > 1), _finding_bar(f)) for f in c.findings],
        answers=[(a, _answer_bar(a)) for a in c.answers],
        circumstances=_circumstances(c),
    )


class _Bar(NamedTuple):
    """Confidence bounds on an axis."""

    axis: tuple[float, float]
    lower: float
    upper: float
    observed: float
    required: list[float]
    colour: str
    label: str

    def x(self, value: float) -> str:
        """Return the position of a value in the picture, in pixels."""
        low, high = self.axis
        return f"{10 + 380 * (value - low) / ((high - low) or 1.0):.1f}"


def _finding_rows(f: AnyFinding, *, explained: bool) -> dict[str, str]:
    prior = "by Student's t" if isinstance(f, MeanFinding) else "from a uniform prior"
    rows = {
        "verdict": f"{f.verdict.name} after {plural(f.episodes, 'episode')}",
        "values" if isinstance(f, MeanFinding) else "outcomes": f.observed,
        f"true {f.estimand}": f.interval,
        "posterior": f"c_sat {rounded_down(f.confidence, 6)}, {prior}",
    }
    if explained:
        rows["guarantee"] = f.guarantee.statement
    return rows


def _finding_bar(f: AnyFinding) -> _Bar:
    required = _required(f.constraint)
    if isinstance(f, Finding):
        axis, observed, digits = (0.0, 1.0), f.share if f.episodes else 0.5, f"{f.share:.4f}"
    else:
        axis, observed, digits = _axis(f, required), f.mean, f"{f.mean:.4g}"
    label = f"{f.estimand} {f.interval}, observed {digits}"
    return _Bar(axis, f.lower, f.upper, observed, required, f.verdict.name.lower(), label)


def _answer_bar(a: Answer) -> _Bar:
    return _Bar(_axis(a, []), a.lower, a.upper, a.mean, [], "answered", a.summary)


def _axis(found: MeanFinding | EnvironmentsFinding | Answer, required: list[float]) -> tuple[float, float]:
    """Return the relevant part of the range: for costs up to 1000 it may be from 0 to 3."""
    if found.range == (0.0, 1.0):
        return found.range
    low, high = min(found.lower, *required, found.upper), max(found.upper, *required, found.lower)
    margin = (high - low) / 4.0 or 1.0
    return max(found.range[0], low - margin), min(found.range[1], high + margin)


def _required(constraint: str) -> list[float]:
    """Return the bounds of a constraint; none where a damaged file holds another text."""
    try:
        stated = parse(constraint).constraints
    except RequirementError:
        return []
    if shares := {c.environments for c in stated if isinstance(c, Constraint) and c.environments is not None}:
        return sorted(shares)
    ends = {0.0, 1.0} if all(isinstance(c, Constraint) for c in stated) else {-math.inf, math.inf}
    return sorted({bound for c in stated for bound in (c.lower, c.upper)} - ends)


def _circumstances(c: Certificate) -> dict[str, str]:
    rows = {"requirement": c.requirement, "method": " ".join([c.method, *_settings(c.options)])}
    if c.policy is not None:
        rows |= {
            "policy": f"sha256:{c.policy}{c.policy_qualifier}",
            "domain": " ".join([str(c.domain), *_settings(c.parameters)]),
            "horizon": "not known" if c.horizon is None else f"{c.horizon:,} steps",
            "code": "not known" if c.code is None else f"sha256:{c.code}",
            "episodes": f"{c.episodes_seen:,} of at most {c.max_episodes:,}",
            "seed": f"{c.seed}, stream {c.stream}, block {c.seed_block}",
        }
    else:
        rows["outcomes"] = f"sha256:{c.outcomes}"
    if c.mean_return is not None:
        rows["return"] = c.return_summary
    if c.estimate_lines:
        rows["estimate"] = " ".join(map(str.strip, c.estimate_lines))
    return rows | {"issued": c.issued, "versions": " ".join(_settings(c.versions))}


def _settings(values: Mapping[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in values.items()]
