"""A policy of ours, and its file: read and run with NumPy alone (`psyco.runtime`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import from_json, read_bytes
from psyco._src.envs.actions import ACTIONS, Actions
from psyco._src.policies.file_type import recognized
from psyco._src.policies.network import Network

if TYPE_CHECKING:
    from collections.abc import Callable

    from psyco._src.envs.base import Domain

FORMAT = "psyco-policy-1"


@dataclass(frozen=True, eq=False, repr=False)
class Policy:
    """A deterministic, memoryless policy: `policy(observation) -> action`."""

    theta: NDArray[np.float32]  # [D]
    network: Network
    actions: Actions
    domain: str  # the name of the domain it was made for
    parameters: dict[str, Any]  # that domain's parameters
    version: str | None = None  # as the user calls it; not in the file

    kind: ClassVar[Literal["file"]] = "file"  # what its digest tells it apart by
    notes: ClassVar[tuple[str, ...]] = ()  # what a reader of its certificate should know about it

    def __repr__(self) -> str:
        widths = self.network.inputs, *self.network.layers, self.network.outputs
        return f"<Policy for {self.domain}: {' -> '.join(map(str, widths))}, sha256:{self.digest[:16]}>"

    def __call__(self, observation: ArrayLike) -> NDArray[Any]:
        """The action for one observation `[inputs]` or a batch `[..., inputs]`."""
        x = np.asarray(observation, np.float32)
        if x.shape[-1:] != (self.network.inputs,):
            raise RunError(
                f"this policy sees {self.network.inputs} numbers, the observation has shape {x.shape}"
            )
        rows = self._scores(x.reshape(-1, x.shape[-1]))
        # See `Network.act`, of which this is the same for NumPy.
        action: NDArray[Any] = self.actions.decode(rows if self.actions.ranked else np.tanh(rows, out=rows))
        return action.reshape(x.shape[:-1] + action.shape[1:])

    @cached_property
    def _scores(self) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
        return self.network.evaluator(self.theta[None])

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
        """Refuse a domain whose observations or actions are not those that this policy was made for."""
        have = (self.network.inputs, self.actions)
        want = (domain.observation_size, domain.actions)
        if have != want:
            raise RunError(
                f"this policy was made for {self.domain} ({self.network.inputs} observations, {self.actions}); "
                f"{domain.name} has {domain.observation_size} observations and {domain.actions}"
            )


def policy_for(domain: Domain, network: Network, theta: ArrayLike) -> Policy:
    """A policy that knows which domain it belongs to.

    Args:
        domain: where it acts; how to make it again goes into the policy's file.
        network: what turns observations into actions.
        theta: parameters `[D]`, kept as float32.
    """
    from psyco._src.envs.registry import describe  # which knows all of the simulators

    name, values = describe(domain)
    return Policy(check_finite(theta), network, domain.actions, name, values)


def check_finite(theta: ArrayLike) -> NDArray[np.float32]:
    """Parameters `[D]` that learning has come to, as float32; RunError if it came to nothing."""
    found = np.asarray(theta, np.float32)
    if not np.isfinite(found).all():
        raise RunError(
            "learning has diverged: parameters of the policy are no finite numbers any more. Observations or rewards "
            "of 1e10 and more do that (scale them with a wrapper), and so does too large a learning rate (alpha)"
        )
    return found


def load_policy(path: str | Path) -> Policy:
    """Read a policy file; whatever is wrong with it is said, and nothing in it is ever executed."""
    path = Path(path)
    try:
        tensors, metadata = _read_tensors(read_bytes(path, "policy"))
        about = from_json(metadata["psyco"], str(path))
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
    except RunError:
        raise
    except Exception as error:  # a damaged file may go wrong anywhere
        what = recognized(path) or f"not a PSyCo policy file, or it is damaged ({error})"
        raise RunError(f"{path} is {what}") from None
    return Policy(theta, network, actions, domain, values)


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON knows lists only; frozen dataclasses hold tuples."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}


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
