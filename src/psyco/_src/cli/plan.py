"""`psyco plan`: predict a verification before any episode is sampled."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

import psyco
from psyco._src.cli.common import Json, complete_from, console, print_table, read_parameters, say, say_wrapped
from psyco._src.cli.display import show_activity
from psyco._src.core.errors import RunError
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES, LARGEST_CAP, METHODS

if TYPE_CHECKING:
    from psyco._src.logic.ast import Constraint, Expectation
    from psyco._src.verification.environments import EnvironmentsPrediction
    from psyco._src.verification.operating_characteristics import (
        AnswerCharacteristics,
        Characteristics,
        SimulationResult,
    )

FULL_TABLE_WIDTH = 76  # columns of a terminal


def plan(
    require: Annotated[str, typer.Argument(metavar="REQUIREMENT", help="Requirement, as text or file.")],
    max_episodes: Annotated[
        int, typer.Option(min=1, max=LARGEST_CAP, help="Maximum number of episodes.")
    ] = DEFAULT_MAX_EPISODES,
    share: Annotated[
        float,
        typer.Option(
            help="Part of the permitted error that this look may use: 0.5 for the first look of a run, 1 for a policy "
            "that is verified once."
        ),
    ] = 0.5,
    method: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete_from(METHODS),
            help=f"One method: {', '.join(METHODS)}.  [default: all, side by side]",
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Option of the method; repeatable.")
    ] = None,
    p: Annotated[list[float] | None, typer.Option("--p", help="A true probability; repeatable.")] = None,
    mean: Annotated[
        list[float] | None,
        typer.Option("--mean", help="A true mean of an expected value; repeatable."),
    ] = None,
    spread: Annotated[float | None, typer.Option(help="Standard deviation of that value between episodes.")] = None,
    horizon: Annotated[
        int | None,
        typer.Option(min=1, help="Longest episode, in steps, where the range of a value depends on it."),
    ] = None,
    width: Annotated[
        list[float] | None,
        typer.Option(metavar="W", help="Wanted width of the intervals of answers (P=?); repeatable: one per question."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Draw the operating characteristics into this file (.png, .svg, .pdf)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict the probability of each verdict and the number of episodes.

    Probabilities are computed by exact dynamic programming, expected values by simulation. The defaults are those of
    `psyco synthesize` for its best candidate.

    Examples:

        psyco plan 'P>=0.85 & C>=0.98' --max-episodes 1000 --out plan.png

        psyco plan 'R{cost}<=25 [ C ] within [0,1000]' --mean 10 --mean 20 --spread 5

        psyco plan 'P>=0.9 in 95% of environments & C>=0.98' --share 1 --max-episodes 20000

        psyco plan 'P=? & C>=0.95' --width 0.05 --share 1
    """
    with show_activity("computing") as update:
        found = psyco.plan(
            require,
            method=method,
            method_options=read_parameters(option),
            max_episodes=max_episodes,
            share=share,
            p=p,
            mean=mean,
            spread=spread,
            horizon=horizon,
            width=width,
            on_progress=lambda name: update(f"computing {name}"),
        )
        if out is not None and not found.tests and found.requirement.constraints:
            raise RunError("--out draws tests of one level, and the requirement is about a share of environments")
        if out is not None and not found.requirement.constraints:
            raise RunError("--out draws the tests of constraints, and the requirement has none")
        if out is not None:
            from psyco._src.reports.charts import draw_characteristics

            update("drawing")
            draw_characteristics(found.requirement, found.tests, max_episodes, out)
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
        return
    looks = "" if found.share >= 1 else f", with {found.share:.1%} of the permitted error"
    for constraint, characteristics in zip(found.requirement.constraints, found.characteristics, strict=True):
        say(f"{constraint}, at most {found.max_episodes:,} episodes{looks}")
        if getattr(constraint, "environments", None) is not None:
            _print_environments(characteristics)
        elif constraint in found.requirement.probability_constraints:
            _print(constraint, characteristics)
        else:
            _print_simulated(constraint, characteristics)
    for answer in found.answers:
        say(f"{answer.question}, width {answer.width:g}, at most {found.max_episodes:,} episodes{looks}")
        _print_answer(answer)
    if out is not None:
        say(f"plot: {out}")


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


