"""`psyco verify`: is this policy good enough?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import psyco
from psyco._src.cli.common import (
    Devices,
    Horizon,
    Json,
    Method,
    OtherDomain,
    Parameters,
    Ray,
    Require,
    Seed,
    StepTimeout,
    Trust,
    Workers,
    code_of,
    given,
    leave,
    read_domain_parameters,
    read_parameters,
    remark,
    say,
    trusted,
)
from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import read_text
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD


def verify(
    context: typer.Context,
    policy: Annotated[
        str | None,
        typer.Argument(
            help="A policy file or a run folder; sb3:FILE.zip, FILE.onnx, FILE.pt, python:module:name."
        ),
    ] = None,
    domain: OtherDomain = None,
    require: Require = None,
    method: Method = DEFAULT_METHOD,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="An option of the method, as in indifference=0.01; repeatable."
        ),
    ] = None,
    max_episodes: Annotated[
        int | None,
        typer.Option(
            help=f"Give up undecided after so many episodes.  [default: {DEFAULT_MAX_EPISODES}, or all outcomes]"
        ),
    ] = None,
    seed: Seed = 0,
    outcomes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Test recorded outcomes instead: 0 or 1 per line, numbers for an expected value, CSV, - for input.",
        ),
    ] = None,
    traces: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Test recorded signals: CSV or JSON lines with an episode column."),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="CERTIFICATE", help="Repeat a certificate of this policy and compare."),
    ] = None,
    retryable: Annotated[
        bool, typer.Option("--retryable", help="Leave part of the permitted error for later tries (--after).")
    ] = False,
    after: Annotated[
        Path | None,
        typer.Option(
            metavar="CERTIFICATE", help="An earlier try that did not suffice; its looks are counted."
        ),
    ] = None,
    ignore_looks: Annotated[
        bool,
        typer.Option(
            "--ignore-looks", help="Do not count the looks at this run so far; the certificate says so."
        ),
    ] = False,
    estimate: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Add shares and return of N further episodes, not biased by where the test stopped.",
        ),
    ] = None,
    width: Annotated[
        float | None,
        typer.Option(
            metavar="W",
            help="Answer questions (P=? [ ... ]) until their intervals are as narrow as that.  [default: all episodes]",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write the certificate to this file, as JSON.")
    ] = None,
    devices: Devices = 1,
    workers: Workers = 1,
    ray: Ray = None,
    step_timeout: StepTimeout = None,
    horizon: Horizon = None,
    policy_version: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="What you call this version of the policy; a function has no other."
        ),
    ] = None,
    trust: Trust = None,
    parameters: Parameters = None,
    as_json: Json = False,
) -> None:
    """Verify a policy on fresh episodes, or outcomes recorded elsewhere.

    Exit status: 0 satisfied (or, with --replay, everything matches), 1 violated (or something differs), 3 undecided,
    2 bad input. Where there are questions only, there is no verdict, and the status is 0.

    Examples:

        psyco verify runs/dance --seed 7

        psyco verify model.onnx --domain CartPole-v1 --require 'P>=0.9 [ G (abs(obs[0]) <= 1) ] & C>=0.98'

        psyco verify runs/dance --require 'R{distance < 0.1}<=1 [ C ]; P=? [ F distance < 0.1 ]' --width 0.02

        psyco verify --outcomes results.csv --require 'P>=0.85 & C>=0.98'

        psyco verify --replay runs/dance/certificate.json runs/dance
    """
    execution: dict[str, Any] = {
        "devices": devices,
        "workers": workers,
        "ray": ray,
        "step_timeout": step_timeout,
    }
    values = read_domain_parameters(parameters, horizon)
    code_of(policy)
    allowed = trusted(trust, domain, values)
    if sum(source is not None for source in (outcomes, traces, replay)) > 1:
        raise RunError("choose one of --outcomes, --traces and --replay")
    if replay is not None:
        _refuse(context, "a certificate is repeated as it is", {"require", "method", "option", "max_episodes", "seed",
                "retryable", "after", "ignore_looks", "estimate", "width", "out", "horizon", "parameters"})  # fmt: skip
        _replay(replay, policy, domain, as_json=as_json, trust=allowed, version=policy_version, **execution)
        return
    if outcomes is not None or traces is not None:
        _refuse(context, "recorded outcomes stand for themselves", {"policy", "domain", "seed", "retryable", "after",
                "ignore_looks", "estimate", "devices",
                "workers", "ray", "step_timeout", "parameters", "policy_version",
                "trust", *(["horizon"] * (traces is None))})  # fmt: skip
        if require is None:
            raise RunError("say what the outcomes should meet, as in --require 'P>=0.85 & C>=0.98'")
        certificate = psyco.verify_outcomes(
            str(outcomes if outcomes is not None else traces),
            require,
            traces=traces is not None,
            method=method,
            method_options=read_parameters(option),
            max_episodes=max_episodes,
            width=width,
            horizon=horizon,
        )
    else:
        if policy is None:
            raise RunError(
                "say what to verify: a policy file, a run folder, --outcomes FILE or --traces FILE"
            )
        certificate = psyco.verify(
            policy,
            domain,
            require,
            parameters=values,
            version=policy_version,
            method=method,
            method_options=read_parameters(option),
            max_episodes=DEFAULT_MAX_EPISODES if max_episodes is None else max_episodes,
            seed=seed,
            share=psyco.look_share(1) if retryable else None,
            after=after,
            ignore_looks=ignore_looks,
            estimate=estimate,
            width=width,
            trust=allowed,
            **execution,
        )
    if as_json:
        print(certificate.to_json(), end="")
    else:
        say(str(certificate))
    if out is not None:
        from psyco._src.core import atomic_io

        atomic_io.write(out, certificate.to_json().encode())
    leave(certificate)


def _refuse(context: typer.Context, why: str, names: set[str]) -> None:
    """Options that would be ignored are refused."""
    if unfit := sorted(names & given(context).keys()):
        raise RunError(f"{why}: leave out {', '.join(unfit)}")


def _replay(
    certificate: Path, policy: str | None, domain: str | None, *, as_json: bool, **settings: Any
) -> None:
    if policy is None:
        raise RunError("--replay needs the policy too: psyco verify --replay CERTIFICATE POLICY")
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
        f"after {claimed.episodes:,} episodes, as certified\nnot compared: {', '.join(found.not_compared)}"
    )
