"""Policies that were made elsewhere: Stable-Baselines3 models, ONNX files, PyTorch modules, Python functions.

They are verified like our own. Where a file of another tool can run code when it is loaded (Stable-Baselines3 keeps
pickled objects in its zip files, `python:` imports a module), it is loaded only because the user named it so.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.domain.actions import Actions, Continuous, MultiBinary
from psyco._src.domain.base import Domain
from psyco._src.domain.gym_env import GymDomain, name_of, resolve
from psyco._src.errors import DomainError, RunError
from psyco._src.policy import loaders
from psyco._src.policy.actor import Crew
from psyco._src.policy.file import Policy, load_policy
from psyco._src.policy.loaders import Decide

TORCH, ONNX = (".pt", ".pth", ".torchscript"), (".onnx",)


@dataclass(frozen=True, eq=False)
class ForeignPolicy:
    """A policy of others, in the place of one of ours wherever it is verified."""

    source: str  # where it comes from, as the user wrote it
    digest: str  # SHA-256 of its file or of its tensors; of a Python function, which has neither, of its name
    load: Callable[[], Decide]
    # It speaks the environment's own language: raw observations in, actions as `step` takes them.
    native: bool = False

    @property
    def theta(self) -> NDArray[np.float32]:
        """Parameters `[0]`: none that anybody could change."""
        return np.zeros(0, np.float32)

    @property
    def network(self) -> ForeignPolicy:
        """The Actor that samplers run, as `Policy.network` is: itself."""
        return self

    def check(self, domain: Domain) -> None:
        """Refuse what cannot be loaded; whether it fits the domain is only known when it acts."""
        _ = self._decide

    def act(self, actions: Actions, theta: Array, x: Array, disturbance: Array | None = None) -> Array:
        """Inside compiled code: the action for one observation `[inputs]`, asked of the host; see `Actor`."""
        self._refuse_exploring(disturbance)
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

    def crew(self, domain: GymDomain, theta: NDArray[np.float32]) -> Crew:
        """The policy in the environments of a domain; its parameters `[B, 0]` say nothing."""
        return _Soloist(self, domain)

    def _refuse_exploring(self, disturbance: Any) -> None:
        """Nobody can learn with a policy that has no scores to disturb."""
        if disturbance is not None:
            raise RunError(
                f"the policy {self.source} was made elsewhere: it can be verified, but it cannot explore; "
                "psyco.synthesize learns with networks of its own"
            )

    @cached_property
    def _decide(self) -> Decide:
        return self.load()

    def __getstate__(self) -> dict[str, Any]:
        # What was loaded stays here: a worker process loads its own.
        return {name: value for name, value in self.__dict__.items() if name != "_decide"}


@dataclass(frozen=True)
class _Soloist:
    """The Crew of a policy of others: one for all episodes, since it keeps no state of theirs."""

    policy: ForeignPolicy
    domain: GymDomain

    def take(self, rows: NDArray[np.intp]) -> _Soloist:
        return self

    def __call__(
        self, flat: NDArray[np.float32], raw: Sequence[Any], disturbance: NDArray[np.float32] | None = None
    ) -> Sequence[Any]:
        self.policy._refuse_exploring(disturbance)
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


class Predictor(Protocol):
    """What Stable-Baselines3's models have in common."""

    def predict(self, observation: Any, *, deterministic: bool) -> Any:
        """Actions for observations, and the policy's memory, if it has one."""


AnyPolicy: TypeAlias = Policy | ForeignPolicy

# Whatever stands for a policy: `as_policy` says how each is read.
PolicyLike: TypeAlias = AnyPolicy | str | Path | Callable[[Any], Any] | Predictor | tuple[Predictor, Any]


