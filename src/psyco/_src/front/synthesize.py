"""From a requirement to a certified policy: in memory, or in a folder that survives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psyco._src.certify.certificate import Certificate
from psyco._src.certify.html import certificate_html
from psyco._src.certify.ledger import Ledger
from psyco._src.domain.catalogue import describe
from psyco._src.errors import check_known
from psyco._src.front.inputs import AnyDomain, as_domain, find_run
from psyco._src.front.verb import verb
from psyco._src.learn.metrics import Metrics, concatenate
from psyco._src.policy.file import Policy
from psyco._src.rollout.episodes import Stream
from psyco._src.rollout.execution import Execution
from psyco._src.run.config import Config
from psyco._src.run.folder import Run, read_run
from psyco._src.run.keeper import CHECKPOINT_EVERY
from psyco._src.run.session import default_folder, execute, resume_run, start_run
from psyco._src.run.tracking import TRACKERS
from psyco._src.spec.requirement import AnyRequirement, as_requirement
from psyco._src.synthesis.loop import Sink, learn
from psyco._src.synthesis.problem import Problem, prepare
from psyco._src.synthesis.selection import Candidate, certified, remark
from psyco._src.synthesis.settings import Settings

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
    episodes: int = DEFAULT.episodes,
    seed: int = DEFAULT.seed,
    learner: str = DEFAULT.learner,
    learner_options: Mapping[str, Any] | None = None,
    hidden: int = DEFAULT.hidden,
    bias: str = DEFAULT.bias,
    scaling: str = DEFAULT.scaling,
    severity: bool = DEFAULT.severity,
    until_satisfied: bool = DEFAULT.until_satisfied,
    candidates: int = DEFAULT.candidates,
    selection_episodes: int = DEFAULT.selection_episodes,
    attempts: int = DEFAULT.attempts,
    verify_every: int = DEFAULT.verify_every,
    verify_episodes: int = DEFAULT.verify_episodes,
    method: str = DEFAULT.method,
    max_episodes: int = DEFAULT.max_episodes,
    devices: int = 1,
    workers: int = 1,
    ray: str | None = None,
    step_timeout: float | None = None,
    sinks: Sequence[Sink] = (),
) -> Result:
    """Learn a policy for the requirement and verify it on fresh episodes; nothing is written.

    Args:
        domain: where the agent acts: a domain, or what `psyco.make` takes.
        requirement: what must hold, as text, as the name of a file, or parsed.
        parameters: of the domain, where it is given by name.
        episodes: training episodes, rounded up to whole generations.
        seed: the result is a function of it.
        learner: how to learn: "safe-es", "snes" (the paper's), "ppo" or "evosax".
        learner_options: hyperparameters of the learner, where they differ from its defaults.
        hidden: hidden units of the policy network.
        bias: biases of the network: "one" (the paper's equation), "learned" or "auto".
        scaling: how the network sees observations: "sampled", "none" or "auto".
        severity: learn from how far a formula is from holding, not from how often.
        until_satisfied: end learning as soon as all constraints are satisfied with confidence.
        candidates: so many policies from late in learning compete for the certificate.
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
        sinks: who follows the run: see `psyco.Sink`.

    Returns:
        The policy, its certificate and the metrics table.
    """
    settings = Settings(
        episodes=episodes, seed=seed, learner=learner, options=learner_options or {}, hidden=hidden, bias=bias,
        scaling=scaling, severity=severity, until_satisfied=until_satisfied, candidates=candidates,
        selection_episodes=selection_episodes, attempts=attempts, verify_every=verify_every,
        verify_episodes=verify_episodes, method=method, max_episodes=max_episodes,
    )  # fmt: skip
    execution = Execution(devices, workers, ray, step_timeout)
    problem = prepare(as_domain(domain, parameters), as_requirement(requirement), settings, execution)
    parts: list[Metrics] = []
    at = learn(problem, [Sink(rows=lambda _, metrics: parts.append(metrics)), *sinks])
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
    episodes: int = DEFAULT.episodes,
    seed: int = DEFAULT.seed,
    learner: str = DEFAULT.learner,
    learner_options: Mapping[str, Any] | None = None,
    hidden: int = DEFAULT.hidden,
    bias: str = DEFAULT.bias,
    scaling: str = DEFAULT.scaling,
    severity: bool = DEFAULT.severity,
    until_satisfied: bool = DEFAULT.until_satisfied,
    candidates: int = DEFAULT.candidates,
    selection_episodes: int = DEFAULT.selection_episodes,
    attempts: int = DEFAULT.attempts,
    verify_every: int = DEFAULT.verify_every,
    verify_episodes: int = DEFAULT.verify_episodes,
    method: str = DEFAULT.method,
    max_episodes: int = DEFAULT.max_episodes,
    devices: int = 1,
    workers: int = 1,
    ray: str | None = None,
    step_timeout: float | None = None,
    track: Sequence[str] = (),
    overwrite: bool = False,
    checkpoint_every: float = CHECKPOINT_EVERY,
    sinks: Sequence[Sink] = (),
) -> Run:
    """The same in a folder: what is learned survives Ctrl-C, a kill, a power cut, and `resume` goes on with it.

    Args:
        domain: where the agent acts: a domain, or what `psyco.make` takes.
        requirement: what must hold, as text, as the name of a file, or parsed.
        folder: of the run; by default a free name below `runs/`.
        parameters: of the domain, where it is given by name.
        episodes: training episodes, rounded up to whole generations.
        seed: the result is a function of it.
        learner: how to learn, as in `synthesize`.
        learner_options: hyperparameters of the learner, where they differ from its defaults.
        hidden: hidden units of the policy network.
        bias: biases of the network: "one" (the paper's equation), "learned" or "auto".
        scaling: how the network sees observations: "sampled", "none" or "auto".
        severity: learn from how far a formula is from holding, not from how often.
        until_satisfied: end learning as soon as all constraints are satisfied with confidence.
        candidates: so many policies from late in learning compete for the certificate.
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
        sinks: who follows the run: see `psyco.Sink`.

    Returns:
        The finished run, as `open_run` gives it.
    """
    settings = Settings(
        episodes=episodes, seed=seed, learner=learner, options=learner_options or {}, hidden=hidden, bias=bias,
        scaling=scaling, severity=severity, until_satisfied=until_satisfied, candidates=candidates,
        selection_episodes=selection_episodes, attempts=attempts, verify_every=verify_every,
        verify_episodes=verify_episodes, method=method, max_episodes=max_episodes,
    )  # fmt: skip
    made = as_domain(domain, parameters)
    wanted = as_requirement(requirement)
    problem = prepare(made, wanted, settings, Execution(devices, workers, ray, step_timeout))
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
    domain: AnyDomain | None = None,
    trust: Collection[str] = (),
    devices: int = 1,
    workers: int = 1,
    ray: str | None = None,
    step_timeout: float | None = None,
    track: Sequence[str] = (),
    checkpoint_every: float = CHECKPOINT_EVERY,
    sinks: Sequence[Sink] = (),
) -> Run:
    """Go on with a run that was interrupted, to the same bytes; or make a finished one longer, and look at it again.

    Args:
        folder: of the run, or the run itself.
        episodes: another total of training episodes, or so many more: "+40000".
        domain: the run's own domain, for one that its name does not bring back.
        trust: code (`module:name`) that the run names and that may be imported.
        devices: over how many JAX devices a population is split.
        workers: how many processes step a Gymnasium environment.
        ray: the address of a Ray cluster for that, or "local".
        step_timeout: seconds after which a step of a Gymnasium environment counts as hanging, an error.
        track: trackers beyond this machine to go on with, "mlflow" or "wandb", since a file may not ask for them.
        checkpoint_every: seconds between checkpoints; 0: after every segment.
        sinks: who follows the run: see `psyco.Sink`.

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
        domain=None if domain is None else as_domain(domain),
        execution=Execution(devices, workers, ray, step_timeout),
        trust=trust,
        track=track,
    ) as session:
        if session is not None:
            execute(session, sinks=sinks, checkpoint_every=checkpoint_every)
    return read_run(path)


def configuration(problem: Problem, *, track: Sequence[str] = ()) -> Config:
    """A run, written down."""
    for name in track:
        check_known("tracker", name, TRACKERS)
    name, parameters = describe(problem.domain)
    text = problem.requirement.text.strip() or str(problem.requirement)
    return Config(name, text, dict(parameters), problem.settings, tuple(dict.fromkeys(track)))
