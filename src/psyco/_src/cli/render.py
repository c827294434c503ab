"""`psyco render`: see a policy act."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psyco._src.cli.common import Parameters, Seed, console, read_parameters
from psyco._src.domain.catalogue import remake
from psyco._src.rollout.device import record
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key
from psyco._src.run.folder import find_policy


def render(
    policy: Annotated[Path, typer.Argument(help="A policy file or a run folder.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the pictures; default: beside the policy.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, max=12, help="How many episodes to draw side by side.")] = 3,
    animation: Annotated[bool, typer.Option(help="Also write an animation of the first episode.")] = True,
    seed: Seed = 0,
    parameters: Parameters = None,
) -> None:
    """Draw sample trajectories (light to dark is time), and animate one.

    Example: `psyco render runs/dance --seed 3`
    """
    from psyco._src.pages.trajectory import animate_trajectory, draw_trajectory

    found, _ = find_policy(policy)
    domain = remake(found.domain, **{**found.parameters, **read_parameters(parameters)})
    found.check(domain)
    keys = episode_keys(stream_key(seed, Stream.SHOW), 0, episodes)
    paths = [record(domain, found, key) for key in keys]
    folder = out or (policy if policy.is_dir() else policy.parent)
    folder.mkdir(parents=True, exist_ok=True)
    draw_trajectory(domain, paths, folder / "trajectory.png")
    console.print(f"picture: {folder / 'trajectory.png'}", highlight=False, soft_wrap=True)
    if animation:
        animate_trajectory(domain, paths[0], folder / "trajectory.gif")
        console.print(f"animation: {folder / 'trajectory.gif'}", highlight=False, soft_wrap=True)
