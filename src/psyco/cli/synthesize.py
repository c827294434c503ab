"""`psyco synthesize`: from a requirement to a verified policy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from psyco.cli.common import Json, Parameters, Seed, console, read_domain, read_requirement, status
from psyco.learn.calibration import CALIBRATIONS
from psyco.learn.learners import LEARNERS
from psyco.run.folder import add_metrics, finish_run, start_run
from psyco.synthesis import Settings, Snapshot, certified, learn, make_settings, prepare
from psyco.verification.base import Verdict
from psyco.verification.methods import METHODS

DEFAULT = Settings()


def synthesize(
    domain: Annotated[str, typer.Argument(help="The name of a domain; see `psyco domains`.")],
    require: Annotated[str, typer.Option(help="The requirement, as text or as a file that holds it.")],
    episodes: Annotated[int, typer.Option(help="Training episodes.")] = DEFAULT.episodes,
    seed: Seed = DEFAULT.seed,
    out: Annotated[Path | None, typer.Option(help="Folder for policy, metrics and certificate.")] = None,
    learner: Annotated[str, typer.Option(help=f"How to learn: {', '.join(LEARNERS)}.")] = DEFAULT.learner,
    population: Annotated[int | None, typer.Option(help="Offspring per generation, N.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Perturbation rate.")] = None,
    calibration: Annotated[
        str | None, typer.Option(help=f"How belief becomes λ: {', '.join(CALIBRATIONS)}.")
    ] = None,
    hidden: Annotated[int, typer.Option(help="Hidden units of the policy network.")] = DEFAULT.hidden,
    bias: Annotated[
        str, typer.Option(help="Biases of the network: one (the paper's equation) or learned.")
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
    parameters: Parameters = None,
    as_json: Json = False,
) -> None:
    """Learn a policy for a requirement, verify it on fresh episodes, and keep both.

    Example:

        psyco synthesize particle-dance --out runs/dance \\
            --require 'P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98'
    """
    options = {"population": population, "alpha": alpha, "sigma": sigma, "calibration": calibration}
    settings = make_settings(
        episodes=episodes, seed=seed, learner=learner, hidden=hidden, bias=bias, verify_every=verify_every,
        method=method, max_episodes=max_episodes, **{k: v for k, v in options.items() if v is not None},
    )  # fmt: skip
    problem = prepare(read_domain(domain, parameters), read_requirement(require), settings, devices=devices)
    if out is not None:
        start_run(out, problem)
    began = time.perf_counter()
    snapshot: Snapshot | None = None
    interrupted = False
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[now]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=status, disable=not status.is_terminal) as bar:
        task = bar.add_task("compiling", total=problem.generations, now="")
        try:
            for snapshot in learn(problem):
                bar.update(task, description="learning", completed=snapshot.generation, now=_now(snapshot))
                if out is not None:
                    add_metrics(out, snapshot.metrics)
        except KeyboardInterrupt:
            interrupted = True
    if snapshot is None:
        raise KeyboardInterrupt
    if interrupted:
        status.print("interrupted: verifying what was learned so far")
    policy, certificate = certified(problem, snapshot.state)
    if out is not None:
        finish_run(out, policy, certificate)
    if as_json:
        print(certificate.to_json(), end="")
    else:
        _report(snapshot, certificate, time.perf_counter() - began, out)
    if interrupted:
        raise typer.Exit(130)


def _now(snapshot: Snapshot) -> str:
    """The state of learning in one line."""
    m = snapshot.metrics
    return (
        f"return {m['return'].mean():7.2f}  satisfied {m['satisfied'].mean():.3f}  "
        f"c_sat {m['c_sat'][-1]:.4f}  λ {m['lambda'].mean():.2f}"
    )


def _report(snapshot: Snapshot, certificate: object, seconds: float, out: Path | None) -> None:
    console.print(
        f"learned from {int(snapshot.metrics['episodes'][-1]):,} episodes in {seconds:.1f} s: {_now(snapshot)}",
        highlight=False,
    )
    colour = {Verdict.SATISFIED: "green", Verdict.VIOLATED: "red", Verdict.UNDECIDED: "yellow"}
    console.print(str(certificate), highlight=False, markup=False, style=colour.get(certificate.verdict, ""))  # type: ignore[attr-defined]
    if out is not None:
        console.print(f"kept in {out}; see it with: psyco render {out}", highlight=False)
