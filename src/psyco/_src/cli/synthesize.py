"""`psyco synthesize`: from a requirement to a certified policy."""

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
    OUTPUT,
    Horizon,
    Json,
    ObserveParameters,
    Parameters,
    Track,
    Trust,
    Vary,
    command,
    complete_domain,
    given,
    leave,
    read_domain_parameters,
    read_parameters,
    remark,
    say,
    say_wrapped,
    trusted,
)
from psyco._src.cli.declared_options import declared_options, execution_words
from psyco._src.cli.display import show_progress
from psyco._src.core.errors import EpisodeError, RunError
from psyco._src.core.options import declared
from psyco._src.core.wording import plural
from psyco._src.runs.settings import LEARNING, MAIN, Settings, check_one_budget
from psyco._src.runs.tracking import permitted_trackers
from psyco._src.verification.theme import terminal_colour

if TYPE_CHECKING:
    from psyco._src.envs.registry import DomainDescription
    from psyco._src.rollout.execution import Execution
    from psyco._src.runs.config import Config


@declared_options(trains=True)
def synthesize(
    context: typer.Context,
    settings: dict[str, Any],
    execution: Execution,
    domain: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_domain,
            help="Name of a domain, see `psyco domains`.",
        ),
    ] = None,
    require: Annotated[str | None, typer.Option(help="Requirement, as text or file.", rich_help_panel=MAIN)] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Configuration file; options win.",
            rich_help_panel=MAIN,
        ),
    ] = None,
    time_: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="TIME",
            help="Budget: 90s, 10min or 1.5h.",
            rich_help_panel=MAIN,
        ),
    ] = None,
    parameters: Parameters = None,
    vary: Vary = None,
    observe_parameters: ObserveParameters = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder; default: below runs/.", show_default=False, rich_help_panel=MAIN),
    ] = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help="Start from a run, policy, traces or Minari folder.",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH",
            help="Also compare with: unconstrained (learned without constraints), a run or a policy.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    min_return: Annotated[
        float | None,
        typer.Option(help="Return that half of the episodes must reach.", rich_help_panel=MAIN),
    ] = None,
    horizon: Horizon = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Any other setting; `--option help` lists them.",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    trust: Trust = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a run in that folder.", rich_help_panel=OUTPUT)
    ] = False,
    track: Track = None,
    as_json: Json = False,
) -> None:
    """Learn a policy for a requirement, certify it on fresh episodes, and write both to a run folder.

    Exit status as for `psyco verify`: 0 satisfied, 1 violated, 3 undecided, 2 bad input.

    Example:

        psyco synthesize particle-dance --out runs/dance \\
            --require 'P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98'
    """
    from psyco._src.envs.registry import make_from_description
    from psyco._src.runs.config import load_config
    from psyco._src.runs.session import default_folder, load_initial_policy

    if option == ["help"]:
        print_options(settings.get("learner"))
        return
    began = time.perf_counter()
    base = load_config(config) if config else None
    chosen = _configure(base, given(context), settings, read_parameters(option))
    allowed = trusted(trust, domain, read_domain_parameters(parameters))
    folder = out or default_folder(chosen.domain)
    # The policy that the run of a configuration started from lies beside the configuration.
    first = load_initial_policy(config.parent, chosen) if config and start_from is None else start_from
    with following(folder, chosen.description, execution) as callback:
        run = psyco.start(
            make_from_description(chosen.description, allowed),
            chosen.requirement,
            folder,
            time=time_,
            start_from=first,
            baseline=baseline,
            trust=allowed,
            settings=chosen.settings,
            execution=execution,
            callbacks=[callback],
            track=chosen.tracking,
            overwrite=overwrite,
        )
    show(run, began, as_json=as_json)
    assert run.certificate is not None, "a finished run has a certificate"
    leave(run.certificate)


def print_options(learner: str | None) -> None:
    """Print every setting and learner option that `--option` accepts, with its default."""
    from psyco._src.learners.learner_registry import AUTO_LEARNER, LEARNERS

    groups = {"settings": declared(Settings)}
    names = LEARNERS if learner in (None, AUTO_LEARNER) else [learner]
    groups |= {f"learner {name}": declared(LEARNERS[name]) for name in names}
    for title, options in groups.items():
        say(f"{title}:")
        for name, each in options.items():
            default = "automatic" if each.default is None else each.default
            say(f"  {name} = {default}: {each.help}")


