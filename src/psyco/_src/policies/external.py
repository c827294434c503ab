"""External policies: Stable-Baselines3 models, ONNX files, PyTorch modules, Python functions.

They are verified like PSyCo's own. A file that can run code (Stable-Baselines3 keeps pickled objects in its zip files,
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
from psyco._src.core.files import read_bytes
from psyco._src.envs.actions import Actions, Continuous, MultiBinary, first_offered
from psyco._src.envs.agents import AgentSpace, agent_spaces_of, slices
from psyco._src.envs.base import Domain
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.registry import TRUST_NOTHING, import_object, qualified_name, trusted_names
from psyco._src.envs.team_env import joint_action
from psyco._src.policies import loaders
from psyco._src.policies.base import VectorPolicy, WithoutParameters
from psyco._src.policies.guard import Guard
from psyco._src.policies.loaders import BatchFunction
from psyco._src.policies.mixed import MixedPolicy
from psyco._src.policies.network import has_mask
from psyco._src.policies.sb3_network import same_network
from psyco._src.policies.serialization import Policy, describe_other_file, load_policy, policy_for
from psyco._src.policies.stateful import (
    EpisodeFunction,
    StatefulPolicy,
    from_episode_policy,
    from_explicit_state,
)

# What a digest identifies: a file, tensors with their layers, or only a name, behind which the code may change.
Kind: TypeAlias = Literal["file", "tensors", "name"]

TORCH, ONNX = (".pt", ".pth", ".torchscript"), (".onnx",)


@dataclass(frozen=True, eq=False)
class ExternalPolicy(WithoutParameters):
    """An external policy; it can be verified like a `Policy`."""

    source: str  # its origin, as the user wrote it
    kind: Kind  # what its digest identifies
    digest: str  # SHA-256
    load: Callable[[], BatchFunction | StatefulPolicy]
    # It takes raw observations, and gives actions as `step` of the environment takes them.
    native: bool = False
    version: str | None = None  # label given by the user

    signals: ClassVar[frozenset[str]] = frozenset()  # see `Actor`

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the certificate."""
        if self.kind == "file":
            return ()
        if self.kind == "tensors":
            return (
                f"The policy {self.source} was in memory: its hash is of its tensors, attributes and source code, "
                "not of what that code calls.",
            )
        known = "name" if self.version is None else "name and version"
        return (
            f"The policy {self.source} is Python code and known by its {known} only: other code with the same "
            f"{known} may act differently.",
        )

    @property
    def stateful(self) -> bool:
        """Whether its actions depend on more than the current observation."""
        return isinstance(self._loaded, StatefulPolicy)

    def check(self, domain: Domain) -> None:
        """Raise RunError if it cannot be loaded; whether it fits the domain shows only when it acts."""
        _ = self._loaded

    def vectorize(self, domain: Domain, theta: NDArray[np.float32], seeds: Sequence[int]) -> VectorPolicy:
        """Return the policy at the start of episodes with seeds `[B]`; the parameters are `[B, 0]`."""
        loaded = self._loaded
        act = loaded.begin(seeds) if isinstance(loaded, StatefulPolicy) else _memoryless(loaded)
        return _ExternalVectorPolicy(self, domain, act, np.arange(len(seeds)))

    def as_network(self, domain: Domain) -> Policy | None:
        """Return the policy with the same actions as a network of ours, if a Stable-Baselines3 model has one."""
        loaded = self._loaded
        if not isinstance(loaded, loaders.Sb3Function):
            return None
        found = same_network(loaders.sb3_policy(loaded.model), loaded.statistics, domain)
        return policy_for(domain, *found, origin=f"the weights of {self.source}") if found else None

    @cached_property
    def _loaded(self) -> BatchFunction | StatefulPolicy:
        return self.load()

    def __getstate__(self) -> dict[str, Any]:
        # The loaded object is not sent to a worker process, which loads its own.
        return {name: value for name, value in self.__dict__.items() if name != "_loaded"}


