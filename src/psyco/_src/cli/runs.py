"""`psyco runs`: which runs there are, and how they went."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from psyco._src.cli.common import Json, console
from psyco._src.run.folder import Record, find_runs, read_run

COLOUR = {"SATISFIED": "green", "VIOLATED": "red", "UNDECIDED": "yellow"}


def runs(
    folder: Annotated[Path, typer.Argument(help="The folder that holds the runs.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List runs: domain, requirement, return, verdict, confidence, age, progress.

    Example: `psyco runs`
    """
    rows = [summarize(read_run(path)) for path in find_runs(folder)]
    if as_json:
        print(json.dumps(rows, indent=2, allow_nan=False))
        return
    if not rows:
        console.print(
            f"no runs in {folder}; make one with: psyco synthesize", highlight=False, soft_wrap=True
        )
        return
    table = Table()
    for column in ("run", "domain", "requirement", "return", "verdict", "confidence", "age", "progress"):
        table.add_column(
            column, no_wrap=column != "requirement", min_width=20 if column == "requirement" else None
        )
    for row in rows:
        verdict = row["verdict"] or row["state"]
        table.add_row(
            *(Text(text) for text in (Path(row["run"]).name, row["domain"], row["requirement"])),
            _number(row["return"], ".2f"),
            Text(verdict, style=COLOUR.get(verdict, "")),
            _number(row["confidence"], ".4f"),
            _age(row["age_seconds"]),
            f"{row['progress']:.0%}" + (" running" if row["state"] == "running" else ""),
        )
    print_table(table)
    for row in rows:
        for problem in row["problems"]:
            console.print(f"{row['run']}: {problem}", highlight=False, markup=False, soft_wrap=True)


def summarize(record: Record) -> dict[str, Any]:
    """One run in a few values."""
    certificate = record.certificate or {}
    findings = [f for f in certificate.get("findings") or [] if isinstance(f, dict)]
    confidences = [f["confidence"] for f in findings if isinstance(f.get("confidence"), int | float)]
    latest = float(record.metrics["return"][-1]) if record.metrics.rows else None
    return {
        "run": str(record.folder),
        "domain": record.config.domain if record.config else "?",
        "requirement": _constraints(record),
        "return": certificate.get("mean_return", latest),
        "verdict": certificate.get("verdict"),
        "confidence": min(confidences, default=None),
        "created": record.about.created if record.about else None,
        "age_seconds": max(0, round(time.time() - record.about.created)) if record.about else None,
        "episodes": record.episodes,
        "progress": round(record.progress, 4),
        "state": record.state,
        "problems": list(record.problems),
    }


def _constraints(record: Record) -> str:
    """The requirement in short: its constraints without comments and names."""
    from psyco._src.errors import PsycoError
    from psyco._src.spec.parse import parse

    if record.config is None:
        return "?"
    try:
        constraints = parse(record.config.requirement).constraints
    except PsycoError:
        return record.config.requirement
    return "; ".join(str(c).removeprefix(f'"{c.name}": ') for c in constraints) or "unconstrained"


def print_table(table: Table) -> None:
    """On a terminal as wide as that is; elsewhere as wide as it needs, with every row on its own line."""
    (console if console.is_terminal else Console(width=1000)).print(table)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
