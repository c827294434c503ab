"""Any learner, and what it has to offer late in learning: the candidates among which one is certified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.learn.base import Learner, LearnerState, Proposal, Weighing
from psyco._src.learn.belief import single_precision
from psyco._src.rollout.episodes import Episodes

LATE = 0.2  # candidates stem from this last part of learning


class KeptState(NamedTuple):
    """A learner's state and the candidates kept so far, of fixed size like any state."""

    inner: LearnerState
    theta: Array  # [M, D] candidates
    made: Array  # [M] int32, the generation after which each was kept; -1: empty
    generation: Array  # [] int32


@dataclass(frozen=True)
class Keeping:
    """The learner `inner`, keeping its deployed parameters now and then; it learns exactly what `inner` learns.

    Args:
        inner: what learns.
        candidates: how many are kept, the oldest giving way; at least 1.
        generations: how many there will be; the candidates lie evenly over the last part of them.
    """

    inner: Learner
    candidates: int
    generations: int

    @property
    def episodes_per_generation(self) -> int:
        """B of `inner`: keeping candidates plays no episode."""
        return self.inner.episodes_per_generation

    @property
    def spacing(self) -> int:
        """Generations between two candidates."""
        return max(1, int(LATE * self.generations / self.candidates))

    def init(self, theta: Array) -> KeptState:
        """Start from parameters `[D]`, with no candidate."""
        theta = jnp.asarray(theta, jnp.float32)
        none = jnp.full(self.candidates, -1, jnp.int32)
        return KeptState(
            self.inner.init(theta), jnp.zeros((self.candidates, theta.size), jnp.float32), none, jnp.int32(0)
        )

    def propose(self, key: Array, state: KeptState) -> Proposal:
        """What `inner` would try."""
        return self.inner.propose(key, state.inner)

    def update(self, state: KeptState, proposal: Proposal, episodes: Episodes) -> tuple[KeptState, Weighing]:
        """Learn, then keep what would be deployed if it is time for it."""
        inner, weighing = self.inner.update(state.inner, proposal, episodes)
        with single_precision():
            number = state.generation + 1
            # Counted from the end, so that the last generation is always kept.
            late = (self.generations - number) % self.spacing == 0
            slot = (number // self.spacing) % self.candidates
            theta = jnp.where(late, self.inner.deployed(inner), state.theta[slot])
            made = jnp.where(late, number, state.made[slot])
            return KeptState(
                inner, state.theta.at[slot].set(theta), state.made.at[slot].set(made), number
            ), weighing

    def deployed(self, state: KeptState) -> Array:
        """The parameters `[D]` that `inner` would use if learning ended now."""
        return self.inner.deployed(state.inner)

    def kept(self, state: KeptState) -> list[tuple[int, NDArray[np.float32]]]:
        """Generation and parameters `[D]` of all candidates, newest first; the current parameters are the first."""
        made, theta = np.asarray(state.made), np.asarray(state.theta)
        now = int(state.generation)
        older = sorted(
            ((int(g), t) for g, t in zip(made, theta, strict=True) if 0 <= g < now),
            reverse=True,
            key=lambda x: x[0],
        )
        return [(now, np.asarray(self.deployed(state), np.float32)), *older][: self.candidates]
