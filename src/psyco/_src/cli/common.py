"""What several commands share: their options, what is typed into values, how things are said."""

from __future__ import annotations

import ast
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from psyco._src.core.errors import RunError
from psyco._src.envs.registry import domain_names
from psyco._src.learners.learner_registry import AUTO_LEARNER, LEARNERS
from psyco._src.runs.tracking import TRACKERS
from psyco._src.verification.methods import METHODS

if TYPE_CHECKING:
    from psyco._src.reports.live_server import LivePage, PageServer
    from psyco._src.verification.certificate import Certificate


def make_console(**options: Any) -> Console:
    """One that prints what it is given: `[red]`, `:dog:` and numbers in names, paths and requirements are text."""
    return Console(markup=False, emoji=False, highlight=False, **options)


console = make_console()  # results
status = make_console(stderr=True)  # progress and remarks

# Control characters but line breaks and tabs, what turns the direction of text, halves of characters.
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
EXIT = {"SATISFIED": 0, "VIOLATED": 1, "UNDECIDED": 3, "ANSWERED": 0}


def complete_domain(incomplete: str) -> list[str]:
    """Our own names; those of Gymnasium once one of them has been begun."""
    found = [name for name in domain_names() if name.startswith(incomplete)]
    if incomplete and not found:
        from psyco._src.envs.gym_env import gym_names

        found = [name for name in gym_names() if name.startswith(incomplete)]
    return found


def complete_from(names: Iterable[str]) -> Callable[[str], list[str]]:
    """What TAB offers for one of these names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def read_steps(text: str | int) -> int:
    """A number of steps: 3000000, 3_000_000 or 3e6."""
    from psyco._src.runs.settings import check_steps

    try:
        return check_steps(float(text))
    except (ValueError, RunError):
        raise typer.BadParameter(
            f"a number of steps is a whole number such as 3000000 or 3e6, got {text!r}"
        ) from None


Steps = Annotated[
    int | None,
    typer.Option(
        parser=read_steps, metavar="N", help="Training steps, as in 3e6: a budget instead of --episodes."
    ),
]
Seed = Annotated[int, typer.Option(help="The result is a function of it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the domain; repeatable."),
]
Horizon = Annotated[
    int | None, typer.Option(help="The longest episode, if not the domain's own; as --set horizon=N.")
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        autocompletion=complete_from(TRACKERS), help=f"Also log to: {', '.join(TRACKERS)}; repeatable."
    ),
]
Devices = Annotated[int, typer.Option(min=1, help="JAX devices to split a population over.")]
Workers = Annotated[int, typer.Option(min=1, help="Processes that step a Gymnasium environment.")]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Step a Gymnasium environment on a Ray cluster; local: start one here."
    ),
]
StepTimeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="A step that takes longer is an error.")
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE[:NAME]|FILE",
        help="Python code that the files given here name and may have run; a module alone: all of it. Or a policy's "
        "file that is code itself: sb3:FILE.zip, FILE.pt. Repeatable.",
    ),
]
OtherDomain = Annotated[
    str | None,
    typer.Option(
        "--domain", autocompletion=complete_domain, help="Where it acts, if not where it was learned."
    ),
]
Require = Annotated[str | None, typer.Option(help="The requirement, as text or file, if not the run's own.")]
Learner = Annotated[
    str,
    typer.Option(
        autocompletion=complete_from((AUTO_LEARNER, *LEARNERS)),
        help=f"How to learn: {', '.join((AUTO_LEARNER, *LEARNERS))}.",
    ),
]
Method = Annotated[
    str,
    typer.Option(
        autocompletion=complete_from(METHODS), help=f"How the policy is verified: {', '.join(METHODS)}."
    ),
]

Host = Annotated[str, typer.Option(help="With --serve: the address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="With --serve: 0 takes a free one.")]


def given(context: typer.Context) -> dict[str, Any]:
    """What stands on the command line, without the defaults."""
    # By name, since typer's click is the public one in some versions and its own in others.
    return {
        name: value
        for name, value in context.params.items()
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }


def code_of(*names: str | None) -> tuple[str, ...]:
    """What the user types may be imported, from here as well: modules of one's own lie in the working folder."""
    typed = tuple(name for name in names if name is not None and ":" in name)
    if typed and "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return typed


def read_parameters(settings: list[str] | None, horizon: int | None = None) -> dict[str, Any]:
    """`NAME=VALUE` pairs; numbers, true and false are what they look like, anything else is text."""
    values: dict[str, Any] = {} if horizon is None else {"horizon": horizon}
    for setting in settings or []:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise RunError(f"expected NAME=VALUE, got {setting!r}")
        try:
            values[name] = {"true": True, "false": False}[text.lower()]
        except KeyError:
            try:
                values[name] = ast.literal_eval(text)
            except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deeply
                values[name] = text
    return values


def read_domain_parameters(settings: list[str] | None, horizon: int | None = None) -> dict[str, Any]:
    """The same for a domain: wrappers and signals are names of code, which whoever types them trusts."""
    values = read_parameters(settings, horizon)
    wrappers, signals = values.get("wrappers", ()), values.get("signals", {})
    if not isinstance(wrappers, tuple | list) or not isinstance(signals, dict):
        raise RunError("--set wrappers takes a list of names, --set signals a dictionary of them")
    code_of(*map(str, wrappers), *map(str, signals.values()))
    return values


def trusted(
    trust: list[str] | None, domain: str | None, parameters: dict[str, Any] | None = None
) -> tuple[str, ...]:
    """The code that may run: what --trust names, and what is typed elsewhere."""
    parameters = parameters or {}
    typed = [domain, *parameters.get("wrappers", ()), *parameters.get("signals", {}).values()]
    modules = [f"{name}:" for name in trust or () if ":" not in name]  # a whole module may be trusted
    code_of(*modules)
    return (
        *(trust or ()),
        *code_of(*(None if name is None else str(name) for name in typed), *(trust or ())),
    )


def command(*words: str | Path) -> str:
    """A command as a shell takes it, for hints."""
    return shlex.join(map(str, words))


def visible(text: str) -> str:
    """What a terminal would obey instead of showing it, as an escape: a file must not move the cursor."""
    return OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def plain(text: str, style: str = "") -> Text:
    """A text for a table."""
    return Text(visible(text), style)


def say(text: str) -> None:
    """A result, as it is: no colours, no line breaks of our own."""
    console.print(visible(text), soft_wrap=True)


def remark(text: str, style: str = "") -> None:
    """A word beside the results, as it is."""
    status.print(visible(text), soft_wrap=True, style=style)


def open_server(shown: LivePage, host: str, port: int) -> PageServer:
    """A live page, ready to be served; who can reach it is said."""
    from psyco._src.reports.live_server import PageServer

    server = PageServer(shown, host, port)
    if not server.loopback:
        remark(
            f"note: {host} can be reached from other machines. Only who has the address below, with its random part, "
            "can read the page; on its way it is not encrypted"
        )
    return server


def leave(certificate: Certificate) -> None:
    """End with the status that the verdict has: 0 satisfied or nothing but answers, 1 violated, 3 undecided."""
    raise typer.Exit(EXIT[certificate.verdict.name])
