"""Learn an adversary that makes a policy fail, and verify the policy against it on fresh episodes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from psyco._src.core.errors import RequirementError, RunError
from psyco._src.envs.adversary import AdversaryDomain, AttackedDomain, FixedPolicy, check_attackable
from psyco._src.envs.base import CompiledDomain, Domain, require_finite
from psyco._src.envs.deviation import DeviatedDomain, ResponseDomain, check_deviation
from psyco._src.envs.gym_adversary import GymAdversary, GymAttacked, derive
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.variants import AnyAdversary, Deviation, Disturbance
from psyco._src.exact.matrix_games import simultaneous_game_value
from psyco._src.exact.solver import best_probability, constrained_optimum, evaluate, game_value
from psyco._src.exact.unfold import policy_actions, reachable_observations, unfold
from psyco._src.learners.learner_registry import AUTO_LEARNER, learner_class
from psyco._src.logic.ast import Connective, Formula, Not, Requirement, Signal, roots, walk
from psyco._src.logic.batch_monitor import BatchMonitor
from psyco._src.logic.validate import refuse_intervals, subjects
from psyco._src.policies.external import AnyPolicy
from psyco._src.policies.guard import Guard
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.episodes import Sampler
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.gym_sampler import GymSampler
from psyco._src.rollout.jax_sampler import JaxSampler
from psyco._src.rollout.sampler import make_monitor
from psyco._src.rollout.violation_sampler import GymViolationSampler, ViolationSampler
from psyco._src.runs.best_response import Gain, deviated_domain, measure_gain, response_domain, with_response
from psyco._src.runs.budget import CONTROL_HIDDEN, MAX_TABLE_STATES
from psyco._src.runs.problem import prepare
from psyco._src.runs.select import rank_candidates
from psyco._src.runs.settings import Settings
from psyco._src.runs.train import Callback, learn, progress_reporter
from psyco._src.verification.base import Verdict
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.ledger import Ledger
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD
from psyco._src.verification.verifier import verify

# Share of the random draws while an adversary with a smaller one learns: a choice that is seldom carried out shows
# little of its effect. What harms at one share mostly harms at another, and candidates are compared at the own one.
MIN_LEARNING_SHARE = 0.5
# Of best responses: it learns from steps, and its networks may have more units than a search can handle.
RESPONSE_LEARNER = "ppo"

ActingAdversary: TypeAlias = AdversaryDomain | GymAdversary | ResponseDomain  # domains in which an adversary acts
Attacked: TypeAlias = AttackedDomain | GymAttacked | DeviatedDomain  # domains in which it is fixed


class ExactViolation(NamedTuple):
    """Exact probabilities that an episode violates the requirement, on a finite domain."""

    without: float  # an adversary
    learned: float  # against the learned adversary
    worst: float  # against the worst adversary of this kind and size, which also knows time and counters
    game: float  # against the worst adversary of the best policy; both also know time and counters

    @property
    def exploitability(self) -> float:
        """How far the worst adversary raises the probability above what the best policy has against its own."""
        return self.worst - self.game

    def describe(self, kind: str, one: str) -> str:
        """Return the probabilities in words; an adversary or a deviation is a `kind`, and `one` is this one."""
        return (
            f"{self.without:.6f} without {kind}, {self.learned:.6f} against {one}, {self.worst:.6f} against the worst"
        )


@dataclass(frozen=True, repr=False)
class AttackResult:
    """A learned adversary or deviation, and the certificate of a policy against it."""

    adversary: Policy  # of a deviation the joint policy, with the agent's response in it
    domain: Attacked  # in which the adversary acts
    certificate: Certificate
    exact: ExactViolation | None  # None: not asked for
    gain: Gain | None = None  # of the agent that deviates

    @property
    def verdict(self) -> Verdict:
        """Verdict of the requirement against this adversary."""
        return self.certificate.verdict

    def __str__(self) -> str:
        lines = [f"against {self._about}:", str(self.certificate)]
        kind = "an adversary"
        if self.gain is not None:
            whose, kind = ("team", "agent")[_rewards_agents(self.domain)], "a deviation"
            lines.append(f"  {whose}'s {self.gain}")
        if self.exact is not None:
            lines.append(
                f"  exact probability of a violation: {self.exact.describe(kind, 'this one')}; the best policy has "
                f"{self.exact.game:.6f} against its worst"
            )
        return "\n".join(lines)

    @property
    def _about(self) -> AnyAdversary:
        return self.domain.deviation if isinstance(self.domain, DeviatedDomain) else self.domain.disturbance

    def __repr__(self) -> str:
        return f"<AttackResult: {self.verdict.name} against {self._about}>"

    def to_json(self) -> str:
        """Return the certificate, the adversary and the exact probabilities as JSON."""
        content = {
            "adversary": self.domain.parameters["adversary"],
            "exact": self.exact and self.exact._asdict(),
            **({"gain": self.gain._asdict()} if self.gain else {}),
            "certificate": json.loads(self.certificate.to_json()),
        }
        return json.dumps(content, indent=2, allow_nan=False) + "\n"


def attack(
    policy: AnyPolicy,
    domain: Domain,
    requirement: Requirement,
    disturbance: AnyAdversary,
    *,
    adversary: Policy | None = None,
    settings: Settings,
    method: str = DEFAULT_METHOD,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    ledger: Ledger | None = None,
    with_exact: bool = False,
    execution: Execution = IN_PROCESS,
    callbacks: Sequence[Callback] = (),
) -> AttackResult:
    """Learn an adversary against a policy, unless one is given, and verify the policy against it.

    Args:
        policy: the policy.
        domain: where it acts.
        requirement: its formulas are what the adversary makes fail.
        disturbance: what the adversary may change, or which agent deviates.
        adversary: an adversary that was learned before; None: learn one.
        settings: of learning; their seed is also that of the fresh episodes.
        method: the statistical test.
        max_episodes: maximum number of fresh episodes.
        ledger: earlier looks at the policy.
        with_exact: also compute exact probabilities, on a finite domain.
        execution: where episodes are made.
        callbacks: receive the progress.
    """
    check_attack(policy, domain, requirement, disturbance)
    if adversary is None:
        adversary = learn_against(policy, domain, requirement, disturbance, settings, execution, callbacks)
    fixed = attacked_domain(domain, disturbance, adversary)
    exact = exact_violation(policy, domain, requirement, disturbance, adversary) if with_exact else None
    certificate = verify(
        policy, fixed, requirement, method=method, max_episodes=max_episodes, seed=settings.seed,
        execution=execution, ledger=ledger, progress=progress_reporter(callbacks, "certifying", max_episodes),
    )  # fmt: skip
    gain = None
    if isinstance(disturbance, Deviation) and isinstance(policy, Policy):
        gain = measure_gain(policy, domain, disturbance, adversary, seed=settings.seed, execution=execution)
        if with_exact and disturbance.goal == "return":
            best = constrained_optimum(response_domain(policy, domain, disturbance), Requirement(goal=requirement.goal))
            gain = gain._replace(best=best and best.expected_return)
    return AttackResult(adversary, fixed, certificate, exact, gain)


def learn_against(
    policy: AnyPolicy,
    domain: Domain,
    requirement: Requirement,
    disturbance: AnyAdversary,
    settings: Settings,
    execution: Execution = IN_PROCESS,
    callbacks: Sequence[Callback] = (),
) -> Policy:
    """Return a learned adversary of a policy; for a deviation the joint policy, with the agent's response in it."""
    where = adversary_domain(policy, domain, disturbance)
    if not isinstance(disturbance, Deviation):
        return learn_adversary(where, requirement, settings, execution, callbacks)
    if settings.learner == AUTO_LEARNER:
        settings = dataclasses.replace(settings, learner=RESPONSE_LEARNER)
    if settings.hidden is None and learner_class(settings.learner).is_actor_critic:
        settings = dataclasses.replace(settings, hidden=CONTROL_HIDDEN)
    assert isinstance(policy, Policy)
    return with_response(policy, disturbance, learn_adversary(where, requirement, settings, execution, callbacks))