@contextmanager
def following(folder: Path, description: DomainDescription | None, execution: Execution) -> Iterator[psyco.Callback]:
    """Show the progress of a run; after an interruption or a failed episode, print how to continue it."""
    from psyco._src.envs.registry import required_trust

    named = required_trust(description) if description else []
    trust = [word for name in named for word in ("--trust", name)]
    go_on = f"continue with: {command('psyco', 'resume', folder, *execution_words(execution), *trust)}"
    try:
        with show_progress() as callback:
            yield callback
    except KeyboardInterrupt as interruption:
        if (folder / "config.toml").exists():
            remark(f"interrupted; {go_on}")
            raise typer.Exit(status_of(interruption)) from None
        raise
    except EpisodeError:
        if (kept := folder / "policy.safetensors").exists():
            after_fix = f"after fixing the environment, {go_on} --allow-changed-code"
            remark(f"the policy learned so far is in {kept}; {after_fix}")
        raise


def show(run: psyco.Run, began: float, *, as_json: bool) -> None:
    """Print the outcome of a run; `began` is the start time of this command."""
    certificate = run.certificate
    assert certificate is not None, "a finished run has a certificate"
    if as_json:
        print(certificate.to_json(), end="")
        return
    if run.metrics.rows:
        say(f"learned from {plural(run.episodes, 'episode')}{_took(run, began)}")
    if run.baselines:  # as a table, below
        notes = tuple(note for note in certificate.notes if note != run.baselines.note)
        certificate = dataclasses.replace(certificate, notes=notes)
    say_wrapped(str(certificate), terminal_colour(certificate.verdict.name))
    say(run.baselines.text if run.baselines else "no baselines: 2% of the budget leaves no room for an episode of one")
    if run.remark:
        say_wrapped(run.remark)
    say(f"kept in {run.folder}; see it with: {command('psyco', 'report', run.folder)}")


def _took(run: psyco.Run, began: float) -> str:
    """Return the time of learning, over all sessions of the run, and the total time of this command."""
    learning = run.info.seconds.get("learning") if run.info else None
    own = time.perf_counter() - began
    if learning is None:
        return f" in {own:.1f} s, the certificate included"
    whole = f"{own:.1f} s in total" if learning <= own else f"with earlier sessions; this one took {own:.1f} s in total"
    return f" in {learning:.1f} s ({whole})"


def _configure(base: Config | None, given: dict[str, Any], settings: dict[str, Any], options: dict[str, Any]) -> Config:
    """Return the configuration of a file with the options of the command line in place.

    Args:
        base: configuration of the file, if there is one.
        given: options of the command line, by name.
        settings: those that are settings.
        options: values of `--option`: further settings, or options of the learner.
    """
    from psyco._src.logic.parser import parse
    from psyco._src.logic.requirement import as_requirement, with_min_return
    from psyco._src.runs.config import Config

    if base is None:
        for name, hint in {"domain": "the domain (see `psyco domains`)", "require": "--require"}.items():
            if name not in given:
                raise RunError(f"{hint} is missing: give it, or a configuration with --config FILE")
        base = Config(domain=given["domain"], requirement="")
    known = declared(Settings)
    settings = settings | {name: value for name, value in options.items() if name in known}
    options = {name: value for name, value in options.items() if name not in known}
    budgets = {**settings, "time": given.get("time_")}
    check_one_budget(**{name: budgets[name] for name in ("episodes", "steps", "time") if budgets.get(name) is not None})
    # A budget on the command line replaces that of the file, in any unit.
    settings |= {"steps": 0} if "episodes" in settings else {"episodes": 0} if "steps" in settings else {}
    settings = {"stop_after": 0, **settings} if "episodes" in settings else settings
    if "start_from" in given and base.settings.start_from:  # the network is that of the new policy
        settings = {"hidden": None, "bias": "auto", **settings}
    learner = settings.get("learner", base.settings.learner)
    # Options of another learner have no meaning for this one.
    kept = base.settings.options if learner == base.settings.learner else {}
    other_domain = given.get("domain", base.domain) != base.domain
    requirement = base.requirement
    if "require" in given:
        parsed = as_requirement(given["require"])
        requirement = parsed.text.strip() or str(parsed)
    if "min_return" in given:
        requirement = str(with_min_return(parse(requirement), given["min_return"]))
    return dataclasses.replace(
        base,
        domain=given.get("domain", base.domain),
        parameters=({} if other_domain else base.parameters)
        | read_domain_parameters(
            given.get("parameters"), given.get("horizon"), given.get("vary"), "observe_parameters" in given
        ),
        requirement=requirement,
        settings=dataclasses.replace(base.settings, **settings, options={**kept, **options}),
        tracking=permitted_trackers(base.tracking, given.get("track") or ()),
    )
