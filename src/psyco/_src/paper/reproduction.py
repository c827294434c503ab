"""Reproduce the evaluation of the paper: run the experiments, draw the figures, decide the claims, write a page."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from psyco._src.core.errors import RunError
from psyco._src.core.provenance import package_versions
from psyco._src.core.templates import template_environment
from psyco._src.paper.claims import LEVEL, Claim, ClaimOutcome, belief_claims, claims_of, summary, to_csv, to_markdown
from psyco._src.paper.curves import Results
from psyco._src.paper.experiments import BELIEF, EXPERIMENTS, POPULATION, Experiment, check_names
from psyco._src.paper.figures import Drawing, draw_all, draw_belief, save
from psyco._src.paper.repetitions import Completion, RepetitionSet, run_repetitions

PAGE, CLAIMS, QUOTE, FIGURES, RUNS = "reproduction.html", "claims.csv", "claims.md", "figures", "runs"
MAX_REPETITIONS = 60  # with until_decided
QUICK_REPETITIONS, QUICK_DIVISOR = 3, 5  # repetitions of a quick look, and the divisor of its episodes


class Reproduction(NamedTuple):
    """The result of a reproduction."""

    parts: list[ExperimentSection]
    page: Path
    computed: int  # runs of this call
    reused: int  # runs of earlier calls


def reproduce(
    names: list[str],
    out: Path,
    *,
    episodes: int | None = None,
    repetitions: int | None = None,
    quick: bool = False,
    until_decided: bool = False,
    workers: int | None = None,
    ray: str | None = None,
    on_progress: Callable[[Completion], None] = lambda progress: None,
) -> Reproduction:
    """Reproduce the named parts of the paper's evaluation (none: all) and write figures, claims and page to `out`.

    The runs are a study in `out`: a repeated call continues an interrupted one, and a finished one is only drawn again.
    Neither changes a number, and neither does the number of `workers`.

    Args:
        names: parts, of `NAMES`.
        out: folder for the results.
        episodes: learning episodes of every experiment; default: the paper's.
        repetitions: of every experiment; default: the paper's.
        quick: a fifth of the episodes and three repetitions, unless they are given.
        until_decided: double the repetitions of experiments with undecided claims, until all are decided or 60 are
            reached. The intervals are not corrected for these repeated looks; the page says so.
        workers: number of processes; default: one per core.
        ray: address of a Ray cluster to use instead, or "local".
        on_progress: called after every change, and about twice a second.
    """
    began = time.perf_counter()
    chosen = check_names(names)
    experiments = [
        _sized(EXPERIMENTS[name], episodes, repetitions, quick=quick) for name in chosen if name in EXPERIMENTS
    ]
    looks, computed = 1, 0
    execution: dict[str, Any] = {"workers": workers, "ray": ray}
    try:
        out.mkdir(parents=True, exist_ok=True)
        results, runs = _run_experiments(experiments, out, on_progress, execution)
        while until_decided and (larger := [_larger(e, results[e.name]) for e in experiments]) != experiments:
            experiments, looks, computed = larger, looks + 1, computed + runs.computed
            results, runs = _run_experiments(experiments, out, on_progress, execution)
        computed += runs.computed
        parts = [ExperimentSection("The belief (section 2.4)", belief_claims(), [draw_belief()])] * (BELIEF in chosen)
        for e in experiments:
            claims, data = results[e.name]
            parts.append(ExperimentSection(f"{e.title} (section {e.section})", claims, draw_all(data)))
        for part in parts:
            for drawing in part.drawings:
                save(drawing, out / FIGURES)
        claims = [claim for part in parts for claim in part.claims]
        (out / CLAIMS).write_text(to_csv(claims), encoding="utf-8")
        (out / QUOTE).write_text(to_markdown(claims), encoding="utf-8")
        page = make_page(
            parts, experiments, figures=out / FIGURES, banner=_banner(experiments, quick=quick, looks=looks),
            made={
                "this time": f"{_seconds(time.perf_counter() - began)}, {computed} of {runs.runs} runs computed"
                + (", the others reused" if computed < runs.runs else ""),
                "sum of all runs": _seconds(runs.seconds),
                "the runs": f"a study in {runs.folder.relative_to(out)}" if runs.runs else "none",
                "versions": ", ".join(f"{name} {number}" for name, number in package_versions().items()),
                "again": f"psyco reproduce {' '.join(names)}".strip() + _options(episodes, repetitions, quick)
                + " --until-decided" * until_decided,
            },
        )  # fmt: skip
        (out / PAGE).write_text(page, encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write the reproduction to {out} ({error}); choose another --out") from None
    return Reproduction(parts, out / PAGE, computed, runs.runs - computed)


Outcomes = dict[str, tuple[list[Claim], Results]]  # by the name of the experiment


def _run_experiments(
    experiments: list[Experiment],
    out: Path,
    on_progress: Callable[[Completion], None],
    execution: Mapping[str, Any],
) -> tuple[Outcomes, RepetitionSet]:
    """Return the claims and the results of every experiment, and all runs."""
    if not experiments:
        return {}, RepetitionSet({}, out, 0, 0, 0.0)
    runs = run_repetitions(experiments, out / RUNS, on_progress, **execution)
    results = {e.name: Results(e, runs.repetitions[e.name]) for e in experiments}
    return {name: (claims_of(data), data) for name, data in results.items()}, runs


def _larger(e: Experiment, outcome: tuple[list[Claim], Results]) -> Experiment:
    """Return the experiment with twice the repetitions if one of its claims is open and the maximum is not reached."""
    is_open = any(claim.outcome is ClaimOutcome.OPEN for claim in outcome[0])
    more = min(2 * e.repetitions, MAX_REPETITIONS)
    return e.resized(repetitions=more) if is_open and more > e.repetitions else e


def _sized(e: Experiment, episodes: int | None, repetitions: int | None, *, quick: bool) -> Experiment:
    for name, value in (("episodes", episodes), ("repetitions", repetitions)):
        if value is not None and value < 1:
            raise RunError(f"{name} must be at least 1, got {value}")
    if quick:
        episodes = e.episodes // QUICK_DIVISOR if episodes is None else episodes
        repetitions = QUICK_REPETITIONS if repetitions is None else repetitions
    return e.resized(episodes=episodes, repetitions=repetitions)


def _banner(experiments: list[Experiment], *, quick: bool, looks: int = 1) -> str | None:
    """Return the remark on a size that differs from the paper's; None for the full size."""
    changed = [e for e in experiments if e != EXPERIMENTS[e.name]]
    if not changed:
        return None
    sizes = "; ".join(
        f"{e.title}: {e.episodes:,} episodes and {e.repetitions} repetitions instead of {full.episodes:,} and "
        f"{full.repetitions}"
        for e in changed
        if (full := EXPERIMENTS[e.name])
    )
    head = "A quick look, not a reproduction." if quick else "Not the paper's size."
    full_size = all(e.episodes == EXPERIMENTS[e.name].episodes for e in changed)
    added = (
        f" Repetitions were added where claims could not be decided, with {looks} looks at the results and at most "
        f"{MAX_REPETITIONS} repetitions; the intervals are not corrected for these looks."
    ) * (looks > 1)
    if looks > 1 and full_size and not quick:
        return f"Until decided. {sizes}.{added}"
    return f"{head} {sizes}. Claims may come out differently at full size.{added}"


