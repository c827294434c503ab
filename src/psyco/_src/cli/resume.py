"""`psyco resume`: continue an interrupted run, or extend a finished one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import psyco
from psyco._src.cli.common import (
    Json,
    Track,
    Trust,
    leave,
    say,
    trusted,
)
from psyco._src.cli.declared_options import declared_options
from psyco._src.cli.synthesize import following, show
from psyco._src.core.wording import plural

if TYPE_CHECKING:
    from psyco._src.rollout.execution import Execution


@declared_options(trains=True)
def resume(
    execution: Execution,
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    episodes: Annotated[
        str | None,
        typer.Option(metavar="N|+N", help="New total of training episodes, or with a plus an increase."),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(metavar="N|+N", help="The same in steps, for a run with a budget of steps."),
    ] = None,
    allow_changed_code: Annotated[
        bool,
        typer.Option(
            "--allow-changed-code",
            help="Continue although the code of the environment has changed since the last checkpoint; the certificate "
            "notes it.",
        ),
    ] = False,
    trust: Trust = None,
    track: Track = None,
    as_json: Json = False,
) -> None:
    """Continue a run after an interruption (Ctrl-C, a kill, a power cut, a full disk), or with more episodes.

    An interrupted run ends with exactly the bytes of an uninterrupted one. The certificate of an extended run is a
    further look, which is counted. Exit status as for `psyco verify`: 0 satisfied, 1 violated, 3 undecided.

    Example: `psyco resume runs/dance --episodes +40000`
    """
    from psyco._src.runs.store import resume_command

    before, began = psyco.open_run(run), time.perf_counter()
    with following(run, before.config.description if before.config else None, execution) as callback:
        done = psyco.resume(
            run,
            episodes=episodes,
            steps=steps,
            trust=trusted(trust, None),
            execution=execution,
            track=track or (),
            callbacks=[callback],
            allow_changed_code=allow_changed_code,
        )
    assert done.certificate is not None, "a finished run has a certificate"
    if before.state == "finished" and done.episodes == before.episodes and not as_json:
        unit = done.config.settings.unit if done.config else "episodes"
        more = resume_command(run, done.config, f"--{unit} +{done.steps if unit == 'steps' else done.episodes}")
        after = plural(done.episodes, "episode")
        say(f"{run} has finished: {done.certificate.verdict.name}, {after}. For more: {more}")
    else:
        show(done, began, as_json=as_json)
    leave(done.certificate)
