"""Any Gymnasium environment as a domain: spaces, signals, horizon, and how to make it again, anywhere.

An environment is stepped in Python, so this domain has no pure functions; `rollout/gym_sampler.py` steps it.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import operator
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from numpy.typing import NDArray

from psyco._src.core.checks import check_whole
from psyco._src.core.errors import DomainError, suggest, told
from psyco._src.envs.actions import Actions, Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.envs.base import BUILT_IN_SIGNALS
from psyco._src.envs.compat_wrappers import CostInInfo, SeededGlobalRandom, shared_chance
from psyco._src.envs.output_capture import shown_once
from psyco._src.envs.sandbox import as_guest, close
from psyco._src.logic.ast import SignalInfo

Env: TypeAlias = "gymnasium.Env[Any, Any]"
SignalFunction: TypeAlias = Callable[[Any, dict[str, Any]], Any]

PROBE_STEPS = 20  # random steps that tell which keys `info` has and what the user's own signals look like
INFO = "info."
NUMBERS = "biuf"  # kinds of NumPy's types that are real numbers or Booleans


@dataclass(frozen=True, eq=False)
class GymDomain:
    """A Gymnasium environment with a horizon and signals; `gym_domain` makes it."""

    source: str | Callable[..., Env]  # an id, or what makes the environment
    arguments: Mapping[str, Any]  # of the environment
    horizon: int
    wrappers: tuple[Callable[[Env], Env], ...]
    functions: Mapping[str, SignalFunction]  # the user's own signals
    action_bound: float | None
    name: str
    actions: Actions
    action_space: spaces.Space[Any]
    observation_space: spaces.Space[Any]
    table: Mapping[str, SignalInfo]  # signals known before running
    kind: type  # of the environment below its wrappers
    habits: tuple[Callable[[Env], Env], ...] = ()  # what mends it, below the user's wrappers

    @property
    def observation_size(self) -> int:
        """The length of a flattened observation."""
        return int(spaces.flatdim(self.observation_space))

    @property
    def parameters(self) -> dict[str, Any]:
        """The keyword arguments that make this domain again, as far as a file can hold them; functions by name."""
        extra: dict[str, Any] = {"horizon": self.horizon}
        if self.wrappers:
            extra["wrappers"] = [name_of(each) for each in self.wrappers]
        if self.functions:
            extra["signals"] = {name: name_of(each) for name, each in self.functions.items()}
        if self.action_bound is not None:
            extra["action_bound"] = self.action_bound
        return {name: _plain(value) for name, value in self.arguments.items()} | extra

    @property
    def sources(self) -> tuple[Any, ...]:
        """The classes and functions whose code says what happens in an episode."""
        return (self.kind, *self.wrappers, *self.functions.values())

    def make_env(self, *, limit: bool = True) -> Env:
        """A new environment, wrapped, and cut off at the horizon unless the caller does that (`limit=False`)."""
        env = _make_env(self.source, self.arguments, self.horizon, self.wrappers, self.name, self.habits)
        if not limit:
            return _peeled(env, self.horizon)
        has_limit = isinstance(self.source, str) and not self.habits
        return env if has_limit else TimeLimit(env, self.horizon)

    def flatten(self, observation: Any) -> NDArray[np.float32]:
        """What the network sees `[observation_size]`; an observation that its own space cannot hold is refused."""
        match self.observation_space:
            case spaces.Box(shape=shape):
                array = np.asarray(observation)
                if array.shape != shape:
                    raise ValueError(f"an observation of shape {array.shape}; its space says {shape}")
                if array.dtype.kind not in NUMBERS:
                    raise ValueError(
                        f"an observation of {array.dtype}; its space says {self.observation_space.dtype}"
                    )
                return array.astype(np.float32).ravel()
            case spaces.Discrete(n=n, start=start):
                if not 0 <= (index := operator.index(observation) - int(start)) < int(n):
                    raise ValueError(f"an observation outside of {self.observation_space}")
                return self._one_hot[index]
            case space:
                flat = np.asarray(spaces.flatten(space, observation), np.float32)
                if flat.shape != (self.observation_size,):
                    raise ValueError(
                        f"an observation of {flat.size} numbers; its space has {self.observation_size}"
                    )
                return flat

    @cached_property
    def _one_hot(self) -> NDArray[np.float32]:
        return np.eye(self.observation_size, dtype=np.float32)

    @cached_property
    def packed(self) -> bytes:
        """The domain as other processes get it; functions that were written in a script or a notebook go by value."""
        try:
            packed: bytes = cloudpickle.dumps(self)
        except Exception as error:  # pickling runs whatever a stranger's objects have for it
            raise DomainError(
                f"{self.name} cannot go to other processes: {told(error)}; name a class or function "
                "that makes it there, with arguments that are plain data, or do without workers, Ray and step timeout"
            ) from error
        return packed

    def __getstate__(self) -> dict[str, Any]:
        # What was cached stays here.
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}

    @cached_property
    def to_env(self) -> Callable[[NDArray[Any]], Sequence[Any]]:
        """Decoded actions `[B, ...]`, inside their range -> what `step` takes, one each."""
        # Made once, since it is called at every step.
        match self.action_space:
            case spaces.Discrete(start=start):
                first = int(start)
                return lambda a: (a + first).tolist() if first else a.tolist()
            case spaces.Box(shape=shape, low=low, high=high, dtype=dtype):
                whole = np.issubdtype(dtype, np.integer)
                # Scaling to [low, high] in float32 may go beyond by a rounding error.
                least, most = low.astype(np.float32), high.astype(np.float32)
                exact = bool(((least >= low) & (least + (most - least) <= high)).all())

                if exact and len(shape) == 1 and dtype == np.float32:
                    # A policy of others may give float64.
                    return lambda a: list(a.astype(np.float32, copy=False))

                def to_box(a: NDArray[Any]) -> Sequence[Any]:
                    a = a.reshape(-1, *shape)
                    a = a if exact else np.clip(a, low, high)
                    return list((np.rint(a) if whole else a).astype(dtype, copy=False))

                return to_box
            case spaces.MultiDiscrete(shape=shape, dtype=dtype, start=start):
                return lambda a: list((a.reshape(-1, *shape) + start).astype(dtype))
            case space:
                return lambda a: list(a.reshape(-1, *(space.shape or ())).astype(space.dtype))

    def to_signal(self, actions: Sequence[Any]) -> NDArray[np.float64]:
        """What `step` took `[B]` -> the signal `action`: `[B]`, or `[B, size]`."""
        array = np.asarray(actions, np.float64)
        return array if self.actions.size is None else array.reshape(len(actions), self.actions.size)


def gym_domain(
    source: str | Callable[..., Env],
    /,
    *,
    horizon: int | None = None,
    signals: Mapping[str, SignalFunction | str] | None = None,
    wrappers: Sequence[Callable[[Env], Env] | str] = (),
    action_bound: float | None = None,
    **arguments: Any,
) -> GymDomain:
    """Make a domain of an environment.

    Args:
        source: an id that `gymnasium.make` knows, `module:Id`, a class, or any function that returns an environment
            (also as text, `module:name`).
        horizon: the longest episode; by default the environment's own time limit.
        signals: further signals by name, functions `(observation, info) -> number, Boolean or vector`.
        wrappers: applied to the environment one after the other.
        action_bound: stands in where the range of an action is infinite: [-bound, bound].
        arguments: of the environment.
    """
    name = source if isinstance(source, str) else name_of(source)
    if isinstance(source, str) and ":" in source:
        source = import_source(source)
    if horizon is not None:
        check_whole(name, horizon=horizon)
    if not isinstance(signals or {}, Mapping) or not isinstance(wrappers, list | tuple):
        raise DomainError(f"{name}: wrappers are a list of names or functions, signals a dictionary of them")
    functions = {key: _resolve(each) for key, each in (signals or {}).items()}
    wrap = tuple(_resolve(each) for each in wrappers)
    env = _make_env(source, arguments, horizon, wrap, name)
    try:
        limit = horizon or time_limit(env)
        if limit is None:
            raise DomainError(
                f"{name} has no time limit of its own; say how many steps an episode may take at most: "
                "--horizon 200 on the command line, horizon=200 in Python"
            )
        made = _described(env, name, source, arguments, limit, wrap, functions, action_bound)
        return _tried_out(made, env)
    finally:
        close(env)


def running_domain(env: Env, *, horizon: int, signals: Mapping[str, SignalFunction]) -> GymDomain:
    """What is known of an environment that somebody else steps: it is neither made again nor tried out.

    Args:
        env: the environment.
        horizon: its longest episode.
        signals: further signals by name, as in `gym_domain`.
    """
    # Its actions are only looked at, so any range will do where there is none.
    made = _described(env, str(env), lambda: env, {}, horizon, (), signals, action_bound=1.0)
    own = dict.fromkeys(signals, SignalInfo(None, None))
    return dataclasses.replace(made, table={**_built_in_table(made), **own})


def _described(
    env: Env,
    name: str,
    source: str | Callable[..., Env],
    arguments: Mapping[str, Any],
    horizon: int,
    wrappers: tuple[Callable[[Env], Env], ...],
    functions: Mapping[str, SignalFunction],
    action_bound: float | None,
) -> GymDomain:
    """The domain of an environment, as yet without its signals."""
    for key in functions:
        if key in _RESERVED or key.startswith(INFO):
            raise DomainError(
                f"{name}: a signal cannot be called {key!r}; every environment has that one already"
            )
    actions, space = _actions(env.action_space, action_bound, name)
    try:
        if not spaces.flatdim(env.observation_space):
            raise DomainError(
                f"{name} has observations of no numbers, {env.observation_space}: a policy must see something to act on"
            )
    except (NotImplementedError, ValueError):
        raise DomainError(
            f"{name} has observations in {env.observation_space}, which cannot be flattened; "
            "add a wrapper that turns them into a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
        ) from None
    return GymDomain(
        source,
        arguments,
        horizon,
        wrappers,
        functions,
        action_bound,
        name,
        actions,
        space,
        env.observation_space,
        {},
        type(env.unwrapped),
    )


_RESERVED = ("obs", "action", "terminated", "truncated", "end", *BUILT_IN_SIGNALS)


def is_gym_name(name: str) -> bool:
    """Does Gymnasium know this id, with or without a version?"""
    return name in gymnasium.registry or any(spec.name == name for spec in gymnasium.registry.values())


def gym_names() -> list[str]:
    """All ids that Gymnasium knows now."""
    return list(gymnasium.registry)


def _peeled(env: Env, horizon: int) -> Env:
    """Without the outer wrappers that only count steps and look after the order of calls: their caller does both."""
    while type(env) is OrderEnforcing or (type(env) is TimeLimit and env._max_episode_steps >= horizon):
        env = env.env
    return env


def time_limit(env: Env) -> int | None:
    """The environment's own limit on the steps of an episode."""
    limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    while limit is None and isinstance(env, gymnasium.Wrapper):
        limit = getattr(env, "_max_episode_steps", None)
        env = env.env
    return limit