def _options(episodes: int | None, repetitions: int | None, quick: bool) -> str:
    return (
        " --quick" * quick
        + (f" --episodes {episodes}" if episodes else "")
        + (f" --repetitions {repetitions}" if repetitions else "")
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} minutes"


# The page of a reproduction: claims, figures, parameters; one self-contained file.


class ExperimentSection(NamedTuple):
    """The claims and figures of one experiment."""

    title: str
    claims: list[Claim]
    drawings: list[Drawing]


def make_page(
    parts: list[ExperimentSection],
    experiments: list[Experiment],
    *,
    figures: Path,
    banner: str | None,
    made: Mapping[str, str],
) -> str:
    """Return the page as HTML.

    Args:
        parts: the experiments.
        experiments: those that involve learning, whose parameters are listed.
        figures: folder of the SVG files of all drawings.
        banner: remark above the claims.
        made: origin of the page: versions, machine, time.
    """
    environment = template_environment("psyco._src.paper")
    environment.filters["symbols"] = with_symbols

    def encoded_svg(drawing: Drawing) -> str:
        return base64.b64encode((figures / f"{drawing.name}.svg").read_bytes()).decode()

    return environment.get_template("reproduction.html").render(
        title="PSyCo: the paper's evaluation, reproduced",
        banner=banner,
        tally=summary([claim for part in parts for claim in part.claims]),
        level=f"{LEVEL:.0%}",
        parts=parts,
        folder=figures.name,
        encoded_svg=encoded_svg,
        parameters=[(experiment.title, _parameters(experiment)) for experiment in experiments],
        origin=made,
    )


def _parameters(e: Experiment) -> dict[str, str]:
    return {
        "requirements": "\n".join(
            f"{label}: {e.requirement(variant)}" + (" (watched only)" if variant.calibration == "none" else "")
            for label, variant in e.variants.items()
        ),
        "calibration of λ": "\n".join(f"{label}: {v.calibration}" for label, v in e.variants.items()),
        "learning": f"SNES, {e.episodes:,} episodes of at most 50 steps, population {POPULATION}, α = 0.01, σ = 0.1",
        "policy": "one hidden layer of 32 ReLU units, tanh, biases fixed at 1",
        "verification": f"bayes (Alg. BV), every {e.verify_every:,} episodes, at most {e.verify_episodes:,} episodes",
        "repetitions": f"{e.repetitions}, seeds {e.seeds.start} to {e.seeds[-1]}",
        "end of learning": f"the last {e.final:,} episodes",
    }


def with_symbols(text: str) -> Markup:
    """Return escaped text with the paper's symbols as the paper sets them: n_max, p_req, c_sat, c_req."""
    return Markup(re.sub(r"\b([ncp])_(max|req|sat)\b( = )?", _symbol, escape(text)))


def _symbol(found: re.Match[str]) -> str:
    name, index, equals = found.groups()
    return f"<i>{name}</i><sub>{index}</sub>{'&nbsp;=&nbsp;' if equals else ''}"