def adversary_domain(policy: AnyPolicy, domain: Domain, disturbance: AnyAdversary) -> ActingAdversary:
    """Return the domain in which an adversary of this policy acts."""
    if isinstance(disturbance, Deviation):
        return response_domain(policy, domain, disturbance)
    base = check_attackable(domain, disturbance)
    policy.check(base)
    if not isinstance(policy, Policy):
        raise RunError(
            "an adversary is learned against a PSyCo policy, and this is another one; psyco synthesize --from POLICY "
            "makes a PSyCo policy that acts like it"
        )
    if isinstance(base, GymDomain):
        made: GymAdversary = derive(base, GymAdversary, disturbance=disturbance, fixed=policy)
        return made
    return AdversaryDomain(base, disturbance, _fixed(policy), _levels(base, disturbance))


def attacked_domain(domain: Domain, disturbance: AnyAdversary, adversary: Policy) -> Attacked:
    """Return the domain in which this adversary acts against any policy."""
    if isinstance(disturbance, Deviation):
        return deviated_domain(domain, disturbance, adversary)
    base = check_attackable(domain, disturbance)
    if isinstance(base, GymDomain):
        where: GymAdversary = derive(base, GymAdversary, disturbance=disturbance, fixed=adversary)
        adversary.check(where)
        made: GymAttacked = derive(base, GymAttacked, disturbance=disturbance, adversaries=(adversary,))
        return made
    levels = _levels(base, disturbance)
    some = FixedPolicy("", lambda _: base.actions.decode(jnp.zeros(base.actions.outputs)))
    adversary.check(AdversaryDomain(base, disturbance, some, levels))
    return AttackedDomain(base, disturbance, _fixed(adversary), levels)


