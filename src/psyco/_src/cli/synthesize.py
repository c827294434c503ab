"""`psyco synthesize`: from a requirement to a verified policy."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import psyco
from psyco._src.cli import status_of
from psyco._src.cli.common import (
    Devices,
    Horizon,
    Json,
    Learner,
    Method,
    Parameters,
    Ray,
    Seed,
    Steps,
    StepTimeout,
    Track,
    Trust,
    Workers,
    command,
    complete_domain,
    complete_from,
    console,
    given,
    leave,
    plain,
    read_domain_parameters,
    read_parameters,
    remark,
    say,
    trusted,
)
from psyco._src.cli.display import show_progress, summary
from psyco._src.core.errors import EpisodeError, RunError
from psyco._src.learners.learner_registry import LEARNERS, learner_options
from psyco._src.runs.settings import AUTO, PLANNED, SCALINGS, Settings, check_one_budget
from psyco._src.runs.tracking import permitted
from psyco._src.verification.theme import terminal_colour

if TYPE_CHECKING:
    from psyco._src.envs.registry import DomainDescription
    from psyco._src.runs.config import Config

DEFAULT = Settings()
SETTINGS = {field.name for field in dataclasses.fields(Settings)} - {"options", "start_from"}
BUDGETS = {"episodes": "episodes", "steps": "steps", "time_": "time"}  # by parameter of the command
LAST = 50  # generations over which the last line averages

CheckpointEvery = Annotated[
    float, typer.Option(min=0, help="Seconds between checkpoints; 0: after every segment.")
]


def synthesize(
    context: typer.Context,
    domain: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_domain,
            help="The name of a domain, see `psyco domains`; over that of --config.",
        ),
    ] = None,
    require: Annotated[
        str | None, typer.Option(help="The requirement, as text or as a file that holds it.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A configuration file, such as config.toml of a run; other options go over it."),
    ] = None,
    episodes: Annotated[int, typer.Option(help="Training episodes.")] = DEFAULT.episodes,
    steps: Steps = None,
    time_: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="90s|10min|1.5h",
            help="How long it should take: a budget that the measured speed turns into steps, once.",
        ),
    ] = None,
    seed: Seed = DEFAULT.seed,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder; default: a free name below runs/.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a run that is in that folder already.")] = False,
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN|POLICY",
            help="Go on from a policy of ours: start with its network and parameters.",
        ),
    ] = None,
    learner: Learner = DEFAULT.learner,
    population: Annotated[int | None, typer.Option(help="Offspring per generation, N.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Perturbation rate.")] = None,
    calibration: Annotated[
        str | None,
        typer.Option(help="How belief becomes λ in snes: soft (the paper's), hard, direct, naive, none."),
    ] = None,
    curriculum: Annotated[
        float | None, typer.Option(help="Raise the required probability from 0 over this part of learning.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Another option of the learner, as in margin=0.2; repeatable."
        ),
    ] = None,
    severity: Annotated[
        bool, typer.Option(help="Learn from how far a formula is from holding, not from how often.")
    ] = DEFAULT.severity,
    until_satisfied: Annotated[
        bool, typer.Option(help="End learning as soon as all constraints are satisfied with confidence.")
    ] = DEFAULT.until_satisfied,
    candidates: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="So many policies from late in learning compete for the certificate; by default as planned.",
        ),
    ] = None,
    selection_episodes: Annotated[
        int | None,
        typer.Option(min=1, help="Episodes of each candidate that decide in which order they are certified."),
    ] = None,
    attempts: Annotated[
        int | None,
        typer.Option(min=1, help="At most so many candidates are tried; they share the permitted error."),
    ] = None,
    hidden: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]",
            help="Hidden units of the policy network; 64,64: of two layers. By default 32, or for robots 64,64.",
        ),
    ] = None,
    bias: Annotated[
        str, typer.Option(help="Biases of the network: one (the paper's equation), learned, or auto.")
    ] = DEFAULT.bias,
    verify_every: Annotated[
        int | None,
        typer.Option(min=0, help="Verify the current policy after so many training episodes; 0: never."),
    ] = None,
    verify_episodes: Annotated[
        int | None, typer.Option(min=1, help="At most so many episodes for each of these verifications.")
    ] = None,
    method: Method = DEFAULT.method,
    max_episodes: Annotated[
        int | None, typer.Option(min=1, help="At most so many episodes for the certificate.")
    ] = None,
    devices: Devices = 1,
    workers: Workers = 1,
    ray: Ray = None,
    step_timeout: StepTimeout = None,
    scaling: Annotated[
        str,
        typer.Option(
            autocompletion=complete_from(SCALINGS),
            help=f"How the network sees observations: {', '.join(SCALINGS)}.",
        ),
    ] = DEFAULT.scaling,
    horizon: Horizon = None,
    parameters: Parameters = None,
    trust: Trust = None,
    track: Track = None,
    checkpoint_every: CheckpointEvery = 2.0,
    as_json: Json = False,
) -> None:
    """Learn a policy for a requirement, verify it on fresh episodes, and keep both.

    Exit status as for `psyco verify`: 0 satisfied, 1 violated, 3 undecided, 2 bad input.

    Example:

        psyco synthesize particle-dance --out runs/dance \\
            --require 'P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98'
    """
    from psyco._src.envs.registry import remake
    from psyco._src.runs.config import load_config
    from psyco._src.runs.session import default_folder, start_policy

    began = time.perf_counter()
    what = _configure(load_config(config) if config else None, given(context))
    allowed = trusted(trust, domain, read_domain_parameters(parameters))
    settings = {name: getattr(what.settings, name) for name in SETTINGS}
    for name in {"episodes", "steps"} - ({what.settings.unit} if time_ is None else set()):
        del settings[name]  # there is one budget
    for name in PLANNED:
        settings[name] = None if settings[name] == AUTO else settings[name]
    folder = out or default_folder(what.domain)
    # What the run of a configuration started from lies beside it.
    first = start_policy(config.parent, what) if config and start_from is None else start_from
    with following(folder, what.description, execution_options(devices, workers, ray, step_timeout)) as sink:
        run = psyco.start(
            remake(what.description, allowed),
            what.requirement,
            folder,
            time=time_,
            learner_options=what.settings.options,
            start_from=first,
            devices=devices,
            workers=workers,
            ray=ray,
            step_timeout=step_timeout,
            track=what.tracking,
            overwrite=overwrite,
            checkpoint_every=checkpoint_every,
            sinks=[sink],
            **settings,
        )
    show(run, began, as_json=as_json)
    assert run.certificate is not None, "a run that has come to its end has one"
    leave(run.certificate)


@contextmanager
def following(
    folder: Path, description: DomainDescription | None, options: list[str]
) -> Iterator[psyco.Callback]:
    """Show how a run goes; if it does not come to its end, say how to go on."""
    from psyco._src.envs.registry import needed_code

    named = needed_code(description) if description else []
    trust = [word for name in named for word in ("--trust", name)]
    go_on = f"go on with: {command('psyco', 'resume', folder, *options, *trust)}"
    try:
        with show_progress() as sink:
            yield sink
    except KeyboardInterrupt as interruption:
        if (folder / "config.toml").exists():
            remark(f"interrupted; {go_on}")
            raise typer.Exit(status_of(interruption)) from None
        raise
    except EpisodeError:
        if (folder / "policy.safetensors").exists():
            kept = folder / "policy.safetensors"
            remark(f"what was learned so far is kept in {kept}; once the environment is mended, {go_on}")
        raise


def execution_options(devices: int, workers: int, ray: str | None, step_timeout: float | None) -> list[str]:
    """How a run is computed, as options: it is kept nowhere, so whoever goes on says it again."""
    words = {
        "--devices": devices if devices > 1 else None,
        "--workers": workers if workers > 1 else None,
        "--ray": ray,
        "--step-timeout": step_timeout,
    }
    return [str(word) for name, value in words.items() if value is not None for word in (name, value)]


def show(run: psyco.Run, began: float, *, as_json: bool) -> None:
    """How a run ended that this process began to work on at that time."""
    certificate = run.certificate
    assert certificate is not None, "a run that has come to its end has one"
    if as_json:
        print(certificate.to_json(), end="")
        return
    if run.metrics.rows:
        say(f"learned from {run.episodes:,} episodes{_took(run, began)}: {summary(run.metrics.tail(LAST))}")
    # A terminal wraps at words; a pipe or a file gets the lines as they are.
    wrapped = console.is_terminal
    console.print(plain(str(certificate), terminal_colour(certificate.verdict.name)), soft_wrap=not wrapped)
    if run.remark:
        console.print(plain(run.remark), soft_wrap=not wrapped)
    say(f"kept in {run.folder}; see it with: {command('psyco', 'report', run.folder)}")


def _took(run: psyco.Run, began: float) -> str:
    """How long learning took, in all processes that worked on the run, and how long this one did everything."""
    learning = run.about.seconds.get("learning") if run.about else None
    own = f"{time.perf_counter() - began:.1f} s"
    return (
        f" in {own}, the certificate included"
        if learning is None
        else f" in {learning:.1f} s ({own} with all else)"
    )


def _hidden(text: str) -> tuple[int, ...]:
    """Units of each hidden layer; how many there may be is checked where they are used."""
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise RunError(
            f"--hidden takes the units of each hidden layer, as in 32 or 64,64; got {text!r}"
        ) from None


def _configure(base: Config | None, given: dict[str, Any]) -> Config:
    """The configuration that a file and the options on the command line make together.

    An option goes where its name is known: among the settings, or the learner's hyperparameters.
    """
    from psyco._src.logic.requirement import as_requirement
    from psyco._src.runs.config import Config

    if base is None:
        for name, hint in {"domain": "the domain (see `psyco domains`)", "require": "--require"}.items():
            if name not in given:
                raise RunError(f"say what to synthesize: {hint} is missing (or --config FILE)")
        base = Config(domain=given["domain"], requirement="")
    settings = {name: value for name, value in given.items() if name in SETTINGS}
    if "hidden" in settings:
        settings["hidden"] = _hidden(settings["hidden"])
    check_one_budget(**{name: given[key] for key, name in BUDGETS.items() if key in given})
    # A budget on the command line goes over that of the file, whatever its unit.
    settings |= {"steps": 0} if "episodes" in settings else {"episodes": 0} if "steps" in settings else {}
    if "start_from" in given and base.settings.start_from:  # its network was that of another policy
        settings = {"hidden": DEFAULT.hidden, "bias": DEFAULT.bias, **settings}
    learner = settings.get("learner", base.settings.learner)
    # Hyperparameters of another learner say nothing about this one.
    options = base.settings.options if learner == base.settings.learner else {}
    # One that this learner lacks is refused, with those it has, when the learner is made.
    every = {name for each in LEARNERS for name in learner_options(each)}
    options = {
        **options,
        **{name: given[name] for name in every & given.keys()},
        **read_parameters(given.get("option")),
    }
    other_domain = given.get("domain", base.domain) != base.domain
    requirement = base.requirement
    if "require" in given:
        parsed = as_requirement(given["require"])
        requirement = parsed.text.strip() or str(parsed)
    return dataclasses.replace(
        base,
        domain=given.get("domain", base.domain),
        parameters=({} if other_domain else base.parameters)
        | read_domain_parameters(given.get("parameters"), given.get("horizon")),
        requirement=requirement,
        settings=dataclasses.replace(base.settings, **settings, options=options),
        tracking=permitted(base.tracking, given.get("track") or ()),
    )
