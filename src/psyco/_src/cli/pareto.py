"""`psyco pareto`: return against certified probability."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import psyco
from psyco._src.cli.common import (
    Horizon,
    Json,
    Learner,
    ParallelRuns,
    Parameters,
    RunDomain,
    RunEpisodes,
    RunSetting,
    RunsOnRay,
    Steps,
    Trust,
    command,
    plain,
    print_table,
    read_domain_parameters,
    remark,
    run_settings,
    say,
    trusted,
)
from psyco._src.cli.study import EXIT_FAILED, estimate_text, show_runs
from psyco._src.core.wording import plural
from psyco._src.runs.settings import Settings


def pareto(
    domain: RunDomain,
    formula: Annotated[str, typer.Option(help="Path formula, as in 'G (distance >= 0.1)'.")],
    p: Annotated[
        str | None,
        typer.Option(
            "--p",
            metavar="A:B",
            help="Range of required probabilities; default: 0.5:0.99. With --vary one value, 0.9.",
        ),
    ] = None,
    points: Annotated[
        int | None,
        typer.Option(help="Number of points, evenly spread; default: 8, with --vary over whole numbers all."),
    ] = None,
    vary: Annotated[
        str | None,
        typer.Option(metavar="NAME=A:B", help="Vary a parameter of the formula, as in n=0:5."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs per point.")] = 5,
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    confidence: Annotated[float, typer.Option(help="Joint confidence of all certificates.")] = 0.95,
    episodes: RunEpisodes = None,
    steps: Steps = None,
    learner: Learner = Settings().learner,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Option of the learner, as in margin=0.2; repeatable."),
    ] = None,
    setting: RunSetting = None,
    parameters: Parameters = None,
    horizon: Horizon = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder; default: below studies/, the same for the same front."),
    ] = None,
    workers: ParallelRuns = None,
    ray: RunsOnRay = None,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Learn for several required probabilities, certify every policy, and compare return with certified probability.

    All certificates hold together with --confidence. On finite domains the exact front is shown too. The same command
    continues after an interruption. Exit status: 0 all runs have finished, with any verdict; 1 a run failed; 2 bad
    input.

    Example: `psyco pareto particle-dance --formula 'G (distance >= 0.1 | collisions <= 1)' --p 0.5:0.99 --points 8`
    """
    from psyco._src.api.study import as_pareto
    from psyco._src.studies.pareto import default_pareto_folder

    made_of = read_domain_parameters(parameters, horizon)
    what: dict[str, Any] = {
        "p": p,
        "points": points,
        "vary": vary,
        "seeds": seeds,
        "seed": seed,
        "confidence": confidence,
        "parameters": made_of,
        "settings": run_settings(learner, option, setting, episodes=episodes, steps=steps),
    }
    asked = as_pareto(domain, formula, **what)
    folder = out or default_pareto_folder(asked)
    remark(f"{plural(len(asked.plan.cells), 'run')} in {folder}; checking")
    with show_runs(folder) as display:
        done = psyco.pareto_front(
            domain,
            formula,
            folder,
            **what,
            workers=workers,
            ray=ray,
            trust=trusted(trust, domain, made_of),
            on_progress=display.show,
        )
    _print(done, as_json=as_json)
    raise typer.Exit(0 if done.study.complete else EXIT_FAILED)


def _print(front: psyco.ParetoFront, *, as_json: bool) -> None:
    for name, error in front.study.failed.items():
        remark(f"failed: {name}: {error}", style="red")
    for note in front.notes:
        remark(f"note: {note}")
    if as_json:
        print(front.to_json(), end="")
        return
    parameter = front.spec.parameter
    heads = [parameter] * bool(parameter) + ["required", "satisfied", "certified probability", "return"]
    heads += ["best of any"] * bool(front.exact) + [""] * (not parameter)
    table = Table()
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in front.points:
        cells = [f"{row[parameter]:g}"] if parameter else []
        cells += [
            f"{row['required']:g}",
            f"{row['satisfied']}/{row['ended']}",
            estimate_text(row, "certified", 4),
            estimate_text(row, "return", 2),
        ]
        if front.exact:
            cells.append(f"{row['exact_return']:.2f}" if math.isfinite(row["exact_return"]) else "–")
        if not parameter:
            cells.append("dominated" if row["dominated"] else "knee" if row["knee"] else "")
        table.add_row(*map(plain, cells))
    print_table(table)
    say(f"{front.joint_guarantee}.")
    say(f"Table: {front.folder}/pareto.csv. Page: {front.page}")
    if front.study.failed:
        remark(f"the same command tries failed runs again, as does {command('psyco', 'study', front.folder)}")
