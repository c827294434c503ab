"""A learner that keeps late checkpoints, around any other learner: the candidates for the certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.learners.base import (
    LearnerAround,
    LearnerState,
    Proposal,
    Propose,
    UpdateInfo,
    ahead_of,
    count_steps,
    count_violations,
    zero_counters,
)
from psyco._src.learners.belief import single_precision
from psyco._src.rollout.episodes import Episodes

LATE_FRACTION = 0.2  # of learning, at its end, from which candidates come


class CandidateBufferState(NamedTuple):
    """A learner's state and the candidates kept so far, of fixed size as every state."""

    inner: LearnerState
    theta: Array  # [M, D] candidates
    made: Array  # [M] int32, the generation after which each was kept; -1: empty
    generation: Array  # [] int32
    steps: Array  # [] int32, taken so far
    violations: Array | None = None  # [] int32, violating episodes so far; None unless they are limited


@dataclass(frozen=True)
class CandidateBuffer(LearnerAround):
    """The learner `inner`, with copies of its deployed parameters; learning itself is not affected.

    Args:
        inner: the learner.
        candidates: the number of candidates, at least 1; new ones replace the oldest.
        generations: the number of generations, or the expected one; candidates are spread evenly over the last part.
        steps: the step budget; candidates are spread evenly over its last part. 0: the budget is in episodes.
        violations: the largest number of violating episodes; candidates are spread evenly over the last part of it too,
            since learning ends when it is used up. 0: any number.
    """

    candidates: int
    generations: int
    steps: int = 0
    violations: int = 0

    @property
    def spacing(self) -> int:
        """Generations between two candidates."""
        return max(1, int(LATE_FRACTION * self.generations / self.candidates))

    def init(self, theta: Array) -> CandidateBufferState:
        """Start from parameters `[D]`, without candidates."""
        theta = jnp.asarray(theta, jnp.float32)
        none = jnp.full(self.candidates, -1, jnp.int32)
        empty = jnp.zeros((self.candidates, theta.size), jnp.float32)
        violations = jnp.int32(0) if self.violations else None
        return CandidateBufferState(self.inner.init(theta), empty, none, *zero_counters(), violations)

    def propose(self, key: Array, state: CandidateBufferState) -> Proposal:
        """Return the proposal of `inner`."""
        return self.inner.propose(key, state.inner)

    @property
    def propose_ahead(self) -> Propose | None:
        """The `propose_ahead` of `inner`, if it has one."""
        ahead = ahead_of(self.inner)
        return None if ahead is None else lambda key, state: ahead(key, state.inner)

    def update(
        self, state: CandidateBufferState, proposal: Proposal, episodes: Episodes
    ) -> tuple[CandidateBufferState, UpdateInfo]:
        """Update `inner`, then keep its deployed parameters if a candidate is due."""
        inner, info = self.inner.update(state.inner, proposal, episodes)
        with single_precision():
            number, steps = state.generation + 1, state.steps + count_steps(episodes)
            if self.steps:
                # Due after each part of the steps; the last generation is not known in advance.
                due = self._parts_done(steps) > self._parts_done(state.steps)
                slot = jnp.argmin(state.made)  # the oldest
            else:
                # Counted from the end, so that the last generation is always kept.
                due = (self.generations - number) % self.spacing == 0
                slot = (number // self.spacing) % self.candidates
            violations = state.violations
            if violations is not None:
                part = max(1, int(LATE_FRACTION * self.violations / self.candidates))
                before, violations = violations, violations + count_violations(episodes)
                due = due | (violations // part > before // part)
                slot = jnp.argmin(state.made)
            theta = jnp.where(due, self.inner.deployed(inner), state.theta[slot])
            made = jnp.where(due, number, state.made[slot])
            kept = state.theta.at[slot].set(theta), state.made.at[slot].set(made)
            return CandidateBufferState(inner, *kept, number, steps, violations), info

    def _parts_done(self, steps: Array) -> Array:
        """Return how many intervals between candidates are complete after these steps."""
        return steps // max(1, int(LATE_FRACTION * self.steps / self.candidates))

    def kept(self, state: CandidateBufferState) -> list[tuple[int, NDArray[np.float32]]]:
        """Return generation and parameters `[D]` of all candidates, newest first, starting with the current ones."""
        made, theta = np.asarray(state.made), np.asarray(state.theta)
        now = int(state.generation)
        older = sorted(
            ((int(g), t) for g, t in zip(made, theta, strict=True) if 0 <= g < now),
            reverse=True,
            key=lambda x: x[0],
        )
        return [(now, np.asarray(self.deployed(state), np.float32)), *older][: self.candidates]
