"""`psyco check`: is an environment fit for learning and verification?"""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from psyco._src.cli.common import Horizon, Json, Parameters, Seed, console, read_domain, read_requirement
from psyco._src.domain.base import signal_table
from psyco._src.domain.gym_env import GymDomain
from psyco._src.errors import RunError
from psyco._src.rollout.check import check_environment
from psyco._src.synthesis.problem import Settings

MARKS = {True: "[green]ok  [/green]", False: "[red]FAIL[/red]", None: "[yellow]note[/yellow]"}


def check(
    environment: Annotated[
        str, typer.Argument(help="A Gymnasium id, module:Id, or module:name of a class or function.")
    ],
    require: Annotated[
        str | None, typer.Option(help="A requirement, as text or file, whose signals should be there.")
    ] = None,
    episodes: Annotated[
        int, typer.Option(help="Training episodes of the synthesis whose duration is estimated.")
    ] = Settings().episodes,
    seed: Seed = 0,
    horizon: Horizon = None,
    parameters: Parameters = None,
    as_json: Json = False,
) -> None:
    """Check a Gymnasium environment: determinism, spaces, NaNs, signals, length, speed. Exit status 1 if one fails.

    Example: `psyco check CartPole-v1 --require 'P>=0.95 [ G (abs(obs[0]) <= 1) ] & C>=0.98'`
    """
    domain = read_domain(environment, parameters, horizon)
    if not isinstance(domain, GymDomain):
        raise RunError(f"{environment} is a compiled domain; this check is for Gymnasium environments")
    requirement = None if require is None else read_requirement(require)
    failed = False
    found = []
    for each in check_environment(domain, requirement, seed=seed, episodes=episodes):
        failed = failed or each.passed is False
        found.append(each._asdict())
        if not as_json:
            console.print(MARKS[each.passed], f"{each.name:13}", end="")
            console.print(each.message, markup=False, highlight=False, soft_wrap=True)
    if as_json:
        signals = {name: dataclasses.asdict(info) for name, info in signal_table(domain).items()}
        print(json.dumps({"checks": found, "signals": signals}, indent=2))
    raise typer.Exit(1 if failed else 0)
