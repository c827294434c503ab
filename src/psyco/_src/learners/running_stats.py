"""Running normalization of observations: zero mean and unit variance over everything observed so far.

A learner keeps `ObsStats` in its state and trains parameters for normalized observations. Samplers need not know:
`fold` moves the statistics into the first layer, so that the network gives the same scores for raw observations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco._src.core.errors import RunError
from psyco._src.learners.base import LearnerAround, LearnerState, Proposal, UpdateInfo
from psyco._src.learners.belief import single_precision
from psyco._src.policies.joint_network import JointNetwork
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Episodes, ObsStats, summarize_observations

MAX_NORMALIZED = 10.0  # absolute value of a normalized observation
NETWORK_ROWS = 10_000  # weight of a network's own shift and scale, in observations


def empty_stats(columns: int) -> ObsStats:
    """Return the statistics of no rows; `normalize_obs` then changes nothing."""
    none = jnp.zeros(columns, jnp.float32)
    return ObsStats(jnp.float32(0), none, none, jnp.ones(columns, bool), none + jnp.inf, none - jnp.inf)


def network_stats(network: Network) -> ObsStats:
    """Return a network's own shift and scale as statistics of `NETWORK_ROWS` rows; empty ones if it has none."""
    if not network.scale:
        return empty_stats(network.inputs)
    shift, scale = np.array(network.shift, np.float32), np.array(network.scale, np.float32)
    unchanged = (shift == 0) & (scale == 1)  # binary and constant columns
    return ObsStats(*map(jnp.asarray, (np.float32(NETWORK_ROWS), shift, scale**2, unchanged, shift, shift)))


def observe_rows(stats: ObsStats, x: Array, weight: Array) -> ObsStats:
    """Return the statistics after rows `[..., I]` with weights `[...]`, 0 or 1."""
    return merge_stats(stats, summarize_observations(x.reshape(1, -1, x.shape[-1]), weight.reshape(1, -1)))


def merge_stats(stats: ObsStats, parts: ObsStats) -> ObsStats:
    """Return the statistics together with those of `[B]` parts."""
    added = jnp.sum(parts.rows)
    share = (parts.rows / jnp.maximum(added, 1.0))[:, None]
    mean = jnp.sum(share * parts.mean, axis=0)
    variance = jnp.sum(share * (parts.variance + (parts.mean - mean) ** 2), axis=0)
    # Moments of two parts together (Chan, Golub and LeVeque 1983).
    count = stats.rows + added
    part = added / jnp.maximum(count, 1.0)
    difference = mean - stats.mean
    return ObsStats(
        count,
        stats.mean + part * difference,
        stats.variance + part * (variance - stats.variance) + part * (1.0 - part) * difference**2,
        stats.switch & jnp.all(parts.switch, axis=0),
        jnp.minimum(stats.low, jnp.min(parts.low, axis=0)),
        jnp.maximum(stats.high, jnp.max(parts.high, axis=0)),
    )


def shift_and_scale(stats: ObsStats) -> tuple[Array, Array]:
    """Return the shift and the scale `[I]` of the normalization.

    Binary columns (0 or 1, as in a one-hot code) and constants stay unchanged. A column that rarely moves has a tiny
    standard deviation; its scale is so large that no observed value exceeds `MAX_NORMALIZED`.
    """
    std = jnp.sqrt(stats.variance)
    unchanged = stats.switch | (std <= 1e-6 * (1.0 + jnp.abs(stats.mean)))
    reach = jnp.maximum(stats.high - stats.mean, stats.mean - stats.low)
    scale = jnp.maximum(std, reach / MAX_NORMALIZED)
    return jnp.where(unchanged, 0.0, stats.mean), jnp.where(unchanged, 1.0, scale)


def normalize_obs(stats: ObsStats, x: Array) -> Array:
    """Return rows `[..., I]` with zero mean and unit variance."""
    shift, scale = shift_and_scale(stats)
    return (x - shift) / scale


def _policy_stats(network: JointNetwork, stats: ObsStats) -> list[ObsStats]:
    """Return the statistics of each policy's inputs: those of the agents that share it, together.

    Inputs that say which agent it acts for stay unchanged.
    """
    found = []
    for policy, members in zip(network.policies, network.sharers, strict=True):
        places = [network.input_places[network.members.index(each)] for each in members]
        parts = ObsStats(stats.rows / len(places) * jnp.ones(len(places)), *(
            jnp.stack([column[place] for place in places]) for column in stats[1:]
        ))  # fmt: skip
        own = merge_stats(empty_stats(members[0].inputs), parts)
        code = empty_stats(policy.inputs - members[0].inputs)
        found.append(ObsStats(own.rows, *(jnp.concatenate(pair) for pair in zip(own[1:], code[1:], strict=True))))
    return found


