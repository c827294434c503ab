"""The protocol of a compiled domain: pure functions over a state that JAX can trace.

A domain is a frozen dataclass, so that two domains with the same parameters are equal and compile once:

    @dataclass(frozen=True)
    class Corridor:
        length: int = 10
        horizon: int = 50
        name: ClassVar[str] = "corridor"
        ...

Write random numbers and constants as you would in any JAX program; `examples/corridor.py` is a complete one.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco.errors import DomainError
from psyco.spec.formula import SignalInfo

State = Any  # any pytree of arrays


@dataclasses.dataclass(frozen=True)
class Continuous:
    """Actions in a box; a policy's outputs in [-1, 1] are scaled to it."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    ranked: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high) or not all(
            a < b for a, b in zip(self.low, self.high, strict=True)
        ):
            raise DomainError(
                f"an action range needs low < high in every dimension, got {self.low}, {self.high}"
            )
        if not all(map(math.isfinite, self.low + self.high)):
            raise DomainError(f"an action range must be finite, got {self.low} to {self.high}")

    @property
    def outputs(self) -> int:
        """How many outputs a policy network needs."""
        return len(self.low)

    @property
    def size(self) -> int:
        """An action is a vector of so many numbers."""
        return len(self.low)

    def decode(self, y: Any) -> Any:
        """Network outputs `[..., outputs]` in [-1, 1] -> action `[..., outputs]`."""
        low, width = self._range
        return low + (y + 1.0) * 0.5 * width

    @functools.cached_property
    def _range(self) -> tuple[Any, Any]:
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        return low, high - low


@dataclasses.dataclass(frozen=True)
class Discrete:
    """Actions 0 to n-1; the policy takes the one with the largest output."""

    n: int
    ranked: ClassVar[bool] = True  # the order or the sign of outputs decides, not their size

    @property
    def outputs(self) -> int:
        """How many outputs a policy network needs."""
        return self.n

    @property
    def size(self) -> None:
        """An action is a single number."""
        return None

    def decode(self, y: Any) -> Any:
        """Network outputs `[..., n]` -> action `[...]` int32."""
        xp = _module(y)
        return xp.argmax(y, axis=-1).astype(xp.int32)


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Several discrete actions at once, the i-th from 0 to n[i]-1: for each the largest of its own outputs."""

    n: tuple[int, ...]
    ranked: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        """How many outputs a policy network needs."""
        return sum(self.n)

    @property
    def size(self) -> int:
        """An action is a vector of so many numbers."""
        return len(self.n)

    def decode(self, y: Any) -> Any:
        """Network outputs `[..., outputs]` -> action `[..., size]` int32."""
        xp = _module(y)
        ends = list(itertools.accumulate(self.n))
        parts = [y[..., end - n : end] for n, end in zip(self.n, ends, strict=True)]
        return xp.stack([xp.argmax(part, axis=-1) for part in parts], axis=-1).astype(xp.int32)


@dataclasses.dataclass(frozen=True)
class MultiBinary:
    """n switches; one is on where its output is positive."""

    n: int
    ranked: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        """How many outputs a policy network needs."""
        return self.n

    @property
    def size(self) -> int:
        """An action is a vector of so many numbers."""
        return self.n

    def decode(self, y: Any) -> Any:
        """Network outputs `[..., n]` -> action `[..., n]` int32 of 0 and 1."""
        return (y > 0).astype(_module(y).int32)


Actions = Continuous | Discrete | MultiDiscrete | MultiBinary
ACTIONS: dict[str, type[Actions]] = {
    kind.__name__: kind for kind in (Continuous, Discrete, MultiDiscrete, MultiBinary)
}


def _module(y: Any) -> Any:
    """NumPy for NumPy arrays, which host rollouts decode step by step; jax.numpy for all else."""
    return np if isinstance(y, np.ndarray) else jnp


@dataclasses.dataclass(frozen=True)
class Scene:
    """How to draw a domain: which vector signals are positions, and the frame around them."""

    bodies: tuple[str, ...]
    low: tuple[float, float]
    high: tuple[float, float]
    contact: float = 0.0  # two bodies closer than this touch


class Domain(Protocol):
    """Where an agent acts: what learning and verification need to know of it before it runs."""

    @property
    def name(self) -> str:
        """The name it is made by."""

    @property
    def horizon(self) -> int:
        """The longest episode, in steps."""

    @property
    def actions(self) -> Actions:
        """What a policy may do."""

    @property
    def observation_size(self) -> int:
        """The length of an observation."""


@runtime_checkable
class CompiledDomain(Domain, Protocol):
    """A simulator as pure functions, which JAX compiles.

    It may also have a method `draw(key)`: the randomness of all steps of an episode, drawn at once, which is faster;
    arrays whose first axis is the horizon. Then `step` is given its entry of them instead of a key.
    """

    def reset(self, key: Array) -> State:
        """A random initial state."""

    def step(self, key: Array, state: State, action: Array) -> tuple[State, Array, Array | bool]:
        """The next state, the reward `[]` for reaching it, and whether the episode ends there `[]` bool.

        Where episodes always last to the horizon, a plain `False` says so and makes them cheaper.
        """

    def observe(self, state: State) -> Array:
        """What the policy sees, `[observation_size]`."""

    def signals(self, state: State) -> Mapping[str, Array]:
        """What a formula may speak of: numbers and Booleans `[]`, or vectors `[k]`."""


# Every domain has these, kept by the rollout itself.
BUILT_IN_SIGNALS = {
    "step": SignalInfo(None, False),
    "reward": SignalInfo(None, False),
    "return": SignalInfo(None, False),
}


def signal_table(domain: Domain) -> dict[str, SignalInfo]:
    """The signals that a formula about this domain may name, found without running it."""
    if not isinstance(domain, CompiledDomain):
        return dict(domain.table)  # type: ignore[attr-defined]  # a host domain knows them from when it was made
    state = jax.eval_shape(domain.reset, jax.eval_shape(lambda: jax.random.key(0)))
    shapes = jax.eval_shape(lambda s: dict(domain.signals(s)), state)
    table = {}
    for name, shape in shapes.items():
        if len(shape.shape) > 1:
            raise DomainError(
                f"signal {name!r} of {domain.name} has shape {shape.shape}; give numbers or vectors"
            )
        table[name] = SignalInfo(shape.shape[0] if shape.shape else None, shape.dtype == bool)
    table["obs"] = SignalInfo(domain.observation_size, False)
    table["action"] = SignalInfo(domain.actions.size, False)
    return table | BUILT_IN_SIGNALS


def parameters(domain: Domain) -> dict[str, Any]:
    """The keyword arguments that make this domain again."""
    if hasattr(domain, "parameters"):
        return dict(domain.parameters)
    if not dataclasses.is_dataclass(domain):
        raise DomainError(
            f"{type(domain).__name__} must be a frozen dataclass, so that its parameters are known"
        )
    return {f.name: getattr(domain, f.name) for f in dataclasses.fields(domain) if f.init}


def check_positive(domain: str, **values: float) -> None:
    """Refuse parameters that are not positive finite numbers."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DomainError(f"{domain}: {name} must be a number, got {value!r}")
        if not (value > 0 and math.isfinite(value)):
            raise DomainError(f"{domain}: {name} must be positive, got {value!r}")


def check_whole(domain: str, **values: int) -> None:
    """Refuse parameters that are not positive whole numbers."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DomainError(f"{domain}: {name} must be a whole number of at least 1, got {value!r}")


def suggest(word: str, known: list[str]) -> str:
    """` (did you mean ...?)` for a misspelt word, or nothing."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
