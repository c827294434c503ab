"""Episodes whose return is a violation: 1 where one of the formulas fails, else 0. An adversary learns from them."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from psyco._src.rollout.episodes import Episodes
from psyco._src.rollout.jax_sampler import JaxSampler


@dataclass(frozen=True)
class ViolationSampler(JaxSampler):
    """The Sampler of a compiled domain whose monitor decides about returns; its episodes have no constraints."""

    def _episode(self, theta: Array, key: Array, std: Array | None = None, hold: Array | None = None) -> Episodes:
        played = super()._episode(theta, key, std, hold)
        violated, trace = (~played.satisfied.all()).astype(jnp.float32), played.trace
        if trace is not None:
            # The step that decides is rewarded: costs are positive from the first violation on.
            decided = jnp.minimum(jnp.cumsum(trace.cost.sum(axis=1)), 1.0)
            reward = jnp.diff(decided, prepend=0.0)
            trace = trace._replace(reward=reward, cost=trace.cost[:, :0], counters=None, shaping_cost=None)
        return played._replace(
            returns=violated, cost=played.cost[:0], satisfied=played.satisfied[:0], trace=trace, shaping_cost=None
        )
