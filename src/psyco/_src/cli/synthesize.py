"""`psyco synthesize`: from a requirement to a verified policy."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from psyco._src.cli.common import (
    Horizon,
    Json,
    Parameters,
    Ray,
    Seed,
    StepTimeout,
    Workers,
    console,
    read_parameters,
    read_requirement,
    status,
    trust_typed,
)
from psyco._src.cli.progress import show_progress, summary
from psyco._src.errors import EpisodeError, RunError, suggest
from psyco._src.learn.calibration import CALIBRATIONS
from psyco._src.learn.learners import LEARNERS, learner_options
from psyco._src.run.config import EXECUTION, Config, load_config
from psyco._src.run.folder import POLICY
from psyco._src.run.session import CHECKPOINT_EVERY, Outcome, Session, default_folder, execute, start_run
from psyco._src.run.tracking import TRACKERS
from psyco._src.smc.base import Verdict
from psyco._src.smc.methods import METHODS
from psyco._src.synthesis.problem import SCALINGS, Settings, remark

DEFAULT = Settings()

CheckpointEvery = Annotated[
    float, typer.Option(min=0, help="Seconds between checkpoints; 0: after every segment.")
]


def synthesize(
    context: typer.Context,
    domain: Annotated[
        str | None, typer.Argument(help="The name of a domain; see `psyco domains`. Not with --config.")
    ] = None,
    require: Annotated[
        str | None, typer.Option(help="The requirement, as text or as a file that holds it.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A configuration file, such as config.toml of a run; other options go over it."),
    ] = None,
    episodes: Annotated[int, typer.Option(help="Training episodes.")] = DEFAULT.episodes,
    seed: Seed = DEFAULT.seed,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder; default: a free name below runs/.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a run that is in that folder already.")] = False,
    learner: Annotated[str, typer.Option(help=f"How to learn: {', '.join(LEARNERS)}.")] = DEFAULT.learner,
    population: Annotated[int | None, typer.Option(help="Offspring per generation, N.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Perturbation rate.")] = None,
    calibration: Annotated[
        str | None, typer.Option(help=f"How belief becomes λ: {', '.join(CALIBRATIONS)}.")
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
        int, typer.Option(help="So many policies from late in learning compete for the certificate.")
    ] = DEFAULT.candidates,
    hidden: Annotated[int, typer.Option(help="Hidden units of the policy network.")] = DEFAULT.hidden,
    bias: Annotated[
        str, typer.Option(help="Biases of the network: one (the paper's equation), learned, or auto.")
    ] = DEFAULT.bias,
    verify_every: Annotated[
        int, typer.Option(help="Verify the current policy after so many training episodes; 0: never.")
    ] = DEFAULT.verify_every,
    method: Annotated[
        str, typer.Option(help=f"How the final policy is verified: {', '.join(METHODS)}.")
    ] = DEFAULT.method,
    max_episodes: Annotated[
        int, typer.Option(help="At most so many episodes for the certificate.")
    ] = DEFAULT.max_episodes,
    devices: Annotated[int, typer.Option(help="JAX devices to split a population over.")] = 1,
    workers: Workers = 1,
    ray: Ray = None,
    step_timeout: StepTimeout = None,
    scaling: Annotated[
        str, typer.Option(help=f"How the network sees observations: {', '.join(SCALINGS)}.")
    ] = DEFAULT.scaling,
    horizon: Horizon = None,
    parameters: Parameters = None,
    track: Annotated[
        list[str] | None, typer.Option(help=f"Also log to: {', '.join(TRACKERS)}; repeatable.")
    ] = None,
    checkpoint_every: CheckpointEvery = CHECKPOINT_EVERY,
    as_json: Json = False,
) -> None:
    """Learn a policy for a requirement, verify it on fresh episodes, and keep both.

    Example:

        psyco synthesize particle-dance --out runs/dance \\
            --require 'P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98'
    """
    # By name, since typer's click is the public one in some versions and its own in others.
    given = {
        name: value
        for name, value in context.params.items()
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    trust_typed(domain)
    what = _configure(load_config(config) if config else None, given)
    problem = what.prepare()
    with start_run(out or default_folder(what.domain), what, problem=problem, overwrite=overwrite) as session:
        carry_out(session, checkpoint_every=checkpoint_every, as_json=as_json)


def carry_out(session: Session, *, checkpoint_every: float, as_json: bool) -> None:
    """Run to the end under the eyes of the user, and say how it ended."""
    began = time.perf_counter()
    done = session.start.generation if session.start else 0
    try:
        with show_progress(session.problem, done) as on_segment:
            outcome = execute(session, on_segment=on_segment, checkpoint_every=checkpoint_every)
    except KeyboardInterrupt:
        status.print(
            f"interrupted; go on with: psyco resume {session.folder}", highlight=False, soft_wrap=True
        )
        raise typer.Exit(130) from None
    except EpisodeError as error:
        if error.policy is not None:
            status.print(
                f"what was learned so far is kept in {session.folder / POLICY}; "
                f"once the environment is mended, go on with: psyco resume {session.folder}",
                highlight=False, soft_wrap=True,
            )  # fmt: skip
        raise
    if as_json:
        print(outcome.certificate.to_json(), end="")
    else:
        _report(session, outcome, time.perf_counter() - began)


def _configure(base: Config | None, given: dict[str, Any]) -> Config:
    """The configuration that a file and the options on the command line make together.

    An option goes where its name is known: among the settings, the learner's hyperparameters, or how to compute.
    """
    if base is None:
        for name, hint in {"domain": "a domain, see `psyco domains`", "require": "--require"}.items():
            if name not in given:
                raise RunError(f"say what to synthesize: {hint} is missing (or --config FILE)")
        base = Config(domain=given["domain"], requirement="")
    known = {field.name for field in dataclasses.fields(Settings)} - {"options"}
    settings = {name: value for name, value in given.items() if name in known}
    learner = settings.get("learner", base.settings.learner)
    if learner not in LEARNERS:
        raise RunError(
            f"unknown learner {learner!r}{suggest(learner, list(LEARNERS))}; there are: {', '.join(LEARNERS)}"
        )
    # Hyperparameters of another learner say nothing about this one.
    options = base.settings.options if learner == base.settings.learner else {}
    # One that this learner lacks is refused, with those it has, when the learner is made.
    every = {name for each in LEARNERS for name in learner_options(each)}
    options = (
        options | {name: given[name] for name in every & given.keys()} | read_parameters(given.get("option"))
    )
    other_domain = given.get("domain", base.domain) != base.domain
    return dataclasses.replace(
        base,
        domain=given.get("domain", base.domain),
        parameters=({} if other_domain else base.parameters)
        | read_parameters(given.get("parameters"), given.get("horizon")),
        requirement=_text(given["require"]) if "require" in given else base.requirement,
        settings=dataclasses.replace(base.settings, **settings, options=options),
        execution=base.execution | {name: given[name] for name in EXECUTION if name in given},
        tracking=_trackers(given["track"]) if "track" in given else base.tracking,
    )


def _text(require: str) -> str:
    requirement = read_requirement(require)
    return requirement.text.strip() or str(requirement)


def _trackers(names: list[str]) -> tuple[str, ...]:
    for name in names:
        if name not in TRACKERS:
            raise RunError(
                f"--track {name} is not known{suggest(name, list(TRACKERS))}; there are: {', '.join(TRACKERS)}"
            )
    return tuple(dict.fromkeys(names))


def _report(session: Session, outcome: Outcome, seconds: float) -> None:
    if outcome.snapshot.metrics.rows:
        console.print(
            f"learned from {int(outcome.snapshot.metrics['episodes'][-1]):,} episodes in {seconds:.1f} s: "
            f"{summary(outcome.snapshot)}",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    colour = {Verdict.SATISFIED: "green", Verdict.VIOLATED: "red", Verdict.UNDECIDED: "yellow"}
    certificate = outcome.certificate
    # A terminal wraps at words; a pipe or a file gets the lines as they are.
    console.print(
        str(certificate), highlight=False, markup=False, style=colour[certificate.verdict],
        soft_wrap=not console.is_terminal,
    )  # fmt: skip
    if why := remark(certificate):
        console.print(why, highlight=False, markup=False, soft_wrap=not console.is_terminal)
    console.print(
        f"kept in {session.folder}; see it with: psyco report {session.folder}",
        highlight=False,
        soft_wrap=True,
    )
