"""Options, value parsing and printing that several commands share."""

from __future__ import annotations

import ast
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Protocol

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from psyco._src.core.errors import RunError
from psyco._src.envs.registry import domain_names, texts
from psyco._src.learners.learner_registry import AUTO_LEARNER, LEARNERS
from psyco._src.runs.tracking import TRACKERS
from psyco._src.verification.methods import DEFAULT_METHOD, METHODS

if TYPE_CHECKING:
    from psyco._src.reports.live_server import LivePage, PageServer
    from psyco._src.verification.base import Verdict


class Judged(Protocol):
    """A result with a verdict."""

    @property
    def verdict(self) -> Verdict:
        """The verdict that decides the exit status."""

    def to_json(self) -> str:
        """Return it as JSON."""


def make_console(**options: Any) -> Console:
    """Make a console that prints text verbatim: `[red]`, `:dog:` and numbers in names are not markup."""
    return Console(markup=False, emoji=False, highlight=False, **options)


console = make_console()  # results
status = make_console(stderr=True)  # progress and remarks

# Headings of the command line.
EXECUTION, OUTPUT = "Execution", "Output"

# Characters that a terminal interprets: control characters except line breaks and tabs, text direction, surrogates.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
EXIT = {"SATISFIED": 0, "VIOLATED": 1, "UNDECIDED": 3, "ANSWERED": 0}


def complete_domain(incomplete: str) -> list[str]:
    """Complete names of built-in domains, then of Gymnasium environments."""
    found = [name for name in domain_names() if name.startswith(incomplete)]
    if incomplete and not found:
        from psyco._src.envs.gym_env import gym_names

        found = [name for name in gym_names() if name.startswith(incomplete)]
    return found


def complete_from(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a TAB completion over names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def read_steps(text: str | int) -> int:
    """Read a number of steps: 3000000, 3_000_000 or 3e6."""
    from psyco._src.runs.settings import check_steps

    try:
        return check_steps(float(text))
    except (ValueError, RunError):
        raise typer.BadParameter(f"a number of steps is a whole number such as 3000000 or 3e6, got {text!r}") from None


Steps = Annotated[
    int | None,
    typer.Option(parser=read_steps, metavar="N", help="Training steps, as in 3e6: a budget instead of --episodes."),
]
Seed = Annotated[int, typer.Option(help="The result is a function of it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.", rich_help_panel=OUTPUT)]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Domain parameter; repeatable."),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUES",
        help="Draw a parameter for every episode: 0.08..0.12, normal(0.1,0.01), 1,2,3, or a CSV file; repeatable.",
    ),
]
FilmFormat = Annotated[
    str,
    typer.Option(
        metavar="mp4|webm|gif",
        help="Format of films. Default: MP4 or WebM where ffmpeg is installed, else GIF.",
        show_default=False,
    ),
]
ObserveParameters = Annotated[
    bool,
    typer.Option("--observe-parameters", help="The policy observes what varies."),
]
Horizon = Annotated[
    int | None,
    typer.Option(help="Most steps of an episode."),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        autocompletion=complete_from(TRACKERS),
        help=f"Also log to: {', '.join(TRACKERS)}; repeatable.",
        rich_help_panel=OUTPUT,
    ),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Code that may run: MODULE, MODULE:NAME, sb3:FILE.zip, or a FILE; repeatable.",
        rich_help_panel=EXECUTION,
    ),
]
OtherDomain = Annotated[
    str | None,
    typer.Option("--domain", autocompletion=complete_domain, help="Domain of the policy, if not that of its training."),
]
Require = Annotated[str | None, typer.Option(help="Requirement, as text or file, if not that of the run.")]
Learner = Annotated[
    str,
    typer.Option(
        autocompletion=complete_from((AUTO_LEARNER, *LEARNERS)),
        help=f"Learning algorithm: {', '.join((AUTO_LEARNER, *LEARNERS))}.",
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        autocompletion=complete_from(METHODS),
        help=f"Statistical test: {', '.join(METHODS)}.  [default: that of the earlier looks, or {DEFAULT_METHOD}]",
    ),
]

