"""Policies that were made elsewhere: Stable-Baselines3 models, ONNX files, PyTorch modules, Python functions.

They are verified like our own. A file that can run code (Stable-Baselines3 keeps pickled objects in its zip files,
TorchScript is a program) is loaded only if the user trusts it by name, and `python:` imports what the user named.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import DomainError, RunError
from psyco._src.core.safe_io import read_bytes
from psyco._src.envs.actions import Actions, Continuous, MultiBinary
from psyco._src.envs.base import Domain
from psyco._src.envs.gym_env import GymDomain, name_of, resolve
from psyco._src.envs.trust import NOBODY, names
from psyco._src.policies import loaders
from psyco._src.policies.base import VectorPolicy
from psyco._src.policies.file_type import recognized
from psyco._src.policies.guard import Guard
from psyco._src.policies.loaders import Decide
from psyco._src.policies.onnx_import import read_onnx
from psyco._src.policies.serialization import Policy, load_policy
from psyco._src.policies.stateful import Play, StatefulPolicy, each_its_own, explicit_state

# A file, tensors and the layers that they belong to, or no more than a name: the code behind it may change.
Kind: TypeAlias = Literal["file", "tensors", "name"]

TORCH, ONNX = (".pt", ".pth", ".torchscript"), (".onnx",)


@dataclass(frozen=True, eq=False)
class ExternalPolicy:
    """A policy of others, in the place of one of ours wherever it is verified."""

    source: str  # where it comes from, as the user wrote it
    kind: Kind  # what its digest tells it apart by
    digest: str  # SHA-256
    load: Callable[[], Decide | StatefulPolicy]
    # It speaks the environment's own language: raw observations in, actions as `step` takes them.
    native: bool = False
    version: str | None = None  # as the user calls it

    signals: ClassVar[frozenset[str]] = frozenset()  # see `Actor`

    @property
    def theta(self) -> NDArray[np.float32]:
        """Parameters `[0]`: none that anybody could change."""
        return np.zeros(0, np.float32)

    @property
    def network(self) -> ExternalPolicy:
        """The Actor that samplers run, as `Policy.network` is: itself."""
        return self

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of its certificate should know about it."""
        if self.kind == "file":
            return ()
        if self.kind == "tensors":
            return (
                f"The policy {self.source} was in memory: its hash is of its tensors, attributes and source code, "
                "not of what that code calls.",
            )
        known = "name" if self.version is None else "name and version"
        return (
            f"The policy {self.source} is Python code and known by its {known} only: nothing here tells whether "
            f"code that has the same {known} does the same.",
        )

    @property
    def remembers(self) -> bool:
        """Does it act on more than what it sees now?"""
        return isinstance(self._loaded, StatefulPolicy)

    def check(self, domain: Domain) -> None:
        """Refuse what cannot be loaded; whether it fits the domain is only known when it acts."""
        _ = self._loaded

    def crew(self, domain: Domain, theta: NDArray[np.float32], seeds: Sequence[int]) -> VectorPolicy:
        """The policy at the start of episodes with seeds `[B]`; its parameters `[B, 0]` say nothing."""
        loaded = self._loaded
        play = loaded.begin(seeds) if isinstance(loaded, StatefulPolicy) else _memoryless(loaded)
        return _ExternalVectorPolicy(self, domain, play, np.arange(len(seeds)))

    @cached_property
    def _loaded(self) -> Decide | StatefulPolicy:
        return self.load()

    def __getstate__(self) -> dict[str, Any]:
        # What was loaded stays here: a worker process loads its own.
        return {name: value for name, value in self.__dict__.items() if name != "_loaded"}


