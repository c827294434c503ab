"""V(m, φ, θ): sample fresh episodes of a policy, test each constraint, write down what was shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.certify.certificate import (
    Certificate,
    Estimate,
    ShareEstimate,
    Subject,
    certify,
    now,
    standard_error,
)
from psyco._src.certify.keys import check_keys
from psyco._src.certify.ledger import Ledger, look_share, make_claim, single
from psyco._src.domain.base import Domain
from psyco._src.domain.catalogue import describe
from psyco._src.domain.checks import check_count, check_seed
from psyco._src.domain.source import code_digest
from psyco._src.errors import RequirementError, RunError
from psyco._src.policy.doubt import Doubting
from psyco._src.policy.foreign import AnyPolicy, ForeignPolicy
from psyco._src.rollout.check import seed_doubts
from psyco._src.rollout.device import refuse_broken
from psyco._src.rollout.episodes import (
    COMPILER,
    Episodes,
    Sampler,
    Stream,
    episode_keys,
    episode_seeds,
    stream_key,
)
from psyco._src.rollout.execution import HERE, Execution
from psyco._src.rollout.host import HostSampler
from psyco._src.rollout.sampler import make_sampler
from psyco._src.smc.base import Counts, Tally, Test, Verdict, overall, run_tests
from psyco._src.smc.bayes import posterior_mass
from psyco._src.smc.fixed import clopper_pearson
from psyco._src.smc.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD, make_tests
from psyco._src.spec.formula import Requirement

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})  # of a method
HOST_BATCH = 64  # where an episode takes long, few more than a test needs
DOUBTED = 8  # episodes in which a policy of others is asked everything twice
BATCH = 250  # episodes sampled at once; a test still consumes them one by one


class Verification(NamedTuple):
    """How the tests of all constraints ended."""

    verdict: Verdict
    progress: list[Tally]  # one per constraint
    returns: NDArray[np.float32]  # [episodes] of the episodes that were looked at
    tests: list[Test]  # one per constraint
    absent: NDArray[np.float32] | None = None  # [episodes, I] as in Episodes

    @property
    def episodes(self) -> int:
        """How many episodes the longest test needed."""
        return len(self.returns)

    def confidence(self, requirement: Requirement) -> float:
        """c_sat of the constraint that is believed in the least."""
        return min(
            float(posterior_mass(p.counts, c.lower, c.upper))
            for p, c in zip(self.progress, requirement.constraints, strict=True)
        )


def verify(
    policy: AnyPolicy,
    domain: Domain,
    requirement: Requirement,
    *,
    method: str = DEFAULT_METHOD,
    options: Mapping[str, Any] = NO_OPTIONS,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    seed: int = 0,
    execution: Execution = HERE,
    ledger: Ledger | None = None,
    issued: str | None = None,
    estimate: int | None = None,
    notes: Sequence[str] = (),
) -> Certificate:
    """Verify a policy on fresh episodes and say exactly what was shown.

    Args:
        policy: what is to be verified.
        domain: where it acts.
        requirement: what must hold.
        method: how the constraints are tested, a name in `METHODS`.
        options: parameters of the method.
        max_episodes: give up undecided after so many episodes.
        seed: the episodes are a function of it.
        execution: where the episodes are made; the result does not depend on it.
        ledger: the looks so far, and the share of the permitted error for this one; by default it is the only look.
        issued: the time that the certificate shows; now, if it is not given.
        estimate: so many further episodes for an estimate of shares and return, after the decision and no part of it.
        notes: sentences that the certificate has to carry.
    """
    check_decidable(requirement)
    seed = check_seed(seed)
    policy.check(domain)
    ledger = single() if ledger is None else ledger
    where = describe(domain)
    # What is wrong with the question is found before anything is spent on the answer.
    max_episodes = check_count("max_episodes", max_episodes)
    estimate = None if estimate is None else check_count("estimate", estimate)
    make_tests(method, requirement, max_episodes=max_episodes, **options)
    sampler = make_sampler(domain, policy.network, requirement, execution=execution)
    if isinstance(policy, ForeignPolicy):
        _ask_twice(policy, domain, stream_key(seed, Stream.SHOW), execution)
    *earlier, look = ledger.begin(make_claim(requirement, where, method, options), policy.digest, seed)
    theta, key = jnp.asarray(policy.theta), stream_key(seed, ledger.stream, look.block or 0)
    done = verify_parameters(
        sampler,
        theta,
        requirement,
        key,
        method=method,
        max_episodes=max_episodes,
        share=look.share,
        options=options,
    )
    missing, doubts = check_keys(requirement, domain, done.absent), _doubts(sampler, policy, key, done)
    notes = [*notes, *policy.notes, *missing, *doubts]
    subject = Subject(
        *where, policy.digest, seed, ledger.stream.name.lower(), look.block,
        horizon=domain.horizon, code=code_digest(domain), policy_kind=policy.kind, policy_version=policy.version,
    )  # fmt: skip
    certificate = certify(
        requirement, subject, done.tests, done.progress, done.verdict, returns=done.returns, method=method,
        options=options, max_episodes=max_episodes, share=look.share, earlier=tuple(earlier), issued=issued,
        notes=notes,
        estimate=None if estimate is None else _estimate(sampler, theta, requirement, key, done.episodes, estimate),
    )  # fmt: skip
    ledger.end(certificate)
    return certificate


def _doubts(sampler: Sampler, policy: AnyPolicy, key: Array, done: Verification) -> list[str]:
    """What the first episodes of a Gymnasium environment put in doubt; in a compiled domain all chance is the key's."""
    if not isinstance(sampler, HostSampler):
        return []
    seeds = episode_seeds(episode_keys(key, 0, 2))
    return seed_doubts(sampler.job, policy.theta, seeds, float(done.returns[0]))


