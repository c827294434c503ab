"""Does a policy of others choose by what it sees, and by what its own episode has shown it? It is asked twice."""

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

ROUNDING = 1e-4  # of the range of actions: a network may round otherwise in another row


@dataclass(frozen=True, eq=False)
class DeterminismProbe:
    """An Actor: a policy of others that is asked everything twice, the second time in the reverse order.

    Who then answers otherwise shares a memory among episodes, or draws random numbers that are no function of a seed.
    """

    policy: ExternalPolicy | Guard

    @property
    def signals(self) -> frozenset[str]:
        """As the policy has them."""
        return self.policy.signals

    def crew(self, domain: Domain, theta: NDArray[np.float32], seeds: Sequence[int]) -> VectorPolicy:
        """Two crews for the same episodes."""
        first, second = (self.policy.crew(domain, theta, order) for order in (seeds, seeds[::-1]))
        return _ProbedVectorPolicy(self.policy, domain.actions, len(seeds), first, second)


@dataclass(frozen=True)
class _ProbedVectorPolicy:
    policy: ExternalPolicy | Guard
    actions: Actions
    count: int
    first: VectorPolicy
    second: VectorPolicy  # in the reverse order

    handed: ClassVar[None] = None

    def take(self, rows: NDArray[np.intp]) -> _ProbedVectorPolicy:
        second = self.second.take(self.count - 1 - rows[::-1])
        return _ProbedVectorPolicy(self.policy, self.actions, len(rows), self.first.take(rows), second)

    def __call__(
        self,
        flat: NDArray[np.float32],
        raw: Sequence[Any],
        disturbance: NDArray[np.float32] | None = None,
        signals: Sequence[Mapping[str, Any]] = (),
    ) -> Sequence[Any]:
        chosen = self.first(flat, raw, disturbance, signals)
        again = self.second(flat[::-1], raw[::-1], signals=signals[::-1])[::-1]
        for one, other in zip(chosen, again, strict=True):
            if (np.abs(np.subtract(one, other, dtype=float)) > self._rounding).any():
                raise RunError(_complaint(self.policy, one, other))
        return chosen

    @property
    def _rounding(self) -> Any:
        if not isinstance(self.actions, Continuous):
            return 0.0
        return ROUNDING * np.subtract(self.actions.high, self.actions.low)


def _complaint(policy: ExternalPolicy | Guard, one: Any, other: Any) -> str:
    said = f"the policy {policy.source} chose {one} and then, asked again about the same, {other}: "
    if policy.remembers:
        return said + (
            "its episodes share a memory, or it draws random numbers that are no function of the seed. Let each object "
            "keep its memory in itself, nothing in its class or module, and draw from the seed that reset(seed) gets"
        )
    return said + (
        "it has a memory, or draws random numbers. Many episodes go through a function side by side, so a certificate "
        "would be about another system; give an object with reset() and act(observation), of which each episode gets "
        "its own, and which draws its random numbers, if any, from the seed that reset(seed) gets"
    )
