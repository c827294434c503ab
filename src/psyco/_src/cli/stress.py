"""`psyco stress`: the worst environment of a family for a policy, or an adversary that is learned against it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

import psyco
from psyco._src.cli.common import (
    ROUND_OPTIONS,
    Horizon,
    Json,
    Learner,
    MaxFreshEpisodes,
    ObserveParameters,
    OtherDomain,
    Parameters,
    PolicyEpisodes,
    PolicyLearner,
    Require,
    SavePolicy,
    Seed,
    Trust,
    Vary,
    code_of,
    print_result,
    read_domain_parameters,
    refuse_options,
    trusted,
)
from psyco._src.cli.declared_options import declared_options
from psyco._src.cli.display import show_episodes, show_progress
from psyco._src.core import files
from psyco._src.core.errors import RunError
from psyco._src.learners.learner_registry import AUTO_LEARNER
from psyco._src.runs.settings import DEFAULT_ADVERSARY_EPISODES, DEFAULT_EPISODES
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES

if TYPE_CHECKING:
    from psyco._src.rollout.execution import Execution

Paths: TypeAlias = dict[str, Path | None]
ADVERSARY_OPTIONS = {"learner", "episodes", "train_against", "save", "exact"} | ROUND_OPTIONS


@declared_options(trains=False)
def stress(
    context: typer.Context,
    execution: Execution,
    policy: Annotated[
        str, typer.Argument(help="Policy file or run folder, or any other policy that `psyco verify` accepts.")
    ],
    domain: OtherDomain = None,
    require: Require = None,
    vary: Vary = None,
    observe_parameters: ObserveParameters = False,
    adversary: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE|FILE",
            help="Learn an adversary against the policy: 0.2, it chooses this share of the random draws; obs:0.05 or "
            "action:0.1, it changes each number by at most this. Or the file of one that was learned before.",
        ),
    ] = None,
    learner: Learner = AUTO_LEARNER,
    episodes: Annotated[int, typer.Option(help="Training episodes of the adversary.")] = DEFAULT_ADVERSARY_EPISODES,
    train_against: Annotated[
        int,
        typer.Option(
            metavar="ROUNDS",
            help="With --adversary: policy and adversary learn in turn, in this number of rounds, and the best policy "
            "is verified against all adversaries.",
            show_default=False,
        ),
    ] = 0,
    policy_learner: PolicyLearner = None,
    policy_episodes: PolicyEpisodes = DEFAULT_EPISODES,
    save_policy: SavePolicy = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the policy of the adversary to this file; of several, that of the result."),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="With --adversary: also exact probabilities, and the worst case (finite domains)."
        ),
    ] = False,
    search_episodes: Annotated[int, typer.Option(help="Number of episodes of the search.")] = 20_000,
    max_episodes: MaxFreshEpisodes = DEFAULT_MAX_EPISODES,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the page with a map of the family, HTML, or the certificates against adversaries, JSON; with "
            "--train-against also a page, FILE.html."
        ),
    ] = None,
    horizon: Horizon = None,
    trust: Trust = None,
    parameters: Parameters = None,
    as_json: Json = False,
) -> None:
    """Search a family for the environment with the lowest probability, or learn an adversary, and test there.

    The statement is about the environment or the adversary that was found, from fresh episodes. It says nothing about
    the others.
    Exit status: 0 satisfied there, 1 violated, 3 undecided, 2 bad input.

    Examples:

        psyco stress runs/dance --vary max_speed=0.07..0.13 --vary d_min=0.1..0.12 --out worst.html

        psyco stress runs/obstacles --adversary 0.2 --exact

        psyco stress runs/obstacles --adversary 0.2 --train-against 4 --save-policy hardened.safetensors
    """
    values = read_domain_parameters(parameters, horizon, vary, observe_parameters)
    code_of(policy)
    if adversary is not None:
        refuse_options(context, "an adversary acts in one environment, and is not searched for", {"search_episodes"})
        if values.get("vary"):
            raise RunError("choose one of --vary and --adversary: an adversary acts in one environment")
        if not train_against:
            refuse_options(context, "these belong to --train-against", ROUND_OPTIONS)
        refuse_files_of_runs(save, save_policy, out)
        shared = {
            "adversary": adversary,
            "parameters": values,
            "learner": learner,
            "episodes": episodes,
            "max_episodes": max_episodes,
            "seed": seed,
            "exact": exact,
            "trust": trusted(trust, domain, values),
            "execution": execution,
        }
        if train_against:
            own = {"rounds": train_against, "policy_learner": policy_learner, "policy_episodes": policy_episodes}
            learn_in_turn(
                policy, domain, require, shared | own, {"save": save, "policy": save_policy, "out": out}, as_json
            )
        _attack(policy, domain, require, shared, {"save": save, "out": out}, as_json)
    refuse_options(context, "these belong to --adversary", ADVERSARY_OPTIONS)
    with show_episodes() as count:
        found = psyco.stress(
            policy,
            domain,
            require,
            parameters=values,
            search_episodes=search_episodes,
            max_episodes=max_episodes,
            seed=seed,
            out=out,
            trust=trusted(trust, domain, values),
            execution=execution,
            on_progress=count,
        )
    print_result(found, as_json, "map of the family", out)


def _attack(
    policy: str, domain: str | None, require: str | None, options: dict[str, Any], paths: Paths, as_json: bool
) -> None:
    """Learn an adversary, print the certificate against it, and leave with its verdict."""
    with show_progress() as shown:
        attacked = psyco.attack(policy, domain, require, callbacks=[shown], **options)
    write_file(paths["save"], attacked.adversary.to_bytes())
    write_file(paths["out"], attacked.certificate.to_json().encode())
    print_result(attacked, as_json)


def learn_in_turn(
    policy: str, domain: str | None, require: str | None, options: dict[str, Any], paths: Paths, as_json: bool
) -> None:
    """Let policy and adversary learn in turn, print the result, and leave with its verdict."""
    with show_progress() as shown:
        trained = psyco.train_against(policy, domain, require, callbacks=[shown], **options)
    write_file(paths["policy"], trained.policy.to_bytes())
    write_file(paths["save"], trained.rounds[trained.chosen].adversary.to_bytes())
    if (out := paths["out"]) is not None:
        from psyco._src.reports.training_page import training_page  # loads templates, which --help need not wait for

        write_file(out, (training_page(trained) if out.suffix == ".html" else trained.to_json()).encode())
    print_result(trained, as_json)


def write_file(path: Path | None, content: bytes) -> None:
    if path is not None:
        files.write(path, content)


def refuse_files_of_runs(*paths: Path | None) -> None:
    """Raise RunError for a file of a run folder, which would be overwritten."""
    from psyco._src.runs.store import refuse_file_of_run  # loads JAX, which --help and TAB need not wait for

    for path in filter(None, paths):
        refuse_file_of_run(path)
