"""The network of the paper's policy equation, over a flat vector of parameters.

It runs in compiled code, and with NumPy alone: `psyco.runtime` has no JAX, so that is imported where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.checks import check_count
from psyco._src.core.errors import DomainError, RunError
from psyco._src.envs.actions import Actions

if TYPE_CHECKING:
    from jax import Array

    from psyco._src.envs.base import Domain

Rows: TypeAlias = NDArray[np.float32]

Bias = Literal["one", "learned"]

LARGEST = 4096  # numbers of an observation that a network takes, and units of a layer
Hidden: TypeAlias = "int | tuple[int, ...]"  # units of the one hidden layer, or of each


@dataclass(frozen=True)
class Network:
    """y = tanh(θ2 relu(θ1 x + b1) + b2), with b = 1 (`bias="one"`, the paper's equation) or learned.

    With several hidden layers, the relu of each goes into the next. Where a `shift` and a `scale` are given, x is
    `(observation - shift) / scale`; else it is the observation.
    """

    inputs: int
    outputs: int
    hidden: Hidden = 32
    bias: Bias = "one"
    shift: tuple[float, ...] = ()  # one per input, or none
    scale: tuple[float, ...] = ()

    signals: ClassVar[frozenset[str]] = frozenset()  # see `Actor`

    def __post_init__(self) -> None:
        if self.bias not in ("one", "learned"):
            raise RunError(f"bias must be 'one' (as in the paper) or 'learned', got {self.bias!r}")
        object.__setattr__(self, "inputs", check_count("inputs", self.inputs))
        object.__setattr__(self, "outputs", check_count("outputs", self.outputs))
        object.__setattr__(self, "hidden", check_hidden(self.hidden))
        if {len(self.shift), len(self.scale)} not in ({0}, {self.inputs}):
            raise RunError(
                f"shift and scale need one number per input ({self.inputs}) or none, "
                f"got {len(self.shift)} and {len(self.scale)}"
            )
        if not np.isfinite(self.shift + self.scale).all() or any(s <= 0 for s in self.scale):
            raise RunError("shift and scale must be finite, and scale positive")

    @property
    def layers(self) -> tuple[int, ...]:
        """Units of each hidden layer."""
        return self.hidden if isinstance(self.hidden, tuple) else (self.hidden,)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of θ1, θ2, ... and, where they are learned, b1, b2, ..., in the order in which they are kept.

        θ1 alone is transposed, so that all have hidden units on their last axis, which is what vectorises best.
        """
        following = ((to, of) for of, to in pairwise((*self.layers, self.outputs)))
        weights = ((self.inputs, self.layers[0]), *following)
        if self.bias == "one":
            return weights
        return (*weights, *((width,) for width in self.layers), (self.outputs,))

    @property
    def size(self) -> int:
        """How many parameters there are: D."""
        return sum(map(math.prod, self.shapes))

    def init(self, key: Array) -> Array:
        """Random parameters `[D]`: weights uniform within 1/sqrt(fan-in), learned biases likewise."""
        import jax

        fan_in = (self.inputs, *self.layers, self.inputs, *self.layers)[: len(self.shapes)]
        sizes = [math.prod(shape) for shape in self.shapes]
        limits = np.repeat(1.0 / np.sqrt(fan_in), sizes)
        return jax.random.uniform(key, (self.size,), np.float32, -1.0, 1.0) * limits.astype(np.float32)

    def __call__(self, theta: Array, x: Array) -> Array:
        """Outputs `[outputs]` in [-1, 1] for one parameter vector `[D]` and one observation `[inputs]`."""
        import jax.numpy as jnp

        return jnp.tanh(self.scores(theta, x))

    def scores(self, theta: Array, x: Array) -> Array:
        """θ2 relu(θ1 x + b1) + b2, `[outputs]`, for one parameter vector `[D]` and one observation `[inputs]`."""
        return self.scores_of(self.parts(theta), x)

    def scores_of(self, parts: list[Array], x: Array) -> Array:
        """The same from the `parts` of the parameters: a loop that takes them apart in every step is much slower."""
        import jax
        import jax.numpy as jnp

        count = len(self.layers) + 1
        weights: list[Array] = parts[:count]
        biases: Sequence[Any] = parts[count:] or [1.0] * count
        if self.scale:
            x = (x - jnp.asarray(self.shift, jnp.float32)) / jnp.asarray(self.scale, jnp.float32)
        y = _combine(x, weights[0]) + biases[0]
        for weight, bias in zip(weights[1:], biases[1:], strict=True):
            y = weight @ jax.nn.relu(y) + bias
        return y

    def act(
        self, actions: Actions, theta: Array | list[Array], x: Array, disturbance: Array | None = None
    ) -> Array:
        """The action for one observation.

        Args:
            actions: what there is to choose from.
            theta: parameters `[D]`, or their `parts`.
            x: the observation `[inputs]`.
            disturbance: added to the scores `[outputs]`; whoever explores does so there.
        """
        import jax.numpy as jnp

        scores = self.scores_of(theta if isinstance(theta, list) else self.parts(theta), x)
        if disturbance is not None:
            scores += disturbance
        # tanh keeps the order of scores, but in float32 large ones all become 1: choose before it.
        return actions.decode(scores if actions.ranked else jnp.tanh(scores))

    def crew(self, domain: Domain, theta: Rows, seeds: Sequence[int] = ()) -> VectorNetwork:
        """Networks with parameters `[B, D]`, ready to act in a domain; they need no seeds."""
        return VectorNetwork(self, domain, theta)

    def evaluator(self, theta: Rows) -> Callable[[Rows], Rows]:
        """`scores` with NumPy: of observations `[B, inputs]`, `[B, outputs]`, for parameters `[B, D]` or `[1, D]`.

        A stacked matmul is one product per row, so a row does not see its neighbours.
        """
        *hidden, (weight, bias) = [
            (np.ascontiguousarray(weight), bias[:, None]) for weight, bias in self.products(theta)
        ]
        shift, scale = np.array(self.shift, np.float32), np.array(self.scale, np.float32)

        def scores(x: Rows) -> Rows:
            if len(scale):
                x = (x - shift) / scale
            x = x[:, None]
            for w, b in hidden:
                x = np.matmul(x, w)
                x += b
                np.maximum(x, 0, out=x)
            y: Rows = np.matmul(x, weight)
            y += bias
            return y[:, 0]

        return scores

    def products(self, theta: Any) -> list[tuple[Any, Any]]:
        """Weights `[..., from, to]` and biases `[..., to]` of each layer in turn, for parameters `[..., D]`."""
        parts, count = self.parts(theta), len(self.layers) + 1
        weights = [parts[0], *(weight.swapaxes(-1, -2) for weight in parts[1:count])]
        ones = [np.ones((*(1,) * (theta.ndim - 1), weight.shape[-1]), np.float32) for weight in weights]
        return list(zip(weights, parts[count:] or ones, strict=True))

    def parts(self, theta: Any) -> list[Any]:
        """Parameters `[..., D]` as arrays of `shapes`, each with the leading axes of theta."""
        ends = np.cumsum([0, *map(math.prod, self.shapes)])
        return [
            theta[..., start:stop].reshape(*theta.shape[:-1], *shape)
            for start, stop, shape in zip(ends[:-1], ends[1:], self.shapes, strict=True)
        ]


def network_for(domain: Domain, *, hidden: Hidden = 32, bias: Bias = "one") -> Network:
    """The paper's network in the shape that a domain needs.

    Args:
        domain: where it will act.
        hidden: units of the hidden layer, or of each of several.
        bias: 1, as in the paper's equation, or learned.
    """
    if (size := domain.observation_size) > LARGEST:
        raise DomainError(
            f"{domain.name} has observations of {size:,} numbers; the networks that are learned here see at most "
            f"{LARGEST:,}, flattened, and no pictures as such. Make them smaller with wrappers "
            "(gymnasium.wrappers.GrayscaleObservation, ResizeObservation) or observe features; policies of others that "
            "see pictures can be verified as they are (psyco verify)"
        )
    return Network(size, domain.actions.outputs, hidden, bias)


def check_hidden(hidden: Any) -> Hidden:
    """Units of hidden layers, in plain numbers; one layer is a number, so that it is written as it always was."""
    several = isinstance(hidden, list | tuple)
    for units in hidden if several else [hidden]:
        if isinstance(units, bool) or not isinstance(units, int | np.integer) or units < 1:
            raise RunError(
                "hidden must be a whole number of at least 1, or one for each hidden layer as in 64,64; "
                f"got {hidden!r}"
            )
        if units > LARGEST:
            raise RunError(f"a hidden layer has at most {LARGEST:,} units, got {units:,}")
    if several and not hidden:
        raise RunError("hidden names no layer: give the units of each, as in 64 or 64,64")
    return tuple(map(int, hidden)) if several and len(hidden) > 1 else int(hidden[0] if several else hidden)


def _combine(x: Array, rows: Array) -> Array:
    """Σ x_i rows_i, `[n] @ [n, m]`. For few rows a plain sum: XLA runs a batch of small products slowly."""
    if len(rows) > 32:
        return x @ rows
    return sum((x[i] * rows[i] for i in range(1, len(rows))), start=x[0] * rows[0])


class VectorNetwork:
    """The Crew of networks: B of them evaluated in one go, with the bits that each would give alone."""

    handed = None

    def __init__(self, network: Network, domain: Domain, theta: Rows) -> None:
        self.network, self.domain, self.theta = network, domain, theta
        self.scores = network.evaluator(theta)
        self.actions = domain.actions
        # A compiled domain takes them as they are.
        self.to_env: Callable[[Any], Sequence[Any]] = getattr(domain, "to_env", lambda chosen: chosen)

    def take(self, rows: NDArray[np.intp]) -> VectorNetwork:
        """The networks of these rows."""
        return VectorNetwork(self.network, self.domain, self.theta[rows])

    def __call__(
        self,
        flat: Rows,
        raw: Sequence[Any],
        disturbance: Rows | None = None,
        signals: Sequence[Mapping[str, Any]] = (),
    ) -> Sequence[Any]:
        """Actions `[B]` as `step` takes them, for observations `[B, size]`; see `Crew`."""
        y = self.scores(flat)
        if disturbance is not None:
            y = y + disturbance
        return self.to_env(self.actions.decode(y if self.actions.ranked else np.tanh(y, out=y)))
