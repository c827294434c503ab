"""The network of the paper's policy equation, over a flat vector of parameters.

It runs in compiled code, and with NumPy alone: `psyco.runtime` has no JAX, so that is imported where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from psyco._src.domain.actions import Actions
from psyco._src.errors import RunError

if TYPE_CHECKING:
    from jax import Array

    from psyco._src.domain.base import Domain

Rows: TypeAlias = NDArray[np.float32]

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

    signals: ClassVar[frozenset[str]] = frozenset()  # see `Actor`

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
        import jax

        fan_in = (self.inputs, self.hidden, self.inputs, self.hidden)[: len(self.shapes)]
        sizes = [math.prod(shape) for shape in self.shapes]
        limits = np.repeat(1.0 / np.sqrt(fan_in), sizes)
        return jax.random.uniform(key, (self.size,), np.float32, -1.0, 1.0) * limits.astype(np.float32)

    def __call__(self, theta: Array, x: Array) -> Array:
        """Outputs `[outputs]` in [-1, 1] for one parameter vector `[D]` and one observation `[inputs]`."""
        import jax.numpy as jnp

        return jnp.tanh(self.scores(theta, x))

    def scores(self, theta: Array, x: Array) -> Array:
        """θ2 relu(θ1 x + b1) + b2, `[outputs]`, for one parameter vector `[D]` and one observation `[inputs]`."""
        import jax
        import jax.numpy as jnp

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
        import jax.numpy as jnp

        scores = self.scores(theta, x)
        if disturbance is not None:
            scores += disturbance
        # tanh keeps the order of scores, but in float32 large ones all become 1: choose before it.
        return actions.decode(scores if actions.ranked else jnp.tanh(scores))

    def crew(self, domain: Domain, theta: Rows, seeds: Sequence[int] = ()) -> Networks:
        """Networks with parameters `[B, D]`, ready to act in a domain; they need no seeds."""
        return Networks(self, domain, theta)

    def evaluator(self, theta: Rows) -> Callable[[Rows], Rows]:
        """`scores` with NumPy: of observations `[B, inputs]`, `[B, outputs]`, for parameters `[B, D]` or `[1, D]`.

        A stacked matmul is one product per row, so a row does not see its neighbours.
        """
        w1, w2, *biases = self.parts(theta)
        w1, w2 = np.ascontiguousarray(w1), np.ascontiguousarray(w2.swapaxes(1, 2))
        b1, b2 = (each[:, None] for each in biases or np.ones((2, 1, 1), np.float32))
        shift, scale = np.array(self.shift, np.float32), np.array(self.scale, np.float32)

        def scores(x: Rows) -> Rows:
            if len(scale):
                x = (x - shift) / scale
            hidden = np.matmul(x[:, None], w1)
            hidden += b1
            np.maximum(hidden, 0, out=hidden)
            y: Rows = np.matmul(hidden, w2)
            y += b2
            return y[:, 0]

        return scores

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

    handed = None

    def __init__(self, network: Network, domain: Domain, theta: Rows) -> None:
        self.network, self.domain, self.theta = network, domain, theta
        self.scores = network.evaluator(theta)

    def take(self, rows: NDArray[np.intp]) -> Networks:
        """The networks of these rows."""
        return Networks(self.network, self.domain, self.theta[rows])

    def __call__(
        self,
        flat: Rows,
        raw: Sequence[Any],
        disturbance: Rows | None = None,
        signals: Sequence[Mapping[str, Any]] = (),
    ) -> Sequence[Any]:
        """Actions `[B]` as `step` takes them, for observations `[B, size]`; see `Crew`."""
        actions, y = self.domain.actions, self.scores(flat)
        if disturbance is not None:
            y = y + disturbance
        chosen: Sequence[Any] = actions.decode(y if actions.ranked else np.tanh(y, out=y))
        # A compiled domain takes them as they are.
        return self.domain.to_env(chosen) if hasattr(self.domain, "to_env") else chosen