MaxFreshEpisodes = Annotated[int, typer.Option(help="Maximum number of fresh episodes of the statement.")]

# Options of --train-against, with which a policy learns in rounds.
ROUND_OPTIONS = {"policy_learner", "policy_episodes", "save_policy"}
PolicyLearner = Annotated[
    str | None, typer.Option(help="Learner of the policy in these rounds. Default: that of its run.")
]
PolicyEpisodes = Annotated[int, typer.Option(help="Training episodes of the policy in each round.")]
SavePolicy = Annotated[
    Path | None, typer.Option(help="Write the policy that was learned in these rounds to this file.")
]

# Arguments of commands that make many runs.
RunDomain = Annotated[
    str, typer.Argument(autocompletion=complete_domain, help="Name of a domain, see `psyco domains`.")
]
ParallelRuns = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of runs at the same time, one process each; default: one per core.",
        rich_help_panel=EXECUTION,
    ),
]
RunsOnRay = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Address of a Ray cluster to run on; local: start one here.",
        rich_help_panel=EXECUTION,
    ),
]
RunEpisodes = Annotated[int | None, typer.Option(help="Training episodes of every run; default: as for synthesize.")]
RunSetting = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Another setting of every run, as in max_episodes=5000; repeatable."),
]

# Of commands that read recorded episodes.
CutEpisodes = Annotated[
    str,
    typer.Option(
        metavar="error|violated",
        help="With --traces: what an episode is that ends neither terminated nor truncated.",
    ),
]

