"""The protocols of acting: an Actor, and the VectorPolicy that it makes for a batch of episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from psyco._src.envs.base import Domain


class Actor(Protocol):
    """Chooses actions: a network, whose parameters come with each episode, or an external policy without parameters.

    Only networks also act inside compiled code (`Network.act`).
    """

    @property
    def signals(self) -> frozenset[str]:
        """Signals that its vector policies need in every state beside observations; mostly none."""

    def vectorize(self, domain: Domain, theta: NDArray[np.float32], seeds: Sequence[int]) -> VectorPolicy:
        """Return the policies of B episodes, at their start.

        Args:
            domain: where they act.
            theta: parameters `[B, D]`; of an external policy `[B, 0]`.
            seeds: of the episodes `[B]`.
        """


class VectorPolicy(Protocol):
    """Policies of B running episodes. It is made for these episodes alone, so it may keep a state for each."""

    def __call__(
        self,
        flat: NDArray[np.float32],
        raw: Sequence[Any],
        noise: NDArray[np.float32] | None = None,
        signals: Sequence[Mapping[str, Any]] = (),
    ) -> Sequence[Any]:
        """Return the next action of each policy, as `step` of its domain takes it.

        Args:
            flat: flattened observations `[B, size]`.
            raw: the same observations `[B]` as the environments gave them.
            noise: exploration noise on the scores `[B, outputs]`; only networks explore.
            signals: for each episode `[B]` the signals that its actor asks for, by name.
        """

    @property
    def fallback_steps(self) -> NDArray[np.int32] | None:
        """Steps so far in which a fallback acted, for each episode that it was made for; None without a fallback."""

    def take(self, rows: NDArray[np.intp]) -> VectorPolicy:
        """Return the policies of these rows, whose episodes have not ended."""


class WithoutParameters:
    """A policy without parameters; it is its own Actor, which samplers run."""

    @property
    def network(self) -> Self:
        """The Actor: itself."""
        return self

    @property
    def theta(self) -> NDArray[np.float32]:
        """Parameters `[0]`: there are none."""
        return np.zeros(0, np.float32)
