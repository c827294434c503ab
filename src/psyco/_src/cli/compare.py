"""`psyco compare`: runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Table

from psyco._src.cli.common import Json, console, plain, print_table, say
from psyco._src.core.errors import RunError
from psyco._src.verification.theme import terminal_colour

if TYPE_CHECKING:
    from psyco._src.runs.store import Run

BLOCKS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 40  # characters
CURVES = {"return": "return", "satisfied": "satisfied share", "c_sat": "c_sat", "lambda": "λ"}


def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Two or more run folders.")],
    out: Annotated[Path | None, typer.Option(help="Also write a page with all curves in one chart.")] = None,
    as_json: Json = False,
) -> None:
    """Compare runs: verdicts, curves on one scale, differences of the configurations.

    Example: `psyco compare runs/dance runs/dance-naive --out compare.html`
    """
    from psyco._src.core import files
    from psyco._src.runs.run_summary import summarize
    from psyco._src.runs.store import config_differences, read_run

    if len(folders) < 2:
        raise RunError("compare takes two or more run folders")
    records = [read_run(folder) for folder in folders]
    different = config_differences(records)
    if out is not None:
        from psyco._src.reports.run_page import compare_page

        files.write(out, compare_page(records).encode())
    if as_json:
        content = {"runs": [summarize(record) for record in records], "differences": different}
        print(json.dumps(content, indent=2, allow_nan=False, default=str))
        return
    _print_verdicts(records)
    for record in records:
        for problem in record.problems:
            say(f"{record.folder}: {problem}")
    _print_curves(records)
    _print_differences(folders, different)
    if out is not None:
        say(f"page: {out}")


def _print_verdicts(records: list[Run]) -> None:
    from psyco._src.runs.run_summary import summarize

    table = Table("run", "verdict", "return", "confidence", "episodes")
    for row in map(summarize, records):
        verdict = row["verdict"] or row["state"]
        values = ("–" if row[key] is None else f"{row[key]:.4g}" for key in ("return", "confidence"))
        table.add_row(plain(row["run"]), plain(verdict, terminal_colour(verdict)), *values, f"{row['episodes']:,}")
    print_table(table)


def _print_curves(records: list[Run]) -> None:
    """Print curves over training episodes; all runs share one scale."""
    longest = max((record.episodes for record in records), default=0)
    for name, title in CURVES.items():
        curves = [_curve(record, name, longest) for record in records]
        values = np.concatenate(curves)
        values = values[np.isfinite(values)]
        if not len(values):
            continue
        low, high = float(values.min()), float(values.max())
        say(f"\n{title}, {low:.4g} to {high:.4g}")
        for record, curve in zip(records, curves, strict=True):
            last = next((f"{x:.4g}" for x in curve[::-1] if x == x), "–")
            say(f"  {sparkline(curve, low, high):{CURVE_WIDTH}}  {last:>8}  {record.folder}")


def _curve(record: Run, name: str, longest: int) -> NDArray[np.float64]:
    """Return means over equal parts of training, NaN where a run has no values."""
    curve = np.full(CURVE_WIDTH, np.nan)
    if record.metrics.rows and name in record.metrics:
        place = np.minimum((record.metrics["episodes"] - 1) * CURVE_WIDTH // longest, CURVE_WIDTH - 1).astype(int)
        for i in range(CURVE_WIDTH):
            here = record.metrics[name][place == i]
            here = here[~np.isnan(here)]
            curve[i] = here.mean() if len(here) else np.nan
    return curve


def sparkline(values: NDArray[np.float64], low: float, high: float) -> str:
    """Draw a curve in one line of text; NaN is a gap."""
    span = high - low or 1.0
    return "".join(" " if x != x else BLOCKS[min(int((x - low) / span * len(BLOCKS)), len(BLOCKS) - 1)] for x in values)


def _print_differences(folders: list[Path], different: dict[str, list[Any]] | None) -> None:
    if different is None:
        say("\nthe configurations can't be compared: not all of them are readable, see psyco runs")
        return
    if not different:
        say("\nthe configurations are the same")
        return
    table = Table()
    table.add_column("setting", overflow="fold")
    for folder in folders:
        table.add_column(plain(folder.name))
    for key, values in different.items():
        table.add_row(plain(key), *(plain(str(value)) for value in values))
    console.print()
    print_table(table)
