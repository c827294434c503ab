"""`psyco export`: ONNX and C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import psyco
from psyco._src.cli.common import say
from psyco._src.cli.display import show_activity
from psyco._src.core.errors import RunError
from psyco._src.envs.variants import observed_parameters


def export(
    policy: Annotated[Path, typer.Argument(help="Policy file or run folder.")],
    onnx: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the policy as ONNX.")] = None,
    c: Annotated[
        Path | None,
        typer.Option("--c", metavar="DIR", help="Write policy and monitor as C99, without dependencies."),
    ] = None,
    require: Annotated[
        str | None,
        typer.Option(help="Requirement of the monitor (text or file); default: that of the run."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Agent whose policy to export, where there are several.")] = None,
    horizon: Annotated[
        int | None,
        typer.Option(min=1, help="Longest episode of the monitor, in steps; default: that of the domain."),
    ] = None,
) -> None:
    """Export a policy to ONNX, checked with ONNX Runtime, or to C with the monitor of its requirement.

    Observation scaling and action range are included.

    Example: `psyco export runs/cartpole --onnx policy.onnx --c firmware`
    """
    from psyco._src.api.coerce import find_policy  # loads JAX, which --help and TAB need not wait for

    if onnx is None and c is None:
        raise RunError("nothing to export: give --onnx FILE, --c DIR, or both")
    if onnx is not None:
        with show_activity("exporting to ONNX"):
            difference = psyco.export(policy, onnx, agent=agent)
        say(f"{onnx}: observations [n, size] -> actions; largest difference from the policy: {difference:.1e}")
    if c is not None:
        for file in psyco.export_c(policy, c, requirement=require, horizon=horizon, agent=agent):
            say(f"C99: {file}")
    if names := observed_parameters(getattr(find_policy(policy)[0], "parameters", {})):
        say(f"its inputs are the observation, then these parameters of the environment: {', '.join(names)}")
