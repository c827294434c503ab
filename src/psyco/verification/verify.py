"""V(m, φ, θ): sample fresh episodes of a policy, test each constraint, write down what was shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco.domain.base import Domain
from psyco.errors import RequirementError, RunError
from psyco.foreign import AnyPolicy, as_policy
from psyco.rollout.episodes import Episodes, Sampler, Stream, episode_keys, stream_key
from psyco.rollout.sampler import make_sampler, on_workers
from psyco.spec.formula import Requirement
from psyco.spec.parse import parse
from psyco.verification.base import Progress, Verdict, overall, run_tests
from psyco.verification.bayes import posterior_mass
from psyco.verification.certificate import Certificate, certify
from psyco.verification.methods import make_test

BATCH = 250  # episodes sampled at once; a test still consumes them one by one


class Verification(NamedTuple):
    """How the tests of all constraints ended."""

    verdict: Verdict
    progress: list[Progress]  # one per constraint
    returns: NDArray[np.float32]  # [episodes] of the episodes that were looked at

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
    policy: AnyPolicy | str | Callable[[Any], Any],
    domain: Domain,
    requirement: Requirement | str,
    *,
    method: str = "bayes",
    max_episodes: int = 1000,
    seed: int = 0,
    devices: int = 1,
    workers: int = 1,
    ray: str | None = None,
    step_timeout: float | None = None,
    **options: Any,
) -> Certificate:
    """Verify a policy on fresh episodes and say exactly what was shown.

    Args:
        policy: what is to be verified: ours, a file, a policy of others (see `psyco.foreign`), or any function from
            observation to action.
        domain: where it acts.
        requirement: what must hold, as text or parsed.
        method: how the constraints are tested, a name in `METHODS`.
        max_episodes: give up undecided after so many episodes.
        seed: the episodes are a function of it.
        devices: over how many JAX devices a batch is split; the result does not depend on it.
        workers, ray, step_timeout: for Gymnasium environments, as in `synthesize`.
        options: parameters of the method.
    """
    requirement = parse(requirement) if isinstance(requirement, str) else requirement
    check_decidable(requirement)
    policy = as_policy(policy)
    policy.check(domain)
    domain = on_workers(domain, workers=workers, ray=ray, step_timeout=step_timeout)
    sampler = make_sampler(domain, policy.network, requirement, devices=devices)
    key = stream_key(check_seed(seed), Stream.CERTIFY)
    done = verify_parameters(
        sampler,
        jnp.asarray(policy.theta),
        requirement,
        key,
        method=method,
        max_episodes=max_episodes,
        **options,
    )
    return certify(
        policy, domain, requirement, done.verdict, done.progress, done.returns,
        method=method, options=options, max_episodes=max_episodes, seed=seed,
    )  # fmt: skip


def verify_parameters(
    sampler: Sampler,
    theta: Array,
    requirement: Requirement,
    key: Array,
    *,
    method: str,
    max_episodes: int,
    **options: Any,
) -> Verification:
    """The same for bare parameters `[D]`, without a certificate: what learning uses."""
    if max_episodes < 1:
        raise RunError(f"the maximum number of episodes must be at least 1, got {max_episodes}")
    tests = [make_test(method, constraint, **options) for constraint in requirement.constraints]
    returns: list[NDArray[np.float32]] = []

    def outcomes() -> Iterator[NDArray[np.bool_]]:
        for episodes in sample(sampler, theta, key, max_episodes):
            returns.append(np.asarray(episodes.ret))
            yield constraint_outcomes(requirement, np.asarray(episodes.satisfied))

    progress = run_tests(tests, outcomes(), max_episodes=max_episodes)
    used = max((p.episodes for p in progress), default=max_episodes)
    return Verification(overall(progress), progress, np.concatenate(returns)[:used])


def sample(sampler: Sampler, theta: Array, key: Array, count: int) -> Iterator[Episodes]:
    """Episodes 0 to count-1 of a stream for one parameter vector `[D]`, batch by batch."""
    size = min(BATCH, count)
    for first in range(0, count, size):
        if sampler.compiled:
            yield jax.device_get(_batch(sampler, size, theta, key, np.uint32(first)))
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


def check_seed(seed: int) -> int:
    """Seeds are whole numbers that fit JAX's keys on every platform."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**31:
        raise RunError(f"a seed is a whole number from 0 to {2**31 - 1}, got {seed!r}")
    return int(seed)


@jax.jit(static_argnums=(0, 1))
def _batch(sampler: Sampler, count: int, theta: Array, key: Array, first: Array) -> Episodes:
    return sampler(jnp.broadcast_to(theta, (count, theta.size)), episode_keys(key, first, count))