def learn_adversary(
    domain: ActingAdversary,
    requirement: Requirement,
    settings: Settings,
    execution: Execution = IN_PROCESS,
    callbacks: Sequence[Callback] = (),
) -> Policy:
    """Return the adversary that violates the requirement most often, among candidates from late in learning.

    For a deviation for return, it is the one with the best return.
    """
    bold = domain
    if isinstance(domain, AdversaryDomain) and domain.disturbance.kind == "draws":
        share = max(domain.disturbance.size, MIN_LEARNING_SHARE)
        bold = dataclasses.replace(domain, disturbance=Disturbance("draws", share))
    problem = prepare(bold, Requirement(), settings, execution)
    if isinstance(domain, ResponseDomain) and domain.deviation.goal == "return":
        return rank_candidates(problem, learn(problem, callbacks), callbacks)[0].policy
    monitor = make_monitor(domain, Requirement(constraints=requirement.probability_constraints))
    sampler = _violation_sampler(problem.sampler, monitor)
    learned = learn(dataclasses.replace(problem, sampler=sampler), callbacks)
    if isinstance(sampler, ViolationSampler):
        sampler = dataclasses.replace(sampler, domain=domain)  # type: ignore[arg-type]  # it is compiled
    problem = dataclasses.replace(problem, domain=domain, sampler=sampler)
    return rank_candidates(problem, learned, callbacks)[0].policy


def _violation_sampler(sampler: Sampler, monitor: BatchMonitor) -> ViolationSampler | GymViolationSampler:
    """Return the sampler of the same episodes whose returns are violations."""
    if isinstance(sampler, GymSampler):
        job = sampler.job._replace(monitor=monitor)
        return GymViolationSampler(job, sampler.backend, sampler.workers, sampler.with_obs_stats, sampler.episode_cache)
    assert isinstance(sampler, JaxSampler)
    fields = {each.name: getattr(sampler, each.name) for each in dataclasses.fields(sampler)}
    return ViolationSampler(**fields | {"monitor": monitor})


