"""`psyco resume`: go on with a run that was interrupted, or make a finished one longer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

import psyco
from psyco._src.cli.common import (
    Devices,
    Json,
    Ray,
    StepTimeout,
    Track,
    Trust,
    Workers,
    leave,
    say,
    trusted,
)
from psyco._src.cli.synthesize import CheckpointEvery, execution_options, following, show


def resume(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    episodes: Annotated[
        str | None,
        typer.Option(metavar="N|+N", help="Another total of training episodes, or with a plus so many more."),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(metavar="N|+N", help="The same in steps, for a run whose budget is in steps."),
    ] = None,
    trust: Trust = None,
    devices: Devices = 1,
    workers: Workers = 1,
    ray: Ray = None,
    step_timeout: StepTimeout = None,
    track: Track = None,
    checkpoint_every: CheckpointEvery = 2.0,
    as_json: Json = False,
) -> None:
    """Go on with a run: after Ctrl-C, a kill, a power cut, a full disk; or with more episodes.

    An interrupted run ends with exactly the bytes that it would have ended with, had nothing happened. The
    certificate of one that was made longer is a further look, and is counted. Exit status as for `psyco verify`: 0
    satisfied, 1 violated, 3 undecided.

    Example: `psyco resume runs/dance --episodes +40000`
    """
    from psyco._src.runs.store import resume_hint

    before, began = psyco.open_run(run), time.perf_counter()
    options = execution_options(devices, workers, ray, step_timeout)
    with following(run, before.config.description if before.config else None, options) as sink:
        done = psyco.resume(
            run,
            episodes=episodes,
            steps=steps,
            trust=trusted(trust, None),
            devices=devices,
            workers=workers,
            ray=ray,
            step_timeout=step_timeout,
            track=track or (),
            checkpoint_every=checkpoint_every,
            sinks=[sink],
        )
    assert done.certificate is not None, "a run that has come to its end has one"
    if before.state == "finished" and done.episodes == before.episodes and not as_json:
        unit = done.config.settings.unit if done.config else "episodes"
        more = resume_hint(run, done.config, f"--{unit} +{done.steps if unit == 'steps' else done.episodes}")
        say(
            f"{run} has finished: {done.certificate.verdict.name}, {done.episodes:,} episodes. For more: {more}"
        )
    else:
        show(done, began, as_json=as_json)
    leave(done.certificate)
