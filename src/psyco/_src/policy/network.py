"""The network of the paper's policy equation, over a flat vector of parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.domain.actions import Actions
from psyco._src.domain.base import Domain
from psyco._src.domain.gym_env import GymDomain
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
        """θ2 relu(θ1 x + b1) + b2, `[outputs]`, for one parameter vector `[D]` and one observation `[inputs]`."""
        parts = self.parts(theta)
        b1, b2 = parts[2:] if self.bias == "learned" else (1.0, 1.0)
        if self.scale:
            x = (x - jnp.asarray(self.shift, jnp.float32)) / jnp.asarray(self.scale, jnp.float32)
        hidden = jax.nn.relu(_combine(x, parts[0]) + b1)
        return parts[1] @ hidden + b2

    def act(self, actions: Actions, theta: Array, x: Array, disturbance: Array | None = None) -> Array:
        """The action for one observation.

        Args:
            actions: what there is to choose from.
            theta: parameters `[D]`.
            x: the observation `[inputs]`.
            disturbance: added to the scores `[outputs]`; whoever explores does so there.
        """
        scores = self.scores(theta, x)
        if disturbance is not None:
            scores += disturbance
        # tanh keeps the order of scores, but in float32 large ones all become 1: choose before it.
        return actions.decode(scores if actions.ranked else jnp.tanh(scores))

    def crew(self, domain: Domain, theta: NDArray[np.float32], seeds: Sequence[int] = ()) -> Networks:
        """Networks with parameters `[B, D]`, ready to act in the environments of a domain; they need no seeds."""
        assert isinstance(domain, GymDomain)  # in compiled domains networks are compiled, too
        return Networks(self, domain, theta)

    def parts(self, theta: Any) -> list[Any]:
        """Parameters `[..., D]` as arrays of `shapes`, each with the leading axes of theta."""
        ends = np.cumsum([0, *map(math.prod, self.shapes)])
        return [
            theta[..., start:stop].reshape(*theta.shape[:-1], *shape)
            for start, stop, shape in zip(ends[:-1], ends[1:], self.shapes, strict=True)
        ]


def network_for(domain: Domain, *, hidden: int = 32, bias: Bias = "one") -> Network:
    """The paper's network in the shape that a domain needs.

    Args:
        domain: where it will act.
        hidden: units of the hidden layer.
        bias: 1, as in the paper's equation, or learned.
    """
    return Network(domain.observation_size, domain.actions.outputs, hidden, bias)


def _combine(x: Array, rows: Array) -> Array:
    """Σ x_i rows_i, `[n] @ [n, m]`. For few rows a plain sum: XLA runs a batch of small products slowly."""
    if len(rows) > 32:
        return x @ rows
    return sum((x[i] * rows[i] for i in range(1, len(rows))), start=x[0] * rows[0])


class Networks:
    """The Crew of networks: B of them evaluated in one go, with the bits that each would give alone."""

    def __init__(self, network: Network, domain: GymDomain, theta: NDArray[np.float32]) -> None:
        self.network, self.domain, self.theta = network, domain, theta
        w1, w2, *biases = network.parts(theta)
        self.w1, self.w2 = np.ascontiguousarray(w1), np.ascontiguousarray(w2.swapaxes(1, 2))
        one = np.ones(1, np.float32)
        self.b1: NDArray[np.float32] = biases[0][:, None] if biases else one
        self.b2: NDArray[np.float32] = biases[1][:, None] if biases else one
        self.shift, self.scale = np.array(network.shift, np.float32), np.array(network.scale, np.float32)

    def take(self, rows: NDArray[np.intp]) -> Networks:
        """The networks of these rows."""
        return Networks(self.network, self.domain, self.theta[rows])

    def __call__(
        self, flat: NDArray[np.float32], raw: Sequence[Any], disturbance: NDArray[np.float32] | None = None
    ) -> Sequence[Any]:
        """Actions `[B]` as `step` takes them, for observations `[B, size]`; see `Crew`."""
        actions, y = self.domain.actions, self.scores(flat)
        if disturbance is not None:
            y = y + disturbance
        return self.domain.to_env(actions.decode(y if actions.ranked else np.tanh(y, out=y)))

    def scores(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """`[B, outputs]`. A stacked matmul is one product per row, so a row does not see its neighbours."""
        if len(self.scale):
            x = (x - self.shift) / self.scale
        hidden = np.matmul(x[:, None], self.w1)
        hidden += self.b1
        np.maximum(hidden, 0, out=hidden)
        y = np.matmul(hidden, self.w2)
        y += self.b2
        return y[:, 0]
