"""`psyco verify`: is this policy good enough?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psyco.cli.common import Json, Parameters, Seed, console, read_policy
from psyco.verification.base import Verdict
from psyco.verification.methods import DEFAULT_METHOD, METHODS
from psyco.verification.verify import DEFAULT_MAX_EPISODES
from psyco.verification.verify import verify as run_verification

EXIT = {Verdict.SATISFIED: 0, Verdict.VIOLATED: 1, Verdict.UNDECIDED: 3}


def verify(
    policy: Annotated[Path, typer.Argument(help="A policy file or a run folder.")],
    domain: Annotated[str | None, typer.Option(help="Where it acts, if not where it was learned.")] = None,
    require: Annotated[
        str | None, typer.Option(help="The requirement, as text or file, if not the run's own.")
    ] = None,
    method: Annotated[str, typer.Option(help=f"How to test: {', '.join(METHODS)}.")] = DEFAULT_METHOD,
    max_episodes: Annotated[
        int, typer.Option(help="Give up undecided after so many episodes.")
    ] = DEFAULT_MAX_EPISODES,
    seed: Seed = 0,
    parameters: Parameters = None,
    as_json: Json = False,
) -> None:
    """Verify a policy on fresh episodes. Exit status: 0 satisfied, 1 violated, 3 undecided, 2 bad input.

    Example: `psyco verify runs/dance --seed 7`
    """
    found, where, requirement = read_policy(policy, domain, parameters, require)
    certificate = run_verification(
        found, where, requirement, method=method, max_episodes=max_episodes, seed=seed
    )
    if as_json:
        print(certificate.to_json(), end="")
    else:
        console.print(str(certificate), highlight=False, markup=False)
    raise typer.Exit(EXIT[certificate.verdict])