def _estimate(
    sampler: Sampler, theta: Array, requirement: Requirement, key: Array, first: int, count: int
) -> Estimate:
    """Shares and return of the episodes `first` to `first + count - 1` of a look, those after its decision."""
    parts = list(sample(sampler, theta, key, count, first=first))
    returns = np.concatenate([part.ret for part in parts])[:count].astype(np.float64)
    satisfied = np.concatenate([part.satisfied for part in parts])[:count]
    shares = []
    hits = constraint_outcomes(requirement, satisfied).sum(axis=0).tolist()
    for constraint, held in zip(requirement.constraints, hits, strict=True):
        bounds = clopper_pearson(Counts(held, count - held), (1.0 - constraint.confidence) / 2.0)
        shares.append(ShareEstimate(held, *bounds, constraint.confidence))
    return Estimate(count, tuple(shares), float(returns.mean()), standard_error(returns))


def _ask_twice(policy: ForeignPolicy, domain: Domain, key: Array, execution: Execution) -> None:
    """Refuse a policy of others whose actions are no function of its own episode; see `Doubting`."""
    sampler = make_sampler(domain, Doubting(policy), Requirement(), execution=execution)
    sampler(jnp.zeros((DOUBTED, 0)), episode_keys(key, 0, DOUBTED))


class Selection(NamedTuple):
    """How the certification of several candidates ended."""

    chosen: int  # index of the candidate that the certificate is about
    certificate: Certificate  # SATISFIED, or that of the candidate that came closest; it lists all looks


def certify_candidates(
    candidates: Sequence[AnyPolicy],
    domain: Domain,
    requirement: Requirement,
    *,
    method: str = DEFAULT_METHOD,
    options: Mapping[str, Any] = NO_OPTIONS,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    seed: int = 0,
    execution: Execution = HERE,
    ledger: Ledger | None = None,
    issued: str | None = None,
) -> Selection:
    """Certify the first candidate that passes, each on its own fresh block of the certificates' stream.

    The candidates come in the order of preference, and are fixed before the first episode of any of them is sampled.
    The permitted error is shared among all of them, by default so that nothing is left for later looks; so the chance
    that a candidate which does not meet the requirement gets a certificate stays what the requirement permits. All else
    is as in `verify`.
    """
    if not candidates:
        raise RunError("there is no candidate to certify")
    issued = issued or now()
    ledger = Ledger(share=partial(look_share, of=len(candidates))) if ledger is None else ledger
    certificates: list[Certificate] = []
    for i, policy in enumerate(candidates):
        certificate = verify(
            policy, domain, requirement, method=method, options=options, max_episodes=max_episodes, seed=seed,
            execution=execution, ledger=ledger, issued=issued,
        )  # fmt: skip
        certificates.append(certificate)
        if certificates[-1].verdict is Verdict.SATISFIED:
            return Selection(i, certificates[-1])
    best = max(range(len(certificates)), key=lambda i: _closeness(certificates[i]))
    return Selection(best, certificates[best].with_looks(certificates[-1].looks))


