"""Synthesize a certified policy, in memory or in a run folder."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from psyco._src.api.coerce import AnyDomain, PolicyLike, as_domain, as_start, find_run, verb
from psyco._src.core.errors import check_known
from psyco._src.learners.metrics import Metrics, concatenate
from psyco._src.logic.requirement import AnyRequirement, as_requirement
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.episodes import Stream
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.runs.config import Config
from psyco._src.runs.problem import Problem, prepare
from psyco._src.runs.select import Candidate, certify_best, remark
from psyco._src.runs.session import check_folder_free, default_folder, execute, resume_run, start_run
from psyco._src.runs.settings import Settings, check_one_budget, check_steps, read_time
from psyco._src.runs.store import Run, read_run
from psyco._src.runs.time_budget import fit_to_time, simulator_throughput
from psyco._src.runs.tracking import TRACKERS
from psyco._src.runs.train import Callback, RunProgress, learn
from psyco._src.runs.warm_start import with_initial_policy
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.certificate_html import certificate_html
from psyco._src.verification.ledger import Ledger

DEFAULT = Settings()


@dataclass(frozen=True, repr=False)
class Result:
    """A policy, its certificate and the record of its training."""

    policy: Policy
    certificate: Certificate
    metrics: Metrics
    candidate: Candidate  # performance of the policy when candidates were compared
    looks: Ledger = field(compare=False)  # further verifications of this result are entered here

    @property
    def remark(self) -> str:
        """The reason why there is no certificate, and a remedy; empty if there is one."""
        return remark(self.certificate, self.candidate)

    def __repr__(self) -> str:
        return f"<Result: {self.certificate.verdict.name}, {self.policy!r}, {self.metrics!r}>"

    def _repr_html_(self) -> str:
        return certificate_html(self.certificate)


@verb
def synthesize(
    domain: AnyDomain,
    requirement: AnyRequirement,
    *,
    parameters: Mapping[str, Any] | None = None,
    episodes: int | None = None,
    steps: int | None = None,
    time: str | float | None = None,
    seed: int | None = None,
    learner: Any = None,
    start_from: PolicyLike | None = None,
    settings: Settings | None = None,
    execution: Execution = IN_PROCESS,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Learn a policy for a requirement and verify it on fresh episodes, in memory.

    Args:
        domain: a domain, or a name that `psyco.make` accepts.
        requirement: the requirement as text, as a file name, or parsed.
        parameters: parameters of a domain that is given by name.
        episodes: budget of training episodes; default: that of the settings, 60,000.
        steps: budget of training steps, instead of episodes.
        time: budget of wall-clock time, "10min", "90s", "1.5h" or seconds. The measured speed converts it to steps
            once, before learning starts.
        seed: seed of all randomness; the result is a function of it.
        learner: a name ("safe-es", "snes", "ppo", "sac", "evosax" or "auto") or an options object such as
            `psyco.PPO(learning_rate=3e-4)`.
        start_from: a PSyCo policy, its file or its run; learning starts from its network and parameters.
        settings: all other settings of learning, selection and certificate: `psyco.Settings(...)`.
        execution: devices, worker processes, Ray, time-outs: `psyco.Execution(...)`. The result does not depend on it.
        callbacks: receivers of progress and metrics, see `psyco.Callback`.

    Returns:
        The policy, its certificate and the metrics table.
    """
    problem = _prepare(
        domain, requirement, parameters, _settings(settings, episodes, steps, time, seed, learner),
        execution, time, start_from, callbacks,
    )  # fmt: skip
    parts: list[Metrics] = []
    at = learn(problem, [Callback(on_metrics=lambda _, metrics: parts.append(metrics)), *callbacks])
    looks = Ledger(stream=Stream.CERTIFY)
    policy, certificate, candidate = certify_best(problem, at, callbacks, ledger=looks)
    return Result(policy, certificate, concatenate(parts), candidate, looks)


@verb
def start(
    domain: AnyDomain,
    requirement: AnyRequirement,
    folder: str | Path | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    episodes: int | None = None,
    steps: int | None = None,
    time: str | float | None = None,
    seed: int | None = None,
    learner: Any = None,
    start_from: PolicyLike | None = None,
    settings: Settings | None = None,
    execution: Execution = IN_PROCESS,
    callbacks: Sequence[Callback] = (),
    track: Sequence[str] = (),
    overwrite: bool = False,
) -> Run:
    """Like `synthesize`, but in a run folder that can be resumed after any interruption.

    All arguments of `synthesize` have the same meaning here.

    Args:
        folder: the run folder; default: a free name below `runs/`.
        track: trackers to log to: "tensorboard", "mlflow", "wandb".
        overwrite: replace a run in that folder.

    Returns:
        The finished run, as `open_run` returns it.
    """
    if folder is not None:
        check_folder_free(Path(folder), overwrite)  # before the simulator is measured
    problem = _prepare(
        domain, requirement, parameters, _settings(settings, episodes, steps, time, seed, learner),
        execution, time, start_from, callbacks,
    )  # fmt: skip
    config = configuration(problem, track=track)
    path = default_folder(config.domain) if folder is None else Path(folder)
    with start_run(path, config, problem, overwrite=overwrite) as session:
        execute(session, callbacks=callbacks, checkpoint_every=execution.checkpoint_every)
    return read_run(path, config=session.config)