def signal_values(
    domain: GymDomain, names: Sequence[str], observation: Any, info: dict[str, Any]
) -> Iterator[Any]:
    """The values of `info.key` and of the user's own signals in one state; a missing key gives None."""
    for name in names:
        yield info_value(info, name) if name.startswith(INFO) else domain.functions[name](observation, info)


class Transition(NamedTuple):
    """What `reset` or `step` has just given, and what led to it."""

    observation: Any
    info: dict[str, Any]
    action: Any  # that led to it; in the first state the first action
    step: int = 0
    reward: float = 0.0
    total: float = 0.0  # the return so far
    terminated: bool = False
    truncated: bool = False


def moment_signals(domain: GymDomain, names: Iterable[str], moment: Transition) -> dict[str, Any]:
    """Signals in one state, by name; None for a key that `info` does not have."""
    others = [name for name in names if name not in _RESERVED]
    known: dict[str, Callable[[], Any]] = {
        "obs": lambda: domain.flatten(moment.observation),
        "action": lambda: domain.to_signal([moment.action])[0],
        "reward": lambda: moment.reward,
        "return": lambda: moment.total,
        "step": lambda: moment.step,
        "terminated": lambda: bool(moment.terminated),
        "truncated": lambda: bool(moment.truncated),
    }
    found = zip(others, signal_values(domain, others, moment.observation, moment.info), strict=True)
    return {name: known[name]() for name in names if name in known} | dict(found)