@dataclass(frozen=True)
class _ExternalVectorPolicy:
    """The Crew of a policy of others."""

    policy: ExternalPolicy
    domain: Domain
    play: Play
    rows: NDArray[np.intp]  # of its episodes, those that go on

    handed: ClassVar[None] = None

    def take(self, rows: NDArray[np.intp]) -> _ExternalVectorPolicy:
        return dataclasses.replace(self, rows=self.rows[rows])

    def __call__(
        self,
        flat: NDArray[np.float32],
        raw: Sequence[Any],
        disturbance: NDArray[np.float32] | None = None,
        signals: Sequence[Mapping[str, Any]] = (),
    ) -> Sequence[Any]:
        if disturbance is not None:  # nobody can learn with a policy that has no scores to disturb
            raise RunError(
                f"the policy {self.policy.source} was made elsewhere: it can be verified, but it cannot explore; "
                "psyco.synthesize learns with networks of its own"
            )
        actions = self.domain.actions
        chosen = self.play(self.rows, flat, raw, actions)
        if not isinstance(self.domain, GymDomain):
            return self._inside(np.asarray(chosen), actions)
        return (
            self._fitting(chosen, self.domain)
            if self.policy.native
            else self.domain.to_env(np.asarray(chosen))
        )

    def _fitting(self, chosen: Sequence[Any], domain: GymDomain) -> Sequence[Any]:
        """Actions of the environment's own kind; what is in them is between it and the policy."""
        shape = domain.action_space.shape
        for action in chosen:
            array = np.asarray(action)
            if array.shape != shape or array.dtype.kind not in "biuf":
                raise ValueError(
                    f"the policy {self.policy.source} gives the action {action!r}; "
                    f"the environment takes {shape or 'one number'}"
                )
            if not np.isfinite(array).all():
                raise ValueError(
                    f"the policy {self.policy.source} gives the action {action!r}, which is no finite number"
                )
        return chosen

    def _inside(self, chosen: NDArray[Any], actions: Actions) -> Sequence[Any]:
        """Actions of a compiled domain, `[n(, size)]`: numbers are clipped to their range, choices must be there."""
        count, size = len(self.rows), 1 if actions.size is None else actions.size
        if chosen.dtype.kind not in "biuf" or chosen.size != count * size or not np.isfinite(chosen).all():
            raise ValueError(
                f"the policy {self.policy.source} gives {chosen[:1].tolist()}; an action is {size} finite numbers"
            )
        rows = chosen.reshape(count, size)
        if isinstance(actions, Continuous):
            return np.clip(rows, actions.low, actions.high).astype(np.float32)
        wrong = (rows < 0) | (rows >= (2 if isinstance(actions, MultiBinary) else actions.n))
        wrong |= rows != np.rint(rows)
        if wrong.any():
            raise ValueError(
                f"the policy {self.policy.source} gives the action {rows[wrong][0]}, which is not in {actions}"
            )
        return rows.astype(np.int32).reshape(count if actions.size is None else (count, size))  # type: ignore[return-value]


def _memoryless(decide: Decide) -> Play:
    return lambda rows, flat, raw, actions: decide(flat, raw, actions)


class Predictor(Protocol):
    """What Stable-Baselines3's models have in common."""

    def predict(self, observation: Any, *, deterministic: bool) -> Any:
        """Actions for observations, and the policy's memory, if it has one."""


class EpisodePolicy(Protocol):
    """A policy with a memory, of which each episode gets its own; a class of them will do, too.

    If `reset` has an argument `seed`, it gets one, a function of the episode's: random numbers are to be drawn from it.
    """

    def reset(self) -> Any:
        """Forget everything: an episode begins."""

    def act(self, observation: Any) -> Any:
        """The action, and whatever is to be remembered."""


class ExplicitStatePolicy(Protocol):
    """A policy whose memory is in somebody else's hands: one row per episode, as recurrent networks have it."""

    def initial(self, count: int) -> Any:
        """The state at the start of so many episodes."""

    def act(self, observations: Any, state: Any) -> tuple[Any, Any]:
        """Actions for observations `[count, ...]`, and the state after them."""


AnyPolicy: TypeAlias = Policy | ExternalPolicy | Guard

# Whatever stands for a policy: `as_policy` says how each is read.
PolicyLike: TypeAlias = (
    AnyPolicy
    | str
    | Path
    | Callable[[Any], Any]
    | EpisodePolicy
    | type[EpisodePolicy]
    | ExplicitStatePolicy
    | Predictor
    | tuple[Predictor, Any]
)


def as_policy(policy: PolicyLike, trust: Collection[str] = NOBODY) -> AnyPolicy:
    """A policy from whatever stands for one.

    Args:
        policy: a policy; the name of one, as `open_policy` reads it; a model of Stable-Baselines3, with the
            VecNormalize of its environment or in a pair with another; a `torch.nn.Module` from float32 `[n, size]` to
            actions or to scores of discrete ones; a function, or `predict` of any object, from observation to action;
            with a memory, a `Player`, a class of them, or a `Stateful`.
        trust: the names of files that may run code.
    """
    if isinstance(policy, Policy | ExternalPolicy | Guard):
        return policy
    if isinstance(policy, str | Path):
        return open_policy(str(policy), trust)
    if isinstance(policy, tuple):
        return _from_pair(policy)
    if loaders.sb3_policy(policy) is not None:
        return _from_sb3(policy, getattr(policy, "get_vec_normalize_env", lambda: None)())
    if loaders.is_module(policy) and not hasattr(policy, "act"):
        digest, packed = loaders.tensors_digest(policy), loaders.pack(policy)
        load = partial(loaders.unpack_torch, packed)
        return ExternalPolicy(name_of(type(policy)), "tensors", digest, load)
    return _from_python(name_of(policy if hasattr(policy, "__qualname__") else type(policy)), policy)


