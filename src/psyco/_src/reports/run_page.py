"""One self-contained page about a run, and one that sets several side by side.

What a reader wants first (the verdict, the requirement, the certificate) is plain HTML, there at once and without
scripts; charts and episodes are drawn by `page.js` from data that stands in the page as JSON. Texts from outside
(requirements, names of environments, files) are escaped here and nowhere put together by the script.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from psyco._src.reports.chart_data import checks, curves, posteriors, requirement_of
from psyco._src.runs.config_diff import config_differences
from psyco._src.runs.store import Run, load_episodes, resume_hint
from psyco._src.verification.base import Verdict, rounded_down
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.certificate_html import certificate_html
from psyco._src.verification.findings import Finding, MeanFinding
from psyco._src.verification.theme import CSS

Sections = dict[str, str]  # id of an element -> its HTML
STATES = {
    "finished": "finished",
    "running": "running",
    "stopped": "not finished",
    "damaged": "damaged",
}


def run_page(record: Run, *, live: bool = False) -> str:
    """The page of one run; `live`: it asks its server for news, and gets its episodes from there."""
    data = run_data(record, load_episodes(record))
    return whole_page(record.folder.resolve().name, sections(record), data, live=live)


def compare_page(records: list[Run]) -> str:
    """The page that sets runs side by side."""
    names = [record.folder.resolve().name for record in records]
    data = {
        "runs": [
            {"name": name, "curves": curves(record.metrics), "checks": checks(record.metrics)}
            for name, record in zip(names, records, strict=True)
        ],
        "limits": _limits(records[0]),
    }
    return whole_page("Comparison", {"top": _comparison(names, records)}, data)


def run_data(record: Run, episodes: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the script draws."""
    return {
        "runs": [
            {
                "name": record.folder.resolve().name,
                "curves": curves(record.metrics),
                "checks": checks(record.metrics),
            }
        ],
        "limits": _limits(record),
        "posteriors": posteriors(record),
        "trajectories": episodes,
        "total": (record.config.settings.episodes or None) if record.config else None,
        "state": record.state,
    }


def sections(record: Run) -> Sections:
    """The parts of a run's page that are plain HTML."""
    return {
        "top": _top(record),
        "certificate": _certificate(record),
        "details": _details(record),
    }