def name_of(thing: Any) -> str:
    """`module:name` of a function or class, for messages and files."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    return f"{module}:{name}" if module and name else type(thing).__name__


def resolve(text: str) -> Any:
    """What `module:name` stands for. It imports the module: only ever call it on what the user typed."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise DomainError(f"{text!r} names nothing; write module:name")
    thing = _import(module, text)
    for part in name.split("."):
        if not hasattr(thing, part):
            raise DomainError(f"{module!r} has no {name!r}{suggest(part, dir(thing))}")
        thing = getattr(thing, part)
    return thing


def _resolve(thing: Any) -> Any:
    found = resolve(thing) if isinstance(thing, str) else thing
    if not callable(found):
        raise DomainError(f"{thing!r} is no function or class")
    return found


def import_source(name: str) -> Any:
    """`module:Id` as Gymnasium reads it if the module registers that id; else a class or function of the module."""
    module, _, rest = name.partition(":")
    _import(module, name)
    return name if is_gym_name(rest) else _resolve(name)


def _import(module: str, text: str) -> Any:
    try:
        with as_guest(), shown_once():
            found = importlib.import_module(module)
    except ImportError as error:
        raise DomainError(f"cannot import {module!r} of {text!r}: {error}") from None
    except Exception as error:  # what no module can be called, or whatever a module does when it is imported
        raise DomainError(f"cannot import {module!r} of {text!r}: {told(error)}") from error
    return found


