"""`psyco verify`: is this policy good enough?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from psyco._src.certify.certificate import Certificate
from psyco._src.certify.outcomes import outcome_requirement, read_outcomes, read_traces, verify_outcomes
from psyco._src.certify.replay import replay as repeat
from psyco._src.certify.verify import DEFAULT_MAX_EPISODES, look_share
from psyco._src.certify.verify import verify as run_verification
from psyco._src.cli.common import (
    Horizon,
    Json,
    Parameters,
    Ray,
    Seed,
    StepTimeout,
    Trust,
    Workers,
    console,
    read_options,
    read_policy,
    read_requirement,
    trust_typed,
)
from psyco._src.errors import RunError
from psyco._src.policy.foreign import is_foreign, open_policy
from psyco._src.run import durable
from psyco._src.run.folder import find_policy
from psyco._src.smc.base import Verdict
from psyco._src.smc.methods import DEFAULT_METHOD, METHODS

EXIT = {Verdict.SATISFIED: 0, Verdict.VIOLATED: 1, Verdict.UNDECIDED: 3}


def verify(
    policy: Annotated[
        Path | None,
        typer.Argument(
            help="A policy file or a run folder; sb3:FILE.zip, FILE.onnx, FILE.pt, python:module:name."
        ),
    ] = None,
    domain: Annotated[str | None, typer.Option(help="Where it acts, if not where it was learned.")] = None,
    require: Annotated[
        str | None, typer.Option(help="The requirement, as text or file, if not the run's own.")
    ] = None,
    method: Annotated[str, typer.Option(help=f"How to test: {', '.join(METHODS)}.")] = DEFAULT_METHOD,
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
            metavar="FILE", help="Test recorded outcomes instead: 0 or 1 per line, CSV, - for input."
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
    out: Annotated[
        Path | None, typer.Option(help="Also write the certificate to this file, as JSON.")
    ] = None,
    workers: Workers = 1,
    ray: Ray = None,
    step_timeout: StepTimeout = None,
    horizon: Horizon = None,
    trust: Trust = None,
    parameters: Parameters = None,
    as_json: Json = False,
) -> None:
    """Verify a policy on fresh episodes, or outcomes recorded elsewhere.

    Exit status: 0 satisfied (or, with --replay, everything matches), 1 violated, 3 undecided, 2 bad input.

    Examples:

        psyco verify runs/dance --seed 7

        psyco verify sb3:model.zip --domain CartPole-v1 --require 'P>=0.9 [ G (abs(obs[0]) <= 1) ] & C>=0.98'

        psyco verify --outcomes results.csv --require 'P>=0.85 & C>=0.98'

        psyco verify --replay runs/dance/certificate.json runs/dance
    """
    trust_typed(*trust or ())
    options = read_options(option, method)
    if sum(source is not None for source in (outcomes, traces, replay)) > 1:
        raise RunError("choose one of --outcomes, --traces and --replay")
    if replay is not None:
        _replay(replay, policy)
        return
    if outcomes is not None or traces is not None:
        if policy is not None or after is not None or retryable:
            raise RunError(
                "recorded outcomes stand for themselves: leave out the policy, --after and --retryable"
            )
        certificate = _recorded(outcomes, traces, require, method, max_episodes, options)
    else:
        if policy is None:
            raise RunError(
                "say what to verify: a policy file, a run folder, --outcomes FILE or --traces FILE"
            )
        found, where, requirement = read_policy(policy, domain, parameters, require, horizon)
        certificate = run_verification(
            found, where, requirement, method=method, seed=seed,
            max_episodes=DEFAULT_MAX_EPISODES if max_episodes is None else max_episodes,
            workers=workers, ray=ray, step_timeout=step_timeout,
            share=look_share(1) if retryable else None, after=_earlier(after), **options,
        )  # fmt: skip
    if as_json:
        print(certificate.to_json(), end="")
    else:
        console.print(str(certificate), highlight=False, markup=False, soft_wrap=True)
    if out is not None:
        durable.write(out, certificate.to_json().encode())
    raise typer.Exit(EXIT[certificate.verdict])


def _recorded(
    outcomes: str | None,
    traces: str | None,
    require: str | None,
    method: str,
    max_episodes: int | None,
    options: dict[str, Any],
) -> Certificate:
    if require is None:
        raise RunError("say what the outcomes should meet, as in --require 'P>=0.85 & C>=0.98'")
    file = str(outcomes if outcomes is not None else traces)
    data, origin = (sys.stdin.buffer.read(), "the input") if file == "-" else (_read(Path(file)), file)
    if outcomes is not None:
        requirement = read_requirement(require, outcome_requirement)
        judged = read_outcomes(data, requirement, origin=origin)
    else:
        requirement = read_requirement(require)
        judged = read_traces(data, requirement, origin=origin)
    return verify_outcomes(judged, requirement, method=method, max_episodes=max_episodes, **options)


def _replay(certificate: Path, policy: Path | None) -> None:
    if policy is None:
        raise RunError("--replay needs the policy too: psyco verify --replay CERTIFICATE POLICY")
    text = _text(certificate)
    found = open_policy(str(policy)) if is_foreign(str(policy)) else find_policy(policy)[0]
    differences = repeat(text, found, origin=str(certificate))
    if differences:
        raise RunError("\n  ".join([f"{certificate} does not match its repetition:", *differences]))
    claimed = Certificate.from_json(text)
    console.print(
        f"everything matches: {claimed.verdict.name} for sha256:{str(claimed.policy)[:16]} "
        f"after {claimed.episodes:,} episodes, as certified",
        highlight=False,
        soft_wrap=True,
    )


def _earlier(path: Path | None) -> Certificate | None:
    return None if path is None else Certificate.from_json(_text(path), origin=str(path))


def _text(path: Path) -> str:
    try:
        return _read(path).decode("utf-8")
    except UnicodeDecodeError:
        raise RunError(f"{path} is not a text file in UTF-8") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from None
