"""`psyco explain`: a requirement as formula, as a sentence, and in words."""

from __future__ import annotations

import json
from typing import Annotated

import typer

import psyco
from psyco._src.cli.common import (
    Horizon,
    Json,
    Parameters,
    code_of,
    complete_domain,
    read_domain_parameters,
    say,
)


def explain(
    requirement: Annotated[str, typer.Argument(help="Formulas, sentences of structured English, or a file.")],
    domain: Annotated[
        str | None,
        typer.Option(autocompletion=complete_domain, help="Domain whose signals the requirement may use."),
    ] = None,
    parameters: Parameters = None,
    horizon: Horizon = None,
    as_json: Json = False,
) -> None:
    """Show what a requirement means: the formula of a sentence, the sentence of a formula, and both in words.

    Examples:

        psyco explain 'P>=0.9 [ G (request => F<=5 answer) ] & C>=0.98'

        psyco explain 'x shall always be at least 0.1 with probability at least 0.85, 98% sure'
    """
    code_of(domain)
    given = read_domain_parameters(parameters, horizon) if domain is not None else None
    found = psyco.explain(requirement, domain=domain, parameters=given)
    if as_json:
        print(json.dumps([each._asdict() for each in found], indent=2))
        return
    for each in found:
        say(f"formula:  {each.formula}")
        say(f"sentence: {each.sentence or '(structured English has none)'}")
        say(f"meaning:  {each.words}")
        say("")