def _make_env(
    source: str | Callable[..., Env],
    arguments: Mapping[str, Any],
    horizon: int | None,
    wrappers: Sequence[Callable[[Env], Env]],
    name: str,
    habits: Sequence[Callable[[Env], Env]] = (),
) -> Env:
    try:
        with as_guest(), shown_once():
            if isinstance(source, str):
                # The passive checker of `gymnasium.make` looks at every step; rollouts check what they use themselves.
                # Its time limit would come below what mends habits, and understands Gymnasium's five values only.
                steps = -1 if habits else horizon
                env: Env = gymnasium.make(
                    source, max_episode_steps=steps, disable_env_checker=True, **arguments
                )
            else:
                env = source(**arguments)
            for wrap in (*habits, *wrappers):
                env = wrap(env)
    except DomainError:
        raise
    except Exception as error:  # whatever a stranger's constructor does, the user wants to know which and why
        raise DomainError(f"cannot make {name}: {told(error)}") from error
    if not isinstance(env, gymnasium.Env):
        raise DomainError(
            f"{name} made a {type(env).__name__}, which is no gymnasium.Env; of a compiled domain name the class"
        )
    return env


def _actions(space: Any, bound: float | None, name: str) -> tuple[Actions, spaces.Space[Any]]:
    """The actions of a policy for an action space, and that space with infinite ranges replaced."""
    match space:
        case spaces.Discrete(n=n):
            return Discrete(int(n)), space
        case spaces.MultiDiscrete(nvec=nvec):
            return MultiDiscrete(tuple(map(int, np.ravel(nvec)))), space
        case spaces.MultiBinary(shape=shape):
            return MultiBinary(math.prod(shape)), space
        case spaces.Box(low=low, high=high, dtype=dtype):
            if not (np.isfinite(low).all() and np.isfinite(high).all()):
                if bound is None:
                    raise DomainError(
                        f"{name} has an action range that is infinite; bound it with action_bound, "
                        "for example action_bound=1 for actions in [-1, 1], or with a wrapper"
                    )
                low, high = np.maximum(low, -bound), np.minimum(high, bound)
                space = spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)  # type: ignore[arg-type]
            return Continuous(tuple(map(float, low.ravel())), tuple(map(float, high.ravel()))), space
    raise DomainError(
        f"{name} has actions in {space}; PSyCo can act in Box, Discrete, MultiDiscrete and MultiBinary spaces, "
        "so add a wrapper that turns them into one of these"
    )


