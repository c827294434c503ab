"""Finite domains: few enough states and random draws to enumerate, so that questions about them have exact answers."""

from __future__ import annotations

from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import DomainError
from psyco._src.envs.actions import Discrete
from psyco._src.envs.base import CompiledDomain, Domain, State


@runtime_checkable
class FiniteDomain(CompiledDomain, Protocol):
    """A domain that also tells where its randomness comes from. States are pytrees of whole numbers.

    Before anything is answered, what it tells is compared with what `reset` and `step` do.
    """

    @property
    def counters(self) -> tuple[str, ...]:
        """Fields of the state, with a signal of the same name each, that only count upwards and influence nothing else.

        A formula that compares them with numbers needs to know only whether they have passed the largest of these.
        """

    def starts(self) -> tuple[NDArray[np.float64], State]:
        """Probabilities `[S]` and initial states, every leaf `[S, ...]`."""

    def chances(self) -> NDArray[np.float64]:
        """Probabilities `[C]` of the random draws of a step."""

    def move(self, state: State, action: Array, chance: Array) -> tuple[State, Array, Array]:
        """The step once draw number `chance` is known: next state, reward, whether the episode ends."""


def is_finite(domain: Domain) -> TypeGuard[FiniteDomain]:
    """Can this domain be enumerated?"""
    return isinstance(domain, FiniteDomain) and isinstance(domain.actions, Discrete)


def finite(domain: Domain) -> FiniteDomain:
    """The domain, if it can be enumerated."""
    if not is_finite(domain):
        raise DomainError(
            f"{domain.name} has no exact answers: it does not enumerate its states and random draws "
            "(see psyco.FiniteDomain); obstacle-run does"
        )
    return domain