def shared_stats(network: Network, stats: ObsStats) -> ObsStats:
    """Return the statistics by which observations are normalized: agents that share a policy have the same."""
    if not isinstance(network, JointNetwork):
        return stats
    by_policy = _policy_stats(network, stats)
    columns = [
        [getattr(by_policy[each.policy], name)[: each.inputs] for each in network.members]
        for name in ObsStats._fields[1:]
    ]
    return ObsStats(stats.rows, *(jnp.concatenate(parts) for parts in columns))


def fold(network: Network, theta: Array, stats: ObsStats) -> Array:
    """Return parameters `[D]` that give for raw observations the scores of `theta` for normalized ones.

    The network's biases must be learned. Its own shift and scale, if any, are undone.
    """
    if isinstance(network, JointNetwork):
        if network.scale:
            raise RunError("several agents with normalized observations cannot follow running statistics too")
        each = zip(network.policies, network.policy_places, _policy_stats(network, stats), strict=True)
        return jnp.concatenate([fold(policy, theta[place], own) for policy, place, own in each])
    shift, scale = shift_and_scale(stats)
    own_shift = jnp.asarray(network.shift, jnp.float32) if network.scale else jnp.zeros_like(shift)
    own_scale = jnp.asarray(network.scale, jnp.float32) if network.scale else jnp.ones_like(scale)
    if network.masked:  # the mask is no part of x
        shift, scale, own_shift, own_scale = (x[: network.observed] for x in (shift, scale, own_shift, own_scale))
    parts = network.unflatten(theta)  # the weights of all layers, then their biases
    first = network.first_bias
    parts[first] = parts[first] + ((own_shift - shift) / scale) @ parts[0]
    parts[0] = parts[0] * (own_scale / scale)[:, None]
    return jnp.concatenate([part.ravel() for part in parts])


# A learner with running normalization of observations, around any other learner.


class NormalizedState(NamedTuple):
    """A learner's state, and the statistics of its observations so far."""

    inner: LearnerState
    obs_stats: ObsStats  # [inputs]


@dataclass(frozen=True)
class NormalizedLearner(LearnerAround):
    """The learner `inner`, whose parameters are those of a network for normalized observations.

    Episodes are played, and the policy is deployed, with the statistics folded into the first layer. So neither
    samplers nor policy files know of them. The statistics change after each generation, by less and less.

    Args:
        inner: the learner; it uses nothing of an episode besides `Episodes`.
        network: of the policy, with learned biases.
    """

    network: Network

    def init(self, theta: Array) -> NormalizedState:
        """Start from parameters `[D]` and the network's own shift and scale."""
        return NormalizedState(self.inner.init(theta), network_stats(self.network))

    def propose(self, key: Array, state: NormalizedState) -> Proposal:
        """Return the proposal of `inner` with folded parameters; its memo is the original proposal."""
        proposal = self.inner.propose(key, state.inner)
        folded = jax.vmap(lambda theta: fold(self.network, theta, state.obs_stats))(proposal.theta)
        return proposal._replace(theta=folded, memo=proposal)

    def update(
        self, state: NormalizedState, proposal: Proposal, episodes: Episodes
    ) -> tuple[NormalizedState, UpdateInfo]:
        """Update `inner` with normalized observations, then the statistics."""
        with single_precision():
            if (trace := episodes.trace) is not None:
                stats = observe_rows(state.obs_stats, jnp.asarray(trace.obs), jnp.asarray(trace.alive))
                used = shared_stats(self.network, state.obs_stats)
                obs, final = (normalize_obs(used, jnp.asarray(x)) for x in (trace.obs, trace.final_obs))
                episodes = episodes._replace(trace=trace._replace(obs=obs, final_obs=final))
            else:
                assert episodes.obs_stats is not None, "the sampler must keep statistics of observations"
                stats = merge_stats(state.obs_stats, episodes.obs_stats)
                episodes = episodes._replace(obs_stats=None)
        inner, info = self.inner.update(state.inner, proposal.memo, episodes)
        return NormalizedState(inner, stats), info

    def deployed(self, state: NormalizedState) -> Array:
        """Return the deployed parameters of `inner`, for raw observations."""
        return fold(self.network, self.inner.deployed(state.inner), state.obs_stats)
