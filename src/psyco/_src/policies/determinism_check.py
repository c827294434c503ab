"""Checks that the actions of an external policy depend on its own episode alone, by asking it twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.actions import Actions, Continuous
from psyco._src.envs.base import Domain
from psyco._src.policies.base import VectorPolicy
from psyco._src.policies.external import ExternalPolicy
from psyco._src.policies.guard import Guard

ACTION_TOLERANCE = 1e-4  # of the range of actions: rounding of a network may depend on the row


@dataclass(frozen=True, eq=False)
class DeterminismProbe:
    """An Actor that asks an external policy twice, the second time with the episodes in reverse order.

    A policy whose second answer differs shares state between episodes or uses unseeded randomness.
    """

    policy: ExternalPolicy | Guard

    @property
    def signals(self) -> frozenset[str]:
        """The signals of the policy."""
        return self.policy.signals

    def vectorize(self, domain: Domain, theta: NDArray[np.float32], seeds: Sequence[int]) -> VectorPolicy:
        """Return two vector policies for the same episodes, compared at every step."""
        first, second = (self.policy.vectorize(domain, theta, order) for order in (seeds, seeds[::-1]))
        return _ProbedVectorPolicy(self.policy, domain.actions, len(seeds), first, second)


@dataclass(frozen=True)
class _ProbedVectorPolicy:
    policy: ExternalPolicy | Guard
    actions: Actions
    count: int
    first: VectorPolicy
    second: VectorPolicy  # in reverse order

    fallback_steps: ClassVar[None] = None

    def take(self, rows: NDArray[np.intp]) -> _ProbedVectorPolicy:
        second = self.second.take(self.count - 1 - rows[::-1])
        return _ProbedVectorPolicy(self.policy, self.actions, len(rows), self.first.take(rows), second)

    def __call__(
        self,
        flat: NDArray[np.float32],
        raw: Sequence[Any],
        noise: NDArray[np.float32] | None = None,
        signals: Sequence[Mapping[str, Any]] = (),
    ) -> Sequence[Any]:
        chosen = self.first(flat, raw, noise, signals)
        again = self.second(flat[::-1], raw[::-1], signals=signals[::-1])[::-1]
        for one, other in zip(chosen, again, strict=True):
            if (np.abs(np.subtract(one, other, dtype=float)) > self._tolerance).any():
                raise RunError(_difference_message(self.policy, one, other))
        return chosen

    @property
    def _tolerance(self) -> Any:
        if not isinstance(self.actions, Continuous):
            return 0.0
        return ACTION_TOLERANCE * np.subtract(self.actions.high, self.actions.low)


def _difference_message(policy: ExternalPolicy | Guard, one: Any, other: Any) -> str:
    difference = f"the policy {policy.source} chose {one}, and {other} when asked again in the same situation: "
    if policy.stateful:
        return difference + (
            "its episodes share a memory, or it draws random numbers that are not a function of the seed. Keep the "
            "memory in each object, not in its class or module, and draw from the seed that reset(seed) gets"
        )
    return difference + (
        "it has a memory, or draws random numbers. Many episodes share a function, so a certificate would be about "
        "another system; give an object with reset() and act(observation), which is copied for each episode and draws "
        "its random numbers, if any, from the seed that reset(seed) gets"
    )
