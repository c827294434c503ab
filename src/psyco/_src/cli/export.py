"""`psyco export`: take a policy elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psyco._src.cli.common import console
from psyco._src.policy.onnx import export_onnx
from psyco._src.run.folder import find_policy


def export(
    policy: Annotated[Path, typer.Argument(help="A policy file or a run folder.")],
    onnx: Annotated[Path, typer.Option(metavar="FILE", help="Write the policy as ONNX.")],
) -> None:
    """Write a policy as ONNX, observation scaling and action range inside, and check it with ONNX Runtime.

    Example: `psyco export runs/cartpole --onnx policy.onnx`
    """
    found, _ = find_policy(policy)
    difference = export_onnx(found, onnx)
    console.print(
        f"{onnx}: observation [n, {found.network.inputs}] -> action; its actions differ by at most {difference:.1e}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
