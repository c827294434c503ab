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
from psyco._src.envs.base import CompiledDomain, Domain
from psyco._src.envs.variants import Disturbance
from psyco._src.exact.solver import best_probability, evaluate
from psyco._src.exact.unfold import policy_actions, reachable_observations, unfold
from psyco._src.logic.ast import Connective, Formula, Not, Requirement, Signal, roots, walk
from psyco._src.logic.validate import refuse_intervals, subjects
from psyco._src.policies.external import AnyPolicy
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.jax_sampler import JaxSampler
from psyco._src.rollout.sampler import make_monitor
from psyco._src.rollout.violation_sampler import ViolationSampler
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

DEFAULT_ADVERSARY_EPISODES = 20_000  # of learning
# Share of the random draws while an adversary with a smaller one learns: a choice that is seldom carried out shows
# little of its effect. What harms at one share mostly harms at another, and candidates are compared at the own one.
MIN_LEARNING_SHARE = 0.5


class ExactViolation(NamedTuple):
    """Exact probabilities that an episode violates the requirement, on a finite domain."""

    without: float  # an adversary
    learned: float  # against the learned adversary
    worst: float  # against the worst adversary of this kind and size, which also knows time and counters


@dataclass(frozen=True, repr=False)
class AttackResult:
    """A learned adversary, and the certificate of a policy against it."""

    adversary: Policy
    domain: AttackedDomain  # in which the adversary acts
    certificate: Certificate
    exact: ExactViolation | None  # None: not asked for

    @property
    def verdict(self) -> Verdict:
        """Verdict of the requirement against this adversary."""
        return self.certificate.verdict

    def __str__(self) -> str:
        lines = [f"against {self.domain.disturbance}:", str(self.certificate)]
        if self.exact is not None:
            without, learned, worst = self.exact
            lines.append(
                f"  exact probability of a violation: {without:.6f} without an adversary, {learned:.6f} against this "
                f"one, {worst:.6f} against the worst"
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
    _check_requirement(requirement, disturbance)
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


def adversary_domain(policy: AnyPolicy, domain: Domain, disturbance: Disturbance) -> AdversaryDomain:
    """Return the domain in which an adversary of this policy acts."""
    base = check_attackable(domain, disturbance)
    policy.check(base)
    if not isinstance(policy, Policy):
        raise RunError(
            "an adversary is learned against a PSyCo policy, which is compiled with the domain, and this is another "
            "one; psyco synthesize --from POLICY makes a PSyCo policy that acts like it"
        )
    return AdversaryDomain(base, disturbance, _fixed(policy), _levels(base, disturbance))


def attacked_domain(domain: Domain, disturbance: Disturbance, adversary: Policy) -> AttackedDomain:
    """Return the domain in which this adversary acts against any policy."""
    base = check_attackable(domain, disturbance)
    levels = _levels(base, disturbance)
    some = FixedPolicy("", lambda _: base.actions.decode(jnp.zeros(base.actions.outputs)))
    adversary.check(AdversaryDomain(base, disturbance, some, levels))
    return AttackedDomain(base, disturbance, _fixed(adversary), levels)


def learn_adversary(
    domain: AdversaryDomain,
    requirement: Requirement,
    settings: Settings,
    execution: Execution = IN_PROCESS,
    callbacks: Sequence[Callback] = (),
) -> Policy:
    """Return the adversary that violates the requirement most often, among candidates from late in learning."""
    bold = domain
    if domain.disturbance.kind == "draws":
        share = max(domain.disturbance.size, MIN_LEARNING_SHARE)
        bold = dataclasses.replace(domain, disturbance=Disturbance("draws", share))
    problem = prepare(bold, Requirement(), settings, execution)
    assert isinstance(problem.sampler, JaxSampler)  # of a compiled domain
    fields = {each.name: getattr(problem.sampler, each.name) for each in dataclasses.fields(problem.sampler)}
    monitor = make_monitor(domain, Requirement(constraints=requirement.probability_constraints))
    sampler = ViolationSampler(**fields | {"monitor": monitor})
    learned = learn(dataclasses.replace(problem, sampler=sampler), callbacks)
    problem = dataclasses.replace(problem, domain=domain, sampler=dataclasses.replace(sampler, domain=domain))
    return rank_candidates(problem, learned, callbacks)[0].policy


def exact_violation(
    domain: AdversaryDomain, requirement: Requirement, policy: AnyPolicy, adversary: Policy
) -> ExactViolation:
    """Return the exact probabilities of a violation on a finite domain."""
    event = violation(requirement)

    def probability(actor: AnyPolicy, where: Domain) -> float:
        return evaluate(unfold(where, [event], policy_actions(actor, where))).probabilities[0]

    return ExactViolation(
        probability(policy, domain.base), probability(adversary, domain), best_probability(domain, event)
    )


def violation(requirement: Requirement) -> Formula:
    """Return the event that an episode violates the formula of a probability constraint."""
    formulas = [bound.formula for bound in requirement.probability_bounds]
    return Not(formulas[0] if len(formulas) == 1 else Connective("&", tuple(formulas)))


def _fixed(policy: Policy) -> FixedPolicy:
    return FixedPolicy(policy.digest, partial(policy.network.act, policy.actions, jnp.asarray(policy.theta)))


def _levels(base: CompiledDomain, disturbance: Disturbance) -> tuple[tuple[float, ...], ...]:
    """Return the values of each number of an observation, if the adversary's choices fit in a table; else nothing."""
    if disturbance.kind != "draws":
        return ()
    levels = [np.unique(column) for column in reachable_observations(base).T]
    return tuple(tuple(each.tolist()) for each in levels) if math.prod(map(len, levels)) <= MAX_TABLE_STATES else ()


def _check_requirement(requirement: Requirement, disturbance: Disturbance) -> None:
    """Raise RequirementError for a requirement without formulas, or about a signal that an adversary changes."""
    if not requirement.probability_bounds:
        raise RequirementError("an adversary makes a formula fail, and this requirement has no constraint P>=p [ ... ]")
    refuse_intervals(requirement, "an adversary needs to know on which side it shall make the requirement fail")
    trees: list[Any] = [tree for each in subjects(requirement) for tree in roots(each)]
    named = {node.name for tree in trees for node in walk(tree) if isinstance(node, Signal)}
    for name in sorted(named & ({"action", "obs"} if disturbance.kind == "obs" else {"action"})):
        raise RequirementError(
            f"the requirement names {name}, which is changed where an adversary acts; name another signal of the domain"
        )
