"""PSyCo(m, φ) = V(m, φ, L(m, φ)): learn a policy, verify it, certify what was shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco._src.certify.certificate import Certificate
from psyco._src.certify.verify import (
    DEFAULT_MAX_EPISODES,
    Verification,
    certify_candidates,
    check_decidable,
    check_seed,
    constraint_outcomes,
    look_share,
    sample,
    verify_parameters,
)
from psyco._src.domain.base import Domain
from psyco._src.domain.gym_env import GymDomain
from psyco._src.errors import EpisodeError, RunError
from psyco._src.learn.base import Learner, LearnerState
from psyco._src.learn.keep import Keeping
from psyco._src.learn.learners import make_learner
from psyco._src.learn.metrics import Metrics, concatenate, tabulate
from psyco._src.learn.train import train
from psyco._src.policy.file import Policy, policy_for
from psyco._src.policy.network import Bias, Network, network_for
from psyco._src.rollout.episodes import Sampler, Stream, stream_key
from psyco._src.rollout.sampler import make_sampler, on_workers
from psyco._src.rollout.scaling import scaled
from psyco._src.smc.base import Counts, Verdict
from psyco._src.smc.bayes import posterior_mass
from psyco._src.smc.methods import DEFAULT_METHOD
from psyco._src.spec.formula import Requirement
from psyco._src.spec.parse import parse

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
        bias: "one" as in the paper's equation, "learned", or "auto": one for snes, learned for all others.
        scaling: what the network makes of observations. "sampled": their mean and spread under random policies become
            0 and 1; "none": as they are; "auto": sampled for Gymnasium environments, none for compiled domains.
        severity: learn from how far a formula is from holding, instead of how often; satisfaction stays what it is.
        until_satisfied: end learning as soon as the current policy satisfies all constraints.
        candidates: how many policies from late in learning compete for the certificate; 1: only the last.
        selection_episodes: how many episodes of each candidate decide in which order they are certified.
        attempts: at most so many candidates are tried; they share the permitted error.
        verify_every: verify the current policy after so many training episodes; 0: never.
        verify_episodes: at most so many episodes for each of these verifications.
        method: how the final policy is verified; a name in `METHODS`.
        max_episodes: at most so many episodes for the certificate.
    """

    episodes: int = 60_000
    seed: int = 0
    learner: str = "safe-es"
    options: dict[str, Any] = field(default_factory=dict)
    hidden: int = 32
    bias: str = "auto"
    scaling: str = "auto"
    severity: bool = False
    until_satisfied: bool = False
    candidates: int = 5
    selection_episodes: int = 500
    attempts: int = 3
    verify_every: int = 1000
    verify_episodes: int = 1000
    method: str = DEFAULT_METHOD
    max_episodes: int = DEFAULT_MAX_EPISODES

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed))
        if self.scaling not in SCALINGS:
            raise RunError(f"scaling must be one of {', '.join(SCALINGS)}, got {self.scaling!r}")
        for name, least in {
            "episodes": 1,
            "candidates": 1,
            "selection_episodes": 1,
            "attempts": 1,
            "verify_every": 0,
            "verify_episodes": 1,
            "max_episodes": 1,
        }.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise RunError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.until_satisfied and not self.verify_every:
            raise RunError("until_satisfied needs verify_every above 0: learning ends after a verification")


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
    def keeper(self) -> Keeping:
        """The learner as it is run: it keeps candidates, and its state is that of a snapshot."""
        return Keeping(self.learner, self.settings.candidates, self.generations)

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
    metrics: Metrics  # rows since the snapshot before


@dataclass(frozen=True)
class Result:
    """A policy, what was shown about it, and how it came about."""

    policy: Policy
    certificate: Certificate
    metrics: Metrics

    @property
    def remark(self) -> str:
        """What stood in the way of a certificate and what would help; empty if there is one."""
        return remark(self.certificate)


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
    problem = prepare(
        domain, requirement, make_settings(**settings),
        devices=devices, workers=workers, ray=ray, step_timeout=step_timeout,
    )  # fmt: skip
    segments = []
    snapshot = None
    try:
        for snapshot in learn(problem):
            segments.append(snapshot.metrics)
            if on_progress is not None:
                on_progress(problem, snapshot)
        assert snapshot is not None, "a run has at least one generation"
        return Result(*certified(problem, snapshot.state), concatenate(segments))
    except EpisodeError as error:
        error.policy = None if snapshot is None else deployed(problem, snapshot.state)
        raise


