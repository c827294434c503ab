"""`psyco study`: many runs, aggregated with intervals."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

import psyco
from psyco._src.cli import status_of
from psyco._src.cli.common import (
    Json,
    ParallelRuns,
    RunsOnRay,
    Trust,
    command,
    plain,
    print_table,
    remark,
    say,
    status,
    trusted,
)
from psyco._src.cli.display import LINE_AT_LEAST_EVERY, LINE_EVERY
from psyco._src.core.errors import RunError
from psyco._src.core.wording import plural

if TYPE_CHECKING:
    from psyco._src.studies.study_progress import CellProgress, StudyProgress

STATUS = "status"
MAX_PRINTED_CELLS = 200
EXIT_FAILED, EXIT_UNFINISHED = 1, 3


def study(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|FOLDER",
            help="Study file or folder. `status FILE|FOLDER`: print its progress only; `status`: of all in studies/.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the study; default: studies/ and the name of the file.")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N|A:B", help="Seeds instead of those of the file: a number, or from A to B-1."),
    ] = None,
    workers: ParallelRuns = None,
    ray: RunsOnRay = None,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Run a grid or a list of runs over seeds, on all cores or a cluster, and aggregate the results.

    The results are a table, CSV files and one page with intervals. The same command continues after an interruption,
    and computes only new cells after seeds or cells were added. Exit status: 0 all runs have finished, with any
    verdict; 1 a run failed; 3 (of `status`) not all have finished; 2 bad input.

    Example: `psyco study examples/study.toml`
    """
    if what[0] == STATUS:
        _status(what[1:], out, seeds, as_json=as_json)
        return
    if len(what) > 1:
        raise RunError(f"one study at a time: {what[1]!r} is not expected")
    from psyco._src.api.study import as_plan
    from psyco._src.studies.study_folder import default_folder

    source = Path(what[0])
    folder = out or default_folder(source)
    count = len(as_plan(source, seeds=seeds).cells)
    remark(f"{plural(count, 'run')} in {folder}; checking")
    with show_runs(folder) as display:
        done = psyco.study(
            source,
            folder,
            seeds=seeds,
            workers=workers,
            ray=ray,
            trust=trusted(trust, None),
            on_progress=display.show,
        )
    _print(done, as_json=as_json)
    raise typer.Exit(0 if done.complete else EXIT_FAILED)


def _status(names: list[str], out: Path | None, seeds: str | None, *, as_json: bool) -> None:
    """Print the progress of one study, or of all below `studies/`."""
    from psyco._src.api.study import as_plan
    from psyco._src.studies.study_folder import PARENT, default_folder, read_study
    from psyco._src.studies.study_plan import PLAN_FILE

    if len(names) > 1:
        raise RunError(f"one study at a time: {names[1]!r} is not expected")
    if not names:
        folders = sorted(path.parent for path in PARENT.glob(f"*/{PLAN_FILE}"))
        if not folders:
            raise RunError(f"there are no studies in {PARENT}; name one: psyco study status FILE|FOLDER")
        every = [read_study(folder) for folder in folders]
        if as_json:
            print("[" + ",\n".join(study.to_json() for study in every) + "]")
        for study in () if as_json else every:
            say(f"{study.folder}: {_counts(study)}")
        raise typer.Exit(0 if all(study.complete for study in every) else EXIT_UNFINISHED)
    source = Path(names[0])
    study = read_study(out or default_folder(source), as_plan(source, seeds=seeds))
    if as_json:
        print(study.to_json(), end="")
    else:
        say(f"{study.folder}: {_counts(study)}")
        _print_cells(study)
    raise typer.Exit(0 if study.complete else EXIT_FAILED if study.failed else EXIT_UNFINISHED)


# ---- results -----------------------------------------------------------------------------------------------------


def _print(study: psyco.Study, *, as_json: bool) -> None:
    from psyco._src.studies.aggregate import missing_evidence

    for name, error in study.failed.items():
        remark(f"failed: {name}: {error}", style="red")
    for note in study.notes:
        remark(f"note: {note}")
    if as_json:
        print(study.to_json(), end="")
        return
    table = Table()
    for head in ("task", "method", "certified", "return, IQM", "return, median", "first satisfied"):
        table.add_column(head, overflow="fold")
    for row in study.tables.summary:
        first = row["first_satisfied_episodes"]
        scaled = " (scaled)" if row["scaled"] else ""
        table.add_row(
            plain(row["task"]),
            plain(row["method"]),
            f"{row['certified']}/{row['ended']} ({_percent(row, 'certified_share')})",
            estimate_text(row, "return_iqm", 2) + scaled,
            estimate_text(row, "return_median", 2) + scaled,
            "–" if first is None else f"{first:,.0f} episodes",
        )
    print_table(table)
    for row in study.tables.comparisons:
        words = f"a run of {row['method']} beats one of {row['other']} with probability"
        missing = missing_evidence(row, "better")
        say(f"{words} {estimate_text(row, 'better', 2)}" + f": {missing}" * bool(missing))
    say(f"{_counts(study)}; intervals are at 95%. Tables: {study.folder}/*.csv. Page: {study.page}")
    if study.failed:
        remark(f"the same command tries failed runs again: {command('psyco', 'study', study.folder)}")


