"""Learn a policy against its adversaries: adversaries and policies learn in turn, each against the others so far.

Round by round, an adversary learns against the newest policy, and the next policy learns, from the one before, where
every episode draws one of the adversaries so far. At the end all policies play against all adversaries, and the best
one is verified against each of them on fresh episodes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from psyco._src.core.checks import check_count
from psyco._src.core.errors import RunError
from psyco._src.envs.adversary import AttackedDomain, MixtureDomain
from psyco._src.envs.base import Domain
from psyco._src.envs.gym_adversary import GymAttacked
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.variants import AnyAdversary, Deviation
from psyco._src.logic.ast import Requirement
from psyco._src.policies.external import AnyPolicy
from psyco._src.policies.serialization import Policy, policy_for
from psyco._src.rollout.episodes import Stream, concatenate_episodes, stream_key
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.sampler import make_sampler
from psyco._src.runs.attack import (
    Attacked,
    ExactViolation,
    attacked_domain,
    check_attack,
    exact_violation,
    learn_against,
)
from psyco._src.runs.best_response import HOST_PAIR_EPISODES, PAIR_BLOCK, PAIR_EPISODES, deviated_domain
from psyco._src.runs.problem import prepare
from psyco._src.runs.select import rank_candidates
from psyco._src.runs.settings import Settings
from psyco._src.runs.train import Callback, RunProgress, learn, progress_reporter
from psyco._src.runs.warm_start import with_initial_policy
from psyco._src.verification.anytime import confidence_sequence
from psyco._src.verification.base import Counts, Verdict
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.episode_stream import sample_episodes
from psyco._src.verification.ledger import Ledger, single_look
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD
from psyco._src.verification.tally import overall_verdict
from psyco._src.verification.verifier import verify


class Pair(NamedTuple):
    """Episodes of one policy against one adversary."""

    violated: int  # episodes that violate a formula of the requirement
    episodes: int
    shares: tuple[float, ...]  # of satisfying episodes, one per bound on a probability
    mean_return: float

    @property
    def violation(self) -> float:
        """Share of the episodes that violate the requirement."""
        return self.violated / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds on the probability of a violation at 95%."""
        return confidence_sequence(Counts(self.violated, self.episodes - self.violated), 0.025)


class TrainingRound(NamedTuple):
    """A policy, the adversary that was learned against it, and its episodes against each adversary of all rounds."""

    policy: Policy
    adversary: Policy
    against: tuple[Pair, ...]
    exact: ExactViolation | None  # None: not computed

    @property
    def worst(self) -> Pair:
        """The pair with the largest share of violations."""
        return max(self.against, key=lambda pair: pair.violation)


