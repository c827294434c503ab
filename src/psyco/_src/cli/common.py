"""What several commands share: reading requirements, domains and policies from the command line."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from psyco._src.domain.base import Domain
from psyco._src.domain.catalogue import make, remake, trust
from psyco._src.errors import RequirementError, RunError
from psyco._src.policy.foreign import AnyPolicy, is_foreign, open_policy
from psyco._src.run.folder import find_policy
from psyco._src.smc.methods import method_options
from psyco._src.spec.formula import Requirement
from psyco._src.spec.parse import parse

console = Console()  # results
status = Console(stderr=True)  # progress and remarks

Seed = Annotated[int, typer.Option(help="The result is a function of it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the domain; repeatable."),
]
Horizon = Annotated[
    int | None, typer.Option(help="The longest episode, if not the domain's own; as --set horizon=N.")
]
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
    typer.Option(metavar="MODULE:NAME", help="Python code that the files given here may name; repeatable."),
]


def read_requirement(text_or_file: str, parse: Callable[[str], Requirement] = parse) -> Requirement:
    """A requirement given as text or as the name of a file that holds it."""
    path = Path(text_or_file)
    try:
        if path.is_file():
            return parse(path.read_text(encoding="utf-8"))
    except OSError:
        pass  # a requirement may be too long for a file name
    except UnicodeDecodeError:
        raise RequirementError(f"{path} is not a text file in UTF-8") from None
    if path.suffix in (".props", ".prop", ".pctl", ".txt"):
        raise RequirementError(f"there is no requirement file {path}")
    return parse(text_or_file)


def trust_typed(*names: str | None) -> None:
    """What the user types may be imported, from here as well: modules of one's own lie in the working folder."""
    typed = [name for name in names if name is not None and ":" in name]
    if typed and "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    trust(*typed)


def read_domain(name: str, settings: list[str] | None, horizon: int | None = None) -> Domain:
    """A domain by name with `--set NAME=VALUE` parameters."""
    trust_typed(name)
    return make(name, **read_parameters(settings, horizon))


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
            except (ValueError, SyntaxError):
                values[name] = text
    wrappers, signals = values.get("wrappers", ()), values.get("signals", {})
    if not isinstance(wrappers, tuple | list) or not isinstance(signals, dict):
        raise RunError("--set wrappers takes a list of names, --set signals a dictionary of them")
    trust_typed(*wrappers, *signals.values())
    return values


def read_options(settings: list[str] | None, method: str) -> dict[str, Any]:
    """`NAME=VALUE` options of a verification method."""
    options = read_parameters(settings)
    known = method_options(method)
    for name in options.keys() - known.keys():
        has = f"it has: {', '.join(known)}" if known else "it has none"
        raise RunError(f"{method} has no option {name!r}; {has}")
    return options


def read_policy(
    path: Path,
    domain: str | None,
    settings: list[str] | None,
    require: str | None,
    horizon: int | None = None,
) -> tuple[AnyPolicy, Domain, Requirement]:
    """A policy file or run folder, with its own domain and requirement unless others are given.

    A policy of others knows neither: `sb3:FILE`, `python:module:name`, an ONNX file or a TorchScript module.
    """
    trust_typed(domain)
    parameters = read_parameters(settings, horizon)
    if is_foreign(str(path)):
        if domain is None or require is None:
            raise RunError(
                f"{path} is a policy of others: say where it acts with --domain, and what with --require"
            )
        trust_typed(str(path))
        return open_policy(str(path)), make(domain, **parameters), read_requirement(require)
    policy, own = find_policy(path)
    if domain is None or domain == policy.domain:
        made = remake(policy.domain, **{**policy.parameters, **parameters})
    else:
        made = make(domain, **parameters)
    if require is None and own is None:
        raise RunError(f"{path} is a policy without a requirement; say what to verify with --require")
    policy.check(made)
    return policy, made, parse(own) if require is None and own is not None else read_requirement(str(require))
