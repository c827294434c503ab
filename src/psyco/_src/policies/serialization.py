"""PSyCo's own policies and their files, read and run with NumPy alone (`psyco.runtime`)."""

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
from psyco._src.core.files import from_json, read_bytes
from psyco._src.envs.actions import ACTIONS, Actions
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
    domain: str  # name of the domain it was made for
    parameters: dict[str, Any]  # of that domain
    version: str | None = None  # label given by the user; not in the file
    origin: str = ""  # of a policy that PSyCo has not learned, in words

    kind: ClassVar[Literal["file"]] = "file"  # what its digest identifies
    notes: ClassVar[tuple[str, ...]] = ()  # for the certificate

    def __repr__(self) -> str:
        widths = self.network.inputs, *self.network.layers, self.network.outputs
        return f"<Policy for {self.domain}: {' -> '.join(map(str, widths))}, sha256:{self.digest[:16]}>"

    def __call__(self, observation: ArrayLike) -> NDArray[Any]:
        """Return the action for one observation `[inputs]` or a batch `[..., inputs]`.

        Instead of one-hot codes, one observation may also be what the environment gives: the number of a `Discrete`
        space, counted from its start; for a table, also the numbers of a space of several.
        """
        raw, sizes = np.asarray(observation), self.network.one_hot or (self.network.inputs,)
        if raw.dtype.kind in "iu" and raw.shape == (() if len(sizes) == 1 else (len(sizes),)):
            raw = raw.ravel() if self.network.indexed else _one_hot(raw.ravel(), sizes)
        x = raw.astype(np.float32, copy=False)
        if x.shape[-1:] != (self.network.inputs,):
            raise RunError(f"this policy takes {self.network.inputs} numbers, the observation has shape {x.shape}")
        rows = self._scores(x.reshape(-1, x.shape[-1]))
        # As `Network.act`, in NumPy.
        action: NDArray[Any] = self.actions.decode(rows if self.actions.ranked else np.tanh(rows, out=rows))
        return action.reshape(x.shape[:-1] + action.shape[1:])

    @cached_property
    def _scores(self) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
        return self.network.numpy_scores(self.theta[None])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file's bytes, which identifies the policy in a certificate."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Return the policy file: safetensors, with the network and the domain in its header."""
        about = {
            "format": FORMAT,
            "network": {name: v for name, v in dataclasses.asdict(self.network).items() if name != "one_hot" or v},
            "actions": {"kind": type(self.actions).__name__, **dataclasses.asdict(self.actions)},
            "domain": self.domain,
            "parameters": self.parameters,
        } | ({"origin": self.origin} if self.origin else {})
        return _write_tensors(
            {"theta": np.asarray(self.theta, np.float32)}, {"psyco": json.dumps(about, sort_keys=True)}
        )

    def save(self, path: str | Path) -> None:
        """Write the policy file; the same policy gives the same bytes."""
        Path(path).write_bytes(self.to_bytes())

    def check(self, domain: Domain) -> None:
        """Raise RunError if observations or actions of a domain are not those that this policy was made for."""
        have = (self.network.inputs, self.actions)
        want = (domain.observation_size, domain.actions)
        if have != want:
            raise RunError(
                f"this policy was made for {self.domain} ({self.network.inputs} observations, {self.actions}); "
                f"{domain.name} has {domain.observation_size} observations and {domain.actions}"
            )


def policy_for(domain: Domain, network: Network, theta: ArrayLike, origin: str = "") -> Policy:
    """Return a policy with the description of its domain.

    Args:
        domain: where it acts; its description is stored in the policy's file.
        network: from observations to actions.
        theta: parameters `[D]`, stored as float32.
        origin: of a policy that PSyCo has not learned, in words.
    """
    from psyco._src.envs.registry import describe  # imports the simulators

    name, values = describe(domain)
    return Policy(check_finite(theta), network, domain.actions, name, values, origin=origin)