def embed(data: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can end the element or start a comment."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def content_policy() -> str:
    """What a browser may do with a page: run its script and no other, whatever a text might smuggle in, ask its
    own server, and go nowhere else."""
    digest = b64encode(sha256(_file("page.js").encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


@cache
def _file(name: str) -> str:
    return (files("psyco._src.reports") / name).read_text(encoding="utf-8")


def whole_page(title: str, parts: Sections, data: dict[str, Any], *, live: bool = False) -> str:
    """The page with these parts, whose script draws the data; `live`: it asks its server for news."""
    values = {
        "title": escape(title),
        "style": f":root {{{CSS}}}\n" + _file("page.css"),
        "script": _file("page.js"),
        "policy": content_policy(),
        "data": embed(data | {"live": live}),
        **{name: parts.get(name, "") for name in ("top", "certificate", "details")},
    }
    # In one pass, so that nothing inside a value is taken for a place of its own.
    first, *pieces = _file("page.html").split("{{")
    text = first + "".join(values[name] + rest for name, _, rest in (p.partition("}}") for p in pieces))
    return text.encode(errors="replace").decode()  # a folder may have a name that is no text


# ---- the parts ------------------------------------------------------------------------------------------------


def _top(record: Run) -> str:
    name = escape(record.folder.resolve().name)
    domain = escape(record.config.domain) if record.config else "unknown domain"
    verdict, meaning = meaning_of(record)
    rows = "".join(f"<li>{escape(problem)}</li>" for problem in record.problems)
    problems = (
        '<div class="problems" role="alert"><strong>Not everything is as the run wrote it:</strong>'
        f"<ul>{rows}</ul></div>"
    )
    of = f" of {record.config.settings.budget}" if record.config else ""
    done = record.steps if record.config and record.config.settings.steps else record.episodes
    facts = [
        ("domain", domain),
        ("training", f"{done:,}{of}"),
        ("state", STATES[record.state]),
    ]
    if record.certificate and record.certificate.mean_return is not None:
        facts.insert(1, ("return", _plus_minus(record.certificate)))
    if record.about:
        facts.append(
            ("begun", datetime.fromtimestamp(record.about.created, UTC).strftime("%Y-%m-%d %H:%M UTC"))
        )
    listed = "".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in facts)
    requirement = record.config.requirement.strip() if record.config else "(not readable)"
    return f"""
<p class="kicker">PSyCo run</p>
<h1>{name}</h1>
<div class="verdict {escape(verdict.lower())}">
<span class="badge">{escape(verdict)}</span><p>{escape(meaning)}</p></div>
{problems if record.problems else ""}
<dl class="facts">{listed}</dl>
<progress value="{record.progress:.4f}" max="1" class="{record.state}">{record.progress:.0%}</progress>
<h2>Requirement</h2>
<pre class="requirement"><code>{escape(requirement)}</code></pre>"""


def meaning_of(record: Run) -> tuple[str, str]:
    """The verdict and one sentence that says what it means."""
    certificate = record.certificate
    if certificate is None:
        hint = resume_hint(record.folder, record.config)
        how = {
            "running": "the run is still learning; its policy will be verified on fresh episodes at the end",
            "stopped": f"the run has not finished; go on with: {hint}",
        }.get(record.state, f"there is no certificate; {hint} makes one")
        return "PENDING", f"No verdict yet: {how}."
    if certificate.verdict is Verdict.ANSWERED:
        return (
            certificate.verdict.name,
            "The requirement has no constraint: its questions are answered below.",
        )
    if not certificate.findings:
        return (
            certificate.verdict.name,
            "The requirement has no constraint: there was nothing to verify but the return.",
        )
    seen = f"{_seen(certificate)} fresh episodes of the final policy, which learning had never seen"
    end = {
        Verdict.SATISFIED: "that is enough evidence that the requirement holds, at the confidence that it asks for.",
        Verdict.VIOLATED: "that is enough evidence that the requirement does not hold.",
        Verdict.UNDECIDED: f"the {certificate.episodes:,} episodes were spent before the evidence sufficed either way; "
        f"{certificate.advice}.",
    }[certificate.verdict]
    return certificate.verdict.name, f"{seen}: {end}"


def _seen(certificate: Certificate) -> str:
    shares = [f"{f.satisfied:,} of {f.episodes:,}" for f in certificate.findings if isinstance(f, Finding)]
    means = [
        f"on average {f.called} came to {f.mean:.4g} in {f.episodes:,}"
        for f in certificate.findings
        if isinstance(f, MeanFinding)
    ]
    words = ", ".join([f"the formula held in {' and '.join(shares)}"] * bool(shares) + means)
    return words[0].upper() + words[1:]


def _certificate(record: Run) -> str:
    if record.certificate is None:
        return '<p class="muted">There is no certificate yet.</p>'
    details = f"<pre><code>{escape(record.certificate.to_json())}</code></pre>"
    shown = certificate_html(record.certificate)
    return f"{shown}<details><summary>All of the certificate</summary>{details}</details>"


def _details(record: Run) -> str:
    config = escape(record.config.to_toml()) if record.config else "(not readable)"
    about = record.about
    versions = _facts(about.versions) if about else "<p>unknown</p>"
    machine = _facts(about.machine) if about else "<p>unknown</p>"
    return (
        f"<details><summary>Configuration</summary><pre><code>{config}</code></pre></details>"
        f"<details open><summary>Versions and machine</summary>{versions}{machine}</details>"
    )


def _comparison(names: list[str], records: list[Run]) -> str:
    rows = ""
    for i, (name, record) in enumerate(zip(names, records, strict=True)):
        verdict, _ = meaning_of(record)
        findings = record.certificate.findings if record.certificate else ()
        shares = ", ".join(
            f"{_text(f.satisfied)}/{_text(f.episodes)}" if isinstance(f, Finding) else f"mean {f.mean:.4g}"
            for f in findings
        )
        confidences = ", ".join(rounded_down(f.confidence, 6) for f in findings)
        result = _plus_minus(record.certificate) if record.certificate else "–"
        rows += (
            f'<tr><td><span class="key s{i % 6}"></span>{escape(name)}</td>'
            f"<td>{_badge(verdict)}</td><td>{result}</td>"
            f"<td>{shares or '–'}</td><td>{confidences or '–'}</td><td>{record.episodes:,}</td></tr>"
        )
    different = config_differences(records)
    lines = "".join(
        f"<tr><td>{escape(key)}</td>{''.join(f'<td><code>{escape(str(v))}</code></td>' for v in values)}</tr>"
        for key, values in (different or {}).items()
    )
    heads = "".join(f"<th>{escape(name)}</th>" for name in names)
    table = (
        f'<div class="scroll"><table><thead><tr><th></th>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'
        if different
        else "<p>The configurations can't be compared: not all of them are readable.</p>"
        if different is None
        else "<p>The configurations are the same.</p>"
    )
    return f"""
<p class="kicker">PSyCo comparison</p>
<h1>{escape(" · ".join(names))}</h1>
<div class="scroll"><table><thead><tr><th>run</th><th>verdict</th><th>return</th><th>held / episodes</th>
<th>c<sub>sat</sub></th><th>training episodes</th></tr></thead><tbody>{rows}</tbody></table></div>
<h2>What differs</h2>{table}"""


def _limits(record: Run) -> dict[str, list[float]]:
    """Dashed lines: what the demands ask for."""
    requirement = requirement_of(record)
    demands = requirement.demands if requirement else ()
    return {
        "p": sorted({demand.p_req for demand in demands}),
        "c": sorted({demand.confidence for demand in demands}),
    }


def _badge(verdict: str) -> str:
    return f'<span class="badge small {escape(verdict.lower())}">{escape(verdict)}</span>'


def _facts(values: Mapping[str, Any]) -> str:
    rows = "".join(f"<div><dt>{escape(str(k))}</dt><dd>{_text(v)}</dd></div>" for k, v in values.items())
    return f'<dl class="facts wide">{rows}</dl>'


def _plus_minus(certificate: Certificate) -> str:
    if certificate.mean_return is None:
        return "–"
    return f"{certificate.mean_return:.2f} ± {certificate.return_error or 0.0:.2f}"


def _text(value: Any) -> str:
    """A value from a file, for HTML."""
    if isinstance(value, bool) or value is None:
        return escape(str(value))
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return escape(", ".join(map(str, value)) if isinstance(value, list) else str(value))
