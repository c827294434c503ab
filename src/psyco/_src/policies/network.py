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
from psyco._src.envs.images import MAX_SIDE, image_problem

if TYPE_CHECKING:
    from jax import Array

    from psyco._src.envs.base import Domain

Rows: TypeAlias = NDArray[np.float32]

Bias = Literal["one", "learned"]
MEMORIES = ("none", "gru")  # kinds of memory

MAX_WIDTH = 4096  # of an observation, and of a layer
NEEDS_EPISODE = (
    "this policy has a memory: what it does depends on the whole episode, not on one observation alone. Ask "
    "policy.begin() for an episode, and its act(observation) in every state"
)
NOT_OFFERED = -1e30  # score of an action that the mask excludes: below every other, and finite
Hidden: TypeAlias = "int | tuple[int, ...]"  # units of the hidden layer, or of each of several


@dataclass(frozen=True)
class Network:
    """y = tanh(θ2 relu(θ1 x + b1) + b2), with b = 1 (`bias="one"`, the paper's equation) or learned.

    With several hidden layers, the relu of each is the input of the next; without one, y = tanh(θ1 x + b1). Where
    `shift` and `scale` are given, x is `(observation - shift) / scale`; else it is the observation. Where `one_hot` is
    given, the observation consists of one-hot codes of these sizes, and x is the one-hot code of their combination:
    without hidden layers, θ1 is a table of scores, with a row for each combination. With a single input, the
    observation is the number of the row. Where `masked`, an observation ends with an action mask, `[outputs]`: x is
    what precedes it, and actions whose entry is 0 have a score below all others.

    Where `memory` is "gru", the first hidden layer is made of gated recurrent units (Cho et al. 2014), whose outputs h
    in a step are their inputs in the next one, and 0 at the start of an episode:

        z, r = σ(W_z x + U_z h + b_z), σ(W_r x + U_r h + b_r)
        n = tanh(W_n x + r U_n h + b_n)
        h <- (1 - z) n + z h
    """

    inputs: int
    outputs: int
    hidden: Hidden = 32
    bias: Bias = "one"
    shift: tuple[float, ...] = ()  # one per input, or none
    scale: tuple[float, ...] = ()
    one_hot: tuple[int, ...] = ()  # sizes of the one-hot codes in an observation, or none
    masked: bool = False  # whether the last inputs are an action mask
    memory: str = "none"  # or "gru": the first hidden layer is recurrent

    signals: ClassVar[frozenset[str]] = frozenset()  # see `Actor`
    encoder: ClassVar[str] = "dense"  # of observations; see `ImageNetwork` for another one

    def __post_init__(self) -> None:
        if self.bias not in ("one", "learned"):
            raise RunError(f"bias must be 'one' (as in the paper) or 'learned', got {self.bias!r}")
        if self.memory not in MEMORIES:
            raise RunError(f"memory must be one of {', '.join(MEMORIES)}, got {self.memory!r}")
        if self.recurrent and (self.bias != "learned" or self.hidden == ()):
            raise RunError("a policy with a memory has a hidden layer and learned biases: leave out bias")
        object.__setattr__(self, "inputs", check_count("inputs", self.inputs))
        object.__setattr__(self, "outputs", check_count("outputs", self.outputs))
        if self.observed < 1:
            raise RunError(f"a mask of {self.outputs} actions leaves nothing of {self.inputs} inputs to observe")
        if not self.one_hot or self.hidden != ():
            object.__setattr__(self, "hidden", check_hidden(self.hidden))
        object.__setattr__(self, "one_hot", tuple(check_count("one_hot", size) for size in self.one_hot))
        if self.one_hot and ((sum(self.one_hot) != self.observed and not self.indexed) or self.scale):
            raise RunError(f"one-hot codes of sizes {self.one_hot} need {sum(self.one_hot)} inputs, and no scale")
        if {len(self.shift), len(self.scale)} not in ({0}, {self.inputs}):
            raise RunError(
                f"shift and scale need one number per input ({self.inputs}) or none, "
                f"got {len(self.shift)} and {len(self.scale)}"
            )
        if not np.isfinite(self.shift + self.scale).all() or any(s <= 0 for s in self.scale):
            raise RunError("shift and scale must be finite, and scale positive")
        if any(self.shift[self.observed :]) or any(s != 1 for s in self.scale[self.observed :]):
            raise RunError("an action mask has no scale: its shift must be 0, and its scale 1")

    @property
    def layers(self) -> tuple[int, ...]:
        """Units of each hidden layer."""
        return self.hidden if isinstance(self.hidden, tuple) else (self.hidden,)

    @property
    def recurrent(self) -> bool:
        """Whether scores depend on earlier observations of the episode."""
        return self.memory != "none"

    @property
    def memory_size(self) -> int:
        """Length of the memory h; 0: none."""
        return self.layers[0] if self.recurrent else 0

    @property
    def first_bias(self) -> int:
        """The place of b1 in `shapes`."""
        return len(self.layers) + 1 + self.recurrent

    @property
    def indexed(self) -> bool:
        """Whether the observation is the number of a row of a table."""
        return self.observed == 1 and len(self.one_hot) == 1 and self.hidden == ()

    @property
    def observed(self) -> int:
        """Length of an observation without its action mask."""
        return self.inputs - self.outputs if self.masked else self.inputs

    @property
    def features(self) -> int:
        """Length of x."""
        return math.prod(self.one_hot) if self.one_hot else self.observed

    @cached_property
    def joint_index(self) -> list[NDArray[np.intp]]:
        """The input `[features]` that each feature reads, for each one-hot code; a feature is their product."""
        places = np.indices(self.one_hot).reshape(len(self.one_hot), -1)
        firsts = np.cumsum((0, *self.one_hot[:-1]))
        return [first + place for first, place in zip(firsts, places, strict=True)]

    def split_mask(self, x: Any) -> tuple[Any, Any]:
        """Return observations `[..., observed]`, and which actions are offered, `[..., outputs]` bool or None: all."""
        return (x[..., : self.observed], x[..., self.observed :] > 0.5) if self.masked else (x, None)

    def join(self, x: Any) -> Any:
        """Return the one-hot code `[..., features]` of the combination of the codes in `[..., observed]`."""
        return reduce(mul, (x[..., index] for index in self.joint_index)) if len(self.one_hot) > 1 else x

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of θ1, θ2, ... and, if learned, b1, b2, ..., in the order in which they are stored.

        Only θ1 is transposed, so that all have hidden units on their last axis, which vectorises best. With a memory,
        θ1 is W, U follows it, and both have the rows z, r, n.
        """
        widths = (*self.layers, self.outputs)
        weights = ((self.features, widths[0]), *((to, of) for of, to in pairwise(widths)))
        if self.recurrent:
            units = widths[0]
            gates = ((self.features, 3 * units), (3 * units, units))
            return (*gates, *weights[1:], (3 * units,), *((width,) for width in widths[1:]))
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
        if self.recurrent:
            fan_in = (self.features, self.memory_size, *self.layers, self.features, *self.layers)
        sizes = [math.prod(shape) for shape in self.shapes]
        limits = np.repeat(1.0 / np.sqrt(fan_in), sizes)
        return jax.random.uniform(key, (self.size,), np.float32, -1.0, 1.0) * limits.astype(np.float32)

    @property
    def head(self) -> Network:
        """The network from encoded observations to scores: this one, where observations are not encoded."""
        return self

    def head_parameters(self, theta: Any) -> Any:
        """Return the parameters `[..., D']` of `head`."""
        return theta

    def encode(self, theta: Any, x: Any) -> Any:
        """Return encoded observations `[..., features]` for parameters `[D]` and observations `[..., inputs]`."""
        return x

    def __call__(self, theta: Array, x: Array) -> Array:
        """Return the outputs `[outputs]` in [-1, 1] for one parameter vector `[D]` and one observation `[inputs]`."""
        import jax.numpy as jnp

        return jnp.tanh(self.scores(theta, x))

    def scores(self, theta: Array, x: Array) -> Array:
        """Return θ2 relu(θ1 x + b1) + b2, `[outputs]`, for a parameter vector `[D]` and an observation `[inputs]`."""
        return self.scores_from_layers(self.unflatten(theta), x)

    def scores_from_layers(self, layers: list[Array], x: Array) -> Array:
        """Return `scores` from unflattened parameters: to unflatten them in every step of a loop is much slower."""
        if self.recurrent:
            raise RunError(NEEDS_EPISODE)
        return self.scores_and_memory(layers, x, None)[0]

    def scores_and_memory(self, layers: list[Array], x: Array, memory: Any) -> tuple[Array, Any]:
        """Return the scores `[outputs]` for an observation `[inputs]`, and the memory after it.

        Args:
            layers: unflattened parameters.
            x: the observation.
            memory: after the observations before it, `[memory_size]`, see `empty_memory`; None: there is none.
        """
        import jax
        import jax.numpy as jnp

        first = self.first_bias
        weights: list[Array] = layers[:first]
        biases: Sequence[Any] = layers[first:] or [1.0] * first
        if self.scale:
            x = (x - jnp.asarray(self.shift, jnp.float32)) / jnp.asarray(self.scale, jnp.float32)
        x, offered = self.split_mask(x)
        if self.indexed:
            y = weights[0][x[..., 0].astype(jnp.int32)] + biases[0]
        else:
            y = _combine(self.join(x), weights[0]) + biases[0]
            if self.recurrent:
                _, recurrent, *weights = weights
                memory = _gated(jnp.tanh, y, recurrent @ memory, memory)
                y, biases = weights[0] @ memory + biases[1], biases[1:]
            for weight, bias in zip(weights[1:], biases[1:], strict=True):
                y = weight @ jax.nn.relu(y) + bias
        return (y if offered is None else jnp.where(offered, y, NOT_OFFERED)), memory

    def empty_memory(self) -> Array | None:
        """Return the memory `[memory_size]` at the start of an episode; None: there is none."""
        import jax.numpy as jnp

        return jnp.zeros(self.memory_size, jnp.float32) if self.recurrent else None

    def act(self, actions: Actions, theta: Array | list[Array], x: Array, noise: Array | None = None) -> Array:
        """Return the action for one observation.

        Args:
            actions: the action space.
            theta: parameters `[D]`, flat or unflattened.
            x: the observation `[inputs]`.
            noise: exploration noise, added to the scores `[outputs]`.
        """
        return self.decode(actions, self.scores_from_layers(self.as_layers(theta), x), noise)

    def as_layers(self, theta: Array | list[Array]) -> list[Array]:
        """Return parameters `[D]`, flat or unflattened, as arrays of `shapes`."""
        return theta if isinstance(theta, list) else self.unflatten(theta)

    def decode(self, actions: Actions, scores: Array, noise: Array | None = None) -> Array:
        """Return the action for scores `[outputs]`, with exploration noise `[outputs]` added to them."""
        import jax.numpy as jnp

        if noise is not None:
            scores += noise
        # tanh preserves the order of scores, but in float32 large ones all become 1: choose before it.
        return actions.decode(scores if actions.ranked else jnp.tanh(scores))

    def vectorize(self, domain: Domain, theta: Rows, seeds: Sequence[int] = ()) -> VectorNetwork:
        """Return the networks with parameters `[B, D]` in a domain; they need no seeds."""
        return VectorNetwork(self, domain, theta)

    def numpy_scores(self, theta: Rows) -> Callable[..., Rows]:
        """Return `scores` in NumPy, `[B, inputs] -> [B, outputs]`, for parameters `[B, D]` or `[1, D]`.

        A stacked matmul is one product per row, so no row depends on its neighbours. With a memory, the function has a
        second argument, the memories `[B, memory_size]`, and updates them.
        """
        *hidden, (weight, bias) = [
            (np.ascontiguousarray(weight), bias[:, None]) for weight, bias in self.weights_and_biases(theta)
        ]
        shift, scale = np.array(self.shift, np.float32), np.array(self.scale, np.float32)
        recurrent = [np.ascontiguousarray(self.recurrent_weights(theta))] if self.recurrent else []

        def scores(x: Rows, memory: Rows | None = None) -> Rows:
            if len(scale):
                x = (x - shift) / scale
            x, offered = self.split_mask(x)
            y: Rows
            if self.indexed:
                y = weight[np.arange(len(x)) % len(weight), x[:, 0].astype(np.intp)] + bias[:, 0]
            else:
                x = self.join(x)[:, None]
                for u, (w, b) in zip(recurrent, hidden, strict=False):
                    if memory is None:
                        raise RunError(NEEDS_EPISODE)
                    gates = np.matmul(x, w) + b
                    x = _gated(np.tanh, gates, np.matmul(memory[:, None], u), memory[:, None])
                    memory[...] = x[:, 0]
                for w, b in hidden[len(recurrent) :]:
                    x = np.matmul(x, w)
                    x += b
                    np.maximum(x, 0, out=x)
                y = np.matmul(x, weight)
                y += bias
                y = y[:, 0]
            return y if offered is None else np.where(offered, y, np.float32(NOT_OFFERED))

        return scores

    def weights_and_biases(self, theta: Any) -> list[tuple[Any, Any]]:
        """Return weights `[..., from, to]` and biases `[..., to]` of each layer in turn, for parameters `[..., D]`."""
        layers, count = self.unflatten(theta), len(self.layers) + 1
        if self.recurrent:
            del layers[1]
        weights = [layers[0], *(weight.swapaxes(-1, -2) for weight in layers[1:count])]
        ones = [np.ones((*(1,) * (theta.ndim - 1), weight.shape[-1]), np.float32) for weight in weights]
        return list(zip(weights, layers[count:] or ones, strict=True))

    def recurrent_weights(self, theta: Any) -> Any:
        """Return U `[..., units, 3 units]` of a memory, for parameters `[..., D]`."""
        return self.unflatten(theta)[1].swapaxes(-1, -2)

    def unflatten(self, theta: Any) -> list[Any]:
        """Return parameters `[..., D]` as arrays of `shapes`, each with the leading axes of theta."""
        ends = np.cumsum([0, *map(math.prod, self.shapes)])
        return [
            theta[..., start:stop].reshape(*theta.shape[:-1], *shape)
            for start, stop, shape in zip(ends[:-1], ends[1:], self.shapes, strict=True)
        ]


def network_for(domain: Domain, *, hidden: Hidden = 32, bias: Bias = "one", memory: str = "none") -> Network:
    """Return the paper's network with the inputs and outputs of a domain.

    Args:
        domain: where it will act.
        hidden: units of the hidden layer, or of each of several.
        bias: 1, as in the paper's equation, or learned.
        memory: none, or gru.
    """
    if (size := domain.observation_size) > MAX_WIDTH:
        if one_hot_sizes(domain):
            raise DomainError(
                f"{domain.name} has discrete observations with {size:,} alternatives, each an input of the network "
                f"(one-hot), which has at most {MAX_WIDTH:,} inputs. Observe features instead, by a wrapper"
            )
        problem = image_problem(getattr(domain, "observation_space", None))
        raise DomainError(
            f"{domain.name} has observations of {size:,} numbers; networks without convolutions have at most "
            f"{MAX_WIDTH:,} inputs. "
            + (
                f"Convolutions read images of up to {MAX_SIDE} x {MAX_SIDE} pixels, but {problem}; or observe features"
                if problem
                else "Use ppo and encoder='auto', which learns from images by convolutions, though not from "
                "demonstrations; or make observations smaller"
            )
            + ". External policies may observe images of any size (psyco verify)"
        )
    shift, scale = getattr(domain, "observation_scaling", ((), ()))
    return Network(size, domain.actions.outputs, hidden, bias, shift, scale, masked=has_mask(domain), memory=memory)


def table_for(domain: Domain) -> Network:
    """Return the network of a domain that is a table: a row of scores for each observation.

    Observations must consist of one-hot codes: a domain has their sizes as `one_hot`.
    """
    if not (sizes := one_hot_sizes(domain)) or not isinstance(domain.actions, Discrete):
        raise DomainError(
            f"a table needs observations in Discrete or MultiDiscrete spaces, also in a Dict or Tuple, and Discrete "
            f"actions; {domain.name} has other ones. Use another learner, or wrappers that make them discrete"
        )
    size, masked = domain.observation_size, has_mask(domain)
    return Network(size, domain.actions.outputs, (), "learned", one_hot=sizes, masked=masked)


def has_mask(domain: Domain) -> bool:
    """Return whether the observations of a domain end with an action mask."""
    return bool(getattr(domain, "has_mask", False))


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


def _gated(tanh: Callable[[Any], Any], inner: Any, recurrent: Any, memory: Any) -> Any:
    """Return the memory `[..., units]` after a step of gated recurrent units, from W x + b and U h `[..., 3 units]`."""
    units = memory.shape[-1]
    gates = 0.5 * tanh(0.5 * (inner[..., : 2 * units] + recurrent[..., : 2 * units])) + 0.5  # σ
    update, reset = gates[..., :units], gates[..., units:]
    new = tanh(inner[..., 2 * units :] + reset * recurrent[..., 2 * units :])
    return new + update * (memory - new)


class VectorNetwork:
    """The VectorPolicy of networks: B of them evaluated at once, with the bits that each would give alone."""

    fallback_steps = None

    def __init__(self, network: Network, domain: Domain, theta: Rows, memory: Rows | None = None) -> None:
        self.network, self.domain, self.theta = network, domain, theta
        self.scores = network.numpy_scores(theta)
        self.memory = memory
        if network.recurrent and memory is None:
            self.memory = np.zeros((len(theta), network.memory_size), np.float32)
        self.actions = domain.actions
        # A compiled domain has no `to_env_actions`: it takes decoded actions.
        self.to_env_actions: Callable[[Any], Sequence[Any]] = getattr(domain, "to_env_actions", lambda chosen: chosen)

    def take(self, rows: NDArray[np.intp]) -> VectorNetwork:
        """Return the networks of these rows."""
        memory = None if self.memory is None else self.memory[rows]
        return VectorNetwork(self.network, self.domain, self.theta[rows], memory)

    def __call__(
        self,
        flat: Rows,
        raw: Sequence[Any],
        noise: Rows | None = None,
        signals: Sequence[Mapping[str, Any]] = (),
    ) -> Sequence[Any]:
        """Return actions `[B]` as `step` takes them, for observations `[B, size]`; see `VectorPolicy`."""
        y = self.scores(flat) if self.memory is None else self.scores(flat, self.memory)
        if noise is not None:
            y = y + noise
        return self.to_env_actions(self.actions.decode(y if self.actions.ranked else np.tanh(y, out=y)))
