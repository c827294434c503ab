"""Any learner, shown standard observations: what all episodes so far saw has zero mean and unit spread for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from psyco._src.learners.base import Learner, LearnerState, Proposal, UpdateInfo
from psyco._src.learners.belief import single_precision
from psyco._src.learners.running_stats import begin, fold, join, look, standard
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Episodes
from psyco._src.rollout.obs_stats import ObsStats


class NormalizedState(NamedTuple):
    """A learner's state, and what its episodes saw so far."""

    inner: LearnerState
    seen: ObsStats  # [inputs]


@dataclass(frozen=True)
class NormalizedLearner:
    """The learner `inner`, whose parameters are those of a network that is shown standard observations.

    What is played and deployed are the same parameters with the statistics folded into the first layer, so that
    neither samplers nor policy files know of them. They change after each generation, ever less.

    Args:
        inner: what learns; it looks at no more of an episode than there is in `Episodes`.
        network: of the policy, with learned biases.
    """

    inner: Learner
    network: Network

    @property
    def episodes_per_generation(self) -> int:
        """B of `inner`: statistics take no episodes of their own."""
        return self.inner.episodes_per_generation

    @property
    def checks(self) -> int:
        """Those of `inner`."""
        return self.inner.checks

    def init(self, theta: Array) -> NormalizedState:
        """Start from parameters `[D]`; the first generation sees observations as the network has them."""
        return NormalizedState(self.inner.init(theta), begin(self.network))

    def propose(self, key: Array, state: NormalizedState) -> Proposal:
        """What `inner` would try; the memo is its own proposal."""
        proposal = self.inner.propose(key, state.inner)
        folded = jax.vmap(lambda theta: fold(self.network, theta, state.seen))(proposal.theta)
        return proposal._replace(theta=folded, memo=proposal)

    def update(
        self, state: NormalizedState, proposal: Proposal, episodes: Episodes
    ) -> tuple[NormalizedState, UpdateInfo]:
        """Learn from the episodes as `inner` would have seen them, then follow what they saw."""
        with single_precision():
            if (trace := episodes.trace) is not None:
                seen = look(state.seen, jnp.asarray(trace.obs), jnp.asarray(trace.alive))
                obs, final = (standard(state.seen, jnp.asarray(x)) for x in (trace.obs, trace.final))
                episodes = episodes._replace(trace=trace._replace(obs=obs, final=final))
            else:
                assert episodes.seen is not None, "samplers of such a learner keep what was observed"
                seen = join(state.seen, episodes.seen)
                episodes = episodes._replace(seen=None)
        inner, weighing = self.inner.update(state.inner, proposal.memo, episodes)
        return NormalizedState(inner, seen), weighing

    def deployed(self, state: NormalizedState) -> Array:
        """What `inner` would deploy, for observations as they are."""
        return fold(self.network, self.inner.deployed(state.inner), state.seen)
