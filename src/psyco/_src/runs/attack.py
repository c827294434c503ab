"""Learn an adversary that makes a policy fail, and verify the policy against it on fresh episodes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from psyco._src.core.errors import RequirementError, RunError
from psyco._src.envs.adversary import AdversaryDomain, AttackedDomain, FixedPolicy, check_attackable
from psyco._src.envs.base import CompiledDomain, Domain, require_finite
from psyco._src.envs.gym_adversary import GymAdversary, GymAttacked, derive
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.variants import Disturbance
from psyco._src.exact.solver import best_probability, evaluate, game_value
from psyco._src.exact.unfold import policy_actions, reachable_observations, unfold
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
from psyco._src.runs.budget import MAX_TABLE_STATES
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


class ExactViolation(NamedTuple):
    """Exact probabilities that an episode violates the requirement, on a finite domain."""

    without: float  # an adversary
    learned: float  # against the learned adversary
    worst: float  # against the worst adversary of this kind and size, which also knows time and counters
    game: float  # against the worst adversary of the best policy; both also know time and counters


@dataclass(frozen=True, repr=False)
class AttackResult:
    """A learned adversary, and the certificate of a policy against it."""

    adversary: Policy
    domain: AttackedDomain | GymAttacked  # in which the adversary acts
    certificate: Certificate
    exact: ExactViolation | None  # None: not asked for

    @property
    def verdict(self) -> Verdict:
        """Verdict of the requirement against this adversary."""
        return self.certificate.verdict

    def __str__(self) -> str:
        lines = [f"against {self.domain.disturbance}:", str(self.certificate)]
        if self.exact is not None:
            without, learned, worst, game = self.exact
            lines.append(
                f"  exact probability of a violation: {without:.6f} without an adversary, {learned:.6f} against this "
                f"one, {worst:.6f} against the worst; the best policy has {game:.6f} against its worst"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<AttackResult: {self.verdict.name} against {self.domain.disturbance}>"

    def to_json(self) -> str:
        """Return the certificate, the adversary and the exact probabilities as JSON."""
        content = {
            "adversary": self.domain.parameters["adversary"],
            "exact": self.exact and self.exact._asdict(),
            "certificate": json.loads(self.certificate.to_json()),
        }
        return json.dumps(content, indent=2, allow_nan=False) + "\n"


def attack(
    policy: AnyPolicy,
    domain: Domain,
    requirement: Requirement,
    disturbance: Disturbance,
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
        disturbance: what the adversary may change.
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
    if adversary is None or with_exact:
        where = adversary_domain(policy, domain, disturbance)
    if adversary is None:
        adversary = learn_adversary(where, requirement, settings, execution, callbacks)
    fixed = attacked_domain(domain, disturbance, adversary)
    exact = exact_violation(where, requirement, policy, adversary) if with_exact else None
    certificate = verify(
        policy, fixed, requirement, method=method, max_episodes=max_episodes, seed=settings.seed,
        execution=execution, ledger=ledger, progress=progress_reporter(callbacks, "certifying", max_episodes),
    )  # fmt: skip
    return AttackResult(adversary, fixed, certificate, exact)


def adversary_domain(policy: AnyPolicy, domain: Domain, disturbance: Disturbance) -> AdversaryDomain | GymAdversary:
    """Return the domain in which an adversary of this policy acts."""
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


def attacked_domain(domain: Domain, disturbance: Disturbance, adversary: Policy) -> AttackedDomain | GymAttacked:
    """Return the domain in which this adversary acts against any policy."""
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
    domain: AdversaryDomain | GymAdversary,
    requirement: Requirement,
    settings: Settings,
    execution: Execution = IN_PROCESS,
    callbacks: Sequence[Callback] = (),
) -> Policy:
    """Return the adversary that violates the requirement most often, among candidates from late in learning."""
    bold = domain
    if isinstance(domain, AdversaryDomain) and domain.disturbance.kind == "draws":
        share = max(domain.disturbance.size, MIN_LEARNING_SHARE)
        bold = dataclasses.replace(domain, disturbance=Disturbance("draws", share))
    problem = prepare(bold, Requirement(), settings, execution)
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
    domain: AdversaryDomain | GymAdversary, requirement: Requirement, policy: AnyPolicy, adversary: Policy
) -> ExactViolation:
    """Return the exact probabilities of a violation on a finite domain, where the adversary chooses draws."""
    if domain.disturbance.kind != "draws":
        raise RunError(
            "exact probabilities exist against adversaries that choose random draws, a share such as 0.2, in finite "
            "domains: leave out exact (--exact)"
        )
    event = violation(requirement)

    def probability(actor: AnyPolicy, where: Domain) -> float:
        return evaluate(unfold(where, [event], policy_actions(actor, where))).probabilities[0]

    return ExactViolation(
        probability(policy, domain.base),
        probability(adversary, domain),
        best_probability(domain, event),
        game_value(require_finite(domain.base), event, domain.disturbance.size),
    )


def violation(requirement: Requirement) -> Formula:
    """Return the event that an episode violates the formula of a probability constraint."""
    formulas = [bound.formula for bound in requirement.probability_bounds]
    return Not(formulas[0] if len(formulas) == 1 else Connective("&", tuple(formulas)))


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


def check_attack(policy: AnyPolicy, domain: Domain, requirement: Requirement, disturbance: Disturbance) -> None:
    """Raise an error for a requirement without formulas, or about something that an adversary changes."""
    if not requirement.probability_bounds:
        raise RequirementError("an adversary makes a formula fail, and this requirement has no constraint P>=p [ ... ]")
    refuse_intervals(requirement, "an adversary needs to know on which side it shall make the requirement fail")
    if isinstance(domain, GymDomain):  # its signals are those of the environment itself
        if disturbance.kind == "obs" and isinstance(policy, Guard):
            raise RunError("a guard also reads signals, which an adversary does not change; give its policy alone")
        return
    trees: list[Any] = [tree for each in subjects(requirement) for tree in roots(each)]
    named = {node.name for tree in trees for node in walk(tree) if isinstance(node, Signal)}
    for name in sorted(named & ({"action", "obs"} if disturbance.kind == "obs" else {"action"})):
        raise RequirementError(
            f"the requirement names {name}, which is changed where an adversary acts; name another signal of the domain"
        )
