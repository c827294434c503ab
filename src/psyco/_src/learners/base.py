"""What every learner is: propose parameters to try, update from how their episodes went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

from jax import Array

from psyco._src.rollout.episodes import Episodes

LearnerState = Any  # any pytree of arrays


class Proposal(NamedTuple):
    """One generation to be sampled."""

    theta: Array  # [B, D] parameters, one episode each
    memo: Any  # what the learner wants back in `update`
    episode: Array | None = (
        None  # [B] int32, which of the generation's episodes each row plays; None: its own
    )
    std: Array | None = None  # [B, outputs] of noise on the scores; where given, episodes come with a trace


Propose: TypeAlias = Callable[[Array, LearnerState], Proposal]


class UpdateInfo(NamedTuple):
    """What a learner made of a generation's episodes."""

    lam: Array  # [] weight of return
    c_sat: Array  # [K] confidence that each demand is met


class Generation(NamedTuple):
    """What one generation looked like; from it comes a row of the metrics table."""

    episodes: Episodes
    weighing: UpdateInfo


class Learner(Protocol):
    """Pure functions of a state; runs compiled or in a host loop alike.

    Rows of a proposal that name the same `episode` meet the same initial state and the same chance events, so that
    they differ by their parameters alone (common random numbers). `update` is called under
    `belief.double_precision()`; everything else under JAX's default types.
    """

    @property
    def episodes_per_generation(self) -> int:
        """B: how many episodes one proposal takes."""

    @property
    def checks(self) -> int:
        """How many of these, the last ones, show the policy that would be deployed; 0: none is played apart."""

    def init(self, theta: Array) -> LearnerState:
        """Start from parameters `[D]`."""

    def propose(self, key: Array, state: LearnerState) -> Proposal:
        """Parameters to try in this generation."""

    def update(
        self, state: LearnerState, proposal: Proposal, episodes: Episodes
    ) -> tuple[LearnerState, UpdateInfo]:
        """Learn from their episodes."""

    def deployed(self, state: LearnerState) -> Array:
        """The parameters `[D]` that would be used if learning ended now."""


def ahead_of(learner: Learner) -> Propose | None:
    """What a learner will propose after its next update, where it knows that before: its `propose_ahead`, or None.

    `propose_ahead(key, state)` is what `propose(key, state)` will be after one more update, whatever that learns. Then
    episodes can be played while the update is computed, and no result depends on which of both takes longer.
    """
    found: Propose | None = getattr(learner, "propose_ahead", None)
    return found
