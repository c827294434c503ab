"""Command-line options generated from the declarations of `Settings` and `Execution`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from psyco._src.cli.common import EXECUTION, OUTPUT, complete_from, read_steps
from psyco._src.core.errors import RunError
from psyco._src.core.options import Declaration, changed, declared
from psyco._src.rollout.execution import Execution
from psyco._src.runs.settings import CERTIFICATE, LEARNING, MAIN, Settings


def read_hidden(text: str) -> tuple[int, ...]:
    """Read the units of each hidden layer, as in 64,64."""
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise RunError(f"--hidden takes the units of each hidden layer, as in 32 or 64,64; got {text!r}") from None


# Headings of the help text, in their order.
PANELS = (MAIN, LEARNING, CERTIFICATE, EXECUTION, OUTPUT)
METAVARS = {"hidden": "N[,N...]", "ray": "ADDRESS", "step_timeout": "SECONDS", "steps": "N"}
PARSERS: dict[str, Callable[[str], Any]] = {"hidden": read_hidden, "steps": read_steps}


def declared_options(*, trains: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameters `settings` and `execution` of a command by one option per declaration.

    The command receives `settings` as a dictionary of the given values, and `execution` as an `Execution`.

    Args:
        trains: the command runs a learner, so that checkpoints have a meaning.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = dict(inspect.signature(command).parameters)
        kinds = get_type_hints(command, localns={"Execution": Execution}, include_extras=True)
        fields: dict[str, list[Declaration]] = {}
        if "settings" in own:
            fields["settings"] = [each for each in declared(Settings).values() if each.group]
        if "execution" in own:
            every = declared(Execution).values()
            fields["execution"] = [each for each in every if trains or each.name != "checkpoint_every"]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            for target, declarations in fields.items():
                values = {each.name: given.pop(each.name) for each in declarations}
                values = {name: value for name, value in values.items() if value is not None}
                given[target] = values if target == "settings" else Execution(**values)
            command(**given)

        kept = [
            each.replace(annotation=kinds[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, each in own.items()
            if name not in fields
        ]
        generated = [_parameter(each, target) for target, group in fields.items() for each in group]
        parameters = sorted([*kept, *generated], key=_panel)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _panel(parameter: inspect.Parameter) -> int:
    """Return the position of a parameter's heading in the help text."""
    metadata = getattr(parameter.annotation, "__metadata__", ())
    return PANELS.index(getattr(metadata[0], "rich_help_panel", None) or MAIN) if metadata else 0


def _parameter(declaration: Declaration, target: str) -> inspect.Parameter:
    """Make the command-line parameter of a declaration; None means that it was not given."""
    parser = PARSERS.get(declaration.name)
    kind: Any = str if parser or declaration.kind is None else declaration.kind
    default = declaration.default
    shown = f" Default: {default:,}." if isinstance(default, int) else f" Default: {default}."
    names = [f"--{declaration.name.replace('_', '-')}"] if kind is bool else []  # without --no-...: it is the default
    option = typer.Option(
        *names,
        help=declaration.help + (shown if default not in (None, False, 0) else ""),
        rich_help_panel=EXECUTION if target == "execution" else declaration.group,
        show_default=False,
        metavar=METAVARS.get(declaration.name),
        autocompletion=complete_from(declaration.choices) if declaration.choices else None,
        parser=parser,
    )
    return inspect.Parameter(
        declaration.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def execution_words(execution: Execution) -> list[str]:
    """Return the options that select an execution, for hints: a run folder does not record them."""
    given = {name: value for name, value in changed(execution).items() if name != "checkpoint_every"}
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
