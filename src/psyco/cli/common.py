"""What several commands share: reading requirements, domains and policies from the command line."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from psyco.domain.base import Domain
from psyco.domain.catalogue import make
from psyco.errors import RequirementError, RunError
from psyco.policy import Policy
from psyco.run.folder import find_policy
from psyco.spec.formula import Requirement
from psyco.spec.parse import parse

console = Console()  # results
status = Console(stderr=True)  # progress and remarks

Seed = Annotated[int, typer.Option(help="The result is a function of it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the domain; repeatable."),
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


def read_domain(name: str, settings: list[str] | None) -> Domain:
    """A domain by name with `--set NAME=VALUE` parameters."""
    return make(name, **read_parameters(settings))


def read_parameters(settings: list[str] | None) -> dict[str, Any]:
    """`NAME=VALUE` pairs; numbers, true and false are what they look like, anything else is text."""
    values: dict[str, Any] = {}
    for setting in settings or []:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise RunError(f"--set takes NAME=VALUE, got {setting!r}")
        try:
            values[name] = {"true": True, "false": False}[text.lower()]
        except KeyError:
            try:
                values[name] = ast.literal_eval(text)
            except (ValueError, SyntaxError):
                values[name] = text
    return values


def read_policy(
    path: Path, domain: str | None, settings: list[str] | None, require: str | None
) -> tuple[Policy, Domain, Requirement]:
    """A policy file or run folder, with its own domain and requirement unless others are given."""
    policy, own = find_policy(path)
    parameters = read_parameters(settings)
    if domain is None or domain == policy.domain:
        made = make(policy.domain, **{**policy.parameters, **parameters})
    else:
        made = make(domain, **parameters)
    if require is None and own is None:
        raise RunError(f"{path} is a policy without a requirement; say what to verify with --require")
    policy.check(made)
    return policy, made, parse(own) if require is None and own is not None else read_requirement(str(require))
