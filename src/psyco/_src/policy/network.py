"""The network of the paper's policy equation, over a flat vector of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco._src.domain.actions import Actions
from psyco._src.domain.base import Domain
from psyco._src.errors import RunError

Bias = Literal["one", "learned"]


@dataclass(frozen=True)
class Network:
    """y = tanh(θ2 relu(θ1 x + b1) + b2), with b = 1 (`bias="one"`, the paper's equation) or learned.

    Where a `shift` and a `scale` are given, x is `(observation - shift) / scale`; else it is the observation.
    """

    inputs: int
    outputs: int
    hidden: int = 32
    bias: Bias = "one"
    shift: tuple[float, ...] = ()  # one per input, or none
    scale: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.bias not in ("one", "learned"):
            raise RunError(f"bias must be 'one' (as in the paper) or 'learned', got {self.bias!r}")
        for name in ("inputs", "outputs", "hidden"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise RunError(f"{name} must be a whole number of at least 1, got {value!r}")
            object.__setattr__(self, name, int(value))
        if {len(self.shift), len(self.scale)} not in ({0}, {self.inputs}):
            raise RunError(
                f"shift and scale need one number per input ({self.inputs}) or none, "
                f"got {len(self.shift)} and {len(self.scale)}"
            )
        if not np.isfinite(self.shift + self.scale).all() or any(s <= 0 for s in self.scale):
            raise RunError("shift and scale must be finite, and scale positive")

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of θ1 (transposed), θ2 and, where they are learned, b1, b2, in the order in which they are kept.

        Both have the hidden units on their last axis, which is what vectorises best.
        """
        weights = ((self.inputs, self.hidden), (self.outputs, self.hidden))
        return weights if self.bias == "one" else (*weights, (self.hidden,), (self.outputs,))

    @property
    def size(self) -> int:
        """How many parameters there are: D."""
        return sum(map(math.prod, self.shapes))

    def init(self, key: Array) -> Array:
        """Random parameters `[D]`: weights uniform within 1/sqrt(fan-in), learned biases likewise."""
        fan_in = (self.inputs, self.hidden, self.inputs, self.hidden)[: len(self.shapes)]
        sizes = [math.prod(shape) for shape in self.shapes]
        limits = np.repeat(1.0 / np.sqrt(fan_in), sizes)
        return jax.random.uniform(key, (self.size,), jnp.float32, -1.0, 1.0) * jnp.asarray(
            limits, jnp.float32
        )

    def __call__(self, theta: Array, x: Array) -> Array:
        """Outputs `[outputs]` in [-1, 1] for one parameter vector `[D]` and one observation `[inputs]`."""
        return jnp.tanh(self.scores(theta, x))

    def scores(self, theta: Array, x: Array) -> Array:
        """The same before the last tanh."""
        parts = self.parts(theta)
        b1, b2 = parts[2:] if self.bias == "learned" else (1.0, 1.0)
        if self.scale:
            x = (x - jnp.asarray(self.shift, jnp.float32)) / jnp.asarray(self.scale, jnp.float32)
        hidden = jax.nn.relu(_combine(x, parts[0]) + b1)
        return parts[1] @ hidden + b2

    def act(self, actions: Actions, theta: Array, x: Array, disturbance: Array | None = None) -> Array:
        """The action for one parameter vector `[D]` and one observation `[inputs]`.

        A `disturbance` `[outputs]` is added to the scores; whoever explores does so there.
        """
        scores = self.scores(theta, x)
        if disturbance is not None:
            scores += disturbance
        # tanh keeps the order of scores, but in float32 large ones all become 1: choose before it.
        return actions.decode(scores if actions.ranked else jnp.tanh(scores))

    def parts(self, theta: Any) -> list[Any]:
        """Parameters `[..., D]` as arrays of `shapes`, each with the leading axes of theta."""
        ends = np.cumsum([0, *map(math.prod, self.shapes)])
        return [
            theta[..., start:stop].reshape(*theta.shape[:-1], *shape)
            for start, stop, shape in zip(ends[:-1], ends[1:], self.shapes, strict=True)
        ]


def network_for(domain: Domain, *, hidden: int = 32, bias: Bias = "one") -> Network:
    """The paper's network in the shape that a domain needs."""
    return Network(domain.observation_size, domain.actions.outputs, hidden, bias)


def _combine(x: Array, rows: Array) -> Array:
    """Σ x_i rows_i, `[n] @ [n, m]`. For few rows a plain sum: XLA runs a batch of small products slowly."""
    if len(rows) > 32:
        return x @ rows
    return sum((x[i] * rows[i] for i in range(1, len(rows))), start=x[0] * rows[0])
