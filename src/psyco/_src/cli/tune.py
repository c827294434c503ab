"""`psyco tune`: better options for a learner, or the word that the defaults are as good."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import psyco
from psyco._src.cli import status_of
from psyco._src.cli.common import (
    Horizon,
    Json,
    Learner,
    Parameters,
    Seed,
    Steps,
    Trust,
    command,
    complete_domain,
    plain,
    read_domain_parameters,
    read_parameters,
    remark,
    say,
    trusted,
)
from psyco._src.cli.runs import print_table
from psyco._src.cli.study import EXIT_FAILED, StudyDisplay
from psyco._src.learners.learner_registry import TUNED_BY_DEFAULT


def tune(
    domain: Annotated[
        str, typer.Argument(autocompletion=complete_domain, help="The name of a domain, see `psyco domains`.")
    ],
    require: Annotated[
        str | None, typer.Option(help="The requirement, as text or as a file that holds it.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Sets of options to try; the first is the defaults.")] = 50,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=A:B]",
            help="An option to tune, with a range or values (NAME=10,20) of your own; repeatable. Default: those that "
            "the learner declares.",
        ),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(help="Training episodes of every run; default: as synthesize.")
    ] = None,
    steps: Steps = None,
    seed: Seed = 0,
    judges: Annotated[
        int, typer.Option(help="Runs of the tuned options and of the defaults in the end, on fresh seeds.")
    ] = 10,
    finals: Annotated[int, typer.Option(help="Further runs of each of the best three trials.")] = 3,
    at_once: Annotated[
        int, typer.Option(help="Trials that are proposed together; the outcome depends on it.")
    ] = 4,
    learner: Learner = TUNED_BY_DEFAULT,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the learner that is not tuned; repeatable."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Another setting of every run, as in hidden=64; repeatable."),
    ] = None,
    parameters: Parameters = None,
    horizon: Horizon = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The tuning's folder; default: below studies/, the same for the same tuning."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at the same time, a process each; default: one for each core."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on a Ray cluster instead; local: start one here."),
    ] = None,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Search a learner's options for the best certified return, and judge what was found against the defaults.

    The best trials are run again, and the best of those is compared with the defaults at equal budget on fresh seeds.
    The outcome is a config.toml and a page. The same command goes on after an interruption, and with more --trials
    computes those alone. Exit status: 0 it came to its end, whether it helped or not; 1 a run failed; 2 bad input.

    Example: `psyco tune Pendulum-v1 --require 'P>=0.9 [ G (abs(action[0]) <= 1.2) ] & C>=0.98' --episodes 1000`
    """
    from psyco._src.api.tune import as_search
    from psyco._src.studies.tuning import default_tune_folder

    made_of = read_domain_parameters(parameters, horizon)
    budget = {
        name: value for name, value in {"episodes": episodes, "steps": steps}.items() if value is not None
    }
    what: dict[str, Any] = {
        "trials": trials,
        "over": over or None,
        "seed": seed,
        "at_once": at_once,
        "finals": finals,
        "judges": judges,
        "parameters": made_of,
        "learner": learner,
        "learner_options": read_parameters(option),
        "settings": read_parameters(setting) | budget,
    }
    search = as_search(domain, require, **what)
    folder = out or default_tune_folder(search)
    remark(f"{trials} trials of {', '.join(search.ranges)} in {folder}; checking them")
    try:
        with StudyDisplay() as display:
            done = psyco.tune(
                domain,
                require,
                folder,
                **what,
                workers=workers,
                ray=ray,
                trust=trusted(trust, domain, made_of),
                on_progress=display.show,
                on_news=remark,
            )
    except KeyboardInterrupt as interruption:
        remark(f"interrupted; what was computed is kept in {folder}, and the same command goes on")
        raise typer.Exit(status_of(interruption)) from None
    _print(done, as_json=as_json)
    raise typer.Exit(EXIT_FAILED if done.failed else 0)


def _print(done: psyco.Tuning, *, as_json: bool) -> None:
    for name, error in done.failed.items():
        remark(f"failed: {name}: {error}", style="red")
    if as_json:
        print(done.to_json(), end="")
        return
    table = Table()
    for head in ("option", "default", *[done.winner.called] * bool(done.winner.number), "searched"):
        table.add_column(head, overflow="fold")
    for name, text in done.search.texts.items():
        tuned = [_value(done.winner.options[name])] if done.winner.number else []
        table.add_row(*map(plain, (name, _value(done.defaults[name]), *tuned, text)))
    print_table(table)
    study = done.judged or done.finals
    for row in study.answers.summary:
        low, high = row["return_iqm_lower"], row["return_iqm_upper"]
        say(
            f"{row['method']}: {row['certified']} of {row['finished']} certified, return {row['return_iqm']:.2f} "
            f"({low:.2f} to {high:.2f})"
        )
    say(f"{done.verdict}.")
    holds = "the tuned options" if done.options else "the defaults"
    say(f"{done.config} holds {holds}. Page: {done.page}")
    remark(f"learn a policy with them: {command('psyco', 'synthesize', '--config', done.config)}")


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