@dataclass(frozen=True, repr=False)
class AdversarialTraining:
    """A policy that was learned against its adversaries, and its certificate against each of them."""

    rounds: tuple[TrainingRound, ...]  # the first is about the policy that was given
    chosen: int  # the round whose policy it is
    certificates: tuple[Certificate, ...]  # one per adversary; they share the permitted error
    disturbance: AnyAdversary

    @property
    def policy(self) -> Policy:
        """The policy of the chosen round."""
        return self.rounds[self.chosen].policy

    @property
    def verdict(self) -> Verdict:
        """SATISFIED if it is against every adversary, VIOLATED if it is against one."""
        return overall_verdict(self.certificates)

    def __str__(self) -> str:
        among = "each of" if self.verdict is Verdict.SATISFIED else "at least one of"
        lines = [
            f"{self.verdict.name} against {among} {len(self.certificates)} adversaries: policy "
            f"sha256:{self.policy.digest[:16]}, learned in {len(self.rounds) - 1} rounds against {self.disturbance}",
            "  round  violations against the worst adversary     mean return",
        ]
        for number, each in enumerate(self.rounds):
            low, high = each.worst.interval
            chosen = "  <- this policy" if number == self.chosen else ""
            lines.append(
                f"  {number:5}  {each.worst.violation:.4f}, between {low:.4f} and {high:.4f} (95%)  "
                f"{each.worst.mean_return:10.2f}{chosen}"
            )
        lines += _exact_lines(self.rounds)
        for number, certificate in enumerate(self.certificates):
            bounds = "; ".join(f"{f.estimand} {f.interval}" for f in certificate.findings)
            lines.append(
                f"  against the adversary of round {number}, sha256:{self.rounds[number].adversary.digest[:16]}: "
                f"{certificate.verdict.name} after {certificate.episodes:,} fresh episodes; {bounds}"
            )
        other, verb = "adversaries of this kind and size", "stress --adversary"
        if isinstance(self.disturbance, Deviation):
            other, verb = "deviations", "exploit"
        lines.append(
            f"  These {len(self.certificates)} tests share the permitted error. Other {other} may do more harm: psyco "
            f"{verb} learns further ones against this policy."
        )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<AdversarialTraining: {self.verdict.name} against {len(self.certificates)} adversaries>"

    def to_json(self) -> str:
        """Return rounds and certificates as JSON."""
        rounds = [
            {
                "policy": each.policy.digest,
                "adversary": each.adversary.digest,
                "against": [pair._asdict() for pair in each.against],
                "exact": each.exact and each.exact._asdict(),
            }
            for each in self.rounds
        ]
        content = {
            "verdict": self.verdict.name,
            "policy": self.policy.digest,
            "adversary": vars(self.disturbance),
            "chosen": self.chosen,
            "rounds": rounds,
            "certificates": [json.loads(each.to_json()) for each in self.certificates],
        }
        return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _exact_lines(rounds: Sequence[TrainingRound]) -> list[str]:
    return [
        f"  exact probability of a violation, round {number}: {each.exact.describe('an adversary', 'its own')} "
        f"(the best policy: {each.exact.game:.6f}; exploitability: {each.exact.exploitability:.6f})"
        for number, each in enumerate(rounds)
        if each.exact is not None
    ]


def train_against(
    policy: AnyPolicy,
    domain: Domain,
    requirement: Requirement,
    disturbance: AnyAdversary,
    *,
    rounds: int,
    settings: Settings,
    adversary_settings: Settings,
    method: str = DEFAULT_METHOD,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    ledger: Ledger | None = None,
    with_exact: bool = False,
    execution: Execution = IN_PROCESS,
    callbacks: Sequence[Callback] = (),
) -> AdversarialTraining:
    """Let adversaries and policies learn in turn, and verify the best policy against every adversary.

    Args:
        policy: the first policy.
        domain: where it acts.
        requirement: the requirement.
        disturbance: what the adversaries may change, or which agent deviates in order to make the requirement fail.
        rounds: number of policies that learn.
        settings: of the learning of each policy; their seed is also that of the fresh episodes.
        adversary_settings: of the learning of each adversary.
        method: the statistical test.
        max_episodes: maximum number of fresh episodes against each adversary.
        ledger: earlier looks at the first policy, which count if it is the best one.
        with_exact: also compute exact probabilities of the first and the chosen policy, on a finite domain; of an agent
            that deviates, in all rounds.
        execution: where episodes are made.
        callbacks: receive the progress.
    """
    rounds = check_count("rounds", rounds)
    check_attack(policy, domain, requirement, disturbance)
    if not isinstance(policy, Policy):
        raise RunError(
            "a PSyCo policy learns against adversaries; psyco synthesize --from POLICY makes one of an external policy"
        )
    policies, adversaries = [policy], list[Policy]()
    for number in range(rounds + 1):
        own = dataclasses.replace(adversary_settings, seed=_round_seed(settings.seed, number))
        heard = _in_round(callbacks, number, "adversary")
        adversaries.append(learn_against(policies[-1], domain, requirement, disturbance, own, execution, heard))
        if number < rounds:
            mixture = mixture_domain(domain, disturbance, adversaries)
            own = dataclasses.replace(settings, seed=_round_seed(settings.seed, number))
            heard = _in_round(callbacks, number + 1, "policy")
            policies.append(_learn_policy(policies[-1], domain, mixture, requirement, own, execution, heard))
    opponents = [attacked_domain(domain, disturbance, each) for each in adversaries]
    play = partial(_play_pair, requirement=requirement, seed=settings.seed, execution=execution)
    table = [tuple(play(each, opponent) for opponent in opponents) for each in policies]
    chosen = _choose(table, requirement)

    def exact(number: int) -> ExactViolation | None:
        if not with_exact or (number not in (0, chosen) and not isinstance(disturbance, Deviation)):
            return None
        return exact_violation(policies[number], domain, requirement, disturbance, adversaries[number])

    certificates = tuple(
        verify(
            policies[chosen], opponent, requirement, method=method, max_episodes=max_episodes, seed=settings.seed,
            execution=execution, ledger=ledger if ledger and chosen == 0 else single_look(1.0 / len(opponents)),
            progress=progress_reporter(callbacks, "certifying", max_episodes),
        )
        for opponent in opponents
    )  # fmt: skip
    made = [TrainingRound(*each, exact(i)) for i, each in enumerate(zip(policies, adversaries, table, strict=True))]
    return AdversarialTraining(tuple(made), chosen, certificates, disturbance)


