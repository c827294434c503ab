"""`psyco render`: pictures and animations of a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import psyco
from psyco._src.cli.common import (
    FilmFormat,
    Horizon,
    OtherDomain,
    Parameters,
    Require,
    Trust,
    code_of,
    read_domain_parameters,
    say,
    trusted,
)
from psyco._src.cli.display import show_activity


def render(
    policy: Annotated[
        str,
        typer.Argument(
            metavar="RUN|POLICY|CERTIFICATE",
            help="Run folder, policy file or certificate of a run; sb3:FILE.zip, FILE.onnx, FILE.pt, "
            "python:module:name.",
        ),
    ],
    domain: OtherDomain = None,
    require: Require = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw episodes of this certificate of the policy.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the pictures; default: beside the policy.")] = None,
    episodes: Annotated[int, typer.Option(min=1, max=12, help="Number of episodes in the picture.")] = 3,
    episode: Annotated[int, typer.Option(min=0, metavar="K", help="Index of the first one.")] = 0,
    violated: Annotated[
        bool, typer.Option("--violated", help="Only episodes that violate the requirement, from --episode on.")
    ] = False,
    animation: Annotated[bool, typer.Option(help="Also write an animation of the first episode.")] = True,
    film_format: FilmFormat = "auto",
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the episodes, by default 0; of those of a certificate, the one to draw."),
    ] = None,
    horizon: Horizon = None,
    trust: Trust = None,
    parameters: Parameters = None,
) -> None:
    """Draw episodes of a policy (time goes from light to dark) and animate the first.

    For a Gymnasium environment that renders itself (`rgb_array`), the animation is a video.

    Examples:

        psyco render runs/dance --seed 3

        psyco render runs/dance/certificate.json --episode 1

        psyco render model.onnx --domain CartPole-v1 --episode 7
    """
    values = read_domain_parameters(parameters, horizon)
    code_of(policy)
    with show_activity("playing and drawing episodes"):
        files = psyco.render(
            policy,
            out or _beside(policy),
            domain=domain,
            requirement=require,
            parameters=values,
            certificate=certificate,
            episodes=episodes,
            episode=episode,
            violated=violated,
            animation=animation,
            film_format=film_format,
            seed=seed,
            trust=trusted(trust, domain, values),
            on_remark=say,
        )
    for file in files:
        say(f"{'picture' if file.suffix == '.png' else 'animation'}: {file}")


def _beside(policy: str) -> Path:
    """Return the folder of a policy; for one that is not a file, the current one."""
    path = Path(policy if Path(policy).exists() else policy.rpartition(":")[2])
    return path if path.is_dir() else path.parent if path.exists() else Path()