def _closeness(certificate: Certificate) -> float:
    return min((f.confidence for f in certificate.findings), default=1.0)


def verify_parameters(
    sampler: Sampler,
    theta: Array,
    requirement: Requirement,
    key: Array,
    *,
    method: str,
    max_episodes: int,
    share: float = 1.0,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> Verification:
    """The same for bare parameters `[D]`, without a certificate: what learning uses."""
    max_episodes = check_count("max_episodes", max_episodes)
    tests = make_tests(method, requirement, max_episodes=max_episodes, share=share, **options)
    returns: list[NDArray[np.float32]] = []
    absent: list[NDArray[np.float32]] = []

    def outcomes() -> Iterator[NDArray[np.bool_]]:
        for episodes in sample(sampler, theta, key, max_episodes):
            returns.append(np.asarray(episodes.ret))
            if episodes.absent is not None:
                absent.append(np.asarray(episodes.absent))
            yield constraint_outcomes(requirement, np.asarray(episodes.satisfied))

    progress = run_tests(tests, outcomes(), max_episodes=max_episodes)
    used = max((p.episodes for p in progress), default=max_episodes)
    returned, without = np.concatenate(returns)[:used], np.concatenate(absent)[:used] if absent else None
    return Verification(overall(progress), progress, returned, tests, without)


def sample(sampler: Sampler, theta: Array, key: Array, count: int, *, first: int = 0) -> Iterator[Episodes]:
    """Episodes `first` to `first + count - 1` of a stream for one parameter vector `[D]`, batch by batch.

    Compiled batches have one size, so the last of them may hold more than that.
    """
    size = min(BATCH if sampler.compiled else HOST_BATCH, count)
    for start in range(first, first + count, size):
        if sampler.compiled:
            episodes = jax.device_get(_batch(sampler, size, theta, key, np.uint32(start)))
            if np.any(episodes.broken):
                keys = episode_keys(key, start, size)
                refuse_broken(sampler, episodes.broken, theta[None].repeat(size, 0), keys)
            yield episodes
        else:
            keys = episode_keys(key, start, min(size, first + count - start))
            yield sampler(jnp.broadcast_to(theta, (len(keys), theta.size)), keys)


def constraint_outcomes(requirement: Requirement, satisfied: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """From demands `[B, demands]` to constraints `[B, K]`: did the constraint's own formula hold?"""
    first = {d.constraint: (i, d.negated) for i, d in reversed(list(enumerate(requirement.demands)))}
    columns = [satisfied[:, i] ^ negated for _, (i, negated) in sorted(first.items())]
    return np.stack(columns, axis=1) if columns else satisfied[:, :0]


def check_decidable(requirement: Requirement) -> None:
    """Refuse what no finite number of episodes can show."""
    for constraint in requirement.constraints:
        if constraint.confidence >= 1.0:
            raise RequirementError(
                f"no finite number of episodes gives the certainty that {constraint} asks for; "
                "ask for less than C>=1, for example C>=0.999"
            )
        if constraint.lower >= constraint.upper:
            raise RequirementError(
                f"no finite number of episodes can show that the probability is exactly {constraint.lower:g}, "
                f"as {constraint} asks; leave it some room, for example P>=0.999 or P<=0.001"
            )
        if (constraint.comparison == ">" and constraint.lower <= 0.0) or (
            constraint.comparison == "<" and constraint.upper >= 1.0
        ):
            raise RequirementError(
                f"no finite number of episodes can show what {constraint} asks; "
                "leave it some room, for example P>=0.001 or P<=0.999"
            )


@jax.jit(static_argnums=(0, 1), compiler_options=COMPILER)
def _batch(sampler: Sampler, count: int, theta: Array, key: Array, first: Array) -> Episodes:
    return sampler(jnp.broadcast_to(theta, (count, theta.size)), episode_keys(key, first, count))