def as_policy(policy: PolicyLike) -> AnyPolicy:
    """A policy from whatever stands for one.

    Args:
        policy: a policy; the name of one, as `open_policy` reads it; a model of Stable-Baselines3, with the
            VecNormalize of its environment or in a pair with another; a `torch.nn.Module` from float32 `[n, size]` to
            actions or to scores of discrete ones; a function, or `predict` of any object, from observation to action.
    """
    if isinstance(policy, Policy | ForeignPolicy):
        return policy
    if isinstance(policy, str | Path):
        return open_policy(str(policy))
    if isinstance(policy, tuple):
        return _from_pair(policy)
    if loaders.sb3_policy(policy) is not None:
        return _from_sb3(policy, getattr(policy, "get_vec_normalize_env", lambda: None)())
    if loaders.is_module(policy):
        digest, packed = loaders.tensors_digest(policy), loaders.pack(policy)
        return ForeignPolicy(name_of(type(policy)), digest, partial(loaders.unpack_torch, packed))
    if hasattr(policy, "predict"):
        return _from_function(name_of(type(policy)), partial(loaders.predicted, policy))
    if callable(policy):
        return _from_function(name_of(policy), policy)
    raise RunError(
        f"{policy!r} is no policy: give a Policy, a file, a model with predict, a torch.nn.Module, "
        "or a function from observation to action"
    )


def open_policy(name: str) -> AnyPolicy:
    """The policy of a file (ours, *.onnx, *.pt), `sb3:FILE.zip`, `sb3:ALGORITHM:FILE.zip`, or `python:module:name`."""
    kind, colon, rest = name.partition(":")
    if colon and kind == "python":
        try:
            return _from_function(rest, resolve(rest))
        except DomainError as error:
            raise RunError(str(error)) from None
    if colon and kind == "sb3":
        algorithm, colon, file = rest.partition(":")
        path = Path(file if colon else rest)
        load = partial(loaders.load_sb3, path, algorithm if colon else None)
        return ForeignPolicy(name, _digest(path), load, native=True)
    path = Path(name)
    if path.suffix in ONNX:
        return ForeignPolicy(name, _digest(path), partial(loaders.load_onnx, path))
    if path.suffix in TORCH:
        return ForeignPolicy(name, _digest(path), partial(loaders.load_torch, path))
    return load_policy(path)


@contextmanager
def plain_failures() -> Iterator[None]:
    """Compiled code that asks a policy of others wraps what that raises in pages of XLA's; say what it was."""
    jaxs = logging.getLogger("jax._src.callback")  # it prints the same pages before it raises
    before, jaxs.disabled = jaxs.disabled, True
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "callback" not in str(error).lower():
            raise
        raise RunError(f"the policy failed: {str(error).strip().splitlines()[-1]}") from error
    finally:
        jaxs.disabled = before


def _from_function(name: str, function: Any) -> ForeignPolicy:
    if not callable(function):
        raise RunError(f"python:{name} is no function")
    source = f"python:{name}"
    digest = hashlib.sha256(source.encode()).hexdigest()
    return ForeignPolicy(source, digest, partial(loaders.by_function, function), native=True)


def _from_pair(pair: tuple[Any, ...]) -> ForeignPolicy:
    if len(pair) != 2 or loaders.sb3_policy(pair[0]) is None or not hasattr(pair[1], "normalize_obs"):
        kinds = ", ".join(type(each).__name__ for each in pair)
        raise RunError(f"a pair is (model of Stable-Baselines3, VecNormalize), got ({kinds})")
    return _from_sb3(*pair)


def _from_sb3(model: Any, statistics: Any) -> ForeignPolicy:
    """A model or its policy, with the VecNormalize that scaled what it saw, if any did."""
    if statistics is not None and not statistics.norm_obs:
        statistics = None  # it scaled rewards alone
    policy = loaders.sb3_policy(model)  # it acts; a model has its environment and its replay buffer with it
    load = partial(loaders.unpack_sb3, loaders.pack((policy, statistics)))
    return ForeignPolicy(name_of(type(model)), loaders.tensors_digest(policy, statistics), load, native=True)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise RunError(f"cannot read the policy {path}: {error.strerror}") from None
