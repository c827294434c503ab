"""The whole evaluation of the paper: run, draw, decide, write it all down."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from psyco._src.errors import RunError
from psyco._src.paper.claims import Claim, Outcome, to_csv, to_markdown
from psyco._src.paper.curves import Results
from psyco._src.paper.experiments import BELIEF, EXPERIMENTS, Experiment, check_names
from psyco._src.paper.figures import draw_all, draw_belief, save
from psyco._src.paper.page import Part, make_page
from psyco._src.paper.runs import Completion, Repetition, cores, digest, gather
from psyco._src.paper.statements import belief_claims, claims_of
from psyco._src.versions import versions

PAGE, CLAIMS, QUOTE, FIGURES, RUNS = "reproduction.html", "claims.csv", "claims.md", "figures", "runs"
MOST_REPETITIONS = 60  # that are spent on deciding a claim
QUICK_REPETITIONS, QUICK_SHARE = 3, 5  # of a quick look: repetitions, and one in so many episodes


class Reproduction(NamedTuple):
    """What came out."""

    parts: list[Part]
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
    on_progress: Callable[[Completion], None] = lambda progress: None,
) -> Reproduction:
    """Reproduce the named parts of the paper's evaluation (none: all) and write figures, claims and page to `out`.

    Finished runs are kept in `out`: an interrupted reproduction continues, and the same one again only draws.
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
        on_progress: called as the runs go on, from the threads that compute them.
    """
    began = time.perf_counter()
    chosen = check_names(names)
    experiments = [
        _sized(EXPERIMENTS[name], episodes, repetitions, quick=quick)
        for name in chosen
        if name in EXPERIMENTS
    ]
    looks = 1
    try:
        found, runs, computed = _results(experiments, out, on_progress, workers)
        while until_decided and (larger := [_larger(e, found[e.name]) for e in experiments]) != experiments:
            experiments, looks = larger, looks + 1
            found, runs, more = _results(experiments, out, on_progress, workers)
            computed += more
        parts = [Part("The belief (section 2.4)", belief_claims(), [draw_belief()])] * (BELIEF in chosen)
        for e in experiments:
            claims, results = found[e.name]
            parts.append(Part(f"{e.title} (section {e.section})", claims, draw_all(results)))
        for part in parts:
            for drawing in part.drawings:
                save(drawing, out / FIGURES)
        claims = [claim for part in parts for claim in part.claims]
        (out / CLAIMS).write_text(to_csv(claims), encoding="utf-8")
        (out / QUOTE).write_text(to_markdown(claims), encoding="utf-8")
        page = make_page(
            parts, experiments, figures=out / FIGURES, banner=_banner(experiments, quick=quick, looks=looks),
            made={
                "this time": f"{_seconds(time.perf_counter() - began)}, {computed} of {len(runs)} runs computed"
                + (" and the others kept from before" if computed < len(runs) else ""),
                "sum of all runs": _seconds(sum(run.seconds for run in runs.values())),
                "versions": ", ".join(f"{name} {number}" for name, number in versions().items()),
                "again": f"psyco reproduce {' '.join(names)}".strip() + _options(episodes, repetitions, quick)
                + " --until-decided" * until_decided,
            },
        )  # fmt: skip
        (out / PAGE).write_text(page, encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write the reproduction to {out} ({error}); choose another --out") from None
    return Reproduction(parts, out / PAGE, computed, len(runs) - computed)


Found = dict[str, tuple[list[Claim], Results]]  # by the name of the experiment


def _results(
    experiments: list[Experiment], out: Path, on_progress: Callable[[Completion], None], workers: int | None
) -> tuple[Found, dict[str, Repetition], int]:
    """What becomes of every experiment's claims, all runs by their digest, and how many had to be computed."""
    problems = {
        (e.name, label): [e.problem(variant, seed) for seed in e.seeds]
        for e in experiments
        for label, variant in e.variants.items()
    }
    every = [problem for repetition in problems.values() for problem in repetition]
    runs, computed = gather(every, out / RUNS, on_progress, workers=workers or cores())
    found: Found = {}
    for e in experiments:
        results = Results(
            e, {label: [runs[digest(p)] for p in problems[e.name, label]] for label in e.variants}
        )
        found[e.name] = claims_of(results), results
    return found, runs, computed


def _larger(e: Experiment, found: tuple[list[Claim], Results]) -> Experiment:
    """The same with twice the repetitions if a claim of it is open, and as it is if none is or all are spent."""
    is_open = any(claim.outcome is Outcome.OPEN for claim in found[0])
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