def mixture_domain(domain: Domain, disturbance: AnyAdversary, adversaries: Sequence[Policy]) -> Domain:
    """Return the domain in which every episode draws one of the adversaries, the last one in half of them."""
    if isinstance(disturbance, Deviation):
        return deviated_domain(domain, disturbance, *adversaries)
    members = [attacked_domain(domain, disturbance, each) for each in adversaries]
    if isinstance(members[0], GymAttacked):
        return dataclasses.replace(members[0], adversaries=tuple(adversaries))
    return MixtureDomain(tuple(each for each in members if isinstance(each, AttackedDomain)))


def _learn_policy(
    policy: Policy,
    domain: Domain,
    mixture: Domain,
    requirement: Requirement,
    settings: Settings,
    execution: Execution,
    callbacks: Sequence[Callback],
) -> Policy:
    """Return the best candidate of learning against a mixture of adversaries, from a policy."""
    problem = prepare(mixture, requirement, with_initial_policy(settings, policy), execution, initial_policy=policy)
    best = rank_candidates(problem, learn(problem, callbacks), callbacks)[0].policy
    return policy_for(domain, best.network, best.theta)


def _play_pair(policy: Policy, domain: Attacked, *, requirement: Requirement, seed: int, execution: Execution) -> Pair:
    """Play a policy against an adversary; all pairs play the same episodes, which serve nothing else."""
    sampler = make_sampler(domain, policy.network, requirement, execution=execution)
    count = HOST_PAIR_EPISODES if isinstance(domain, GymDomain) else PAIR_EPISODES
    key = stream_key(seed, Stream.SELECT, PAIR_BLOCK)
    played = concatenate_episodes(list(sample_episodes(sampler, jnp.asarray(policy.theta), key, count)))
    held: NDArray[np.bool_] = np.asarray(played.satisfied)
    return Pair(
        int((~held.all(axis=1)).sum()), count, tuple(held.mean(axis=0).tolist()), float(np.mean(played.returns))
    )


def _choose(table: Sequence[Sequence[Pair]], requirement: Requirement) -> int:
    """Return the round whose policy is best: of those that meet the bounds against all adversaries, by its return.

    If none does, the one with the fewest violations against its worst adversary.
    """
    sign = 1.0 if requirement.goal.maximize else -1.0
    needed = np.array([bound.p_req for bound in requirement.probability_bounds])

    def merit(number: int) -> tuple[bool, float]:
        row = table[number]
        enough = bool((np.array([pair.shares for pair in row]) >= needed).all())
        lowest = min(sign * pair.mean_return for pair in row)
        return enough, lowest if enough else -max(pair.violation for pair in row)

    return max(range(len(table)), key=merit)


def _round_seed(seed: int, number: int) -> int:
    """Return the seed of learning in a round; that of the certificate's episodes is the seed itself."""
    return (seed + 1 + 1_000_003 * number) % 2**31


def _in_round(callbacks: Sequence[Callback], number: int, learner: str) -> list[Callback]:
    """Return callbacks that receive the progress with the name of the round."""

    def report(hear: Callable[[RunProgress], None], now: RunProgress) -> None:
        hear(now._replace(phase=f"{now.phase} the {learner} of round {number}"))

    return [Callback(on_progress=partial(report, each.on_progress), should_stop=each.should_stop) for each in callbacks]
