"""`psyco resume`: go on with a run that was interrupted, or make a finished one longer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psyco._src.cli.common import Json, Trust, console, trust_typed
from psyco._src.cli.synthesize import CheckpointEvery, carry_out
from psyco._src.run.folder import CERTIFICATE, load_certificate
from psyco._src.run.session import CHECKPOINT_EVERY, resume_run


def resume(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    episodes: Annotated[
        str | None,
        typer.Option(metavar="N|+N", help="Another total of training episodes, or with a plus so many more."),
    ] = None,
    trust: Trust = None,
    checkpoint_every: CheckpointEvery = CHECKPOINT_EVERY,
    as_json: Json = False,
) -> None:
    """Go on with a run: after Ctrl-C, a kill, a power cut, a full disk; or with more episodes.

    It ends with exactly the bytes that the run would have ended with, had nothing happened.

    Example: `psyco resume runs/dance --episodes +40000`
    """
    trust_typed(*trust or ())
    with resume_run(run, episodes=episodes) as session:
        if not session.finished:
            carry_out(session, checkpoint_every=checkpoint_every, as_json=as_json)
            return
    if as_json:
        print((run / CERTIFICATE).read_text(encoding="utf-8"), end="")
    else:
        verdict = load_certificate(run / CERTIFICATE)["verdict"]
        console.print(
            f"{run} has finished: {verdict}, {session.config.settings.episodes:,} episodes. "
            f"For more: psyco resume {run} --episodes +{session.config.settings.episodes}",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