def _print_cells(study: psyco.Study) -> None:
    from psyco._src.studies.collect import cell_row

    table = Table()
    for head in ("task", "method", "seed", "state", "verdict", "return", "done"):
        table.add_column(head, overflow="fold")
    shown = study.outcomes[:MAX_PRINTED_CELLS]
    for outcome in shown:
        row = cell_row(outcome)
        table.add_row(
            plain(row["task"]),
            plain(row["method"]),
            str(row["seed"]),
            plain(outcome.state),
            row["verdict"] or "–",
            "–" if row["return"] is None else f"{row['return']:.2f}",
            f"{outcome.run.progress:.0%}" if outcome.run else "0%",
        )
    print_table(table)
    if len(shown) < len(study.outcomes):
        say(f"and {len(study.outcomes) - len(shown):,} more; --json lists all of them")
    for name, error in study.failed.items():
        say(f"{name}: {error}")


def _counts(study: psyco.Study) -> str:
    states = ", ".join(f"{count} {state}" for state, count in study.counts.items())
    return f"{plural(len(study.outcomes), 'run')}: {states}; {study.certified} certified"


def estimate_text(row: dict[str, Any], name: str, digits: int) -> str:
    """Return an estimate, with its interval if there is one and it has a width."""
    value, lower, upper = (row[f"{name}{side}"] for side in ("", "_lower", "_upper"))
    if math.isnan(value):
        return "–"
    low, high = (f"{bound:.{digits}f}" for bound in (lower, upper))
    return f"{value:.{digits}f}" + (f" ({low} to {high})" if low != high else "")  # where all runs agree, or NaN


def _percent(row: dict[str, Any], name: str) -> str:
    return f"{row[f'{name}_lower']:.0%} to {row[f'{name}_upper']:.0%}" if row["ended"] else "–"


# ---- progress ----------------------------------------------------------------------------------------------------


@contextmanager
def show_runs(folder: Path) -> Iterator[StudyDisplay]:
    """Show the progress of the runs in a folder; after an interruption say that they are kept, and exit."""
    try:
        with StudyDisplay() as display:
            yield display
    except KeyboardInterrupt as interruption:
        remark(f"interrupted; finished runs are kept in {folder}, and the same command continues")
        raise typer.Exit(status_of(interruption)) from None


class StudyDisplay:
    """A table of the running cells on a terminal; elsewhere one line per cell, and one after every interval."""

    def __init__(self) -> None:
        self.live = Live(console=status, transient=True, refresh_per_second=5) if status.is_terminal else None
        self.known: dict[str, str] = {}
        self.said, self.line = time.monotonic(), ""

    def __enter__(self) -> StudyDisplay:
        if self.live:
            self.live.start()
            self.live.update(Text("checking all cells"))
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def show(self, progress: StudyProgress) -> None:
        """Show the progress; called after every event, and about twice a second."""
        for standing in progress.cells.values():
            before = self.known.get(standing.cell.name)
            if standing.state == before:
                continue
            self.known[standing.cell.name] = standing.state
            if standing.state in ("finished", "failed") and not standing.reused:
                took = f" in {standing.seconds:.1f} s" if standing.seconds else ""
                why = f": {standing.error}" if standing.error else ""
                self._say(f"{standing.state}{took}: {standing.cell.label}{why}{self._rest(progress)}")
        if self.live:
            self.live.update(_table(progress))
            return
        line = "; ".join(f"{s.cell.label} {_where(s)}" for s in progress.running[:4]) or "starting"
        line += f" and {len(progress.running) - 4} more" * (len(progress.running) > 4)
        if time.monotonic() - self.said >= (LINE_AT_LEAST_EVERY if line == self.line else LINE_EVERY):
            self.line = line
            self._say(f"{line}{self._rest(progress)}")

    def _say(self, text: str) -> None:
        self.said = time.monotonic()
        remark(text)

    def _rest(self, progress: StudyProgress) -> str:
        return f" [{progress.count('finished')} of {len(progress.cells)}{_left(progress)}]"


def _where(standing: CellProgress) -> str:
    return f"{standing.fraction:.0%}" if standing.phase == "learning" else standing.phase


def _left(progress: StudyProgress) -> str:
    left = progress.seconds_left
    if not left:
        return ""
    return f", about {left:.0f} s left" if left < 120 else f", about {left / 60:.0f} min left"


def _table(progress: StudyProgress) -> Group:
    grid = Table.grid(padding=(0, 2))
    for standing in progress.running[: max(3, status.height - 4)]:
        bar = ProgressBar(total=1.0, completed=standing.fraction, width=24)
        grid.add_row(plain(standing.cell.label), bar, plain(_where(standing)))
    failed = progress.count("failed")
    words = f"{progress.count('finished')} of {len(progress.cells)} runs have finished"
    words += f", {failed} failed" * bool(failed) + _left(progress)
    return Group(grid, Text(words, "bold"))
