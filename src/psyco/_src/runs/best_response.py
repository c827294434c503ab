"""One agent of several deviates: the domain of its best response, the joint policy with it, and what it gains."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy import stats

from psyco._src.core.errors import RunError
from psyco._src.envs.adversary import FixedPolicy
from psyco._src.envs.base import Domain
from psyco._src.envs.deviation import DeviatedDomain, ResponseDomain, check_deviation
from psyco._src.envs.variants import Deviation
from psyco._src.logic.ast import Requirement
from psyco._src.policies.external import AnyPolicy
from psyco._src.policies.joint_network import JointNetwork, replace_agent
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.episodes import Stream, concatenate_episodes, stream_key
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.sampler import make_sampler
from psyco._src.verification.episode_stream import sample_episodes

PAIR_EPISODES, HOST_PAIR_EPISODES = 2_000, 100  # of each policy against each adversary
PAIR_BLOCK = 1  # of the stream of selection; candidates of learning use the block before it


class Gain(NamedTuple):
    """What an agent gains in return by a deviation, over pairs of episodes with common seeds."""

    before: float  # mean return of the agent, or of the team where agents have none
    after: float  # the same with the deviation
    difference: float  # mean of the pairs
    lower: float  # bounds on the expected difference at 95%, by Student's t
    upper: float
    pairs: int
    best: float | None = None  # exact expected return of the best response, where it was computed

    def __str__(self) -> str:
        best = "" if self.best is None else f"; the best response has exactly {self.best:.6f}"
        return (
            f"return {self.after:.2f} instead of {self.before:.2f}: a difference of {self.difference:+.2f}, between "
            f"{self.lower:+.2f} and {self.upper:+.2f} (95%, by Student's t), in {self.pairs:,} pairs of episodes; an "
            f"estimate, no part of the guarantee{best}"
        )


def response_domain(policy: AnyPolicy, domain: Domain, deviation: Deviation) -> ResponseDomain:
    """Return the domain in which an agent responds to the joint policy of all others."""
    joint = check_deviation(domain, deviation)
    policy.check(joint)
    return ResponseDomain(joint, deviation, _fixed(policy))


def deviated_domain(domain: Domain, deviation: Deviation, *responses: AnyPolicy) -> DeviatedDomain:
    """Return the domain in which an agent acts as in one of these joint policies, and the others as they like."""
    joint = check_deviation(domain, deviation)
    for each in responses:
        each.check(joint)
    return DeviatedDomain(joint.base, deviation, tuple(map(_fixed, responses)))


def with_response(policy: Policy, deviation: Deviation, response: Policy) -> Policy:
    """Return the joint policy in which one agent follows a response of its own."""
    network = policy.network
    assert isinstance(network, JointNetwork)
    agent = policy.agents.index(deviation.agent)
    joined, theta = replace_agent(network, policy.theta, agent, response.network, response.theta)
    origin = f"{deviation}, from the joint policy sha256:{policy.digest}"
    return dataclasses.replace(policy, network=joined, theta=theta, origin=origin)


def measure_gain(
    policy: Policy,
    domain: Domain,
    deviation: Deviation,
    response: Policy,
    *,
    seed: int,
    execution: Execution = IN_PROCESS,
) -> Gain:
    """Return what an agent gains in return if it acts as in `response`, and the others as in `policy`."""
    where = response_domain(policy, domain, Deviation(deviation.agent, "return"))
    key = stream_key(seed, Stream.SELECT, PAIR_BLOCK)

    def returns(own: Policy) -> np.ndarray:
        sampler = make_sampler(where, own.network, Requirement(), execution=execution)
        played = sample_episodes(sampler, jnp.asarray(own.theta), key, PAIR_EPISODES)
        return np.asarray(concatenate_episodes(list(played)).returns, np.float64)

    before, after = (returns(each.agent(deviation.agent)) for each in (policy, response))
    found = after - before
    margin = stats.t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found))
    mean = float(found.mean())
    return Gain(
        float(before.mean()), float(after.mean()), mean, mean - float(margin), mean + float(margin), PAIR_EPISODES
    )


def _fixed(policy: AnyPolicy) -> FixedPolicy:
    if not isinstance(policy, Policy):
        raise RunError(
            "a best response is learned against a PSyCo policy, and this is another one; psyco synthesize with the "
            "same domain learns one"
        )
    return FixedPolicy(policy.digest, partial(policy.network.act, policy.actions, jnp.asarray(policy.theta)))