def exact_violation(
    policy: AnyPolicy, domain: Domain, requirement: Requirement, disturbance: AnyAdversary, adversary: Policy
) -> ExactViolation:
    """Return the exact probabilities of a violation on a finite domain.

    An adversary chooses draws, or is an agent that deviates. The game of an agent against all others has moves at the
    same time; the adversary that chooses draws knows the action.
    """
    if isinstance(disturbance, Disturbance) and disturbance.kind != "draws":
        raise RunError(
            "exact probabilities exist against adversaries that choose random draws, a share such as 0.2, in finite "
            "domains: leave out exact (--exact)"
        )
    event, where = violation(requirement), adversary_domain(policy, domain, disturbance)
    without, learned = (
        evaluate(unfold(each, [event], policy_actions(policy, each))).probabilities[0]
        for each in (domain, attacked_domain(domain, disturbance, adversary))
    )
    if isinstance(where, ResponseDomain):
        game = simultaneous_game_value(where.joint, event, where.joint.agents.index(where.deviation.agent))
    else:
        assert isinstance(disturbance, Disturbance)
        game = game_value(require_finite(domain), event, disturbance.size)
    return ExactViolation(without, learned, best_probability(where, event), game)


def violation(requirement: Requirement) -> Formula:
    """Return the event that an episode violates the formula of a probability constraint."""
    formulas = [bound.formula for bound in requirement.probability_bounds]
    return Not(formulas[0] if len(formulas) == 1 else Connective("&", tuple(formulas)))


def _rewards_agents(domain: Attacked) -> bool:
    return isinstance(domain, DeviatedDomain) and domain.rewards_agents


def _fixed(policy: Policy) -> FixedPolicy:
    if policy.network.recurrent:
        raise RunError(
            "an adversary of a compiled domain is learned against a policy that acts on the current observation alone, "
            "and this one has a memory; psyco.stress searches for the environments in which it fails"
        )
    return FixedPolicy(policy.digest, partial(policy.network.act, policy.actions, jnp.asarray(policy.theta)))


def _levels(base: CompiledDomain, disturbance: Disturbance) -> tuple[tuple[float, ...], ...]:
    """Return the values of each number of an observation, if the adversary's choices fit in a table; else nothing."""
    if disturbance.kind != "draws":
        return ()
    levels = [np.unique(column) for column in reachable_observations(base).T]
    return tuple(tuple(each.tolist()) for each in levels) if math.prod(map(len, levels)) <= MAX_TABLE_STATES else ()


def check_attack(policy: AnyPolicy, domain: Domain, requirement: Requirement, disturbance: AnyAdversary) -> None:
    """Raise an error for a requirement without formulas, or about something that an adversary changes."""
    deviates = isinstance(disturbance, Deviation)
    if isinstance(disturbance, Deviation):
        check_deviation(domain, disturbance)
    if not (isinstance(disturbance, Deviation) and disturbance.goal == "return"):
        if not requirement.probability_bounds:
            raise RequirementError(
                "an adversary makes a formula fail, and this requirement has no constraint P>=p [ ... ]"
            )
        refuse_intervals(requirement, "an adversary needs to know on which side it shall make the requirement fail")
    disturbs_obs = isinstance(disturbance, Disturbance) and disturbance.kind == "obs"
    if isinstance(domain, GymDomain):  # its signals are those of the environment itself
        if disturbs_obs and isinstance(policy, Guard):
            raise RunError("a guard also reads signals, which an adversary does not change; give its policy alone")
        return
    trees: list[Any] = [tree for each in subjects(requirement) for tree in roots(each)]
    named = {node.name for tree in trees for node in walk(tree) if isinstance(node, Signal)}
    changed = {"action", "obs"} if disturbs_obs or deviates else {"action"}
    for name in sorted(name for name in named if name in changed or (deviates and name.endswith(".action"))):
        raise RequirementError(
            f"the requirement names {name}, which is changed where an adversary acts; name another signal of the domain"
        )