@dataclass(frozen=True)
class _ExternalVectorPolicy:
    """The VectorPolicy of an external policy."""

    policy: ExternalPolicy
    domain: Domain
    act: EpisodeFunction
    rows: NDArray[np.intp]  # indices of the running episodes

    fallback_steps: ClassVar[None] = None

    def take(self, rows: NDArray[np.intp]) -> _ExternalVectorPolicy:
        return dataclasses.replace(self, rows=self.rows[rows])

    def __call__(
        self,
        flat: NDArray[np.float32],
        raw: Sequence[Any],
        noise: NDArray[np.float32] | None = None,
        signals: Sequence[Mapping[str, Any]] = (),
    ) -> Sequence[Any]:
        if noise is not None:  # there are no scores to add it to
            raise RunError(
                f"the policy {self.policy.source} is external: it can be verified, but it cannot explore; "
                "psyco.synthesize learns PSyCo's own networks"
            )
        actions = self.domain.actions
        team = agent_spaces_of(self.domain) if self.policy.native else ()
        with loaders.one_torch_thread():
            chosen = self.act(self.rows, flat, _observed_by(team, raw) if team else raw, actions)
        if team:
            own = self.domain.agent_actions if isinstance(self.domain, GymDomain) else ()
            chosen = [joint_action(team, own, each, self.policy.source) for each in chosen]
        if not isinstance(self.domain, GymDomain):
            found = self._compiled_actions(np.asarray(chosen), actions)
            return first_offered(found, flat[:, -actions.outputs :]) if has_mask(self.domain) else found
        if self.policy.native:
            return self._native_actions(chosen, self.domain)
        return self.domain.to_env_actions(np.asarray(chosen))

    def _native_actions(self, chosen: Sequence[Any], domain: GymDomain) -> Sequence[Any]:
        """Check shape and type of actions that go to the environment unchanged."""
        shape = domain.action_space.shape
        for action in chosen:
            array = np.asarray(action)
            if array.shape != shape or array.dtype.kind not in "biuf":
                raise ValueError(
                    f"the policy {self.policy.source} gives the action {action!r}; "
                    f"the environment takes {shape or 'one number'}"
                )
            if not np.isfinite(array).all():
                raise ValueError(f"the policy {self.policy.source} gives the action {action!r}, which is not finite")
        return chosen

    def _compiled_actions(self, chosen: NDArray[Any], actions: Actions) -> Sequence[Any]:
        """Return actions of a compiled domain, `[n(, size)]`: numbers are clipped to their range, choices checked."""
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


def _observed_by(team: Sequence[AgentSpace], raw: Sequence[Any]) -> list[dict[str, Any]]:
    """Return `{agent: observation}` for each joint observation: a tuple of them, or a vector of all."""
    names, places = [each.name for each in team], slices([each.size for each in team])
    split = (row if isinstance(row, tuple) else [np.asarray(row)[place] for place in places] for row in raw)
    return [dict(zip(names, parts, strict=True)) for parts in split]


def _memoryless(decide: BatchFunction) -> EpisodeFunction:
    return lambda rows, flat, raw, actions: decide(flat, raw, actions)


class Predictor(Protocol):
    """The common interface of Stable-Baselines3 models."""

    def predict(self, observation: Any, *, deterministic: bool) -> Any:
        """Return actions for observations, and the policy's memory, if it has one."""


class EpisodePolicy(Protocol):
    """A policy with a memory, copied for each episode; a class of such policies is accepted too.

    If `reset` has an argument `seed`, it gets a function of the episode's seed, to draw random numbers from.
    """

    def reset(self) -> Any:
        """Clear the memory: an episode begins."""

    def act(self, observation: Any) -> Any:
        """Return the action, and update the memory."""


