"""Policies that were made elsewhere: Stable-Baselines3 models, ONNX files, TorchScript modules, Python functions.

They are verified like our own. Where a file of another tool can run code when it is loaded (Stable-Baselines3 keeps
pickled objects in its zip files, `python:` imports a module), it is loaded only because the user named it so.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.domain.actions import Actions, Continuous, MultiBinary
from psyco._src.domain.base import Domain
from psyco._src.domain.gym_env import GymDomain, name_of, resolve
from psyco._src.errors import DomainError, RunError
from psyco._src.policy.file import Policy, load_policy

ROWS = 64  # networks of others always see so many rows: then a row does not depend on how many there are
TORCH, ONNX = (".pt", ".pth", ".torchscript"), (".onnx",)

# (flat observations [N, size], raw observations, the actions to choose from) -> actions, one per row.
Decide: TypeAlias = Callable[[NDArray[np.float32], Sequence[Any], Actions], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class ForeignPolicy:
    """A policy of others, in the place of one of ours wherever it is verified."""

    source: str  # where it comes from, as the user wrote it
    digest: str  # SHA-256 of its file; of a Python function, which has none, of its name
    load: Callable[[], Decide]
    native: bool = (
        False  # it speaks the environment's own language: raw observations in, actions as `step` takes them
    )

    @property
    def theta(self) -> NDArray[np.float32]:
        """No parameters that anybody could change."""
        return np.zeros(0, np.float32)

    @property
    def network(self) -> ForeignPolicy:
        """What samplers run."""
        return self

    def check(self, domain: Domain) -> None:
        """What it needs is only known when it acts; but that it can be loaded."""
        _ = self._decide

    def act(self, actions: Actions, theta: Array, x: Array) -> Array:
        """Inside compiled code: the action for one observation `[inputs]`, asked of the host."""
        kind = jnp.float32 if isinstance(actions, Continuous) else jnp.int32
        shape = jax.ShapeDtypeStruct(() if actions.size is None else (actions.size,), kind)

        def ask(x: Any) -> Any:
            flat = np.asarray(x, np.float32).reshape(-1, x.shape[-1])
            chosen = np.asarray(self._decide(flat, list(flat), actions))
            return self._inside(chosen, actions, len(flat)).astype(kind).reshape(*x.shape[:-1], *shape.shape)

        return jax.pure_callback(ask, shape, x, vmap_method="expand_dims")

    def _inside(self, chosen: NDArray[Any], actions: Actions, count: int) -> NDArray[Any]:
        """Actions `[count, size]`: numbers are clipped to their range, choices must be there."""
        size = 1 if actions.size is None else actions.size
        if chosen.dtype.kind not in "biuf" or chosen.size != count * size or not np.isfinite(chosen).all():
            raise ValueError(
                f"the policy {self.source} gives {chosen[:1].tolist()}; an action is {size} finite numbers"
            )
        rows = chosen.reshape(count, size)
        if isinstance(actions, Continuous):
            return np.clip(rows, actions.low, actions.high)
        wrong = (rows < 0) | (rows >= (2 if isinstance(actions, MultiBinary) else actions.n))
        wrong |= rows != np.rint(rows)
        if wrong.any():
            raise ValueError(
                f"the policy {self.source} gives the action {rows[wrong][0]}, which is not in {actions}"
            )
        return rows

    def actor(self, domain: GymDomain) -> _Actor:
        """In a host loop."""
        return _Actor(self, domain)

    @cached_property
    def _decide(self) -> Decide:
        return self.load()

    def __getstate__(self) -> dict[str, Any]:
        # What was loaded stays here: a worker process loads its own.
        return {name: value for name, value in self.__dict__.items() if name != "_decide"}


@dataclass(frozen=True)
class _Actor:
    policy: ForeignPolicy
    domain: GymDomain

    def take(self, rows: NDArray[np.intp]) -> _Actor:
        return self

    def __call__(self, flat: NDArray[np.float32], raw: Sequence[Any]) -> Sequence[Any]:
        chosen = self.policy._decide(flat, raw, self.domain.actions)
        if not self.policy.native:
            return self.domain.to_env(np.asarray(chosen))
        shape = self.domain.action_space.shape
        for action in chosen:
            array = np.asarray(action)
            if array.shape != shape or array.dtype.kind not in "biuf":
                raise ValueError(
                    f"the policy {self.policy.source} gives the action {action!r}; "
                    f"the environment takes {shape or 'one number'}"
                )
        return chosen


AnyPolicy: TypeAlias = Policy | ForeignPolicy


def as_policy(policy: AnyPolicy | str | Path | Callable[[Any], Any]) -> AnyPolicy:
    """A policy from whatever stands for one: itself, a file, a name with a prefix, or a function."""
    if isinstance(policy, Policy | ForeignPolicy):
        return policy
    if isinstance(policy, str | Path):
        return open_policy(str(policy))
    if not callable(policy):
        raise RunError(
            f"{policy!r} is no policy: give a Policy, a file, or a function from observation to action"
        )
    return _function(name_of(policy), policy)


def open_policy(name: str) -> AnyPolicy:
    """The policy of a file (ours, *.onnx, *.pt), `sb3:FILE.zip`, `sb3:ALGORITHM:FILE.zip`, or `python:module:name`."""
    kind, colon, rest = name.partition(":")
    if colon and kind == "python":
        try:
            return _function(rest, resolve(rest))
        except DomainError as error:
            raise RunError(str(error)) from None
    if colon and kind == "sb3":
        algorithm, colon, file = rest.partition(":")
        path = Path(file if colon else rest)
        return ForeignPolicy(
            name, _digest(path), partial(_load_sb3, path, algorithm if colon else None), native=True
        )
    path = Path(name)
    if path.suffix in ONNX:
        return ForeignPolicy(name, _digest(path), partial(_load_onnx, path))
    if path.suffix in TORCH:
        return ForeignPolicy(name, _digest(path), partial(_load_torch, path))
    return load_policy(path)


def is_foreign(name: str) -> bool:
    """Is this the name of a policy of others?"""
    return name.startswith(("sb3:", "python:")) or Path(name).suffix in (*ONNX, *TORCH)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise RunError(f"cannot read the policy {path}: {error.strerror}") from None


# ---- one loader each ------------------------------------------------------------------------------------------


def _function(name: str, function: Any) -> ForeignPolicy:
    if not callable(function):
        raise RunError(f"python:{name} is no function")

    def decide(flat: NDArray[np.float32], raw: Sequence[Any], actions: Actions) -> Sequence[Any]:
        return [function(observation) for observation in raw]

    source = f"python:{name}"
    return ForeignPolicy(source, hashlib.sha256(source.encode()).hexdigest(), lambda: decide, native=True)


def _load_sb3(path: Path, algorithm: str | None) -> Decide:
    try:
        import stable_baselines3 as sb3
    except ImportError:
        raise RunError(f'{path} needs Stable-Baselines3 installed: pip install "psyco[sb3]"') from None
    name = (algorithm or _sb3_algorithm(path)).upper()
    if not hasattr(sb3, name):
        raise RunError(f"Stable-Baselines3 has no algorithm {name!r}; write for example sb3:ppo:{path}")
    try:
        model = getattr(sb3, name).load(path, device="cpu")
    except Exception as error:  # whatever its pickled parts raise
        raise RunError(
            f"Stable-Baselines3 cannot load {path} as {name}: {type(error).__name__}: {error}"
        ) from error

    def predict(rows: Any) -> NDArray[Any]:
        return model.predict(rows, deterministic=True)[0]

    def decide(flat: NDArray[np.float32], raw: Sequence[Any], actions: Actions) -> Sequence[Any]:
        return list(_by_rows(predict, list(raw)))

    return decide


def _sb3_algorithm(path: Path) -> str:
    """Which algorithm saved this file, from what it kept; nothing of it is unpickled."""
    try:
        with zipfile.ZipFile(path) as file:
            data = json.loads(file.read("data"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise RunError(f"{path} is no model of Stable-Baselines3 ({error})") from None
    module = str(data.get("policy_class", {}).get("__module__", ""))
    for name in ("dqn", "sac"):
        if f".{name}." in module:
            return name
    if ".td3." in module:
        return "td3" if data.get("policy_delay", 2) > 1 else "ddpg"
    return "ppo" if "clip_range" in data else "a2c"


def _load_onnx(path: Path) -> Decide:
    try:
        import onnxruntime
    except ImportError:
        raise RunError(f'{path} needs ONNX Runtime installed: pip install "psyco[onnx]"') from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each of its troubles
        raise RunError(f"{path} is not an ONNX file that can be run: {error}") from None
    first, *others = session.get_inputs()
    if others:
        raise RunError(
            f"{path} takes {len(others) + 1} inputs; a policy takes one, the observations [n, size]"
        )
    return _network(lambda rows: session.run(None, {first.name: rows})[0])


def _load_torch(path: Path) -> Decide:
    try:
        import torch
    except ImportError:
        raise RunError(f'{path} needs PyTorch installed: pip install "psyco[torch]"') from None
    try:
        module = torch.jit.load(str(path), map_location="cpu").eval()
    except RuntimeError as error:
        raise RunError(
            f"{path} is not a TorchScript module; save it with torch.jit.script(...).save(...) ({error})"
        ) from None

    def run(rows: NDArray[np.float32]) -> NDArray[Any]:
        with torch.inference_mode():
            output = module(torch.from_numpy(rows))
        return (output[0] if isinstance(output, tuple) else output).numpy()

    return _network(run)


def _network(run: Callable[[NDArray[np.float32]], NDArray[Any]]) -> Decide:
    """A network `[n, size] -> [n, ...]` whose outputs are actions, or scores of discrete ones."""

    def decide(flat: NDArray[np.float32], raw: Sequence[Any], actions: Actions) -> Sequence[Any]:
        y = np.asarray(_by_rows(run, flat))
        if not np.isfinite(y).all():
            raise ValueError("the policy gives a number that is not finite")
        size = 1 if actions.size is None else actions.size
        if (
            not isinstance(actions, Continuous)
            and y.dtype.kind == "f"
            and y.shape == (len(flat), actions.outputs)
        ):
            return np.asarray(actions.decode(y))  # type: ignore[return-value]  # scores: the largest wins
        if y.size != len(flat) * size:
            raise ValueError(f"the policy gives {y.shape[1:]} numbers per observation; an action is {size}")
        y = y.reshape(len(flat) if actions.size is None else (len(flat), size))
        if isinstance(actions, Continuous):
            return np.clip(y, actions.low, actions.high)
        return np.rint(y).astype(np.int64)

    return decide


def _by_rows(run: Callable[[Any], NDArray[Any]], rows: Any) -> NDArray[Any]:
    """`run` on blocks of ROWS rows, the last one filled up with copies of its first."""
    blocks = []
    for start in range(0, len(rows), ROWS):
        block = list(rows[start : start + ROWS])
        count = len(block)
        block += block[:1] * (ROWS - count)
        blocks.append(run(_stack(block))[:count])
    return np.concatenate(blocks)


def _stack(block: list[Any]) -> Any:
    if isinstance(block[0], dict):
        return {key: np.stack([each[key] for each in block]) for key in block[0]}
    return np.stack(block)
