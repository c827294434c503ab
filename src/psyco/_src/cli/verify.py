"""`psyco verify`: certify a policy, or test recorded outcomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import psyco
from psyco._src.cli.common import (
    CutEpisodes,
    Horizon,
    Json,
    Method,
    ObserveParameters,
    OtherDomain,
    Parameters,
    Require,
    Seed,
    Trust,
    Vary,
    code_of,
    leave,
    read_domain_parameters,
    read_parameters,
    refuse_options,
    remark,
    say,
    say_wrapped,
    trusted,
)
from psyco._src.cli.declared_options import declared_options
from psyco._src.cli.display import show_episodes
from psyco._src.core.errors import RunError
from psyco._src.core.files import read_text
from psyco._src.core.wording import plural
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD

if TYPE_CHECKING:
    from psyco._src.rollout.execution import Execution


@declared_options(trains=False)
def verify(
    context: typer.Context,
    execution: Execution,
    policy: Annotated[
        str | None,
        typer.Argument(help="Policy file or run folder; sb3:FILE.zip, FILE.onnx, FILE.pt, python:module:name."),
    ] = None,
    domain: OtherDomain = None,
    require: Require = None,
    method: Method = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Option of the method, as in indifference=0.01; repeatable."),
    ] = None,
    max_episodes: Annotated[
        int | None,
        typer.Option(help=f"Maximum number of episodes.  [default: {DEFAULT_MAX_EPISODES}, or all outcomes]"),
    ] = None,
    seed: Seed = 0,
    outcomes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Test recorded outcomes: 0 or 1 per line, numbers for an expected value, CSV, - for input. They are "
            "in the order in which episodes began, with none left out that still runs, or a column index (0, 1, 2, "
            "...) or started (a time) states it.",
        ),
    ] = None,
    traces: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Test recorded signals: CSV or JSON lines with an episode column, in the order of --outcomes.",
        ),
    ] = None,
    cut: CutEpisodes = "error",
    first_index: Annotated[int, typer.Option(help="First index of recorded episodes.")] = 0,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=AGENT,AGENT",
            help="With --traces: the agents of a group, for each(NAME.x ...).  [default: by number, as in pursuer_0.x]",
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="CERTIFICATE", help="Repeat a certificate of this policy and compare."),
    ] = None,
    adversary: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --replay: the adversary that the certificate is about."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="Compare with this policy instead: is the new one at least as good?"),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(metavar="M", help="With --against: how much worse, in probability or share of pairs, is allowed."),
    ] = 0.05,
    retryable: Annotated[
        bool, typer.Option("--retryable", help="Leave part of the permitted error for later looks (--after).")
    ] = False,
    after: Annotated[
        Path | None,
        typer.Option(metavar="CERTIFICATE", help="Certificate of an earlier, undecided look; its looks are counted."),
    ] = None,
    ignore_looks: Annotated[
        bool,
        typer.Option("--ignore-looks", help="Do not count earlier looks at this run; the certificate says so."),
    ] = False,
    estimate: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Add estimates from N further episodes, which the stopping rule does not bias.",
        ),
    ] = None,
    width: Annotated[
        list[float] | None,
        typer.Option(
            metavar="W",
            help="Answer questions (P=? [ ... ]) until their intervals have this width; repeatable: one per question. "
            " [default: all episodes]",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the certificate to this file, as JSON.")] = None,
    horizon: Horizon = None,
    policy_version: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Your name for this version of the policy; a function has no other."),
    ] = None,
    trust: Trust = None,
    parameters: Parameters = None,
    vary: Vary = None,
    observe_parameters: ObserveParameters = False,
    as_json: Json = False,
) -> None:
    """Verify a policy on fresh episodes, or test recorded outcomes.

    Exit status: 0 satisfied (with --replay: no differences; with --against: better or not worse), 1 violated
    (differences; worse), 3 undecided, 2 bad input.
    A requirement with questions only has no verdict, and the status is 0.

    Examples:

        psyco verify runs/dance --seed 7

        psyco verify model.onnx --domain CartPole-v1 --require 'P>=0.9 [ G (abs(obs[0]) <= 1) ] & C>=0.98'

        psyco verify runs/dance --require 'R{distance < 0.1}<=1 [ C ]; P=? [ F distance < 0.1 ]' --width 0.02

        psyco verify runs/dance --vary max_speed=0.08..0.12 --require \
            'P>=0.8 in 95% of environments [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98'

        psyco verify --outcomes results.csv --require 'P>=0.85 & C>=0.98'

        psyco verify --replay runs/dance/certificate.json runs/dance

        psyco verify runs/dance --against runs/dance-naive --margin 0.02
    """
    values = read_domain_parameters(parameters, horizon, vary, observe_parameters)
    code_of(policy)
    allowed = trusted(trust, domain, values)
    if sum(source is not None for source in (outcomes, traces, replay, against)) > 1:
        raise RunError("choose one of --outcomes, --traces, --replay and --against")
    if replay is None:
        refuse_options(context, "psyco stress POLICY --adversary FILE verifies against an adversary", {"adversary"})
    if against is not None:
        refuse_options(
            context,
            "a comparison tests by betting on pairs of episodes, and takes no certificate",
            {
                "method",
                "option",
                "retryable",
                "after",
                "ignore_looks",
                "estimate",
                "width",
                "policy_version",
                "cut",
                "first_index",
                "group",
            },
        )
        if policy is None:
            raise RunError("--against needs the new policy too: psyco verify NEW --against OLD")
        with show_episodes():
            compared = psyco.compare_policies(
                policy, against, domain, require, parameters=values, margin=margin, seed=seed, trust=allowed,
                max_episodes=DEFAULT_MAX_EPISODES if max_episodes is None else max_episodes, execution=execution,
            )  # fmt: skip
        if as_json:
            print(compared.to_json(), end="")
        else:
            say_wrapped(str(compared))
        if out is not None:
            _write(out, compared.to_json())
        raise typer.Exit({"BETTER": 0, "NOT_WORSE": 0, "WORSE": 1, "UNDECIDED": 3}[compared.verdict.name])
    refuse_options(context, "a margin belongs to --against", {"margin"})
    if replay is not None:
        fixed = {
            "require",
            "method",
            "option",
            "max_episodes",
            "seed",
            "retryable",
            "after",
            "ignore_looks",
            "estimate",
        }
        refuse_options(
            context,
            "a replay repeats the certificate unchanged",
            fixed | {"width", "out", "horizon", "parameters", "vary", "observe_parameters"},
        )
        _replay(
            replay,
            policy,
            domain,
            adversary=adversary,
            as_json=as_json,
            trust=allowed,
            version=policy_version,
            execution=execution,
        )
        return
    if outcomes is not None or traces is not None:
        refuse_options(context, "recorded outcomes need no policy, domain or execution", {"policy", "domain", "seed",
                "retryable", "after", "ignore_looks", "estimate", "devices",
                "workers", "ray", "step_timeout", "parameters", "vary", "observe_parameters", "policy_version",
                "trust", *(["horizon", "cut", "group"] * (traces is None))})  # fmt: skip
        if require is None:
            raise RunError("a requirement for the outcomes is missing, as in --require 'P>=0.85 & C>=0.98'")
        certificate = psyco.verify_outcomes(
            str(outcomes if outcomes is not None else traces),
            require,
            traces=traces is not None,
            method=DEFAULT_METHOD if method is None else method,
            method_options=read_parameters(option),
            max_episodes=max_episodes,
            width=width,
            horizon=horizon,
            cut=cast(Any, cut),
            first_index=first_index,
            groups=_read_groups(group),
        )
    else:
        refuse_options(context, "these belong to recorded outcomes", {"cut", "first_index", "group"})
        if policy is None:
            raise RunError("nothing to verify: give a policy file, a run folder, --outcomes FILE or --traces FILE")
        with show_episodes() as count:
            certificate = psyco.verify(
                policy,
                domain,
                require,
                parameters=values,
                version=policy_version,
                method=method,
                method_options=read_parameters(option) if option else None,
                max_episodes=DEFAULT_MAX_EPISODES if max_episodes is None else max_episodes,
                seed=seed,
                share=psyco.look_share(1) if retryable else None,
                after=after,
                ignore_looks=ignore_looks,
                estimate=estimate,
                width=width,
                trust=allowed,
                execution=execution,
                on_progress=count,
            )
    if as_json:
        print(certificate.to_json(), end="")
    else:
        say_wrapped(str(certificate))
    if out is not None:
        _write(out, certificate.to_json())
    leave(certificate)


def _write(path: Path, text: str) -> None:
    from psyco._src.core import files

    files.write(path, text.encode())


def _read_groups(given: list[str] | None) -> dict[str, list[str]] | None:
    """Return names of groups and their agents; None: none are given."""
    found: dict[str, list[str]] = {}
    for text in given or ():
        name, equals, agents = text.partition("=")
        if not (name.strip() and equals):
            raise RunError(f"--group {text} is not allowed: write a name and agents, as in pursuer=agent_0,agent_1")
        found[name.strip()] = [agent.strip() for agent in agents.split(",") if agent.strip()]
    return found or None


def _replay(certificate: Path, policy: str | None, domain: str | None, *, as_json: bool, **settings: Any) -> None:
    if policy is None:
        raise RunError("--replay needs the policy too: psyco verify --replay CERTIFICATE POLICY")
    with show_episodes():
        found = psyco.replay(certificate, policy, domain=domain, **settings)
    if as_json:
        print(json.dumps({"matches": found.matches, **found._asdict()}, indent=2))
    if not found.matches:
        if not as_json:
            remark("\n  ".join([f"{certificate} does not match its repetition:", *found.differences]))
        raise typer.Exit(1)
    if as_json:
        return
    claimed = psyco.Certificate.from_json(read_text(certificate, "certificate"))
    say(
        f"everything matches: {claimed.verdict.name} for sha256:{str(claimed.policy)[:16]} "
        f"after {plural(claimed.episodes, 'episode')}, as certified\nnot compared: {', '.join(found.not_compared)}"
    )