def open_policy(name: str, trust: Collection[str] = NOBODY) -> AnyPolicy:
    """The policy of a file (ours, *.onnx, *.pt), `sb3:FILE.zip`, `sb3:ALGORITHM:FILE.zip`, or `python:module:name`.

    Args:
        name: of the policy.
        trust: the names of files that may run code: *.pt and `sb3:` can.
    """
    kind, colon, rest = name.partition(":")
    if colon and kind == "python":
        try:
            thing = resolve(rest)
            return thing if isinstance(thing, Guard) else _from_python(rest, thing)
        except DomainError as error:
            raise RunError(str(error)) from None
    if colon and kind == "sb3":
        algorithm, colon, file = rest.partition(":")
        path = Path(file if colon else rest)
        data = read_bytes(path, "policy")
        _check_trust(name, path, "it holds pickled objects, which can do anything once loaded", trust)
        load = partial(loaders.load_sb3, data, path, algorithm if colon else None)
        return ExternalPolicy(name, "file", _digest(data), load, native=True)
    path = Path(name)
    if path.suffix in ONNX:
        model = read_onnx(path)
        return ExternalPolicy(name, "file", model.digest, partial(loaders.load_onnx, model.network, path))
    if path.suffix in TORCH:
        data = read_bytes(path, "policy")
        if what := recognized(path):
            raise RunError(f"{path} is {what}")
        _check_trust(name, path, "TorchScript is a program, which can read and write files", trust)
        return ExternalPolicy(name, "file", _digest(data), partial(loaders.load_torch, data, path))
    return load_policy(path)


def with_version(policy: AnyPolicy, version: str | None) -> AnyPolicy:
    """The policy as the user calls it; of one that is known by its name only, the version belongs to that name."""
    if version is None:
        return policy
    if not isinstance(version, str) or not version.strip():
        raise RunError(f"a version is a text such as 'controller 3.1', got {version!r}")
    if isinstance(policy, Guard):
        return policy.with_version(version)
    if policy.kind != "name":
        return dataclasses.replace(policy, version=version)
    assert isinstance(policy, ExternalPolicy)
    digest = _digest(f"{policy.source}\n{version}".encode())
    return dataclasses.replace(policy, version=version, digest=digest)


def _from_python(name: str, thing: Any) -> ExternalPolicy:
    """What a Python name stands for: it is known by that name only, since code can change while its name stays."""
    source = f"python:{name}"
    return ExternalPolicy(source, "name", _digest(source.encode()), _python_loader(thing), native=True)


def _python_loader(thing: Any) -> Callable[[], Decide | StatefulPolicy]:
    is_class = isinstance(thing, type)
    if hasattr(thing, "act") and hasattr(thing, "initial"):
        return lambda: explicit_state(thing() if is_class else thing)
    if hasattr(thing, "act") and hasattr(thing, "reset"):
        return partial(each_its_own, thing if is_class else partial(cloudpickle.loads, loaders.pack(thing)))
    if hasattr(thing, "predict"):
        return partial(loaders.by_predict, thing)
    if callable(thing):
        return partial(loaders.by_function, thing)
    raise RunError(
        f"{thing!r} is no policy: give a Policy, a file, a model with predict, a torch.nn.Module, "
        "a function from observation to action, or an object with reset() and act(observation)"
    )


def _from_pair(pair: tuple[Any, ...]) -> ExternalPolicy:
    if len(pair) != 2 or loaders.sb3_policy(pair[0]) is None or not hasattr(pair[1], "normalize_obs"):
        kinds = ", ".join(type(each).__name__ for each in pair)
        raise RunError(f"a pair is (model of Stable-Baselines3, VecNormalize), got ({kinds})")
    return _from_sb3(*pair)


def _from_sb3(model: Any, statistics: Any) -> ExternalPolicy:
    """A model or its policy, with the VecNormalize that scaled what it saw, if any did."""
    if statistics is not None and not statistics.norm_obs:
        statistics = None  # it scaled rewards alone
    policy = loaders.sb3_policy(model)  # it acts; a model has its environment and its replay buffer with it
    load = partial(loaders.unpack_sb3, loaders.pack((policy, statistics)))
    digest = loaders.tensors_digest(policy, statistics)
    return ExternalPolicy(name_of(type(model)), "tensors", digest, load, native=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _check_trust(name: str, path: Path, why: str, trust: Collection[str]) -> None:
    if not {name, str(path)} & names(trust):
        raise RunError(
            f"{name} can run code: {why}. If you trust where it comes from, say so: --trust {name} (in Python: "
            f"trust=[{name!r}]). An ONNX or a safetensors file needs no trust: it holds a network and no code"
        )