def prepare(
    domain: Domain,
    requirement: Requirement | str,
    settings: Settings,
    *,
    devices: int = 1,
    workers: int = 1,
    ray: str | None = None,
    step_timeout: float | None = None,
) -> Problem:
    """Check everything that can be checked before the first episode."""
    domain = on_workers(domain, workers=workers, ray=ray, step_timeout=step_timeout)
    requirement = parse(requirement) if isinstance(requirement, str) else requirement
    check_decidable(requirement)
    bias = {"auto": "one" if settings.learner == "snes" else "learned"}.get(settings.bias, settings.bias)
    network = network_for(domain, hidden=settings.hidden, bias=cast(Bias, bias))
    if settings.scaling == "sampled" or (settings.scaling == "auto" and isinstance(domain, GymDomain)):
        network = scaled(network, domain, stream_key(settings.seed, Stream.SCALE))
    sampler = make_sampler(domain, network, requirement, devices=devices, severity=settings.severity)
    learner = make_learner(
        settings.learner, requirement, network=network, budget=settings.episodes, **settings.options
    )
    return Problem(domain, requirement, settings, network, sampler, learner)


def learn(problem: Problem, start: Snapshot | None = None) -> Iterator[Snapshot]:
    """L(m, φ): learn segment by segment, each ending in a verification, from the beginning or from `start`.

    Ends before the episodes are spent if the settings say `until_satisfied` and a verification says so.
    """
    settings, learner = problem.settings, problem.keeper
    per_generation = learner.episodes_per_generation
    start = beginning(problem) if start is None else start
    generation, state = start.generation, start.state
    key = stream_key(settings.seed, Stream.TRAIN)
    # A run that goes on after its last verification ends where it would have ended.
    checked = settings.until_satisfied and generation > 0 and bool(problem.requirement.constraints)
    enough = checked and _check(problem, state, generation)[1]
    while generation < problem.generations and not enough:
        count = min(problem.segment, problem.generations - generation)
        try:
            state, rows = train(
                learner,
                problem.sampler,
                key,
                state,
                first=generation,
                generations=count,
                most=problem.segment,
            )
        except EpisodeError as error:
            if error.learned is not None:
                state, rows = error.learned
                metrics = tabulate(rows, first=generation, episodes_per_generation=per_generation)
                yield Snapshot(generation + metrics.rows, jax.device_get(state), metrics)
            raise
        metrics = tabulate(jax.device_get(rows), first=generation, episodes_per_generation=per_generation)
        generation += count
        verified = settings.verify_every and problem.requirement.constraints
        if verified and problem.sampler.compiled and generation == count and 1 < count < problem.generations:
            # The first numbers of a long run are there before its verification is compiled.
            yield Snapshot(generation, jax.device_get(state), metrics.head(count - 1))
            metrics = metrics.tail(1)
        try:
            if verified:
                done, enough = _check(problem, state, generation)
                _enter(metrics, problem.requirement, done)
        except EpisodeError:
            yield Snapshot(generation, jax.device_get(state), metrics)
            raise
        yield Snapshot(generation, jax.device_get(state), metrics)


def beginning(problem: Problem) -> Snapshot:
    """Before the first generation."""
    key = stream_key(problem.settings.seed, Stream.START)
    return Snapshot(0, _first_state(problem.keeper, problem.network, key), Metrics({}))


@jax.jit(static_argnums=(0, 1))
def _first_state(keeper: Keeping, network: Network, key: Array) -> LearnerState:
    return keeper.init(network.init(key))


class Candidate(NamedTuple):
    """A policy from late in learning, and how it did on the episodes of the selection."""

    generation: int
    policy: Policy
    mean_return: float
    confidence: float  # that the constraint which is believed in the least holds
    enough: bool  # every constraint is believed in as much as is required


