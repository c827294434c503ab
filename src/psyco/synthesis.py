"""PSyCo(m, φ) = V(m, φ, L(m, φ)): learn a policy, verify it, certify what was shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco.domain.base import Domain
from psyco.domain.gym_env import GymDomain
from psyco.errors import RunError
from psyco.learn.base import Learner, LearnerState
from psyco.learn.learners import make_learner
from psyco.learn.metrics import Metrics, concatenate, tabulate
from psyco.learn.train import train
from psyco.policy import Bias, Network, Policy, network_for, policy_for
from psyco.rollout.episodes import Sampler, Stream, stream_key
from psyco.rollout.sampler import make_sampler, on_workers
from psyco.rollout.scaling import scaled
from psyco.spec.formula import Requirement
from psyco.spec.parse import parse
from psyco.verification.certificate import Certificate
from psyco.verification.methods import DEFAULT_METHOD
from psyco.verification.verify import (
    DEFAULT_MAX_EPISODES,
    check_decidable,
    check_seed,
    verify,
    verify_parameters,
)

SCALINGS = ("auto", "sampled", "none")


@dataclass(frozen=True)
class Settings:
    """Everything besides domain and requirement that determines the outcome of a run.

    Args:
        episodes: training episodes, rounded up to whole generations.
        seed: the run is a function of it.
        learner: how to learn; a name in `LEARNERS`.
        options: hyperparameters of that learner, where they differ from its defaults.
        hidden: hidden units of the policy network.
        bias: "one" as in the paper's equation, or "learned".
        scaling: what the network makes of observations. "sampled": their mean and spread under random policies become
            0 and 1; "none": as they are; "auto": sampled for Gymnasium environments, none for compiled domains.
        verify_every: verify the current policy after so many training episodes; 0: never.
        verify_episodes: at most so many episodes for each of these verifications.
        method: how the final policy is verified; a name in `METHODS`.
        max_episodes: at most so many episodes for the certificate.
    """

    episodes: int = 60_000
    seed: int = 0
    learner: str = "snes"
    options: dict[str, Any] = field(default_factory=dict)
    hidden: int = 32
    bias: Bias = "one"
    scaling: str = "auto"
    verify_every: int = 1000
    verify_episodes: int = 1000
    method: str = DEFAULT_METHOD
    max_episodes: int = DEFAULT_MAX_EPISODES

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.scaling not in SCALINGS:
            raise RunError(f"scaling must be one of {', '.join(SCALINGS)}, got {self.scaling!r}")
        for name, least in {
            "episodes": 1,
            "verify_every": 0,
            "verify_episodes": 1,
            "max_episodes": 1,
        }.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise RunError(f"{name} must be a whole number of at least {least}, got {value!r}")


def make_settings(**settings: Any) -> Settings:
    """Settings from keyword arguments; those it does not have are options of the learner."""
    own = {f.name for f in fields(Settings)} - {"options"}
    options = {name: value for name, value in settings.items() if name not in own}
    return Settings(**{name: settings[name] for name in own & set(settings)}, options=options)


class Problem(NamedTuple):
    """A run, ready to go."""

    domain: Domain
    requirement: Requirement
    settings: Settings
    network: Network
    sampler: Sampler
    learner: Learner

    @property
    def generations(self) -> int:
        """How many there will be."""
        return -(-self.settings.episodes // self.learner.episodes_per_generation)

    @property
    def segment(self) -> int:
        """Generations between two verification points; the last segment of a run may be shorter."""
        return max(1, (self.settings.verify_every or 1000) // self.learner.episodes_per_generation)


class Snapshot(NamedTuple):
    """Where learning stands after a segment: all that is needed to go on.

    A pytree of arrays apart from `metrics`, so that any of it can be kept in a checkpoint and read back into the
    structure that `beginning` has.
    """

    generation: int  # generations done
    state: LearnerState
    metrics: Metrics  # rows of the last segment


@dataclass(frozen=True)
class Result:
    """A policy, what was shown about it, and how it came about."""

    policy: Policy
    certificate: Certificate
    metrics: Metrics


def synthesize(
    domain: Domain,
    requirement: Requirement | str,
    *,
    devices: int = 1,
    workers: int = 1,
    ray: str | None = None,
    step_timeout: float | None = None,
    on_progress: Callable[[Problem, Snapshot], None] | None = None,
    **settings: Any,
) -> Result:
    """Learn a policy for the requirement and verify it on fresh episodes.

    Args:
        domain: where the agent acts.
        requirement: what must hold, as text or parsed.
        devices: over how many JAX devices a population is split; the result does not depend on it.
        workers: how many processes step a Gymnasium environment; the result does not depend on it.
        ray: the address of a Ray cluster for that, or "local"; the result does not depend on it.
        step_timeout: seconds after which a step of a Gymnasium environment counts as hanging, an error.
        on_progress: called after every segment of learning.
        settings: those of `Settings`; all others are hyperparameters of the learner.
    """
    domain = on_workers(domain, workers=workers, ray=ray, step_timeout=step_timeout)
    problem = prepare(domain, requirement, make_settings(**settings), devices=devices)
    segments = []
    for snapshot in learn(problem):
        segments.append(snapshot.metrics)
        if on_progress is not None:
            on_progress(problem, snapshot)
    return Result(*certified(problem, snapshot.state), concatenate(segments))


def prepare(
    domain: Domain, requirement: Requirement | str, settings: Settings, *, devices: int = 1
) -> Problem:
    """Check everything that can be checked before the first episode."""
    requirement = parse(requirement) if isinstance(requirement, str) else requirement
    check_decidable(requirement)
    network = network_for(domain, hidden=settings.hidden, bias=settings.bias)
    if settings.scaling == "sampled" or (settings.scaling == "auto" and isinstance(domain, GymDomain)):
        network = scaled(network, domain, stream_key(settings.seed, Stream.SCALE))
    sampler = make_sampler(domain, network, requirement, devices=devices)
    learner = make_learner(settings.learner, requirement, **settings.options)
    return Problem(domain, requirement, settings, network, sampler, learner)


def learn(problem: Problem, start: Snapshot | None = None) -> Iterator[Snapshot]:
    """L(m, φ): learn segment by segment, each ending in a verification, from the beginning or from `start`."""
    settings, learner = problem.settings, problem.learner
    per_generation = learner.episodes_per_generation
    start = beginning(problem) if start is None else start
    generation, state = start.generation, start.state
    key = jax.random.key(settings.seed)
    while generation < problem.generations:
        count = min(problem.segment, problem.generations - generation)
        state, rows = train(learner, problem.sampler, key, state, first=generation, generations=count)
        metrics = tabulate(jax.device_get(rows), first=generation, episodes_per_generation=per_generation)
        generation += count
        if settings.verify_every and problem.requirement.constraints:
            _verify_into(metrics, problem, learner.deployed(state), generation)
        yield Snapshot(generation, jax.device_get(state), metrics)


def beginning(problem: Problem) -> Snapshot:
    """Before the first generation."""
    theta = problem.network.init(stream_key(problem.settings.seed, Stream.START))
    return Snapshot(0, problem.learner.init(theta), Metrics({}))


def certified(problem: Problem, state: LearnerState) -> tuple[Policy, Certificate]:
    """V(m, φ, θ) for the policy that learning ended with."""
    policy = policy_for(problem.domain, problem.network, problem.learner.deployed(state))
    settings = problem.settings
    certificate = verify(
        policy, problem.domain, problem.requirement,
        method=settings.method, max_episodes=settings.max_episodes, seed=settings.seed,
    )  # fmt: skip
    return policy, certificate


def _verify_into(metrics: Metrics, problem: Problem, theta: Array, generation: int) -> None:
    """Alg. BV on the current policy, outside the learning loop; its outcome goes into the last row."""
    key = stream_key(problem.settings.seed, Stream.CHECK, generation)
    done = verify_parameters(
        problem.sampler, jnp.asarray(theta), problem.requirement, key,
        method="bayes", max_episodes=problem.settings.verify_episodes,
    )  # fmt: skip
    metrics["verified_confidence"][-1] = done.confidence(problem.requirement)
    metrics["verified_share"][-1] = min(p.share for p in done.progress)
    metrics["verified_return"][-1] = np.mean(done.returns, dtype=np.float64)
    metrics["verified_episodes"][-1] = done.episodes
    metrics["verdict"][-1] = done.verdict.name