Host = Annotated[str, typer.Option(help="With --serve: address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="With --serve: port; 0: a free one.")]


def given(context: typer.Context) -> dict[str, Any]:
    """Return the options that were given on the command line, without defaults."""
    # Compared by name: typer uses the public click in some versions and its own copy in others.
    return {
        name: value
        for name, value in context.params.items()
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }


def refuse_options(context: typer.Context, why: str, names: set[str]) -> None:
    """Raise an error for options that would be ignored."""
    if unfit := sorted(names & given(context).keys()):
        raise RunError(f"{why}: leave out {', '.join(unfit)}")


def code_of(*names: str | None) -> tuple[str, ...]:
    """Return the names of code that the user typed, and make them importable.

    The working folder is searched last, and only if a module is found nowhere else: otherwise trust in an installed
    environment would make every module of a stranger's folder importable.
    """
    typed = tuple(name for name in names if name is not None and ":" in name)
    modules = {name.removeprefix("python:").partition(":")[0].partition(".")[0] for name in typed}
    if not all(map(_is_importable, modules)) and "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return typed


def _is_importable(module: str) -> bool:
    """Return whether a top-level module can be found, without importing it; other texts count as found."""
    try:
        return not module.isidentifier() or find_spec(module) is not None
    except (ImportError, ValueError):  # of a module without a specification, such as __main__
        return True


def read_parameters(settings: list[str] | None, horizon: int | None = None) -> dict[str, Any]:
    """Read `NAME=VALUE` pairs; numbers, true and false are converted, anything else is text."""
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
            except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: too deeply nested
                values[name] = text
    return values


def run_settings(
    learner: str, options: list[str] | None, settings: list[str] | None, **budget: int | None
) -> dict[str, Any]:
    """Return the settings of every run of a command that makes many."""
    given = {name: value for name, value in budget.items() if value is not None}
    return {"learner": learner, "options": read_parameters(options), **read_parameters(settings), **given}


def read_domain_parameters(
    settings: list[str] | None, horizon: int | None = None, vary: list[str] | None = None, observe: bool = False
) -> dict[str, Any]:
    """Read parameters of a domain; wrappers and signals name code, and typing them trusts it."""
    values = read_parameters(settings, horizon)
    if vary:
        values["vary"] = read_vary(vary)
    if observe:
        values["observe_parameters"] = True
    wrappers, signals = values.get("wrappers", ()), values.get("signals", {})
    if not isinstance(wrappers, tuple | list) or not isinstance(signals, dict):
        raise RunError("--set wrappers takes a list of names, --set signals a dictionary of them")
    code_of(*texts([wrappers, signals]))
    return values


def read_vary(given: list[str]) -> dict[str, str]:
    """Read the parameters that vary: `NAME=VALUES`, or the name of a CSV file; `none` is a single environment."""
    from psyco._src.envs.family import FORMS, read_measured

    found: dict[str, str] = {}
    for text in given:
        name, equals, values = text.partition("=")
        if text == "none":
            if len(given) > 1:
                raise RunError("--vary none is a single environment: leave out either it or the other --vary")
            return {}
        further = {name.strip(): values} if equals and name else read_measured(text) if text.endswith(".csv") else None
        if further is None:
            raise RunError(f"expected NAME=VALUES or a CSV file, got {text!r}; {FORMS}")
        if repeated := found.keys() & further.keys():
            raise RunError(f"{repeated.pop()} is varied twice")
        found |= further
    return found


def trusted(trust: list[str] | None, domain: str | None, parameters: dict[str, Any] | None = None) -> tuple[str, ...]:
    """Return the names of code and files that may be used: those after --trust, and those typed elsewhere."""
    # A whole module may be trusted; a file is no module.
    code_of(*(f"{name}:" for name in trust or () if ":" not in name and not os.path.isfile(name)))
    code_of(domain, *(trust or ()))
    return tuple(texts([*(trust or ()), domain, parameters or {}]))


def command(*words: str | Path) -> str:
    """Format a shell command, for hints."""
    return shlex.join(map(str, words))


def visible(text: str) -> str:
    """Escape control characters: text from a file must not move the cursor."""
    return CONTROL_CHARACTERS.sub(lambda found: ascii(found[0])[1:-1], text)


def plain(text: str, style: str = "") -> Text:
    """Return text for a table cell."""
    return Text(visible(text), style)


def say(text: str) -> None:
    """Print a result without colours or added line breaks."""
    console.print(visible(text), soft_wrap=True)


def say_wrapped(text: str, style: str = "") -> None:
    """Print a longer result: a terminal wraps it at words, a pipe or a file gets whole lines."""
    console.print(plain(text, style), soft_wrap=not console.is_terminal)


def remark(text: str, style: str = "") -> None:
    """Print a remark to standard error."""
    status.print(visible(text), soft_wrap=True, style=style)


def print_table(table: Table) -> None:
    """Print a table whose values are never cut.

    Without a terminal it is as wide as needed. In a terminal that is too narrow it loses its borders, or has one line
    for each value.
    """
    if not console.is_terminal:
        make_console(width=1000).print(table)
        return
    for form in ({}, {"box": None, "pad_edge": False, "padding": (0, 1, 0, 0)}):
        for name, value in form.items():
            setattr(table, name, value)
        if console.measure(table, options=console.options.update(width=1000)).maximum <= console.width:
            console.print(table)
            return
    for row in zip(*(column.cells for column in table.columns), strict=True):
        for column, cell in zip(table.columns, row, strict=True):
            if str(cell):
                console.print(Text.assemble((f"{column.header}: ", "bold"), cell), soft_wrap=True)
        console.print()


def open_server(shown: LivePage, host: str, port: int) -> PageServer:
    """Open the server of a live page; warn if other machines can reach it."""
    from psyco._src.reports.live_server import PageServer

    server = PageServer(shown, host, port)
    if not server.loopback:
        remark(
            f"note: {host} can be reached from other machines. The page can be read only with the address below, which "
            "has a random part; the connection is not encrypted"
        )
    return server


def leave(judged: Judged) -> NoReturn:
    """Exit with the status of the verdict: 0 satisfied or only questions, 1 violated, 3 undecided."""
    raise typer.Exit(EXIT[judged.verdict.name])


def print_result(found: Judged, as_json: bool, what: str = "", path: Path | None = None) -> NoReturn:
    """Print a result and the file with its page, then exit with the status of the verdict."""
    if as_json:
        print(found.to_json(), end="")
    else:
        say(str(found))
        if path is not None:
            say(f"{what}: {path}")
    leave(found)
