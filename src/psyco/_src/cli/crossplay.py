"""`psyco crossplay`: agents with partners of other policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import psyco
from psyco._src.cli.common import (
    Horizon,
    Json,
    OtherDomain,
    Parameters,
    Require,
    Seed,
    Trust,
    code_of,
    print_result,
    read_domain_parameters,
    trusted,
)
from psyco._src.cli.declared_options import declared_options
from psyco._src.cli.display import show_episodes

if TYPE_CHECKING:
    from psyco._src.rollout.execution import Execution


@declared_options(trains=False)
def crossplay(
    execution: Execution,
    policies: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN...", help="Two or more runs, policy files, or other policies that `psyco verify` accepts."
        ),
    ],
    agent: Annotated[
        list[str] | None,
        typer.Option(
            help="Agent, or group, that follows the row's policy, all others the column's; repeatable. Default: the "
            "first agent.",
            show_default=False,
        ),
    ] = None,
    domain: OtherDomain = None,
    require: Require = None,
    episodes: Annotated[int, typer.Option(help="Episodes of each pairing.")] = 2000,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Write the page with the matrix to this file, as HTML.")] = None,
    horizon: Horizon = None,
    trust: Trust = None,
    parameters: Parameters = None,
    as_json: Json = False,
) -> None:
    """Test agents with partners of other policies.

    The matrix shows whether a certificate survives partners that a policy was not learned with: an agent of each policy
    (rows) with the others of each policy (columns), on the diagonal with its own.
    All pairings share one permitted error.
    Exit status: 0 all satisfied, 1 any violated, 3 otherwise undecided, 2 bad input.

    Examples:

        psyco crossplay runs/team runs/team2 runs/team3 --out crossplay.html

        psyco crossplay runs/team runs/team2 --agent agent_0 --agent agent_1 --episodes 5000

        psyco crossplay runs/team python:my_policies:scripted --json
    """
    values = read_domain_parameters(parameters, horizon)
    code_of(*policies)
    with show_episodes() as count:
        found = psyco.crossplay(
            policies,
            domain,
            require,
            agent=agent or None,
            parameters=values,
            episodes=episodes,
            seed=seed,
            out=out,
            trust=trusted(trust, domain, values),
            execution=execution,
            on_progress=count,
        )
    print_result(found, as_json, "page", out)
