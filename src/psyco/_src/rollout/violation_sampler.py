"""Episodes whose return is a violation: 1 where one of the formulas fails, else 0. An adversary learns from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.rollout.episodes import Episodes
from psyco._src.rollout.gym_sampler import GymSampler
from psyco._src.rollout.jax_sampler import JaxSampler


@dataclass(frozen=True)
class ViolationSampler(JaxSampler):
    """The Sampler of a compiled domain whose monitor decides about returns; its episodes have no constraints."""

    def _episode(self, theta: Array, key: Array, std: Array | None = None, hold: Array | None = None) -> Episodes:
        return _violations(super()._episode(theta, key, std, hold))


@dataclass(frozen=True, eq=False)
class GymViolationSampler(GymSampler):
    """The same for Gymnasium environments."""

    def run(
        self,
        theta: NDArray[np.float32],
        seeds: list[int],
        std: NDArray[np.float32] | None = None,
        hold: NDArray[np.int32] | None = None,
    ) -> Episodes:
        """Run one episode per parameter vector `[B, D]` and environment seed `[B]`, exploring if `std` is given."""
        return _violations(super().run(theta, seeds, std, hold))


def _violations(played: Episodes) -> Episodes:
    """Return episodes, one or a batch, with violations as returns."""
    xp: Any = jnp if isinstance(played.satisfied, jax.Array) else np
    violated, trace = (~played.satisfied.all(axis=-1)).astype(xp.float32), played.trace
    if trace is not None:
        # The step that decides is rewarded: costs are positive from the first violation on.
        decided = xp.minimum(xp.cumsum(trace.cost.sum(axis=-1), axis=-1), 1.0)
        reward = xp.diff(decided, axis=-1, prepend=xp.zeros_like(decided[..., :1]))
        trace = trace._replace(reward=reward, cost=trace.cost[..., :0], counters=None, shaping_cost=None)
    return played._replace(
        returns=violated,
        cost=played.cost[..., :0],
        satisfied=played.satisfied[..., :0],
        trace=trace,
        shaping_cost=None,
    )