def _built_in_table(domain: GymDomain) -> dict[str, SignalInfo]:
    """The signals of every environment."""
    return dict(BUILT_IN_SIGNALS) | {
        "obs": SignalInfo(domain.observation_size, False),
        "action": SignalInfo(domain.actions.size, False),
        "terminated": SignalInfo(None, True),
        "truncated": SignalInfo(None, True),
        INFO: SignalInfo(None, None),
    }


def _tried_out(domain: GymDomain, env: Env) -> GymDomain:
    """The domain with its signals, and with what mends the habits of its environments."""
    try:
        table, habits = _probe(domain, env)
    except _SixValueStep:
        apart = dataclasses.replace(domain, habits=(CostInInfo,))
        env = apart.make_env()
        try:
            table, habits = _probe(apart, env)
        finally:
            close(env)
        habits = (CostInInfo, *habits)
    return dataclasses.replace(domain, table=table, habits=habits)


class _SixValueStep(Exception):
    """`step` gives six values."""


def _probe(domain: GymDomain, env: Env) -> tuple[dict[str, SignalInfo], tuple[Callable[[Env], Env], ...]]:
    """Names and types of the signals, and habits, from a few random steps."""
    rng = np.random.default_rng(0)
    table = _built_in_table(domain)
    names = list(domain.functions)
    before = shared_chance()
    try:
        with as_guest():
            observation, info = env.reset(seed=0)
            keys = set(info)
            for name, value in zip(names, signal_values(domain, names, observation, info), strict=True):
                table[name] = _signal_info(domain.name, name, value)
            for _ in range(PROBE_STEPS):
                y = rng.uniform(-1.0, 1.0, (1, domain.actions.outputs)).astype(np.float32)
                outcome = env.step(domain.to_env(np.asarray(domain.actions.decode(y)))[0])
                if len(outcome) == len(SIX) and not domain.habits:
                    raise _SixValueStep
                observation, _, terminated, truncated, info = outcome
                keys |= set(info)
                if terminated or truncated:
                    break
    except (DomainError, _SixValueStep):
        raise
    except Exception as error:  # see _make_env
        if not domain.habits and _is_about_six(error):
            raise _SixValueStep from error
        raise DomainError(f"{domain.name} fails when it is tried out with seed 0: {told(error)}") from error
    found = {INFO + key: SignalInfo(None, None) for key in sorted(map(str, keys))}
    return table | found, (SeededGlobalRandom,) if shared_chance() != before else ()


SIX = (
    "observation",
    "reward",
    "cost",
    "terminated",
    "truncated",
    "info",
)  # what Safety-Gymnasium's `step` gives


def _is_about_six(error: Exception) -> bool:
    """Did a wrapper of Gymnasium get more values than its five? Its time limit comes with the environment's id."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        type(error) is ValueError
        and "too many values to unpack" in str(error)
        and "gymnasium" in last.filename
    )


def _signal_info(owner: str, name: str, value: Any) -> SignalInfo:
    array = np.asarray(value)
    if array.ndim > 1 or array.dtype.kind not in NUMBERS:
        raise DomainError(
            f"{owner}: the signal {name!r} gives {value!r}; give a number, a Boolean, or a vector of them"
        )
    return SignalInfo(len(array) if array.ndim else None, array.dtype == bool)


def info_value(info: Mapping[str, Any], name: str) -> Any:
    """`info.a` or, in a nested dict, `info.a.b`."""
    key = name.removeprefix(INFO)
    if key in info:
        return info[key]
    head, dot, rest = key.partition(".")
    return info_value(info[head], rest) if dot and isinstance(info.get(head), Mapping) else None


def _plain(value: Any) -> Any:
    """A value that JSON and TOML can hold; anything else as text, which at least tells a reader what it was."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return str(value)