class ExplicitStatePolicy(Protocol):
    """A policy whose memory is an explicit state with one row per episode, as in recurrent networks."""

    def initial(self, count: int) -> Any:
        """Return the state at the start of `count` episodes."""

    def act(self, observations: Any, state: Any) -> tuple[Any, Any]:
        """Return actions for observations `[count, ...]`, and the next state."""


HostPolicy: TypeAlias = ExternalPolicy | Guard | MixedPolicy  # asked for every action between compiled steps
AnyPolicy: TypeAlias = Policy | HostPolicy

# Everything that `as_policy` accepts.
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


def as_policy(policy: PolicyLike, trust: Collection[str] = TRUST_NOTHING) -> AnyPolicy:
    """Return the policy that an object or a name stands for.

    Args:
        policy: a policy; the name of one, as `open_policy` reads it; a model of Stable-Baselines3, with the
            VecNormalize of its environment or in a pair with another; a `torch.nn.Module` from float32 `[n, size]` to
            actions or to scores of discrete ones; a function, or `predict` of any object, from observation to action;
            with a memory, an `EpisodePolicy`, a class of them, or an `ExplicitStatePolicy`.
        trust: names of files that may run code.
    """
    if isinstance(policy, AnyPolicy):
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
        return ExternalPolicy(qualified_name(type(policy)), "tensors", digest, load)
    return _from_python(qualified_name(policy if hasattr(policy, "__qualname__") else type(policy)), policy)


def open_policy(name: str, trust: Collection[str] = TRUST_NOTHING) -> AnyPolicy:
    """Open a policy file (PSyCo's, *.onnx, *.pt), `sb3:FILE.zip`, `sb3:ALGORITHM:FILE.zip`, or `python:module:name`.

    Args:
        name: of the policy.
        trust: names of files that may run code, which *.pt and `sb3:` can.
    """
    kind, colon, rest = name.partition(":")
    if colon and kind == "python":
        try:
            thing = import_object(rest)
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
        model = loaders.read_onnx(path)
        return ExternalPolicy(name, "file", model.digest, partial(loaders.load_onnx, model.network, path))
    if path.suffix in TORCH:
        data = read_bytes(path, "policy")
        if what := describe_other_file(path):
            raise RunError(f"{path} is {what}")
        _check_trust(name, path, "TorchScript is a program, which can read and write files", trust)
        return ExternalPolicy(name, "file", _digest(data), partial(loaders.load_torch, data, path))
    return load_policy(path)


def with_version(policy: AnyPolicy, version: str | None) -> AnyPolicy:
    """Return the policy with a version label; where the digest identifies only a name, it includes the version."""
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
    """Wrap a Python object, identified by its name only, since code can change while its name stays."""
    source = f"python:{name}"
    return ExternalPolicy(source, "name", _digest(source.encode()), _python_loader(thing), native=True)


def _python_loader(thing: Any) -> Callable[[], BatchFunction | StatefulPolicy]:
    is_class = isinstance(thing, type)
    if hasattr(thing, "act") and hasattr(thing, "initial"):
        return lambda: from_explicit_state(thing() if is_class else thing)
    if hasattr(thing, "act") and hasattr(thing, "reset"):
        return partial(from_episode_policy, thing if is_class else partial(cloudpickle.loads, loaders.pack(thing)))
    if hasattr(thing, "predict"):
        return partial(loaders.from_predict, thing)
    if callable(thing):
        return partial(loaders.from_function, thing)
    raise RunError(
        f"{thing!r} is not a policy: give a Policy, a file, a model with predict, a torch.nn.Module, "
        "a function from observation to action, or an object with reset() and act(observation)"
    )


def _from_pair(pair: tuple[Any, ...]) -> ExternalPolicy:
    if len(pair) != 2 or loaders.sb3_policy(pair[0]) is None or not hasattr(pair[1], "normalize_obs"):
        kinds = ", ".join(type(each).__name__ for each in pair)
        raise RunError(f"a pair is (model of Stable-Baselines3, VecNormalize), got ({kinds})")
    return _from_sb3(*pair)


