"""What samplers run: an Actor inside compiled code, its Crew in a loop over environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.domain.actions import Actions
from psyco._src.domain.gym_env import GymDomain


class Actor(Protocol):
    """What chooses actions: a network, whose parameters come with each episode, or a policy of others without any.

    Compiled code is shared by equal actors, so an actor is hashable.
    """

    def act(self, actions: Actions, theta: Array, x: Array, disturbance: Array | None = None) -> Array:
        """Inside compiled code: the action for one observation.

        Args:
            actions: what there is to choose from.
            theta: parameters `[D]`; of a policy of others `[0]`.
            x: the observation `[inputs]`.
            disturbance: what exploration adds to the scores `[outputs]`; only networks explore.
        """

    def crew(self, domain: GymDomain, theta: NDArray[np.float32]) -> Crew:
        """Policies with parameters `[B, D]`, at the start of B episodes in the environments of a domain."""


class Crew(Protocol):
    """B policies at work, one per episode. It is made for these episodes alone, so it may keep a state for each."""

    def __call__(
        self, flat: NDArray[np.float32], raw: Sequence[Any], disturbance: NDArray[np.float32] | None = None
    ) -> Sequence[Any]:
        """The next action of each policy, as its environment's `step` takes it.

        Args:
            flat: flattened observations `[B, size]`.
            raw: the same observations `[B]` as the environments gave them.
            disturbance: what exploration adds to the scores `[B, outputs]`; only networks explore.
        """

    def take(self, rows: NDArray[np.intp]) -> Crew:
        """Those policies whose episodes go on."""
