"""Any learner, and what it has to offer late in learning: the candidates among which one is certified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.learners.base import Learner, LearnerState, Proposal, Propose, UpdateInfo, ahead_of
from psyco._src.learners.belief import single_precision
from psyco._src.learners.schedules import nothing_spent, steps_of
from psyco._src.rollout.episodes import Episodes

LATE = 0.2  # candidates stem from this last part of learning


class CandidateBufferState(NamedTuple):
    """A learner's state and the candidates kept so far, of fixed size like any state."""

    inner: LearnerState
    theta: Array  # [M, D] candidates
    made: Array  # [M] int32, the generation after which each was kept; -1: empty
    generation: Array  # [] int32
    steps: Array  # [] int32, taken so far


@dataclass(frozen=True)
class CandidateBuffer:
    """The learner `inner`, keeping its deployed parameters now and then; it learns exactly what `inner` learns.

    Args:
        inner: what learns.
        candidates: how many are kept, the oldest giving way; at least 1.
        generations: how many there will be, or are expected; the candidates lie evenly over the last part of them.
        steps: of the whole run, where they are its budget: the candidates lie evenly over the last part of these.
    """

    inner: Learner
    candidates: int
    generations: int
    steps: int = 0

    @property
    def episodes_per_generation(self) -> int:
        """B of `inner`: keeping candidates plays no episode."""
        return self.inner.episodes_per_generation

    @property
    def checks(self) -> int:
        """Those of `inner`."""
        return self.inner.checks

    @property
    def spacing(self) -> int:
        """Generations between two candidates."""
        return max(1, int(LATE * self.generations / self.candidates))

    def init(self, theta: Array) -> CandidateBufferState:
        """Start from parameters `[D]`, with no candidate."""
        theta = jnp.asarray(theta, jnp.float32)
        none = jnp.full(self.candidates, -1, jnp.int32)
        empty = jnp.zeros((self.candidates, theta.size), jnp.float32)
        return CandidateBufferState(self.inner.init(theta), empty, none, *nothing_spent())

    def propose(self, key: Array, state: CandidateBufferState) -> Proposal:
        """What `inner` would try."""
        return self.inner.propose(key, state.inner)

    @property
    def propose_ahead(self) -> Propose | None:
        """What `inner` would try after its next update, where it knows that before."""
        ahead = ahead_of(self.inner)
        return None if ahead is None else lambda key, state: ahead(key, state.inner)

    def update(
        self, state: CandidateBufferState, proposal: Proposal, episodes: Episodes
    ) -> tuple[CandidateBufferState, UpdateInfo]:
        """Learn, then keep what would be deployed if it is time for it."""
        inner, weighing = self.inner.update(state.inner, proposal, episodes)
        with single_precision():
            number, steps = state.generation + 1, state.steps + steps_of(episodes)
            if self.steps:
                # Whenever another such part is over; where learning will end is not known before.
                late = self._parts(steps) > self._parts(state.steps)
                slot = jnp.argmin(state.made)  # the oldest
            else:
                # Counted from the end, so that the last generation is always kept.
                late = (self.generations - number) % self.spacing == 0
                slot = (number // self.spacing) % self.candidates
            theta = jnp.where(late, self.inner.deployed(inner), state.theta[slot])
            made = jnp.where(late, number, state.made[slot])
            kept = state.theta.at[slot].set(theta), state.made.at[slot].set(made)
            return CandidateBufferState(inner, *kept, number, steps), weighing

    def _parts(self, steps: Array) -> Array:
        """How many of the parts between two candidates are over after so many steps."""
        return steps // max(1, int(LATE * self.steps / self.candidates))

    def deployed(self, state: CandidateBufferState) -> Array:
        """The parameters `[D]` that `inner` would use if learning ended now."""
        return self.inner.deployed(state.inner)

    def kept(self, state: CandidateBufferState) -> list[tuple[int, NDArray[np.float32]]]:
        """Generation and parameters `[D]` of all candidates, newest first; the current parameters are the first."""
        made, theta = np.asarray(state.made), np.asarray(state.theta)
        now = int(state.generation)
        older = sorted(
            ((int(g), t) for g, t in zip(made, theta, strict=True) if 0 <= g < now),
            reverse=True,
            key=lambda x: x[0],
        )
        return [(now, np.asarray(self.deployed(state), np.float32)), *older][: self.candidates]