def check_finite(theta: ArrayLike) -> NDArray[np.float32]:
    """Return learned parameters `[D]` as float32; raise RunError if learning has diverged."""
    found = np.asarray(theta, np.float32)
    if not np.isfinite(found).all():
        raise RunError(
            "learning has diverged: parameters of the policy are not finite. Causes are observations or rewards of "
            "1e10 and more (scale them with a wrapper), or too large a learning rate"
        )
    return found


def load_policy(path: str | Path) -> Policy:
    """Read a policy file, without running any code from it; raise RunError if it is damaged."""
    path = Path(path)
    try:
        tensors, metadata = _read_tensors(read_bytes(path, "policy"))
        about = from_json(metadata["psyco"], str(path))
        if about["format"] != FORMAT:
            raise RunError(f"{path} has format {about['format']!r}; this version reads {FORMAT!r}")
        actions = ACTIONS[about["actions"].pop("kind")](**_tuples(about["actions"]))
        network = Network(**_tuples(about["network"]))
        theta = tensors["theta"]
        domain, values, origin = str(about["domain"]), dict(about["parameters"]), str(about.get("origin", ""))
        if theta.dtype != np.float32:
            raise RunError(f"{path} is damaged: its parameters are {theta.dtype}, not float32")
        if theta.shape != (network.size,) or network.outputs != actions.outputs:
            raise RunError(f"{path} is damaged: {theta.size} parameters for a network of {network.size}")
        if not np.isfinite(theta).all():
            raise RunError(f"{path} is damaged: it holds parameters that are not finite numbers")
    except RunError:
        raise
    except Exception as error:  # a damaged file may fail anywhere
        what = describe_other_file(path) or f"not a PSyCo policy file, or it is damaged ({error})"
        raise RunError(f"{path} is {what}") from None
    return Policy(theta, network, actions, domain, values, origin=origin)


def _one_hot(numbers: NDArray[Any], sizes: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return the one-hot codes of numbers, one after the other; raise RunError for a number that has none."""
    codes = [np.arange(size) == number for size, number in zip(sizes, numbers, strict=True)]
    if not all(code.any() for code in codes):
        raise RunError(f"this policy takes numbers from 0 to below {sizes}, the observation is {numbers.tolist()}")
    return np.concatenate(codes)


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with lists, which JSON has, as tuples, which frozen dataclasses have."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}


def _write_tensors(tensors: dict[str, NDArray[Any]], metadata: dict[str, str]) -> bytes:
    from safetensors.numpy import save

    return save(tensors, metadata)


def _read_tensors(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return tensors and metadata; safetensors' own `load` drops the metadata in the JSON header."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(data)
    except SafetensorError as error:
        raise ValueError(error) from None
    (size,) = struct.unpack("<Q", data[:8])
    return tensors, json.loads(data[8 : 8 + size]).get("__metadata__", {})


def describe_other_file(path: Path) -> str | None:
    """Return the apparent type of a file and the remedy, to follow `FILE is`, without loading it; None if unknown."""
    if path.suffix in (".pkl", ".pickle"):
        return (
            "a pickle, which runs code when it is loaded, so PSyCo does not read it; "
            "if you trust it, load it in Python and give psyco.verify the object"
        )
    import zipfile  # only after an error

    try:
        with zipfile.ZipFile(path) as file:
            names = file.namelist()
    except Exception:  # a damaged archive may fail anywhere
        return None
    if "data" in names:
        return f"a model of Stable-Baselines3; write sb3:{path}"
    inside = {name.partition("/")[2] for name in names}  # PyTorch puts everything in a folder named after the file
    if "data.pkl" in inside and "constants.pkl" not in inside:  # TorchScript has both
        return (
            "a state_dict or a pickled object of PyTorch, not a TorchScript module; load it into its network in Python "
            "and give psyco.verify that torch.nn.Module, or save it with torch.jit.script(network).save(...)"
        )
    return None
