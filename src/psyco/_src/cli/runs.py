"""`psyco runs`: list runs and their outcomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from psyco._src.cli.common import Json, console, make_console, plain, say
from psyco._src.verification.theme import terminal_colour

REQUIREMENT_COLUMN_WIDTH = 110  # columns of a terminal from which the requirement is a column


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder with runs.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List runs: domain, requirement, return, verdict, confidence, age, progress.

    Example: `psyco runs`
    """
    from psyco._src.runs.run_summary import summarize
    from psyco._src.runs.store import find_runs, read_run

    rows = [summarize(read_run(path)) for path in find_runs(folder)]
    if as_json:
        print(json.dumps(rows, indent=2, allow_nan=False))
        return
    if not rows:
        say(f"no runs in {folder}; make one with: psyco synthesize")
        return
    _print(rows, wide=not console.is_terminal or console.width >= REQUIREMENT_COLUMN_WIDTH)
    for row in rows:
        for problem in row["problems"]:
            say(f"{row['run']}: {problem}")


def _print(rows: list[dict[str, Any]], *, wide: bool) -> None:
    """Print one line per run; on a narrow terminal the requirement follows on its own line."""
    shown = [_values(row) for row in rows]
    widths = {name: max(len(name), *(len(values[name]) for values in shown)) for name in shown[0]}
    # Names may be cut where there is no room, numbers never.
    room = None if wide else max(6, (console.width - sum(widths.values()) - 2 * len(widths)) // 2 - 2)
    table = Table() if wide else Table(box=None, pad_edge=False)
    for name in ("run", "domain"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=room)
    if wide:
        table.add_column("requirement", min_width=20)
    for name, width in widths.items():
        table.add_column(name, no_wrap=True, min_width=width)
    for row, values in zip(rows, shown, strict=True):
        names = [Path(row["run"]).name, row["domain"], *([row["requirement"]] if wide else [])]
        colours = {"verdict": terminal_colour(values["verdict"])}
        table.add_row(*map(plain, names), *(plain(text, colours.get(name, "")) for name, text in values.items()))
    (console if console.is_terminal else make_console(width=1000)).print(table)
    if not wide:
        for row in rows:
            say(f"{Path(row['run']).name}: {row['requirement']}")


def _values(row: dict[str, Any]) -> dict[str, str]:
    """Format the values of a row."""
    return {
        "return": _number(row["return"], ".2f") + (" exploring" if row["return_of"] == "exploring" else ""),
        "verdict": row["verdict"] or row["state"],
        "conf.": _number(row["confidence"], ".4f"),
        "age": _age(row["age_seconds"]),
        "done": f"{row['progress']:.0%}" + (" running" if row["state"] == "running" else ""),
    }


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
