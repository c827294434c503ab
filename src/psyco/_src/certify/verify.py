"""V(m, φ, θ): sample fresh episodes of a policy, test each constraint, write down what was shown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.certify.certificate import Certificate, Subject, certify, now
from psyco._src.domain.base import Domain
from psyco._src.domain.catalogue import describe
from psyco._src.domain.checks import check_count, check_seed
from psyco._src.errors import RequirementError, RunError
from psyco._src.policy.foreign import AnyPolicy, plain_failures
from psyco._src.rollout.episodes import COMPILER, Episodes, Sampler, Stream, episode_keys, stream_key
from psyco._src.rollout.execution import HERE, Execution
from psyco._src.rollout.sampler import make_sampler
from psyco._src.smc.base import Tally, Test, Verdict, overall, run_tests
from psyco._src.smc.bayes import posterior_mass
from psyco._src.smc.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD, make_tests
from psyco._src.spec.formula import Requirement

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})  # of a method
HOST_BATCH = 64  # where an episode takes long, few more than a test needs
BATCH = 250  # episodes sampled at once; a test still consumes them one by one


class Verification(NamedTuple):
    """How the tests of all constraints ended."""

    verdict: Verdict
    progress: list[Tally]  # one per constraint
    returns: NDArray[np.float32]  # [episodes] of the episodes that were looked at
    tests: list[Test]  # one per constraint

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
    share: float | None = None,
    after: Certificate | None = None,
    issued: str | None = None,
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
        share: the part of the permitted error that this look may use; all of it, unless it is one of several.
            `look_share(1)` leaves room for later looks.
        after: the certificate of an earlier look, of this or of another policy, that did not suffice. The new
            certificate lists its looks, and the error of all of them together keeps to what is permitted.
        issued: the time that the certificate shows; now, if it is not given.
    """
    check_decidable(requirement)
    seed = check_seed(seed)
    policy.check(domain)
    earlier = () if after is None else after.looks
    if after is not None and (after.method, after.options) != (method, json.loads(json.dumps(dict(options)))):
        raise RunError(
            f"the earlier look used the method {after.method} with options {after.options}; looks that share one "
            "error need one method with the same options"
        )
    share = _check_share(requirement, share, after)
    sampler = make_sampler(domain, policy.network, requirement, execution=execution)
    done = verify_parameters(
        sampler,
        jnp.asarray(policy.theta),
        requirement,
        stream_key(seed, Stream.CERTIFY, len(earlier)),
        method=method,
        max_episodes=max_episodes,
        share=share,
        options=options,
    )
    subject = Subject(*describe(domain), policy.digest, seed, Stream.CERTIFY.name.lower(), len(earlier))
    return certify(
        requirement, subject, done.tests, done.progress, done.verdict, returns=done.returns, method=method,
        options=options, max_episodes=max_episodes, share=share, earlier=earlier, issued=issued,
    )  # fmt: skip


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
    issued: str | None = None,
) -> Selection:
    """Certify the first candidate that passes, each on its own fresh block of the certificates' stream.

    The candidates come in the order of preference, and are fixed before the first episode of any of them is sampled.
    The permitted error is shared among all of them (`look_share`), so the chance that a candidate which does not meet
    the requirement gets a certificate stays what the requirement permits. All else is as in `verify`.
    """
    if not candidates:
        raise RunError("there is no candidate to certify")
    issued = issued or now()
    certificates: list[Certificate] = []
    for i, policy in enumerate(candidates):
        after = certificates[-1] if certificates else None
        share = look_share(i + 1, of=len(candidates))
        certificate = verify(
            policy, domain, requirement, method=method, options=options, max_episodes=max_episodes, seed=seed,
            execution=execution, share=share, after=after, issued=issued,
        )  # fmt: skip
        certificates.append(certificate)
        if certificates[-1].verdict is Verdict.SATISFIED:
            return Selection(i, certificates[-1])
    best = max(range(len(certificates)), key=lambda i: _closeness(certificates[i]))
    return Selection(best, certificates[best].with_looks(certificates[-1].looks))


def look_share(look: int, *, of: int | None = None) -> float:
    """The part of the permitted error for look 1, 2, ...: 1/(i(i+1)), which sums to 1 over endlessly many looks.

    If there are at most `of` looks, the rest is not kept for later: the shares of these sum to 1.
    """
    return (1.0 if of is None else (of + 1) / of) / (look * (look + 1))


def _closeness(certificate: Certificate) -> float:
    return min((f.confidence for f in certificate.findings), default=1.0)


def _check_share(requirement: Requirement, share: float | None, after: Certificate | None) -> float:
    """The share of this look; refuses more than what earlier looks have left."""
    if after is None:
        share = 1.0 if share is None else share
        if not isinstance(share, int | float) or not 0.0 < share <= 1.0:
            raise RunError(f"the share of the error is a number above 0 and at most 1, got {share}")
        return share
    if after.requirement != str(requirement):
        raise RunError(
            f"the earlier certificate is about another requirement:\n{after.requirement}\ninstead of:\n{requirement}"
        )
    used = sum(look.share for look in after.looks)
    share = look_share(len(after.looks) + 1) if share is None else share
    if not 0.0 < share <= 1.0 - used + 1e-12:
        raise RunError(
            f"the earlier looks used {used:.4g} of the permitted error, this one would use {share:.4g} more; "
            "if a certificate may have to be tried again, issue the first one with share=look_share(1) (--retryable)"
        )
    return share


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

    def outcomes() -> Iterator[NDArray[np.bool_]]:
        for episodes in sample(sampler, theta, key, max_episodes):
            returns.append(np.asarray(episodes.ret))
            yield constraint_outcomes(requirement, np.asarray(episodes.satisfied))

    progress = run_tests(tests, outcomes(), max_episodes=max_episodes)
    used = max((p.episodes for p in progress), default=max_episodes)
    return Verification(overall(progress), progress, np.concatenate(returns)[:used], tests)


def sample(sampler: Sampler, theta: Array, key: Array, count: int) -> Iterator[Episodes]:
    """Episodes 0 to count-1 of a stream for one parameter vector `[D]`, batch by batch."""
    size = min(BATCH if sampler.compiled else HOST_BATCH, count)
    for first in range(0, count, size):
        if sampler.compiled:
            with plain_failures():
                episodes = jax.device_get(_batch(sampler, size, theta, key, np.uint32(first)))
            yield episodes
        else:
            keys = episode_keys(key, first, min(size, count - first))
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
