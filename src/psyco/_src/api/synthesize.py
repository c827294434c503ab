"""From a requirement to a certified policy: in memory, or in a folder that survives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psyco._src.api.argument_check import verb
from psyco._src.api.coerce import AnyDomain, PolicyLike, as_domain, as_start, find_run
from psyco._src.core.errors import check_known
from psyco._src.envs.base import Domain
from psyco._src.envs.registry import describe
from psyco._src.learners.metrics import Metrics, concatenate
from psyco._src.logic.ast import Requirement
from psyco._src.logic.requirement import AnyRequirement, as_requirement
from psyco._src.policies.network import Hidden
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.episodes import Stream
from psyco._src.rollout.execution import Execution
from psyco._src.runs.config import Config
from psyco._src.runs.problem import Problem, prepare
from psyco._src.runs.select import Candidate, certified, remark
from psyco._src.runs.session import check_free, default_folder, execute, resume_run, start_run
from psyco._src.runs.settings import AUTO, Settings, check_one_budget, check_steps, read_time
from psyco._src.runs.store import Run, read_run
from psyco._src.runs.time_budget import in_time, simulator_pace
from psyco._src.runs.tracking import TRACKERS
from psyco._src.runs.train import Callback, learn
from psyco._src.runs.warm_start import started_from
from psyco._src.runs.writer import CHECKPOINT_EVERY
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.certificate_html import certificate_html
from psyco._src.verification.ledger import Ledger

DEFAULT = Settings()


@dataclass(frozen=True, repr=False)
class Result:
    """A policy, what was shown about it, and how it came about."""

    policy: Policy
    certificate: Certificate
    metrics: Metrics
    candidate: Candidate  # how the policy did when candidates were compared
    looks: Ledger = field(compare=False)  # who verifies this result goes on from there

    @property
    def remark(self) -> str:
        """What stood in the way of a certificate and what would help; empty if there is one."""
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
    seed: int = DEFAULT.seed,
    learner: str = DEFAULT.learner,
    learner_options: Mapping[str, Any] | None = None,
    hidden: Hidden | None = None,
    bias: str = DEFAULT.bias,
    scaling: str = DEFAULT.scaling,
    start_from: PolicyLike | None = None,
    severity: bool = DEFAULT.severity,
    until_satisfied: bool = DEFAULT.until_satisfied,
    candidates: int | None = None,
    selection_episodes: int | None = None,
    attempts: int | None = None,
    verify_every: int | None = None,
    verify_episodes: int | None = None,
    method: str = DEFAULT.method,
    max_episodes: int | None = None,
    devices: int = 1,
    workers: int = 1,
    ray: str | None = None,
    step_timeout: float | None = None,
    sinks: Sequence[Callback] = (),
) -> Result:
    """Learn a policy for the requirement and verify it on fresh episodes; nothing is written.

    Args:
        domain: where the agent acts: a domain, or what `psyco.make` takes.
        requirement: what must hold, as text, as the name of a file, or parsed.
        parameters: of the domain, where it is given by name.
        episodes: training episodes, rounded up to whole generations; by default 60,000.
        steps: training steps, rounded up to whole generations: a budget instead of episodes.
        time: how long it should take, "10min", "90s", "1.5h" or seconds: a budget instead of both, which the measured
            speed turns into steps once, before learning begins.
        seed: the result is a function of it.
        learner: how to learn: "safe-es", "snes" (the paper's), "ppo", "sac", "evosax", or "auto": what fits the domain,
            the budget and the measured speed of the simulator; which one that was is in the settings of a run.
        learner_options: hyperparameters of the learner, where they differ from its defaults.
        hidden: hidden units of the policy network, or of each of its hidden layers, as in (64, 64). By default 32, and
            (64, 64) for actor-critics on Gymnasium environments.
        bias: biases of the network: "one" (the paper's equation), "learned" or "auto".
        scaling: how the network sees observations: "running", "sampled", "none" or "auto".
        start_from: a policy of ours to go on from, a run or a file: learning starts with its network and parameters.
        severity: learn from how far a formula is from holding, not from how often.
        until_satisfied: end learning as soon as all constraints are satisfied with confidence.
        candidates: so many policies from late in learning compete for the certificate. This and what follows is 5, 500,
            3, 1,000, 1,000 and 10,000 on compiled domains; where episodes cost time it is planned so that all of it
            takes at most a third of the training episodes.
        selection_episodes: how many episodes of each candidate decide in which order they are certified.
        attempts: at most so many candidates are tried; they share the permitted error.
        verify_every: verify the current policy after so many training episodes; 0: never.
        verify_episodes: at most so many episodes for each of these checks: 100, or for snes as Alg. BV needs them.
        method: how the final policy is verified: "anytime", "calibrated", "bayes", "sprt" or "fixed".
        max_episodes: at most so many episodes for the certificate.
        devices: over how many JAX devices a population is split; the result does not depend on it.
        workers: how many processes step a Gymnasium environment; the result does not depend on it.
        ray: the address of a Ray cluster for that, or "local"; the result does not depend on it.
        step_timeout: seconds after which a step of a Gymnasium environment counts as hanging, an error.
        sinks: who follows the run: see `psyco.Callback`.

    Returns:
        The policy, its certificate and the metrics table.
    """
    settings = Settings(
        **_budget(episodes, steps, time), seed=seed, learner=learner, options=learner_options or {},
        hidden=_or_auto(hidden), bias=bias, scaling=scaling, severity=severity, until_satisfied=until_satisfied,
        candidates=_or_auto(candidates), selection_episodes=_or_auto(selection_episodes), attempts=_or_auto(attempts),
        verify_every=_or_auto(verify_every), verify_episodes=_or_auto(verify_episodes), method=method,
        max_episodes=_or_auto(max_episodes),
    )  # fmt: skip
    execution, first = Execution(devices, workers, ray, step_timeout), as_start(start_from)
    made, wanted = as_domain(domain, parameters), as_requirement(requirement)
    problem = _ready(made, wanted, started_from(settings, first), execution, time, sinks, first)
    parts: list[Metrics] = []
    at = learn(problem, [Callback(rows=lambda _, metrics: parts.append(metrics)), *sinks])
    looks = Ledger(stream=Stream.CERTIFY)
    policy, certificate, candidate = certified(problem, at, sinks, ledger=looks)
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
    seed: int = DEFAULT.seed,
    learner: str = DEFAULT.learner,
    learner_options: Mapping[str, Any] | None = None,
    hidden: Hidden | None = None,
    bias: str = DEFAULT.bias,
    scaling: str = DEFAULT.scaling,
    start_from: PolicyLike | None = None,
    severity: bool = DEFAULT.severity,
    until_satisfied: bool = DEFAULT.until_satisfied,
    candidates: int | None = None,
    selection_episodes: int | None = None,
    attempts: int | None = None,
    verify_every: int | None = None,
    verify_episodes: int | None = None,
    method: str = DEFAULT.method,
    max_episodes: int | None = None,
    devices: int = 1,
    workers: int = 1,
    ray: str | None = None,
    step_timeout: float | None = None,
    track: Sequence[str] = (),
    overwrite: bool = False,
    checkpoint_every: float = CHECKPOINT_EVERY,
    sinks: Sequence[Callback] = (),
) -> Run:
    """The same in a folder: what is learned survives Ctrl-C, a kill, a power cut, and `resume` goes on with it.

    Args:
        domain: where the agent acts: a domain, or what `psyco.make` takes.
        requirement: what must hold, as text, as the name of a file, or parsed.
        folder: of the run; by default a free name below `runs/`.
        parameters: of the domain, where it is given by name.
        episodes: training episodes, rounded up to whole generations; by default 60,000.
        steps: training steps, rounded up to whole generations: a budget instead of episodes.
        time: how long it should take, "10min", "90s", "1.5h" or seconds: a budget instead of both, which the measured
            speed turns into steps once, before learning begins.
        seed: the result is a function of it.
        learner: how to learn, as in `synthesize`.
        learner_options: hyperparameters of the learner, where they differ from its defaults.
        hidden: hidden units of the policy network, or of each of its hidden layers, as in (64, 64). By default 32, and
            (64, 64) for actor-critics on Gymnasium environments.
        bias: biases of the network: "one" (the paper's equation), "learned" or "auto".
        scaling: how the network sees observations: "running", "sampled", "none" or "auto".
        start_from: a policy of ours to go on from, a run or a file: learning starts with its network and parameters.
        severity: learn from how far a formula is from holding, not from how often.
        until_satisfied: end learning as soon as all constraints are satisfied with confidence.
        candidates: so many policies from late in learning compete for the certificate. This and what follows is 5, 500,
            3, 1,000, 1,000 and 10,000 on compiled domains; where episodes cost time it is planned so that all of it
            takes at most a third of the training episodes.
        selection_episodes: how many episodes of each candidate decide in which order they are certified.
        attempts: at most so many candidates are tried; they share the permitted error.
        verify_every: verify the current policy after so many training episodes; 0: never.
        verify_episodes: at most so many episodes for each of these checks: 100, or for snes as Alg. BV needs them.
        method: how the final policy is verified, as in `synthesize`.
        max_episodes: at most so many episodes for the certificate.
        devices: over how many JAX devices a population is split; the result does not depend on it.
        workers: how many processes step a Gymnasium environment; the result does not depend on it.
        ray: the address of a Ray cluster for that, or "local"; the result does not depend on it.
        step_timeout: seconds after which a step of a Gymnasium environment counts as hanging, an error.
        track: also log to "tensorboard", "mlflow" or "wandb".
        overwrite: replace a run that is in that folder already.
        checkpoint_every: seconds between checkpoints; 0: after every segment.
        sinks: who follows the run: see `psyco.Callback`.

    Returns:
        The finished run, as `open_run` gives it.
    """
    settings = Settings(
        **_budget(episodes, steps, time), seed=seed, learner=learner, options=learner_options or {},
        hidden=_or_auto(hidden), bias=bias, scaling=scaling, severity=severity, until_satisfied=until_satisfied,
        candidates=_or_auto(candidates), selection_episodes=_or_auto(selection_episodes), attempts=_or_auto(attempts),
        verify_every=_or_auto(verify_every), verify_episodes=_or_auto(verify_episodes), method=method,
        max_episodes=_or_auto(max_episodes),
    )  # fmt: skip
    made = as_domain(domain, parameters)
    wanted = as_requirement(requirement)
    execution, first = Execution(devices, workers, ray, step_timeout), as_start(start_from)
    if folder is not None:
        check_free(Path(folder), overwrite)  # before episodes are played to find out how long it will take
    problem = _ready(made, wanted, started_from(settings, first), execution, time, sinks, first)
    config = configuration(problem, track=track)
    path = default_folder(config.domain) if folder is None else Path(folder)
    with start_run(path, config, problem, overwrite=overwrite) as session:
        execute(session, sinks=sinks, checkpoint_every=checkpoint_every)
    return read_run(path)


@verb
def resume(
    folder: str | Path | Run,
    *,
    episodes: int | str | None = None,
    steps: int | str | None = None,
    domain: AnyDomain | None = None,
    trust: Collection[str] = (),
    devices: int = 1,
    workers: int = 1,
    ray: str | None = None,
    step_timeout: float | None = None,
    track: Sequence[str] = (),
    checkpoint_every: float = CHECKPOINT_EVERY,
    sinks: Sequence[Callback] = (),
) -> Run:
    """Go on with a run that was interrupted, to the same bytes; or make a finished one longer, and look at it again.

    Args:
        folder: of the run, or the run itself.
        episodes: another total of training episodes, or so many more: "+40000".
        steps: the same for a run whose budget is in steps.
        domain: the run's own domain, for one that its name does not bring back.
        trust: code (`module:name`) that the run names and that may be imported.
        devices: over how many JAX devices a population is split.
        workers: how many processes step a Gymnasium environment.
        ray: the address of a Ray cluster for that, or "local".
        step_timeout: seconds after which a step of a Gymnasium environment counts as hanging, an error.
        track: trackers beyond this machine to go on with, "mlflow" or "wandb", since a file may not ask for them.
        checkpoint_every: seconds between checkpoints; 0: after every segment.
        sinks: who follows the run: see `psyco.Callback`.

    Returns:
        The finished run, as `open_run` gives it.
    """
    for name in track:
        check_known("tracker", name, TRACKERS)
    path = (
        find_run(folder).folder
        if isinstance(folder, Run) or not isinstance(folder, str | Path)
        else Path(folder)
    )
    with resume_run(
        path,
        episodes=None if episodes is None else str(episodes),
        steps=None if steps is None else str(steps),
        domain=None if domain is None else as_domain(domain),
        execution=Execution(devices, workers, ray, step_timeout),
        trust=trust,
        track=track,
    ) as session:
        if session is not None:
            execute(session, sinks=sinks, checkpoint_every=checkpoint_every)
    return read_run(path)


def _budget(episodes: int | None, steps: int | None, time: str | float | None) -> dict[str, Any]:
    """One budget of three, as settings have it; that in time is not known yet."""
    given = {"episodes": episodes, "steps": steps, "time": time}
    check_one_budget(**{name: value for name, value in given.items() if value is not None})
    if steps is not None:
        return {"steps": check_steps(steps)}
    return {"episodes": DEFAULT.episodes if episodes is None else episodes}


def _or_auto(value: Any) -> Any:
    return AUTO if value is None else value


def _ready(
    domain: Domain,
    requirement: Requirement,
    settings: Settings,
    execution: Execution,
    time: str | float | None,
    sinks: Sequence[Callback],
    first: Policy | None,
) -> Problem:
    """Everything checked, the budget resolved, and whoever wants the plan has it."""
    plan = None
    if time is not None:
        problem, plan = in_time(domain, requirement, settings, read_time(time), execution, start=first)
    else:
        problem = prepare(domain, requirement, settings, execution, start=first)
    listeners = [sink for sink in sinks if sink.wants_plan]
    # Where all episodes are made in a second there is nothing to plan.
    if listeners and (time is not None or not problem.sampler.compiled):
        plan = plan or problem.plan(simulator_pace(problem))
        for sink in listeners:
            sink.planned(plan)
    return problem


def configuration(problem: Problem, *, track: Sequence[str] = ()) -> Config:
    """A run, written down."""
    for name in track:
        check_known("tracker", name, TRACKERS)
    name, parameters = describe(problem.domain)
    text = problem.requirement.text.strip() or str(problem.requirement)
    return Config(name, text, dict(parameters), problem.settings, tuple(dict.fromkeys(track)))
