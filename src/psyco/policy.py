"""The policy: the network of the paper's policy equation, a flat view of its parameters, and its file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from psyco.domain.base import ACTIONS, Actions, Domain, parameters
from psyco.errors import RunError

Bias = Literal["one", "learned"]
FORMAT = "psyco-policy-1"


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


@dataclass(frozen=True, eq=False)
class Policy:
    """A deterministic, memoryless policy: `policy(observation) -> action`."""

    theta: NDArray[np.float32]  # [D]
    network: Network
    actions: Actions
    domain: str  # the name of the domain it was made for
    parameters: dict[str, Any]  # that domain's parameters

    def __call__(self, observation: ArrayLike) -> NDArray[Any]:
        """The action for one observation `[inputs]` or a batch `[..., inputs]`."""
        x = np.asarray(observation, np.float32)
        if x.shape[-1:] != (self.network.inputs,):
            raise RunError(
                f"this policy sees {self.network.inputs} numbers, the observation has shape {x.shape}"
            )
        return np.asarray(_act(self.network, self.actions, jnp.asarray(self.theta), jnp.asarray(x)))

    @property
    def digest(self) -> str:
        """SHA-256 of the file's bytes: what a certificate names the policy by."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """The policy file: safetensors, with the network and the domain in its header."""
        about = {
            "format": FORMAT,
            "network": dataclasses.asdict(self.network),
            "actions": {"kind": type(self.actions).__name__, **dataclasses.asdict(self.actions)},
            "domain": self.domain,
            "parameters": self.parameters,
        }
        return _write_tensors(
            {"theta": np.asarray(self.theta, np.float32)}, {"psyco": json.dumps(about, sort_keys=True)}
        )

    def save(self, path: str | Path) -> None:
        """Write the policy file; the same policy gives the same bytes."""
        Path(path).write_bytes(self.to_bytes())

    def check(self, domain: Domain) -> None:
        """Refuse a domain that this policy was not made for."""
        have = (self.network.inputs, self.actions)
        want = (domain.observation_size, domain.actions)
        if have != want:
            raise RunError(
                f"this policy was made for {self.domain} ({self.network.inputs} observations, {self.actions}); "
                f"{domain.name} has {domain.observation_size} observations and {domain.actions}"
            )


def policy_for(domain: Domain, network: Network, theta: ArrayLike) -> Policy:
    """A policy that knows which domain it belongs to."""
    return Policy(np.asarray(theta, np.float32), network, domain.actions, domain.name, parameters(domain))


def load_policy(path: str | Path) -> Policy:
    """Read a policy file; whatever is wrong with it is said, and nothing in it is ever executed."""
    path = Path(path)
    try:
        tensors, metadata = _read_tensors(path.read_bytes())
        about = json.loads(metadata["psyco"])
        if about["format"] != FORMAT:
            raise RunError(f"{path} has format {about['format']!r}; this version reads {FORMAT!r}")
        actions = ACTIONS[about["actions"].pop("kind")](**_tuples(about["actions"]))
        network = Network(**_tuples(about["network"]))
        theta = tensors["theta"]
        domain, values = str(about["domain"]), dict(about["parameters"])
        if theta.dtype != np.float32:
            raise RunError(f"{path} is damaged: its parameters are {theta.dtype}, not float32")
        if theta.shape != (network.size,) or network.outputs != actions.outputs:
            raise RunError(f"{path} is damaged: {theta.size} parameters for a network of {network.size}")
        if not np.isfinite(theta).all():
            raise RunError(f"{path} is damaged: it holds parameters that are not finite numbers")
    except FileNotFoundError:
        raise RunError(f"there is no policy file {path}") from None
    except RunError:
        raise
    except Exception as error:  # a damaged file may go wrong anywhere
        raise RunError(f"{path} is not a PSyCo policy file, or it is damaged ({error})") from None
    return Policy(theta, network, actions, domain, values)


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON knows lists only; frozen dataclasses hold tuples."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}


def _combine(x: Array, rows: Array) -> Array:
    """Σ x_i rows_i, `[n] @ [n, m]`. For few rows a plain sum: XLA runs a batch of small products slowly."""
    if len(rows) > 32:
        return x @ rows
    return sum((x[i] * rows[i] for i in range(1, len(rows))), start=x[0] * rows[0])


@jax.jit(static_argnums=(0, 1))
def _act(network: Network, actions: Actions, theta: Array, x: Array) -> Array:
    flat = jax.vmap(lambda row: network.act(actions, theta, row))(x.reshape(-1, x.shape[-1]))
    return flat.reshape(*x.shape[:-1], *flat.shape[1:])


def _write_tensors(tensors: dict[str, NDArray[Any]], metadata: dict[str, str]) -> bytes:
    from safetensors.numpy import save

    return save(tensors, metadata)


def _read_tensors(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Tensors and metadata; safetensors' own `load` drops the metadata, which stands in the JSON header."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(data)
    except SafetensorError as error:
        raise ValueError(error) from None
    (size,) = struct.unpack("<Q", data[:8])
    return tensors, json.loads(data[8 : 8 + size]).get("__metadata__", {})
