"""Synthesize a certified policy, in memory or in a run folder."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

from psyco._src.api.coerce import AnyDomain, PolicyLike, StartLike, as_domain, as_start, find_policy, find_run, verb
from psyco._src.core.errors import RunError, check_known
from psyco._src.learners.metrics import Metrics, concatenate
from psyco._src.logic.ast import Requirement
from psyco._src.logic.requirement import AnyRequirement, as_requirement
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.env_checker import find_faults
from psyco._src.rollout.episodes import Stream
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.gym_sampler import GymSampler
from psyco._src.runs.baselines import GIVEN_NAME, UNCONSTRAINED, UNCONSTRAINED_NAME, Baselines
from psyco._src.runs.budget import certificate_warning, fit_model
from psyco._src.runs.config import Config
from psyco._src.runs.execute import add_baseline, execute
from psyco._src.runs.problem import Problem, check_spelling, prepare
from psyco._src.runs.select import Candidate, certify_best, remark
from psyco._src.runs.session import check_folder_free, default_folder, resume_run, start_run
from psyco._src.runs.settings import Settings, check_one_budget, check_steps, read_time
from psyco._src.runs.store import Run, read_run
from psyco._src.runs.time_budget import fit_to_time, learning_throughput, simulator_throughput
from psyco._src.runs.tracking import TRACKERS
from psyco._src.runs.train import Callback, RunProgress, learn
from psyco._src.runs.warm_start import describe_initial_policy, with_initial_policy
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.certificate_html import certificate_html
from psyco._src.verification.ledger import Ledger

logger = logging.getLogger(__name__)

DEFAULT = Settings()


@dataclass(frozen=True, repr=False)
class Result:
    """A policy, its certificate and the record of its training."""

    policy: Policy
    certificate: Certificate
    metrics: Metrics
    candidate: Candidate  # performance of the policy when candidates were compared
    baselines: Baselines | None  # the policy beside random actions, doing nothing, ...; None: the budget is too small
    looks: Ledger = field(compare=False)  # further verifications of this result are entered here

    @property
    def remark(self) -> str:
        """Why there is no certificate, or that the policy is no better than a baseline, and a remedy; else empty."""
        word = self.baselines.remark(self.certificate) if self.baselines else ""
        return remark(self.certificate, self.candidate, self.baselines) or word

    @property
    def violations(self) -> int:
        """The number of training episodes that violated a constraint on a probability."""
        return self.metrics.violations

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
    start_from: StartLike | None = None,
    baseline: PolicyLike | None = None,
    trust: Collection[str] = (),
    settings: Settings | None = None,
    execution: Execution = IN_PROCESS,
    callbacks: Sequence[Callback] | None = None,
) -> Result:
    """Learn a policy for a requirement and verify it on fresh episodes, in memory.

    Args:
        domain: a domain, or a name that `psyco.make` accepts.
        requirement: the requirement as text, as a file name, or parsed.
        parameters: parameters of a domain that is given by name.
        episodes: budget of training episodes; default: that of the settings, 60,000.
        steps: budget of training steps, instead of episodes.
        time: wall-clock time of the whole run, "10min", "90s", "1.5h" or seconds. The measured speed converts it to
            steps, which schedules follow; a clock ends learning in time for the certificate.
        seed: seed of all randomness; the result is a function of it.
        learner: a name ("safe-es", "snes", "ppo", "sac", "evosax", "table" or "auto") or an options object such as
            `psyco.PPO(learning_rate=3e-4)`.
        start_from: what learning starts from: a PSyCo policy, its file or its run; a Stable-Baselines3 model or any
            other external policy; demonstrations, as episodes of `psyco.record`, a file of traces or a Minari dataset.
        baseline: a PSyCo policy, its file or its run to compare the result with, beside random actions, doing nothing
            and the untrained network; "unconstrained": one that is learned without the constraints, which takes as long
            again.
        trust: files that may run code themselves, if learning starts from one: `sb3:FILE.zip`, `FILE.pt`.
        settings: all other settings of learning, selection and certificate: `psyco.Settings(...)`.
        execution: devices, worker processes, Ray, time-outs: `psyco.Execution(...)`. The result does not depend on it.
        callbacks: receivers of progress and metrics, see `psyco.Callback`; default: in a notebook `psyco.progress()`,
            elsewhere none.

    Returns:
        The policy, its certificate and the metrics table.
    """
    callbacks = _with_default(callbacks)
    problem = _prepare(
        domain, requirement, parameters, _settings(settings, episodes, steps, time, seed, learner),
        execution, time, start_from, trust, callbacks,
    )  # fmt: skip
    reference, parts = _as_baseline(baseline, problem), list[Metrics]()
    at = learn(problem, [Callback(on_metrics=lambda _, metrics: parts.append(metrics)), *callbacks])
    looks = Ledger(stream=Stream.CERTIFY)
    references = {} if reference is None else {GIVEN_NAME: reference}
    if baseline == UNCONSTRAINED:
        goal, first = Requirement(problem.requirement.goal), problem.initial_policy
        other = synthesize(problem.domain, goal, settings=problem.settings, execution=execution, start_from=first)
        references = {UNCONSTRAINED_NAME: other.policy}
    done = certify_best(problem, at, callbacks, ledger=looks, references=references)
    return Result(done.policy, done.certificate, concatenate(parts), done.candidate, done.baselines, looks)


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
    start_from: StartLike | None = None,
    baseline: PolicyLike | None = None,
    trust: Collection[str] = (),
    settings: Settings | None = None,
    execution: Execution = IN_PROCESS,
    callbacks: Sequence[Callback] | None = None,
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
    callbacks = _with_default(callbacks)
    problem = _prepare(
        domain, requirement, parameters, _settings(settings, episodes, steps, time, seed, learner),
        execution, time, start_from, trust, callbacks,
    )  # fmt: skip
    config, reference = configuration(problem, track=track), _as_baseline(baseline, problem)
    path = default_folder(config.domain) if folder is None else Path(folder)
    with start_run(path, config, problem, overwrite=overwrite) as session:
        if baseline is not None:
            add_baseline(session, reference)
        execute(session, callbacks=callbacks, checkpoint_every=execution.checkpoint_every)
    return read_run(path, config=None if problem.clock else session.config)  # a clock has written it again


@verb
def resume(
    folder: str | Path | Run,
    *,
    episodes: int | str | None = None,
    steps: int | str | None = None,
    domain: AnyDomain | None = None,
    trust: Collection[str] = (),
    execution: Execution = IN_PROCESS,
    callbacks: Sequence[Callback] | None = None,
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
        callbacks: receivers of progress and metrics, see `psyco.Callback`; default: in a notebook `psyco.progress()`,
            elsewhere none.
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
            execute(session, callbacks=_with_default(callbacks), checkpoint_every=execution.checkpoint_every)
    return read_run(path)


def _as_baseline(baseline: PolicyLike | None, problem: Problem) -> Policy | None:
    """Return the policy to compare with; None: there is none, or it is to be learned."""
    if baseline is None or baseline == UNCONSTRAINED:
        return None
    found, _ = find_policy(baseline)
    if not isinstance(found, Policy):
        raise RunError(
            f"{baseline} is not a PSyCo policy: baseline (--baseline) is {UNCONSTRAINED!r}, a run or a policy file; "
            "psyco verify NEW --against OLD compares policies of any kind"
        )
    found.check(problem.domain)
    return found


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
        changes |= {"episodes": 0, "steps": check_steps(steps), "stop_after": 0}
    elif episodes is not None:
        changes |= {"episodes": episodes, "steps": 0, "stop_after": 0}
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
    start_from: StartLike | None,
    trust: Collection[str],
    callbacks: Sequence[Callback],
) -> Problem:
    """Check the arguments, resolve the budget, and report the plan to the callbacks that ask for it."""
    made, wanted = as_domain(domain, parameters), as_requirement(requirement)
    made = fit_model(made, wanted, settings)
    seconds, began = None if time is None else read_time(time), monotonic()
    first = as_start(start_from, made, settings, execution, trust, callbacks)
    settings = with_initial_policy(settings, first)
    if first is not None:
        for callback in callbacks:
            callback.on_start(first)
    plan = None
    if seconds is not None:
        problem, plan = fit_to_time(
            made, wanted, settings, seconds, execution, initial_policy=first, spent=monotonic() - began
        )
    else:
        problem = prepare(made, wanted, settings, execution, initial_policy=first)
    check_spelling(problem)
    if isinstance(problem.sampler, GymSampler):
        for fault in find_faults(problem.sampler.job, problem.network.size, seed=settings.seed, execution=execution):
            logger.warning("%s fails `psyco check`, %s: %s", made.name, fault.name, fault.message)
    if warning := certificate_warning(problem.settings, problem.requirement):
        logger.warning("%s", warning)
    listeners = [callback for callback in callbacks if callback.wants_plan]
    # A compiled domain makes all episodes in a second: there is nothing to plan.
    if listeners and (time is not None or not problem.sampler.compiled):
        if plan is None:
            simulator = simulator_throughput(problem)
            plan = problem.plan(simulator, learning_throughput(problem, simulator))
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


# Show the progress of a run in one updating line per phase, in a terminal or a notebook.


LINE_INTERVAL = 0.3  # seconds
NEXT_LINE_AFTER = 10.0  # seconds, in phases whose lines stay
BAR_WIDTH = 20  # characters


def progress(stream: TextIO | None = None) -> Callback:
    """Return a callback with a progress line: `psyco.synthesize(domain, requirement, callbacks=[psyco.progress()])`.

    Return and satisfied share are means over the last segment, of the deployed policy where the learner plays it.

    Args:
        stream: output stream; default: standard output, which notebooks show below the cell.
    """
    out = sys.stdout if stream is None else stream
    latest, now, unfinished, next_line = Metrics({}), RunProgress("", 0, 0, ""), False, 0.0

    def show(at: RunProgress, beside: str = "") -> None:
        nonlocal now, unfinished, next_line
        fresh, now = at.phase != now.phase, at
        # A line is replaced until the phase ends, except in a test, whose end is not known before.
        in_place = at.phase in ("cloning", "learning")
        if not fresh and monotonic() < next_line and not (in_place and at.done >= at.total):
            return
        next_line = monotonic() + (LINE_INTERVAL if in_place else NEXT_LINE_AFTER)
        filled = min(BAR_WIDTH, int(BAR_WIDTH * at.done / max(at.total, 1)))
        line = f"{'█' * filled}{'░' * (BAR_WIDTH - filled)} {at.phase}: {at.done:,} of {at.total:,} {at.unit}{beside}"
        out.write(("\n" if fresh and unfinished else "") + (f"\r{line:<90}" if in_place else f"{line}\n"))
        out.flush()
        unfinished = in_place

    def enter(problem: Problem, metrics: Metrics) -> None:
        nonlocal latest
        latest = concatenate([latest, metrics] if latest else [metrics]).tail(problem.check_interval)
        kind = "deployed_" if "deployed_return" in latest else ""
        show(now, "".join(f"  {name} {latest[kind + name].mean():.3g}" for name in ("return", "satisfied")))

    def report(at: RunProgress) -> None:
        nonlocal now
        if at.phase == "learning" == now.phase:
            now = at  # shown with its metrics
        elif at.phase != "checking":
            show(at)

    def start_from(policy: Policy) -> None:
        nonlocal unfinished
        out.write(f"{chr(10) * unfinished}learning starts from {describe_initial_policy(policy)}\n")
        unfinished = False

    return Callback(on_metrics=enter, on_progress=report, on_start=start_from)


def _with_default(callbacks: Sequence[Callback] | None) -> Sequence[Callback]:
    """Return the callbacks; if none are given, a progress line in a notebook, and nothing elsewhere."""
    if callbacks is not None:
        return callbacks
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return [progress()] if getattr(shell, "kernel", None) is not None else []  # IPython in a terminal has no kernel
