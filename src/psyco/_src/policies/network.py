"""The network of the paper's policy equation, over a flat vector of parameters.

It runs in compiled code and with NumPy. `psyco.runtime` must not load JAX, so JAX is imported where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from operator import mul
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.checks import check_count
from psyco._src.core.errors import DomainError, RunError
from psyco._src.envs.actions import Actions, Discrete

if TYPE_CHECKING:
    from jax import Array

    from psyco._src.envs.base import Domain

Rows: TypeAlias = NDArray[np.float32]

Bias = Literal["one", "learned"]

MAX_WIDTH = 4096  # of an observation, and of a layer
Hidden: TypeAlias = "int | tuple[int, ...]"  # units of the hidden layer, or of each of several


@dataclass(frozen=True)
class Network:
    """y = tanh(θ2 relu(θ1 x + b1) + b2), with b = 1 (`bias="one"`, the paper's equation) or learned.

    With several hidden layers, the relu of each is the input of the next; without one, y = tanh(θ1 x + b1). Where
    `shift` and `scale` are given, x is `(observation - shift) / scale`; else it is the observation. Where `one_hot` is
    given, the observation consists of one-hot codes of these sizes, and x is the one-hot code of their combination:
    without hidden layers, θ1 is a table of scores, with a row for each combination. With a single input, the
    observation is the number of the row.
    """

    inputs: int
    outputs: int
    hidden: Hidden = 32
    bias: Bias = "one"
    shift: tuple[float, ...] = ()  # one per input, or none
    scale: tuple[float, ...] = ()
    one_hot: tuple[int, ...] = ()  # sizes of the one-hot codes in an observation, or none

    signals: ClassVar[frozenset[str]] = frozenset()  # see `Actor`

    def __post_init__(self) -> None:
        if self.bias not in ("one", "learned"):
            raise RunError(f"bias must be 'one' (as in the paper) or 'learned', got {self.bias!r}")
        object.__setattr__(self, "inputs", check_count("inputs", self.inputs))
        object.__setattr__(self, "outputs", check_count("outputs", self.outputs))
        if not self.one_hot or self.hidden != ():
            object.__setattr__(self, "hidden", check_hidden(self.hidden))
        object.__setattr__(self, "one_hot", tuple(check_count("one_hot", size) for size in self.one_hot))
        if self.one_hot and ((sum(self.one_hot) != self.inputs and not self.indexed) or self.scale):
            raise RunError(f"one-hot codes of sizes {self.one_hot} need {sum(self.one_hot)} inputs, and no scale")
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
    def indexed(self) -> bool:
        """Whether the observation is the number of a row of a table."""
        return self.inputs == 1 and len(self.one_hot) == 1 and self.hidden == ()

    @property
    def features(self) -> int:
        """Length of x."""
        return math.prod(self.one_hot) if self.one_hot else self.inputs

    @cached_property
    def joint_index(self) -> list[NDArray[np.intp]]:
        """The input `[features]` that each feature reads, for each one-hot code; a feature is their product."""
        places = np.indices(self.one_hot).reshape(len(self.one_hot), -1)
        firsts = np.cumsum((0, *self.one_hot[:-1]))
        return [first + place for first, place in zip(firsts, places, strict=True)]

    def join(self, x: Any) -> Any:
        """Return the one-hot code `[..., features]` of the combination of the codes in `[..., inputs]`."""
        return reduce(mul, (x[..., index] for index in self.joint_index)) if len(self.one_hot) > 1 else x

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of θ1, θ2, ... and, if learned, b1, b2, ..., in the order in which they are stored.

        Only θ1 is transposed, so that all have hidden units on their last axis, which vectorises best.
        """
        widths = (*self.layers, self.outputs)
        weights = ((self.features, widths[0]), *((to, of) for of, to in pairwise(widths)))
        if self.bias == "one":
            return weights
        return (*weights, *((width,) for width in self.layers), (self.outputs,))

    @property
    def size(self) -> int:
        """Number of parameters: D."""
        return sum(map(math.prod, self.shapes))

    def init(self, key: Array) -> Array:
        """Return random parameters `[D]`: weights uniform within 1/sqrt(fan-in), learned biases likewise."""
        import jax

        fan_in = (self.features, *self.layers, self.features, *self.layers)[: len(self.shapes)]
        sizes = [math.prod(shape) for shape in self.shapes]
        limits = np.repeat(1.0 / np.sqrt(fan_in), sizes)
        return jax.random.uniform(key, (self.size,), np.float32, -1.0, 1.0) * limits.astype(np.float32)

    def __call__(self, theta: Array, x: Array) -> Array:
        """Return the outputs `[outputs]` in [-1, 1] for one parameter vector `[D]` and one observation `[inputs]`."""
        import jax.numpy as jnp

        return jnp.tanh(self.scores(theta, x))

    def scores(self, theta: Array, x: Array) -> Array:
        """Return θ2 relu(θ1 x + b1) + b2, `[outputs]`, for a parameter vector `[D]` and an observation `[inputs]`."""
        return self.scores_from_layers(self.unflatten(theta), x)

    def scores_from_layers(self, layers: list[Array], x: Array) -> Array:
        """Return `scores` from unflattened parameters: to unflatten them in every step of a loop is much slower."""
        import jax
        import jax.numpy as jnp

        count = len(self.layers) + 1
        weights: list[Array] = layers[:count]
        biases: Sequence[Any] = layers[count:] or [1.0] * count
        if self.indexed:
            return weights[0][x[..., 0].astype(jnp.int32)] + biases[0]
        if self.scale:
            x = (x - jnp.asarray(self.shift, jnp.float32)) / jnp.asarray(self.scale, jnp.float32)
        y = _combine(self.join(x), weights[0]) + biases[0]
        for weight, bias in zip(weights[1:], biases[1:], strict=True):
            y = weight @ jax.nn.relu(y) + bias
        return y

    def act(self, actions: Actions, theta: Array | list[Array], x: Array, noise: Array | None = None) -> Array:
        """Return the action for one observation.

        Args:
            actions: the action space.
            theta: parameters `[D]`, flat or unflattened.
            x: the observation `[inputs]`.
            noise: exploration noise, added to the scores `[outputs]`.
        """
        import jax.numpy as jnp

        scores = self.scores_from_layers(theta if isinstance(theta, list) else self.unflatten(theta), x)
        if noise is not None:
            scores += noise
        # tanh preserves the order of scores, but in float32 large ones all become 1: choose before it.
        return actions.decode(scores if actions.ranked else jnp.tanh(scores))

    def vectorize(self, domain: Domain, theta: Rows, seeds: Sequence[int] = ()) -> VectorNetwork:
        """Return the networks with parameters `[B, D]` in a domain; they need no seeds."""
        return VectorNetwork(self, domain, theta)

    def numpy_scores(self, theta: Rows) -> Callable[[Rows], Rows]:
        """Return `scores` in NumPy, `[B, inputs] -> [B, outputs]`, for parameters `[B, D]` or `[1, D]`.

        A stacked matmul is one product per row, so no row depends on its neighbours.
        """
        *hidden, (weight, bias) = [
            (np.ascontiguousarray(weight), bias[:, None]) for weight, bias in self.weights_and_biases(theta)
        ]
        shift, scale = np.array(self.shift, np.float32), np.array(self.scale, np.float32)

        def scores(x: Rows) -> Rows:
            if self.indexed:
                table: Rows = weight[np.arange(len(x)) % len(weight), x[:, 0].astype(np.intp)]
                return table + bias[:, 0]
            if len(scale):
                x = (x - shift) / scale
            x = self.join(x)[:, None]
            for w, b in hidden:
                x = np.matmul(x, w)
                x += b
                np.maximum(x, 0, out=x)
            y: Rows = np.matmul(x, weight)
            y += bias
            return y[:, 0]

        return scores

    def weights_and_biases(self, theta: Any) -> list[tuple[Any, Any]]:
        """Return weights `[..., from, to]` and biases `[..., to]` of each layer in turn, for parameters `[..., D]`."""
        layers, count = self.unflatten(theta), len(self.layers) + 1
        weights = [layers[0], *(weight.swapaxes(-1, -2) for weight in layers[1:count])]
        ones = [np.ones((*(1,) * (theta.ndim - 1), weight.shape[-1]), np.float32) for weight in weights]
        return list(zip(weights, layers[count:] or ones, strict=True))

    def unflatten(self, theta: Any) -> list[Any]:
        """Return parameters `[..., D]` as arrays of `shapes`, each with the leading axes of theta."""
        ends = np.cumsum([0, *map(math.prod, self.shapes)])
        return [
            theta[..., start:stop].reshape(*theta.shape[:-1], *shape)
            for start, stop, shape in zip(ends[:-1], ends[1:], self.shapes, strict=True)
        ]


def network_for(domain: Domain, *, hidden: Hidden = 32, bias: Bias = "one") -> Network:
    """Return the paper's network with the inputs and outputs of a domain.

    Args:
        domain: where it will act.
        hidden: units of the hidden layer, or of each of several.
        bias: 1, as in the paper's equation, or learned.
    """
    if (size := domain.observation_size) > MAX_WIDTH:
        if one_hot_sizes(domain):
            raise DomainError(
                f"{domain.name} has discrete observations with {size:,} alternatives, each an input of the network "
                f"(one-hot), which has at most {MAX_WIDTH:,} inputs. Observe features instead, by a wrapper"
            )
        raise DomainError(
            f"{domain.name} has observations of {size:,} numbers; the networks that are learned here have at most "
            f"{MAX_WIDTH:,} inputs, and no convolutions. Make observations smaller with wrappers "
            "(gymnasium.wrappers.GrayscaleObservation, ResizeObservation) or observe features; external policies with "
            "images as inputs can be verified (psyco verify)"
        )
    return Network(size, domain.actions.outputs, hidden, bias)


def table_for(domain: Domain) -> Network:
    """Return the network of a domain that is a table: a row of scores for each observation.

    Observations must consist of one-hot codes: a domain has their sizes as `one_hot`.
    """
    if not (sizes := one_hot_sizes(domain)) or not isinstance(domain.actions, Discrete):
        raise DomainError(
            f"a table needs observations in Discrete or MultiDiscrete spaces, also in a Dict or Tuple, and Discrete "
            f"actions; {domain.name} has other ones. Use another learner, or wrappers that make them discrete"
        )
    return Network(domain.observation_size, domain.actions.outputs, (), "learned", one_hot=sizes)


def one_hot_sizes(domain: Domain) -> tuple[int, ...]:
    """Return the sizes of the one-hot codes that make up an observation; empty if it has other parts."""
    return tuple(getattr(domain, "one_hot", ()))


def check_hidden(hidden: Any) -> Hidden:
    """Return the checked units of hidden layers: a number for one layer, a tuple for several."""
    several = isinstance(hidden, list | tuple)
    for units in hidden if several else [hidden]:
        if isinstance(units, bool) or not isinstance(units, int | np.integer) or units < 1:
            raise RunError(
                f"hidden must be a whole number of at least 1, or one for each hidden layer as in 64,64; got {hidden!r}"
            )
        if units > MAX_WIDTH:
            raise RunError(f"a hidden layer has at most {MAX_WIDTH:,} units, got {units:,}")
    if several and not hidden:
        raise RunError("hidden names no layer: give the units of each, as in 64 or 64,64")
    return tuple(map(int, hidden)) if several and len(hidden) > 1 else int(hidden[0] if several else hidden)


def _combine(x: Array, rows: Array) -> Array:
    """Return Σ x_i rows_i, `[n] @ [n, m]`. For few rows a plain sum: XLA runs a batch of small products slowly."""
    if len(rows) > 32:
        return x @ rows
    return sum((x[i] * rows[i] for i in range(1, len(rows))), start=x[0] * rows[0])


class VectorNetwork:
    """The VectorPolicy of networks: B of them evaluated at once, with the bits that each would give alone."""

    fallback_steps = None

    def __init__(self, network: Network, domain: Domain, theta: Rows) -> None:
        self.network, self.domain, self.theta = network, domain, theta
        self.scores = network.numpy_scores(theta)
        self.actions = domain.actions
        # A compiled domain has no `to_env_actions`: it takes decoded actions.
        self.to_env_actions: Callable[[Any], Sequence[Any]] = getattr(domain, "to_env_actions", lambda chosen: chosen)

    def take(self, rows: NDArray[np.intp]) -> VectorNetwork:
        """Return the networks of these rows."""
        return VectorNetwork(self.network, self.domain, self.theta[rows])

    def __call__(
        self,
        flat: Rows,
        raw: Sequence[Any],
        noise: Rows | None = None,
        signals: Sequence[Mapping[str, Any]] = (),
    ) -> Sequence[Any]:
        """Return actions `[B]` as `step` takes them, for observations `[B, size]`; see `VectorPolicy`."""
        y = self.scores(flat)
        if noise is not None:
            y = y + noise
        return self.to_env_actions(self.actions.decode(y if self.actions.ranked else np.tanh(y, out=y)))
