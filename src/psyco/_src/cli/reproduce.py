"""`psyco reproduce`: the paper's evaluation, claim by claim."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from psyco._src.cli.common import ParallelRuns, RunsOnRay, complete_from, console, remark, say, status

if TYPE_CHECKING:
    from psyco._src.paper.claims import Claim
    from psyco._src.paper.repetitions import Completion

COLOUR = {"HOLDS": "green", "FAILS": "red", "OPEN": "yellow"}
NAMES = ("belief", "particle-dance", "calibration", "obstacle-run")


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            autocompletion=complete_from(NAMES),
            help=f"Experiments: {', '.join(NAMES)}.",
        ),
    ] = None,
    repetitions: Annotated[
        int | None,
        typer.Option(min=1, help="Repetitions of every experiment; default: 5, 12 for calibration."),
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(min=1, help="Learning episodes; default: 60,000, 20,000 for obstacle-run."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Every figure in under a minute, from a fifth of the episodes.")
    ] = False,
    until_decided: Annotated[
        bool,
        typer.Option("--until-decided", help="Add repetitions until every claim is decided or 60 are spent."),
    ] = False,
    workers: ParallelRuns = None,
    ray: RunsOnRay = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for page, figures and runs; default: reproduction[-quick].")
    ] = None,
) -> None:
    """Repeat the paper's experiments: every figure, and a decision about every claim.

    The runs are a study below the folder. Calling it again continues after an interruption.

    Example: `psyco reproduce --quick`
    """
    from psyco._src.paper.claims import summary
    from psyco._src.paper.reproduction import reproduce as run_reproduction  # imports matplotlib

    folder = out or Path("reproduction-quick" if quick else "reproduction")
    size: dict[str, Any] = {"episodes": episodes, "repetitions": repetitions, "quick": quick}
    size |= {"until_decided": until_decided, "workers": workers, "ray": ray}
    try:
        with _ReproduceDisplay() as display:
            done = run_reproduction(names or [], folder, **size, on_progress=display.show)
    except KeyboardInterrupt:
        remark(f"finished runs are kept in {folder}; the same command continues from there")
        raise
    for part in done.parts:
        console.print(Text(f"\n{part.title}", "bold"))
        for claim in part.claims:
            _print(claim)
    counts = summary([claim for part in done.parts for claim in part.claims])
    say("\n" + ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items()))
    say(f"page: {done.page}")
    if quick:
        remark("this was a quick reproduction: at full size, claims may be decided differently")


class _ReproduceDisplay:
    """Progress over all runs: a bar on a terminal, elsewhere a line for every tenth."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[runs]}"),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=status, disable=not status.is_terminal)
        self.task = self.bar.add_task("compiling", total=None, runs="")
        self.began = time.perf_counter()
        self.total = 0  # episodes of all runs
        self.first = 0  # episodes of earlier calls
        self.tenth = 0

    def __enter__(self) -> _ReproduceDisplay:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, progress: Completion) -> None:
        """Show the progress; called after every event, and about twice a second."""
        if self.total != progress.all_episodes:  # the first report, or repetitions were added
            self.total, self.first, self.tenth = progress.all_episodes, progress.episodes, 0
            self.began = time.perf_counter()
        done = progress.episodes == progress.all_episodes
        runs_done = f"{progress.runs}/{progress.all_runs} runs"
        name = "drawing" if done else "learning" if progress.episodes > self.first else "compiling"
        self.bar.update(
            self.task,
            description=name,
            completed=progress.episodes,
            total=progress.all_episodes,
            runs=runs_done,
        )
        tenth = 10 * progress.episodes // max(1, progress.all_episodes)
        if not status.is_terminal and tenth > self.tenth:
            self.tenth = tenth
            remark(f"{runs_done}, {tenth * 10}% of the episodes{self._left(progress)}")

    def _left(self, progress: Completion) -> str:
        new = progress.episodes - self.first
        left = progress.all_episodes - progress.episodes
        return f", about {left * (time.perf_counter() - self.began) / new:.0f} s left" if new and left else ""


def _print(claim: Claim) -> None:
    """Print the decision about a claim and the measured values; where it does not hold, also what we see."""
    outcome = Text(f"{claim.outcome.value:18}", COLOUR[claim.outcome.name])
    measured = "; ".join(f"{c.what}: {c.measured}, claimed {c.wanted}" for c in claim.comparisons)
    lines = [claim.text, measured] + [f"We see: {claim.seen}"] * (claim.outcome.name != "HOLDS")
    grid = Table.grid(padding=(0, 1))
    grid.add_row(outcome, Text("\n").join([Text(lines[0]), *(Text(line, "dim") for line in lines[1:])]))
    console.print(grid)
