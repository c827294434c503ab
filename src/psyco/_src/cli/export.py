"""`psyco export`: take a policy elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import psyco
from psyco._src.cli.common import say


def export(
    policy: Annotated[Path, typer.Argument(help="A policy file or a run folder.")],
    onnx: Annotated[Path, typer.Option(metavar="FILE", help="Write the policy as ONNX.")],
) -> None:
    """Write a policy as ONNX, observation scaling and action range inside, and check it with ONNX Runtime.

    Example: `psyco export runs/cartpole --onnx policy.onnx`
    """
    difference = psyco.export(policy, onnx)
    say(
        f"{onnx}: observations [n, size] -> actions; they differ from the policy's by at most {difference:.1e}"
    )
