"""The page of a run, and the page that compares several runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from psyco._src.core.errors import PsycoError
from psyco._src.learners.metrics import Metrics
from psyco._src.logic.ast import Requirement
from psyco._src.logic.parser import parse
from psyco._src.reports.charts import element
from psyco._src.reports.page import Sections, badge, keyed, render_page, render_sections
from psyco._src.runs.live_progress import PROGRESS, Moment, load_progress
from psyco._src.runs.lock import is_locked
from psyco._src.runs.store import (
    CERTIFICATE,
    EPISODES,
    METRICS,
    RUN_INFO,
    Run,
    config_differences,
    load_episodes,
    read_run,
    resume_command,
)
from psyco._src.verification.base import Counts, Verdict
from psyco._src.verification.bayes import posterior_mass
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.certificate_html import certificate_html
from psyco._src.verification.findings import EnvironmentsFinding, Finding, MeanFinding
from psyco._src.verification.rounding import percent, rounded_down

MAX_CURVE_POINTS = 1000
CURVE_COLUMNS = ("return", "satisfied", "c_sat", "lambda", "cost", "return_satisfying", "return_violating")
CHECK_COLUMNS = [f"verified_{name}" for name in ("confidence", "share", "lower", "upper", "return", "episodes")]


def run_page(run: Run) -> str:
    """Return the page of a run."""
    return render_page(_name(run), run_sections(run), run_data(run))


def compare_page(runs: list[Run]) -> str:
    """Return the page that compares runs."""
    data = {"runs": [_chart_data(run) for run in runs], "limits": _limits(runs[0])}
    return render_page("Comparison", _comparison(runs), data)


@dataclass(frozen=True)
class LiveRun:
    """The live page of a run, read from its files."""

    folder: Path

    @property
    def title(self) -> str:
        """The name of the run."""
        return self.folder.resolve().name

    def version(self) -> str:
        """Return a text that changes whenever the files of the run do."""
        stamps = [self._stamp(name) for name in (METRICS, CERTIFICATE, EPISODES, RUN_INFO, PROGRESS)]
        return " ".join([*stamps, str(is_locked(self.folder))])

    def content(self) -> tuple[Sections, dict[str, Any]]:
        """Return the sections of the page and the data of its charts."""
        run = read_run(self.folder)
        return run_sections(run), run_data(run)

    def _stamp(self, name: str) -> str:
        try:
            found = (self.folder / name).stat()
        except OSError:
            return "-"
        return f"{found.st_mtime_ns}.{found.st_size}"


# ---- data of the charts ----------------------------------------------------------------------------------------


def run_data(run: Run) -> dict[str, Any]:
    """Return the data that the script draws."""
    moment = load_progress(run.folder) if run.state == "running" else None
    return {
        "runs": [_chart_data(run)],
        "limits": _limits(run),
        "posteriors": _posteriors(run, moment),
        "trajectories": load_episodes(run),
        "certified": _certified_episodes(run),
        "total": (run.config.settings.episodes or None) if run.config else None,
        "state": run.state,
        "moment": moment._asdict() if moment else None,
    }


def _certified_episodes(run: Run) -> float | None:
    """Return the training episodes after which the certified policy was kept; None if that is unknown."""
    generation = run.info.certified_generation if run.info else None
    if generation is None or not run.metrics.rows:
        return None
    at = run.metrics["episodes"][run.metrics["generation"] == generation - 1]
    return float(at[0]) if len(at) else None


def _chart_data(run: Run) -> dict[str, Any]:
    return {"name": _name(run), "curves": _curves(run.metrics), "checks": _checks(run.metrics)}


def _curves(metrics: Metrics) -> dict[str, list[float | None]]:
    """Return the curves over training episodes, averaged in bins to at most `MAX_CURVE_POINTS` points."""
    if not metrics.rows:
        return {}
    bins = np.array_split(np.arange(metrics.rows), min(MAX_CURVE_POINTS, metrics.rows))
    curves: dict[str, list[float | None]] = {"episodes": [float(metrics["episodes"][b[-1]]) for b in bins]}
    for name in CURVE_COLUMNS:
        if name in metrics:
            curves[name] = [_json_number(_nan_mean(metrics[name][b])) for b in bins]
    return curves


def _checks(metrics: Metrics) -> list[dict[str, Any]]:
    """Return the verifications during learning."""
    if not metrics.rows or "verified_share" not in metrics:
        return []
    rows = np.flatnonzero(~np.isnan(metrics["verified_share"]))
    if len(rows) > MAX_CURVE_POINTS:
        rows = rows[np.linspace(0, len(rows) - 1, MAX_CURVE_POINTS).astype(int)]
    return [
        {
            "episodes": float(metrics["episodes"][i]),
            "verdict": str(metrics["verdict"][i]),
            **{name: _json_number(metrics[name][i]) for name in CHECK_COLUMNS if name in metrics},
        }
        for i in rows
    ]


def _posteriors(run: Run, moment: Moment | None) -> list[dict[str, Any]]:
    """Return the Beta posterior of every probability constraint, from the certificate or else the latest evidence."""
    requirement = _requirement(run)
    if requirement is None:
        return []
    constraints = requirement.probability_constraints
    findings = [f for f in run.certificate.findings if isinstance(f, Finding)] if run.certificate else []
    if moment and moment.phase == "certifying" and len(moment.counts) == len(constraints) > 0:
        counts, source = list(moment.counts), "growing certificate"
    elif len(findings) == len(constraints) > 0:
        counts, source = [(f.satisfied, f.violated) for f in findings], "certificate"
    elif len(constraints) == 1 and (checks := _checks(run.metrics)):
        episodes = round(checks[-1]["verified_episodes"] or 0)
        satisfied = round(episodes * (checks[-1]["verified_share"] or 0.0))
        counts, source = [(satisfied, episodes - satisfied)], "last check"
    else:
        return []
    return [
        {
            "label": constraint.name or f"constraint {i + 1}",
            "satisfied": s,
            "violated": v,
            "lower": constraint.lower,
            "upper": constraint.upper,
            "confidence": constraint.confidence,
            "mass": float(posterior_mass(Counts(s, v), constraint.lower, constraint.upper)),
            "source": source,
        }
        for i, (constraint, (s, v)) in enumerate(zip(constraints, counts, strict=True))
    ]


def _limits(run: Run) -> dict[str, list[float]]:
    """Return the required probabilities and confidences, drawn as dashed lines."""
    requirement = _requirement(run)
    bounds = requirement.probability_bounds if requirement else ()
    return {
        "p": sorted({bound.p_req for bound in bounds}),
        "c": sorted({bound.confidence for bound in bounds}),
    }


def _requirement(run: Run) -> Requirement | None:
    """Return the requirement; None where it is not readable."""
    try:
        return parse(run.config.requirement) if run.config else None
    except PsycoError:
        return None


def _nan_mean(values: NDArray[Any]) -> float:
    """Return the mean of the values that are not NaN; NaN where there are none."""
    good = values[~np.isnan(values)]
    return float(good.mean()) if len(good) else math.nan


def _json_number(value: float) -> float | None:
    # Five digits suffice for a chart; JSON has no NaN.
    return float(f"{value:.5g}") if math.isfinite(value) else None


# ---- sections --------------------------------------------------------------------------------------------------


def run_sections(run: Run) -> Sections:
    """Return the sections of a run's page that are plain HTML."""
    config, about, certificate = run.config, run.info, run.certificate
    verdict, meaning = meaning_of(run)
    facts = {"domain": config.domain if config else "unknown domain"}
    if certificate and certificate.mean_return is not None:
        facts["return"] = _plus_minus(certificate)
    done = run.steps if config and config.settings.steps else run.episodes
    facts["training"] = f"{done:,}" + (f" of {config.settings.budget}" if config else "")
    facts["state"] = "not finished" if run.state == "stopped" else run.state
    if about:
        facts["begun"] = datetime.fromtimestamp(about.created, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return render_sections(
        "run.html",
        name=_name(run),
        verdict=verdict,
        meaning=meaning,
        problems=run.problems,
        facts=facts,
        progress=run.progress,
        state=run.state,
        requirement=config.requirement.strip() if config else "(not readable)",
        certificate=Markup(certificate_html(certificate)) if certificate else "",
        baselines=run.baselines.table if certificate and run.baselines else [],
        remark=run.remark,
        certificate_json=certificate.to_json() if certificate else "",
        config=config.to_toml() if config else "(not readable)",
        about=[_readable(about.versions), _readable(about.machine)] if about else [],
    )


def meaning_of(run: Run) -> tuple[str, str]:
    """Return the verdict and one sentence about its meaning."""
    certificate = run.certificate
    if certificate is None:
        hint = resume_command(run.folder, run.config)
        how = {
            "running": "the run is still learning; its policy will be verified on fresh episodes at the end",
            "stopped": f"the run has not finished; continue with: {hint}",
        }.get(run.state, f"there is no certificate; {hint} makes one")
        return "PENDING", f"No verdict yet: {how}."
    verdict = certificate.verdict
    if verdict is Verdict.ANSWERED:
        return verdict.name, "The requirement has no constraint: its questions are answered below."
    if not certificate.findings:
        return verdict.name, "The requirement has no constraint: there was nothing to verify but the return."
    seen = f"{_observed(certificate)} fresh episodes of the final policy, which learning had never seen"
    end = {
        Verdict.SATISFIED: "that is enough evidence that the requirement holds, at the confidence that it asks for.",
        Verdict.VIOLATED: "that is enough evidence that the requirement does not hold.",
        Verdict.UNDECIDED: f"the {certificate.episodes:,} episodes were spent before the evidence sufficed either way; "
        f"{certificate.advice}.",
    }[verdict]
    return verdict.name, f"{seen}: {end}"


def _worst(finding: MeanFinding) -> str:
    return "" if finding.cvar is None else f" over the worst {percent(1.0 - finding.cvar)}"


def _observed(certificate: Certificate) -> str:
    shares = [f"{f.satisfied:,} of {f.episodes:,}" for f in certificate.findings if isinstance(f, Finding)]
    means = [
        f"on average{_worst(f)} {f.label} came to {f.mean:.4g} in {f.episodes:,}"
        for f in certificate.findings
        if isinstance(f, MeanFinding)
    ]
    families = [f"of {f.observed}" for f in certificate.findings if isinstance(f, EnvironmentsFinding)]
    words = ", ".join([f"the formula held in {' and '.join(shares)}"] * bool(shares) + means + families)
    return words[0].upper() + words[1:]


def _comparison(runs: list[Run]) -> Sections:
    names = [_name(run) for run in runs]
    rows = []
    for i, run in enumerate(runs):
        findings = run.certificate.findings if run.certificate else ()
        shares = (
            f"{_text(f.satisfied)}/{_text(f.episodes)}" if isinstance(f, Finding) else f"mean {f.mean:.4g}"
            for f in findings
        )
        rows.append(
            (
                keyed(names[i], i),
                badge(meaning_of(run)[0]),
                _plus_minus(run.certificate) if run.certificate else "–",
                ", ".join(shares) or "–",
                ", ".join(rounded_down(f.confidence, 6) for f in findings) or "–",
                f"{run.episodes:,}",
            )
        )
    different = config_differences(runs)
    listed = different and [
        (key, *(element("code", str(value)) for value in values)) for key, values in different.items()
    ]
    c_sat = Markup("c<sub>sat</sub>")
    return render_sections("compare.html", names=names, c_sat=c_sat, rows=rows, differences=listed)


def _name(run: Run) -> str:
    return run.folder.resolve().name


def _plus_minus(certificate: Certificate) -> str:
    if certificate.mean_return is None:
        return "–"
    return f"{certificate.mean_return:.2f} ± {certificate.return_standard_error or 0.0:.2f}"


def _readable(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values from a file as texts."""
    return {str(name): _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
