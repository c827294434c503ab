"""Reproduce the evaluation of the paper: run the experiments, draw the figures, decide the claims, write a page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from psyco._src.core.errors import RunError
from psyco._src.core.provenance import package_versions
from psyco._src.paper.claim_outcome import Claim, ClaimOutcome, to_csv, to_markdown
from psyco._src.paper.claims import belief_claims, claims_of
from psyco._src.paper.curves import Results
from psyco._src.paper.experiments import BELIEF, EXPERIMENTS, Experiment, check_names
from psyco._src.paper.figures import draw_all, draw_belief, save
from psyco._src.paper.repetitions import Completion, RepetitionSet, run_repetitions
from psyco._src.paper.reproduction_page import ExperimentSection, make_page

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
