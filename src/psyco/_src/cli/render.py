"""`psyco render`: pictures and animations of a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import psyco
from psyco._src.cli.common import Parameters, Seed, Trust, read_domain_parameters, say, trusted


def render(
    policy: Annotated[Path, typer.Argument(help="Policy file or run folder.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the pictures; default: beside the policy.")] = None,
    episodes: Annotated[int, typer.Option(min=1, max=12, help="Number of trajectories in the picture.")] = 3,
    animation: Annotated[bool, typer.Option(help="Also write an animation of the first episode.")] = True,
    seed: Seed = 0,
    trust: Trust = None,
    parameters: Parameters = None,
) -> None:
    """Draw sample trajectories (time goes from light to dark) and animate one.

    For a Gymnasium environment that renders itself (`rgb_array`), the animation is a video.

    Example: `psyco render runs/dance --seed 3`
    """
    values = read_domain_parameters(parameters)
    files = psyco.render(
        policy,
        out or (policy if policy.is_dir() else policy.parent),
        parameters=values,
        episodes=episodes,
        animation=animation,
        seed=seed,
        trust=trusted(trust, None, values),
        on_remark=say,
    )
    for file in files:
        say(f"{'animation' if file.suffix == '.gif' else 'picture'}: {file}")