@verb
def resume(
    folder: str | Path | Run,
    *,
    episodes: int | str | None = None,
    steps: int | str | None = None,
    domain: AnyDomain | None = None,
    trust: Collection[str] = (),
    execution: Execution = IN_PROCESS,
    callbacks: Sequence[Callback] = (),
    track: Sequence[str] = (),
    allow_changed_code: bool = False,
) -> Run:
    """Continue an interrupted run to the same bytes, or extend a finished one and certify it again.

    Args:
        folder: the run folder, or the run.
        episodes: a new total of training episodes, or an increase such as "+40000".
        steps: the same for a run with a budget of steps.
        domain: the domain of the run, for domains that cannot be made by name.
        trust: code (`module:name`) that the run names and that may be imported.
        execution: devices, worker processes, Ray, time-outs: `psyco.Execution(...)`.
        callbacks: receivers of progress and metrics, see `psyco.Callback`.
        track: remote trackers to continue with, "mlflow" or "wandb"; a run folder cannot request them.
        allow_changed_code: continue although the code of the environment has changed since the last checkpoint; the
            certificate notes it.

    Returns:
        The finished run, as `open_run` returns it.
    """
    for name in track:
        check_known("tracker", name, TRACKERS)
    is_path = isinstance(folder, str | Path) and not isinstance(folder, Run)
    path = Path(folder) if is_path else find_run(folder).folder  # type: ignore[arg-type]
    with resume_run(
        path,
        episodes=None if episodes is None else str(episodes),
        steps=None if steps is None else str(steps),
        domain=None if domain is None else as_domain(domain),
        execution=execution,
        trust=trust,
        track=track,
        allow_changed_code=allow_changed_code,
    ) as session:
        if session is not None:
            execute(session, callbacks=callbacks, checkpoint_every=execution.checkpoint_every)
    return read_run(path)


def _settings(
    settings: Settings | None,
    episodes: int | None,
    steps: int | None,
    time: str | float | None,
    seed: int | None,
    learner: Any,
) -> Settings:
    """Return the settings with the keywords of the call in place; a budget in time is resolved later."""
    budgets = {"episodes": episodes, "steps": steps, "time": time}
    check_one_budget(**{name: value for name, value in budgets.items() if value is not None})
    changes: dict[str, Any] = {"seed": seed, "learner": learner}
    if steps is not None:
        changes |= {"episodes": 0, "steps": check_steps(steps)}
    elif episodes is not None:
        changes |= {"episodes": episodes, "steps": 0}
    changes = {name: value for name, value in changes.items() if value is not None}
    if learner is not None and settings is not None and learner != settings.learner:
        changes["options"] = {}  # those of another learner
    return dataclasses.replace(settings or DEFAULT, **changes)


def _prepare(
    domain: AnyDomain,
    requirement: AnyRequirement,
    parameters: Mapping[str, Any] | None,
    settings: Settings,
    execution: Execution,
    time: str | float | None,
    start_from: PolicyLike | None,
    callbacks: Sequence[Callback],
) -> Problem:
    """Check the arguments, resolve the budget, and report the plan to the callbacks that ask for it."""
    made, wanted, first = as_domain(domain, parameters), as_requirement(requirement), as_start(start_from)
    settings = with_initial_policy(settings, first)
    plan = None
    if time is not None:
        problem, plan = fit_to_time(made, wanted, settings, read_time(time), execution, initial_policy=first)
    else:
        problem = prepare(made, wanted, settings, execution, initial_policy=first)
    listeners = [callback for callback in callbacks if callback.wants_plan]
    # A compiled domain makes all episodes in a second: there is nothing to plan.
    if listeners and (time is not None or not problem.sampler.compiled):
        plan = plan or problem.plan(simulator_throughput(problem))
        for callback in listeners:
            callback.on_plan(plan)
    return problem


def configuration(problem: Problem, *, track: Sequence[str] = ()) -> Config:
    """Describe a run as data."""
    for name in track:
        check_known("tracker", name, TRACKERS)
    name, parameters = problem.description
    text = problem.requirement.text.strip() or str(problem.requirement)
    return Config(name, text, dict(parameters), problem.settings, tuple(dict.fromkeys(track)))


# Show the progress of learning in one updating line, in a terminal or a notebook.


LINE_INTERVAL = 0.3  # seconds
BAR_WIDTH = 20  # characters


def progress(stream: TextIO | None = None) -> Callback:
    """Return a callback with a progress line: `psyco.synthesize(domain, requirement, callbacks=[psyco.progress()])`.

    Return and satisfied share are means over the last segment, of the deployed policy where the learner plays it.

    Args:
        stream: output stream; default: standard output, which notebooks show below the cell.
    """
    out = sys.stdout if stream is None else stream
    stage: list[RunProgress] = []
    latest: list[Metrics] = []
    next_line = 0.0

    def show(problem: Problem, metrics: Metrics) -> None:
        nonlocal next_line
        latest[:] = [concatenate([*latest, metrics]).tail(problem.check_interval)]
        at = stage[-1]
        if time.monotonic() < next_line and at.done < at.total:
            return
        next_line = time.monotonic() + LINE_INTERVAL
        filled = min(BAR_WIDTH, int(BAR_WIDTH * at.done / at.total))
        kind = "deployed_" if "deployed_return" in latest[0] else ""
        means = [f"{name} {latest[0][kind + name].mean():.3g}" for name in ("return", "satisfied")]
        line = f"{'█' * filled}{'░' * (BAR_WIDTH - filled)} {at.done:,} of {at.total:,} {at.unit}  {'  '.join(means)}"
        out.write(f"\r{line:<90}" + ("\n" if at.done >= at.total else ""))
        out.flush()

    return Callback(on_metrics=show, on_progress=lambda now: stage.__setitem__(slice(None), [now]))