def _print_environments(found: dict[str, list[EnvironmentsPrediction]]) -> None:
    table = _table("true p", "hopeless", "satisfied", "violated", "undecided", "environments", "episodes")
    (rows,) = found.values()
    for each in rows:
        verdicts = (f"{share:.3f}" for share in (each.satisfied, each.violated, each.undecided))
        needed = (_count(each.environments), _count(each.episodes))
        table.add_row(f"{each.p:g}", f"{100 * each.bad:g}%", *verdicts, *needed)
    print_table(table)
    say_wrapped(
        "All environments have this p, except for a share of hopeless ones. Environments and episodes: the median (∞: "
        f"more than the maximum), simulated with {rows[0].streams:,} tests."
    )


def _print_simulated(constraint: Constraint | Expectation, found: dict[str, list[SimulationResult]]) -> None:
    table = _table("true mean", "method", "satisfied", "violated", "undecided", "episodes")
    first = next(iter(found.values()))
    for i, each in enumerate(first):
        label = f"{each.mean:g}" if each.cvar is None else f"{each.mean:g}, CVaR {each.cvar:.4g}"
        label += " ✓" if constraint.lower <= each.truth <= constraint.upper else " ✗"
        for name, streams in found.items():
            s = streams[i]
            verdicts = (f"{share:.3f}" for share in (s.satisfied, s.violated, s.undecided))
            table.add_row(label, name, *verdicts, _count(s.median_episodes))
            label = ""
        table.add_section()
    print_table(table)
    say_wrapped(
        f"✓ the constraint holds at this mean, ✗ it does not. Standard deviation {first[0].spread:g}. Episodes: the "
        f"median (∞: more than the maximum). {first[0].note[0].upper()}{first[0].note[1:]}."
    )


def _print(constraint: Constraint | Expectation, found: dict[str, Characteristics]) -> None:
    from psyco._src.verification.operating_characteristics import DECISION_QUANTILES

    chances = DECISION_QUANTILES if not console.is_terminal or console.width >= FULL_TABLE_WIDTH else ()
    columns = ("true p", "method", "satisfied", "violated", "undecided", "episodes")
    table = _table(*columns, *(f"{100 * chance:g}%" for chance in chances))
    for i, p in enumerate(next(iter(found.values())).p):
        label = f"{p:g} {'✓' if constraint.lower <= p <= constraint.upper else '✗'}"
        for name, c in found.items():
            verdicts = (f"{each[i]:.3f}" for each in (c.satisfied, c.violated, c.undecided))
            needed = (_count(c.needed(chance)[i]) for chance in chances)
            table.add_row(label, name, *verdicts, f"{c.episodes[i]:.0f}", *needed)
            label = ""
        table.add_section()
    print_table(table)
    say_wrapped(
        "✓ the constraint holds at this p, ✗ it does not. Episodes: expected, and those after which there is a verdict "
        "with probability 50%, 90%, 99% (∞: more than the maximum)."
    )


def _print_answer(found: AnswerCharacteristics) -> None:
    from psyco._src.verification.operating_characteristics import DECISION_QUANTILES

    table = _table(found.truth_name, "narrow", "episodes", *(f"{100 * chance:g}%" for chance in DECISION_QUANTILES))
    for i, truth in enumerate(found.truth):
        needed = (_count(found.needed(chance)[i]) for chance in DECISION_QUANTILES)
        table.add_row(f"{truth:g}", f"{found.narrow[i]:.3f}", f"{found.episodes[i]:.0f}", *needed)
    print_table(table)
    say_wrapped(
        "Narrow: the probability that the interval gets this width. Episodes: expected, and those after which it does "
        f"with probability 50%, 90%, 99% (∞: more than the maximum). {found.note[0].upper()}{found.note[1:]}."
    )


def _count(episodes: float) -> str:
    return f"{episodes:.0f}" if math.isfinite(episodes) else "∞"
