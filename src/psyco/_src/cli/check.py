"""`psyco check`: check an environment for learning and verification."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import psyco
from psyco._src.cli.common import (
    Horizon,
    Json,
    Learner,
    Parameters,
    Seed,
    Steps,
    code_of,
    complete_domain,
    console,
    read_domain_parameters,
    say,
)
from psyco._src.cli.declared_options import declared_options
from psyco._src.cli.display import show_activity
from psyco._src.learners.learner_registry import AUTO_LEARNER

if TYPE_CHECKING:
    from psyco._src.rollout.execution import Execution

INDENT = 18  # columns of mark and name before a message
MARKS = {True: Text("ok  ", "green"), False: Text("FAIL", "red"), None: Text("note", "yellow")}


@declared_options(trains=False)
def check(
    execution: Execution,
    environment: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_domain,
            help="A Gymnasium id, a domain, module:Id, module:name of a class or function; or a PRISM or JANI file.",
        ),
    ],
    require: Annotated[str | None, typer.Option(help="Requirement, as text or file, whose signals must exist.")] = None,
    episodes: Annotated[
        int | None,
        typer.Option(help="Training episodes of the planned synthesis; default: 60,000."),
    ] = None,
    steps: Steps = None,
    learner: Learner = AUTO_LEARNER,
    seed: Seed = 0,
    horizon: Horizon = None,
    parameters: Parameters = None,
    as_json: Json = False,
) -> None:
    """Check a Gymnasium environment: determinism, spaces, NaNs, signals, length, speed. Exit status 1 if one fails.

    Of a compiled domain, check the shapes that its functions return, its signals, and episodes of random policies; of a
    finite one, also its enumeration.

    Of a PRISM or JANI file, list what it has, and what becomes of each of its properties.

    Examples:

        psyco check CartPole-v1 --require 'P>=0.95 [ G (abs(obs[0]) <= 1) ] & C>=0.98'

        psyco check examples/courier.prism --set N=3
    """
    code_of(environment)
    domain = psyco.make(environment, **read_domain_parameters(parameters, horizon))
    found, doing = [], "checking"
    checks = psyco.check(
        domain, require, seed=seed, episodes=episodes, steps=steps, learner=learner, execution=execution
    )
    while True:
        with show_activity(doing):
            each = next(checks, None)
        if each is None:
            break
        found.append(each)
        if each.name == "length" and require is not None:  # the plan follows
            doing = "measuring the speed of simulator and learner for the plan"
        if not as_json:
            console.print(MARKS[each.passed], f"{each.name:13}", end=" " if len(each.name) > 12 else "")
            say(_wrapped(each.message))
    if as_json:
        from psyco._src.envs.base import signal_table

        signals = {name: dataclasses.asdict(info) for name, info in signal_table(domain).items()}
        print(json.dumps({"checks": [each._asdict() for each in found], "signals": signals}, indent=2))
    raise typer.Exit(1 if any(each.passed is False for each in found) else 0)


def _wrapped(message: str) -> str:
    """Return a message wrapped at words beside the name of its check; a pipe or a file gets whole lines."""
    if not console.is_terminal:
        return message
    first, *rest = message.split("\n")
    lines = textwrap.wrap(first, max(20, console.width - INDENT)) or [""]
    below = [part for line in rest for part in textwrap.wrap(line, console.width) or [""]]
    return "\n".join([f"\n{' ' * INDENT}".join(lines), *below])
