"""`psyco plan`: how a verification will go, before any episode is sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.table import Table

from psyco._src.certify.outcomes import outcome_requirement
from psyco._src.certify.verify import check_decidable
from psyco._src.cli.common import Json, console, read_options, read_requirement
from psyco._src.errors import RunError
from psyco._src.smc.calibrated import LARGEST_CAP
from psyco._src.smc.methods import METHODS, make_tests
from psyco._src.smc.plan import Characteristics, interesting_probabilities, operating_characteristics
from psyco._src.spec.formula import Constraint

CHANCES = (0.5, 0.9, 0.99)


def plan(
    require: Annotated[
        str, typer.Argument(metavar="REQUIREMENT", help="The requirement, as text or as a file.")
    ],
    max_episodes: Annotated[
        int, typer.Option(min=1, max=LARGEST_CAP, help="At most so many episodes.")
    ] = 1000,
    method: Annotated[
        str | None, typer.Option(help=f"One method only: {', '.join(METHODS)}.  [default: all, side by side]")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the method; repeatable.")
    ] = None,
    p: Annotated[
        list[float] | None, typer.Option("--p", help="A true probability to look at; repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Draw the characteristics into this file (.png, .svg, .pdf).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict each verdict's probability and the episodes needed, by exact dynamic programming.

    Example: `psyco plan 'P>=0.85 & C>=0.98' --max-episodes 1000 --out plan.png`
    """
    requirement = read_requirement(require, outcome_requirement)
    check_decidable(requirement)
    if not requirement.constraints:
        raise RunError("there is nothing to plan: the requirement has no constraint")
    if option and method is None:
        raise RunError("options belong to one method; say which with --method")
    options = read_options(option, method) if method else {}
    methods = [method] if method else list(METHODS)
    tests = {name: make_tests(name, requirement, max_episodes=max_episodes, **options) for name in methods}
    content = []
    for k, constraint in enumerate(requirement.constraints):
        grid = np.unique(p) if p else interesting_probabilities(constraint)
        found = {name: operating_characteristics(tests[name][k], grid, max_episodes) for name in methods}
        if as_json:
            content.append(_content(constraint, max_episodes, found))
        else:
            _print(constraint, max_episodes, found)
    if out is not None:
        from psyco._src.pages.characteristics import draw_characteristics

        draw_characteristics(requirement, tests, max_episodes, out)
    if as_json:
        print(json.dumps(content, indent=2))
    elif out is not None:
        console.print(f"plot: {out}", highlight=False, soft_wrap=True)


def _print(constraint: Constraint, max_episodes: int, found: dict[str, Characteristics]) -> None:
    console.print(
        f"{constraint}, at most {max_episodes:,} episodes", highlight=False, markup=False, soft_wrap=True
    )
    columns = ("true p", "method", "satisfied", "violated", "undecided", "episodes")
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for chance in CHANCES:
        table.add_column(f"{100 * chance:g}%")
    for i, p in enumerate(next(iter(found.values())).p):
        label = f"{p:g} {'✓' if constraint.lower <= p <= constraint.upper else '✗'}"
        for name, c in found.items():
            verdicts = (f"{each[i]:.3f}" for each in (c.satisfied, c.violated, c.undecided))
            needed = (_count(c.needed(chance)[i]) for chance in CHANCES)
            table.add_row(label, name, *verdicts, f"{c.episodes[i]:.0f}", *needed)
            label = ""
        table.add_section()
    console.print(table)
    console.print(
        "✓ the constraint holds at this p, ✗ it does not. Episodes: expected, and those after which a verdict is there "
        "with a chance of 50%, 90%, 99% (∞: more than the cap).",
        highlight=False,
        soft_wrap=True,
    )


def _count(episodes: float) -> str:
    return f"{episodes:.0f}" if np.isfinite(episodes) else "∞"


def _content(constraint: Constraint, max_episodes: int, found: dict[str, Characteristics]) -> dict[str, Any]:
    def finite(values: Any) -> list[float | None]:
        return [float(value) if np.isfinite(value) else None for value in values]

    return {
        "constraint": str(constraint),
        "max_episodes": max_episodes,
        "p": next(iter(found.values())).p.tolist(),
        "methods": {
            name: {
                "satisfied": c.satisfied.tolist(),
                "violated": c.violated.tolist(),
                "undecided": c.undecided.tolist(),
                "episodes": c.episodes.tolist(),
                "needed": {f"{chance:g}": finite(c.needed(chance)) for chance in CHANCES},
            }
            for name, c in found.items()
        },
    }
