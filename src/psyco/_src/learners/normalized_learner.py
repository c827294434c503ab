"""A learner with running normalization of observations, around any other learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from psyco._src.learners.base import Learner, LearnerState, Proposal, UpdateInfo
from psyco._src.learners.belief import single_precision
from psyco._src.learners.running_stats import (
    fold,
    merge_stats,
    network_stats,
    normalize_obs,
    observe_rows,
)
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Episodes, ObsStats


class NormalizedState(NamedTuple):
    """A learner's state, and the statistics of its observations so far."""

    inner: LearnerState
    obs_stats: ObsStats  # [inputs]


@dataclass(frozen=True)
class NormalizedLearner:
    """The learner `inner`, whose parameters are those of a network for normalized observations.

    Episodes are played, and the policy is deployed, with the statistics folded into the first layer. So neither
    samplers nor policy files know of them. The statistics change after each generation, by less and less.

    Args:
        inner: the learner; it uses nothing of an episode besides `Episodes`.
        network: of the policy, with learned biases.
    """

    inner: Learner
    network: Network

    @property
    def episodes_per_generation(self) -> int:
        """B of `inner`."""
        return self.inner.episodes_per_generation

    @property
    def checks(self) -> int:
        """The number of check episodes of `inner`."""
        return self.inner.checks

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
                obs, final = (normalize_obs(state.obs_stats, jnp.asarray(x)) for x in (trace.obs, trace.final_obs))
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
