"""`psyco tune`: search the options of a learner, and compare the best with the defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import psyco
from psyco._src.cli.common import (
    Horizon,
    Json,
    Learner,
    ParallelRuns,
    Parameters,
    RunDomain,
    RunEpisodes,
    RunSetting,
    RunsOnRay,
    Seed,
    Steps,
    Trust,
    command,
    plain,
    print_table,
    read_domain_parameters,
    remark,
    run_settings,
    say,
    trusted,
)
from psyco._src.cli.study import EXIT_FAILED, estimate_text, show_runs
from psyco._src.core.wording import plural
from psyco._src.learners.learner_registry import TUNED_BY_DEFAULT


def tune(
    domain: RunDomain,
    require: Annotated[str | None, typer.Option(help="Requirement, as text or file.")] = None,
    trials: Annotated[int, typer.Option(help="Number of trials; the first has the default options.")] = 50,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=A:B]",
            help="Option to search, with a range or values (NAME=10,20); repeatable. Default: all options with a "
            "declared range.",
        ),
    ] = None,
    episodes: RunEpisodes = None,
    steps: Steps = None,
    seed: Seed = 0,
    validation_seeds: Annotated[
        int,
        typer.Option(help="Runs of the best options and of the defaults in the final comparison, on fresh seeds."),
    ] = 10,
    rerun_seeds: Annotated[int, typer.Option(help="Further runs of each of the best three trials.")] = 3,
    batch_size: Annotated[int, typer.Option(help="Trials that are proposed together; the outcome depends on it.")] = 4,
    learner: Learner = TUNED_BY_DEFAULT,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Option of the learner that is not searched; repeatable."),
    ] = None,
    setting: RunSetting = None,
    parameters: Parameters = None,
    horizon: Horizon = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder; default: below studies/, the same for the same search."),
    ] = None,
    workers: ParallelRuns = None,
    ray: RunsOnRay = None,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Search the options of a learner for the best certified return, and compare the best with the defaults.

    The best trials are run again, and the best of those is compared with the defaults at equal budget on fresh seeds.
    The result is a config.toml and a page. The same command continues after an interruption, and with more --trials
    computes only those. Exit status: 0 finished, with or without an improvement; 1 a run failed; 2 bad input.

    Example: `psyco tune Pendulum-v1 --require 'P>=0.9 [ G (abs(action[0]) <= 1.2) ] & C>=0.98' --episodes 1000`
    """
    from psyco._src.api.study import as_search
    from psyco._src.studies.tuning import default_tuning_folder

    made_of = read_domain_parameters(parameters, horizon)
    what: dict[str, Any] = {
        "trials": trials,
        "over": over or None,
        "seed": seed,
        "batch_size": batch_size,
        "rerun_seeds": rerun_seeds,
        "validation_seeds": validation_seeds,
        "parameters": made_of,
        "settings": run_settings(learner, option, setting, episodes=episodes, steps=steps),
    }
    search = as_search(domain, require, **what)
    folder = out or default_tuning_folder(search)
    remark(f"{plural(trials, 'trial')} of {', '.join(search.ranges)} in {folder}; checking them")
    with show_runs(folder) as display:
        done = psyco.tune(
            domain,
            require,
            folder,
            **what,
            workers=workers,
            ray=ray,
            trust=trusted(trust, domain, made_of),
            on_progress=display.show,
            on_message=remark,
        )
    _print(done, as_json=as_json)
    raise typer.Exit(EXIT_FAILED if done.failed else 0)


def _print(done: psyco.Tuning, *, as_json: bool) -> None:
    for name, error in done.failed.items():
        remark(f"failed: {name}: {error}", style="red")
    if as_json:
        print(done.to_json(), end="")
        return
    table = Table()
    for head in ("option", "default", *[done.winner.label] * bool(done.winner.number), "searched"):
        table.add_column(head, overflow="fold")
    for name, text in done.search.range_texts.items():
        tuned = [_value(done.winner.options[name])] if done.winner.number else []
        table.add_row(*map(plain, (name, _value(done.defaults[name]), *tuned, text)))
    print_table(table)
    study = done.validation or done.rerun
    for row in study.tables.summary:
        returned = estimate_text(row, "return_iqm", 2)
        say(f"{row['method']}: {row['certified']} of {row['ended']} certified, return {returned}")
    say(f"{done.verdict}.")
    holds = "the tuned options" if done.options else "the defaults"
    say(f"{done.config} holds {holds}. Page: {done.page}")
    remark(f"learn a policy with them: {command('psyco', 'synthesize', '--config', done.config)}")


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