def ranked(problem: Problem, state: LearnerState) -> list[Candidate]:
    """The candidates in the order in which they should be certified.

    All play the same episodes, of a stream that nothing else uses. Those whose satisfaction looks sufficient come
    first, the best by return before the others; the rest follow by how much they are believed in.
    """
    settings, requirement = problem.settings, problem.requirement
    kept = problem.keeper.kept(state)
    sign = 1.0 if requirement.goal.maximize else -1.0
    key = stream_key(settings.seed, Stream.SELECT)
    candidates = []
    for generation, theta in kept:
        policy = policy_for(problem.domain, problem.network, theta)
        if len(kept) == 1:
            return [Candidate(generation, policy, 0.0, 0.0, True)]
        parts = list(sample(problem.sampler, jnp.asarray(theta), key, settings.selection_episodes))
        n = settings.selection_episodes
        returns = np.concatenate([part.ret for part in parts])[:n].astype(np.float64)
        satisfied = np.concatenate([part.satisfied for part in parts])[:n]
        hits = constraint_outcomes(requirement, satisfied).sum(axis=0)
        belief = [
            float(posterior_mass(Counts(int(s), n - int(s)), c.lower, c.upper))
            for s, c in zip(hits, requirement.constraints, strict=True)
        ]
        enough = all(b >= c.confidence for b, c in zip(belief, requirement.constraints, strict=True))
        mean = float(returns.mean())
        candidates.append(Candidate(generation, policy, mean, min(belief, default=1.0), enough))
    return sorted(
        candidates, key=lambda c: (c.enough, sign * c.mean_return if c.enough else c.confidence), reverse=True
    )


def deployed(problem: Problem, state: LearnerState) -> Policy:
    """The policy that would be used if learning ended now."""
    return policy_for(problem.domain, problem.network, problem.keeper.deployed(state))


def certified(
    problem: Problem, state: LearnerState, *, issued: str | None = None
) -> tuple[Policy, Certificate]:
    """V(m, φ, θ): certify the best candidate on fresh episodes, and if it fails the next; the error is shared.

    Without a certificate the policy is the candidate that came closest, and the certificate says how close.
    `issued` is the certificate's time, if not now.
    """
    settings = problem.settings
    policies = [candidate.policy for candidate in ranked(problem, state)][: settings.attempts]
    chosen, certificate = certify_candidates(
        policies, problem.domain, problem.requirement,
        method=settings.method, max_episodes=settings.max_episodes, seed=settings.seed, issued=issued,
    )  # fmt: skip
    return policies[chosen], certificate


def remark(certificate: Certificate) -> str:
    """What stood in the way of a certificate and what would help; empty if there is one."""
    if certificate.verdict is Verdict.SATISFIED:
        return ""
    tried = len(certificate.looks)
    lines = [
        f"No policy was certified: {tried} {'candidate was' if tried == 1 else 'candidates were'} tried, "
        "and the one that came closest is returned."
    ]
    close = True
    for finding in certificate.findings:
        if finding.verdict is Verdict.SATISFIED:
            continue
        lines.append(
            f"{finding.constraint}: it held in {finding.satisfied:,} of {finding.episodes:,} episodes "
            f"({finding.estimate:.4f}, the truth is between {finding.lower:.4f} and {finding.upper:.4f})."
        )
        close = close and finding.verdict is Verdict.UNDECIDED
    lines.append(
        "It may be good enough: more episodes for the certificate (max_episodes) would tell, and more training "
        "episodes would make it better."
        if close
        else "More training episodes may help. If they don't, the requirement may be out of reach in this domain: "
        "ask for a lower probability, or weaken the formula."
    )
    return "\n".join(lines)


def _check(problem: Problem, state: LearnerState, generation: int) -> tuple[Verification, bool]:
    """Verify the current policy outside the learning loop; also says whether learning may end.

    The paper does it by Alg. BV. Where the outcome may end learning, every verification is one look of many, by a
    test with an error rate: the i-th may use 1/(i(i+1)) of the error, so that all together keep to what is permitted.
    """
    settings = problem.settings
    theta = jnp.asarray(problem.keeper.deployed(state))
    key = stream_key(settings.seed, Stream.CHECK, generation)
    if not settings.until_satisfied:
        done = verify_parameters(
            problem.sampler,
            theta,
            problem.requirement,
            key,
            method="bayes",
            max_episodes=settings.verify_episodes,
        )
        return done, False
    done = verify_parameters(
        problem.sampler, theta, problem.requirement, key,
        method="anytime", max_episodes=settings.max_episodes, share=look_share(-(-generation // problem.segment)),
    )  # fmt: skip
    return done, done.verdict is Verdict.SATISFIED


def _enter(metrics: Metrics, requirement: Requirement, done: Verification) -> None:
    """The outcome of a verification goes into the last row."""
    metrics["verified_confidence"][-1] = done.confidence(requirement)
    metrics["verified_share"][-1] = min(p.share for p in done.progress)
    metrics["verified_return"][-1] = np.mean(done.returns, dtype=np.float64)
    metrics["verified_episodes"][-1] = done.episodes
    metrics["verdict"][-1] = done.verdict.name
