"""What samplers run: an Actor, and its Crew in a loop over episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from psyco._src.envs.base import Domain


class Actor(Protocol):
    """What chooses actions: a network, whose parameters come with each episode, or a policy of others without any.

    Only networks also act inside compiled code (`Network.act`).
    """

    @property
    def signals(self) -> frozenset[str]:
        """What its crews are to be shown of every state beside observations; mostly nothing."""

    def crew(self, domain: Domain, theta: NDArray[np.float32], seeds: Sequence[int]) -> VectorPolicy:
        """Policies at the start of B episodes.

        Args:
            domain: where they act.
            theta: parameters `[B, D]`; of a policy of others `[B, 0]`.
            seeds: of the episodes `[B]`.
        """


class VectorPolicy(Protocol):
    """B policies at work, one per episode. It is made for these episodes alone, so it may keep a state for each."""

    def __call__(
        self,
        flat: NDArray[np.float32],
        raw: Sequence[Any],
        disturbance: NDArray[np.float32] | None = None,
        signals: Sequence[Mapping[str, Any]] = (),
    ) -> Sequence[Any]:
        """The next action of each policy, as `step` of its domain takes it.

        Args:
            flat: flattened observations `[B, size]`.
            raw: the same observations `[B]` as the environments gave them.
            disturbance: what exploration adds to the scores `[B, outputs]`; only networks explore.
            signals: for each `[B]` those that its actor asks for, by name.
        """

    @property
    def handed(self) -> NDArray[np.int32] | None:
        """In how many steps a fallback acted so far, in each of the episodes that it was made for; None without one."""

    def take(self, rows: NDArray[np.intp]) -> VectorPolicy:
        """Those policies whose episodes go on."""
