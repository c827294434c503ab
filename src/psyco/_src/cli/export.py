"""`psyco export`: take a policy elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import psyco
from psyco._src.cli.common import say
from psyco._src.core.errors import RunError


def export(
    policy: Annotated[Path, typer.Argument(help="A policy file or a run folder.")],
    onnx: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the policy as ONNX.")] = None,
    c: Annotated[
        Path | None,
        typer.Option("--c", metavar="DIR", help="Write policy and monitor as C99, without dependencies."),
    ] = None,
    require: Annotated[
        str | None,
        typer.Option(help="What the monitor watches (text or file); default: what the run was made for."),
    ] = None,
    horizon: Annotated[
        int | None, typer.Option(min=1, help="The longest episode in C, in steps; default: the domain's.")
    ] = None,
) -> None:
    """Take a policy elsewhere: as ONNX, checked with ONNX Runtime, or as C with the monitor of its requirement.

    Observation scaling and action range are inside.

    Example: `psyco export runs/cartpole --onnx policy.onnx --c firmware`
    """
    if onnx is None and c is None:
        raise RunError("nothing to export: say --onnx FILE, --c DIR, or both")
    if onnx is not None:
        difference = psyco.export(policy, onnx)
        say(
            f"{onnx}: observations [n, size] -> actions; they differ from the policy's by at most {difference:.1e}"
        )
    if c is not None:
        for file in psyco.export_c(policy, c, requirement=require, horizon=horizon):
            say(f"C99: {file}")
