"""The whole evaluation of the paper: run, draw, decide, write it all down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from psyco._src.core.errors import RunError
from psyco._src.core.versions import versions
from psyco._src.paper.claim_outcome import Claim, ClaimOutcome, to_csv, to_markdown
from psyco._src.paper.claims import belief_claims, claims_of
from psyco._src.paper.curves import Results
from psyco._src.paper.experiments import BELIEF, EXPERIMENTS, Experiment, check_names
from psyco._src.paper.figures import draw_all, draw_belief, save
from psyco._src.paper.repetitions import Completion, RepetitionSet, gather
from psyco._src.paper.reproduction_page import ExperimentSection, make_page

PAGE, CLAIMS, QUOTE, FIGURES, RUNS = "reproduction.html", "claims.csv", "claims.md", "figures", "runs"
MOST_REPETITIONS = 60  # that are spent on deciding a claim
QUICK_REPETITIONS, QUICK_SHARE = 3, 5  # of a quick look: repetitions, and one in so many episodes


class Reproduction(NamedTuple):
    """What came out."""

    parts: list[ExperimentSection]
    page: Path
    computed: int  # runs that were computed now
    kept: int  # runs that an earlier command had finished


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

    The runs are a study in `out`: an interrupted reproduction continues, and the same one again only draws.
    Neither that nor the number of `workers` changes any number.

    Args:
        names: parts, of `NAMES`.
        out: folder for the results.
        episodes: learning episodes of every experiment; default: the paper's.
        repetitions: of every experiment; default: the paper's.
        quick: a fifth of the episodes and three repetitions, unless they are given.
        until_decided: double the repetitions of experiments with claims that cannot be decided, until they can be or
            60 are spent. These are several looks, for which the intervals are not corrected; the page says so.
        workers: runs to compute at the same time; default: as many as there are cores.
        ray: the address of a Ray cluster to run on instead, or "local".
        on_progress: called when something has happened, and about twice a second.
    """
    began = time.perf_counter()
    chosen = check_names(names)
    experiments = [
        _sized(EXPERIMENTS[name], episodes, repetitions, quick=quick)
        for name in chosen
        if name in EXPERIMENTS
    ]
    looks, computed = 1, 0
    where: dict[str, Any] = {"workers": workers, "ray": ray}
    try:
        out.mkdir(parents=True, exist_ok=True)
        found, runs = _results(experiments, out, on_progress, where)
        while until_decided and (larger := [_larger(e, found[e.name]) for e in experiments]) != experiments:
            experiments, looks, computed = larger, looks + 1, computed + runs.computed
            found, runs = _results(experiments, out, on_progress, where)
        computed += runs.computed
        parts = [ExperimentSection("The belief (section 2.4)", belief_claims(), [draw_belief()])] * (
            BELIEF in chosen
        )
        for e in experiments:
            claims, results = found[e.name]
            parts.append(ExperimentSection(f"{e.title} (section {e.section})", claims, draw_all(results)))
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
                + (" and the others kept from before" if computed < runs.runs else ""),
                "sum of all runs": _seconds(runs.seconds),
                "the runs": f"a study in {runs.folder.relative_to(out)}" if runs.runs else "none",
                "versions": ", ".join(f"{name} {number}" for name, number in versions().items()),
                "again": f"psyco reproduce {' '.join(names)}".strip() + _options(episodes, repetitions, quick)
                + " --until-decided" * until_decided,
            },
        )  # fmt: skip
        (out / PAGE).write_text(page, encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write the reproduction to {out} ({error}); choose another --out") from None
    return Reproduction(parts, out / PAGE, computed, runs.runs - computed)


Found = dict[str, tuple[list[Claim], Results]]  # by the name of the experiment


def _results(
    experiments: list[Experiment],
    out: Path,
    on_progress: Callable[[Completion], None],
    where: Mapping[str, Any],
) -> tuple[Found, RepetitionSet]:
    """What becomes of every experiment's claims, and all runs."""
    if not experiments:
        return {}, RepetitionSet({}, out, 0, 0, 0.0)
    runs = gather(experiments, out / RUNS, on_progress, **where)
    results = {e.name: Results(e, runs.repetitions[e.name]) for e in experiments}
    return {name: (claims_of(each), each) for name, each in results.items()}, runs


def _larger(e: Experiment, found: tuple[list[Claim], Results]) -> Experiment:
    """The same with twice the repetitions if a claim of it is open, and as it is if none is or all are spent."""
    is_open = any(claim.outcome is ClaimOutcome.OPEN for claim in found[0])
    more = min(2 * e.repetitions, MOST_REPETITIONS)
    return e.resized(repetitions=more) if is_open and more > e.repetitions else e


def _sized(e: Experiment, episodes: int | None, repetitions: int | None, *, quick: bool) -> Experiment:
    for name, value in (("episodes", episodes), ("repetitions", repetitions)):
        if value is not None and value < 1:
            raise RunError(f"{name} must be at least 1, got {value}")
    if quick:
        episodes = e.episodes // QUICK_SHARE if episodes is None else episodes
        repetitions = QUICK_REPETITIONS if repetitions is None else repetitions
    return e.resized(episodes=episodes, repetitions=repetitions)


def _banner(experiments: list[Experiment], *, quick: bool, looks: int = 1) -> str | None:
    """A page of another size than the paper's says so."""
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
        f"{MOST_REPETITIONS} repetitions; the intervals are not corrected for these looks."
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
