"""Action spaces, and the decoding of network outputs to actions.

Outputs are arrays of NumPy or JAX. This module does not import JAX, because `psyco.runtime` runs without it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any, ClassVar

import numpy as np

from psyco._src.core.errors import DomainError


@dataclasses.dataclass(frozen=True)
class Continuous:
    """Actions in a box; a policy's outputs in [-1, 1] are scaled to it."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    ranked: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high) or not all(a < b for a, b in zip(self.low, self.high, strict=True)):
            raise DomainError(f"an action range needs low < high in every dimension, got {self.low}, {self.high}")
        if not all(map(math.isfinite, self.low + self.high)):
            raise DomainError(f"an action range must be finite, got {self.low} to {self.high}")

    @property
    def outputs(self) -> int:
        """Number of outputs of a policy network."""
        return len(self.low)

    @property
    def size(self) -> int:
        """Length of an action vector."""
        return len(self.low)

    def decode(self, y: Any) -> Any:
        """Return actions `[..., outputs]` for network outputs `[..., outputs]` in [-1, 1]."""
        low, width, half = self._range
        if isinstance(y, np.ndarray):
            # The same bits (a half is exact) with fewer NumPy calls: their overhead exceeds the arithmetic.
            action = y + np.float32(1.0)
            action *= half
            action += low
            return action
        return low + (y + 1.0) * 0.5 * width

    @functools.cached_property
    def _range(self) -> tuple[Any, Any, Any]:
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        return low, high - low, np.float32(0.5) * (high - low)


@dataclasses.dataclass(frozen=True)
class Discrete:
    """Actions 0 to n-1; the policy takes the one with the largest output."""

    n: int
    ranked: ClassVar[bool] = True  # the order or sign of the outputs decides, not their magnitude

    @property
    def outputs(self) -> int:
        """Number of outputs of a policy network."""
        return self.n

    @property
    def size(self) -> None:
        """None: an action is a single number."""
        return None

    def decode(self, y: Any) -> Any:
        """Return actions `[...]` int32 for network outputs `[..., n]`."""
        xp = y.__array_namespace__()
        return xp.argmax(y, axis=-1).astype(xp.int32)


def first_offered(action: Any, offered: Any) -> Any:
    """Return actions `[...]`; instead of those that a mask `[..., n]` excludes, the first one that is offered."""
    xp = offered.__array_namespace__()
    chosen = xp.take_along_axis(offered, xp.expand_dims(action, -1), axis=-1)[..., 0]
    return xp.where(chosen > 0.5, action, xp.argmax(offered, axis=-1).astype(action.dtype))


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Several discrete actions at once, the i-th from 0 to n[i]-1, each the largest of its group of outputs."""

    n: tuple[int, ...]
    ranked: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        """Number of outputs of a policy network."""
        return sum(self.n)

    @property
    def size(self) -> int:
        """Length of an action vector."""
        return len(self.n)

    def decode(self, y: Any) -> Any:
        """Return actions `[..., size]` int32 for network outputs `[..., outputs]`."""
        xp = y.__array_namespace__()
        ends = list(itertools.accumulate(self.n))
        parts = [y[..., end - n : end] for n, end in zip(self.n, ends, strict=True)]
        return xp.stack([xp.argmax(part, axis=-1) for part in parts], axis=-1).astype(xp.int32)


@dataclasses.dataclass(frozen=True)
class MultiBinary:
    """n switches, each on if its output is positive."""

    n: int
    ranked: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        """Number of outputs of a policy network."""
        return self.n

    @property
    def size(self) -> int:
        """Length of an action vector."""
        return self.n

    def decode(self, y: Any) -> Any:
        """Return actions `[..., n]` int32 of 0 and 1 for network outputs `[..., n]`."""
        return (y > 0).astype(np.int32)


Actions = Continuous | Discrete | MultiDiscrete | MultiBinary
ACTIONS: dict[str, type[Actions]] = {kind.__name__: kind for kind in (Continuous, Discrete, MultiDiscrete, MultiBinary)}