def _from_sb3(model: Any, statistics: Any) -> ExternalPolicy:
    """Wrap a model or its policy, with the VecNormalize that scaled its observations, if any."""
    if statistics is not None and not statistics.norm_obs:
        statistics = None  # it scaled rewards only
    policy = loaders.sb3_policy(model)  # without the model's environment and replay buffer
    load = partial(loaders.unpack_sb3, loaders.pack((policy, statistics)))
    digest = loaders.tensors_digest(policy, statistics)
    return ExternalPolicy(qualified_name(type(model)), "tensors", digest, load, native=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _check_trust(name: str, path: Path, why: str, trust: Collection[str]) -> None:
    if not {name, str(path)} & trusted_names(trust):
        raise RunError(
            f"{name} can run code: {why}. If you trust where it comes from, say so: --trust {name} (in Python: "
            f"trust=[{name!r}]). An ONNX or a safetensors file needs no trust: it holds a network and no code"
        )


# Checks that the actions of an external policy depend on its own episode alone, by asking it twice.


ACTION_TOLERANCE = 1e-4  # of the range of actions: rounding of a network may depend on the row


@dataclass(frozen=True, eq=False)
class DeterminismProbe:
    """An Actor that asks an external policy twice, the second time with the episodes in reverse order.

    A policy whose second answer differs shares state between episodes or uses unseeded randomness.
    """

    policy: HostPolicy

    @property
    def signals(self) -> frozenset[str]:
        """The signals of the policy."""
        return self.policy.signals

    def vectorize(self, domain: Domain, theta: NDArray[np.float32], seeds: Sequence[int]) -> VectorPolicy:
        """Return two vector policies for the same episodes, compared at every step."""
        first, second = (self.policy.vectorize(domain, theta, order) for order in (seeds, seeds[::-1]))
        return _ProbedVectorPolicy(self.policy, domain.actions, len(seeds), first, second)


@dataclass(frozen=True)
class _ProbedVectorPolicy:
    policy: HostPolicy
    actions: Actions
    count: int
    first: VectorPolicy
    second: VectorPolicy  # in reverse order

    fallback_steps: ClassVar[None] = None

    def take(self, rows: NDArray[np.intp]) -> _ProbedVectorPolicy:
        second = self.second.take(self.count - 1 - rows[::-1])
        return _ProbedVectorPolicy(self.policy, self.actions, len(rows), self.first.take(rows), second)

    def __call__(
        self,
        flat: NDArray[np.float32],
        raw: Sequence[Any],
        noise: NDArray[np.float32] | None = None,
        signals: Sequence[Mapping[str, Any]] = (),
    ) -> Sequence[Any]:
        chosen = self.first(flat, raw, noise, signals)
        again = self.second(flat[::-1], raw[::-1], signals=signals[::-1])[::-1]
        for one, other in zip(chosen, again, strict=True):
            if (np.abs(np.subtract(one, other, dtype=float)) > self._tolerance).any():
                raise RunError(_difference_message(self.policy, one, other))
        return chosen

    @property
    def _tolerance(self) -> Any:
        if not isinstance(self.actions, Continuous):
            return 0.0
        return ACTION_TOLERANCE * np.subtract(self.actions.high, self.actions.low)


def _difference_message(policy: HostPolicy, one: Any, other: Any) -> str:
    difference = f"the policy {policy.source} chose {one}, and {other} when asked again in the same situation: "
    if policy.stateful:
        return difference + (
            "its episodes share a memory, or it draws random numbers that are not a function of the seed. Keep the "
            "memory in each object, not in its class or module, and draw from the seed that reset(seed) gets"
        )
    return difference + (
        "it has a memory, or draws random numbers. Many episodes share a function, so a certificate would be about "
        "another system; give an object with reset() and act(observation), which is copied for each episode and draws "
        "its random numbers, if any, from the seed that reset(seed) gets"
    )
