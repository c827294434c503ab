"""Gymnasium environments as domains: how to make them, their spaces, horizon and signals.

Such an environment is stepped in Python by `rollout/gym_sampler.py`; it has no pure functions to compile.
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
import random
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from psyco._src.core.errors import DomainError, format_exception
from psyco._src.envs.actions import Actions, Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.envs.agents import AgentSpace, check_agents
from psyco._src.envs.base import BUILT_IN_SIGNALS
from psyco._src.envs.images import Image, image_of
from psyco._src.envs.registry import import_code, import_object, qualified_name
from psyco._src.envs.sandbox import close_envs, deduplicate_output, sandboxed
from psyco._src.envs.team_env import (
    OWN_SIGNALS,
    PETTINGZOO,
    TEAM,
    ParallelFactory,
    TeamEnv,
    as_team,
    is_team_source,
)
from psyco._src.logic.ast import SignalInfo
from psyco._src.logic.quantifiers import groups_by_name

# Wrappers that adapt environments with deviations from the Gymnasium interface; probing decides which are used.


class CostInInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Move the cost, sixth value of `step` in Safety-Gymnasium, into `info["cost"]`."""

    def step(self, action: Any) -> Any:
        """Return the five values of Gymnasium."""
        observation, reward, cost, terminated, truncated, info = self.env.step(action)  # type: ignore[misc]
        return observation, reward, terminated, truncated, {"cost": cost, **info}


class SeededGlobalRandom(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Give an environment that draws from the global generators (`np.random`, `random`) its own state of these.

    `reset(seed=...)` seeds that state. So an episode depends on its seed alone, and the global generators of the rest
    of the process are unaffected.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._numpy = np.random.MT19937(0)
        self._python = random.Random(0).getstate()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment with its own random state."""
        if seed is not None:
            self._numpy = np.random.MT19937(seed)
            self._python = random.Random(seed).getstate()
        with self._own_random_state():
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Step the environment with its own random state."""
        with self._own_random_state():
            return self.env.step(action)

    @contextmanager
    def _own_random_state(self) -> Iterator[None]:
        global_numpy, global_python = np.random.get_bit_generator(), random.getstate()  # type: ignore[attr-defined]
        np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]
        random.setstate(self._python)
        try:
            yield
        finally:
            self._python = random.getstate()
            np.random.set_bit_generator(global_numpy)  # type: ignore[attr-defined]
            random.setstate(global_python)


def global_random_state() -> tuple[Any, ...]:
    """Return the state of the global generators; equal states mean that no number was drawn in between."""
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    return bytes(state["state"]["key"]), state["state"]["pos"], state["gauss"], random.getstate()


Env: TypeAlias = "gymnasium.Env[Any, Any]"
SignalFunction: TypeAlias = Callable[[Any, dict[str, Any]], Any]

PROBE_STEPS = 20  # random steps that find the keys of `info`
TRIAL_EPISODES, TRIAL_SECONDS, TRIAL_STEPS = 3, 10.0, 10_000  # that find the step at which an environment truncates
INFO_PREFIX, OBS_PREFIX = "info.", "obs."
NUMERIC_KINDS = "biuf"  # `dtype.kind` of Booleans and real numbers
# Immutable types of single values; None stands for a missing one.
SINGLE_VALUES = frozenset({type(None), bool, int, float, *(np.dtype(code).type for code in "?bhilqBHILQefdg")})


def gym_domain(
    source: str | Callable[..., Env],
    /,
    *,
    horizon: int | None = None,
    signals: Mapping[str, SignalFunction | str] | None = None,
    wrappers: Sequence[Callable[[Env], Env] | str] = (),
    action_bound: float | None = None,
    seeded: bool = True,
    **arguments: Any,
) -> GymDomain:
    """Return the domain of a Gymnasium environment.

    Args:
        source: an id of `gymnasium.make`, `module:Id`, a class, or a function that returns an environment (also as
            text, `module:name`).
        horizon: largest number of steps of an episode; by default the environment's time limit, or the step at which
            it truncates the episodes with which it is tried out.
        signals: further signals by name, functions `(observation, info) -> number, Boolean or vector`.
        wrappers: applied to the environment in this order.
        action_bound: replaces an infinite action range by [-bound, bound].
        seeded: whether an episode repeats under its seed, which verification checks; False: it cannot, and certificates
            say that independence was assumed.
        arguments: of the environment.
    """
    name = source if isinstance(source, str) else qualified_name(source)
    if is_team_source(source):
        source = ParallelFactory(str(source).removeprefix(PETTINGZOO))
    elif isinstance(source, str) and ":" in source:
        source = import_factory(source)
    if horizon is not None:
        check_whole(name, horizon=horizon)
    if not isinstance(seeded, bool):
        raise DomainError(f"{name}: seeded is True or False, whether an episode repeats under its seed; got {seeded!r}")
    if not isinstance(signals or {}, Mapping) or not isinstance(wrappers, list | tuple):
        raise DomainError(f"{name}: wrappers are a list of names or functions, signals a dictionary of them")
    signal_functions = {key: _as_callable(function) for key, function in (signals or {}).items()}
    wrap = tuple(_as_callable(wrapper) for wrapper in wrappers)
    env = _make_env(source, arguments, horizon, wrap, name)
    try:
        limit = horizon or time_limit(env)
        domain = _describe(env, name, source, arguments, limit or 0, wrap, signal_functions, action_bound)
        if limit is None:
            domain = dataclasses.replace(domain, horizon=_observed_limit(domain, env))
        return _probe(dataclasses.replace(domain, seeded=seeded), env)
    finally:
        close_envs(env)


def pettingzoo_domain(module: str, **parameters: Any) -> GymDomain:
    """Return the domain of an environment of PettingZoo, such as that of the module `mpe2.simple_spread_v3`."""
    return gym_domain(f"{PETTINGZOO}{module}", **parameters)


def domain_of_running_env(env: Env, *, horizon: int, signals: Mapping[str, SignalFunction]) -> GymDomain:
    """Return the domain of an environment that the caller steps; it is neither made again nor probed.

    Args:
        env: the environment.
        horizon: largest number of steps of an episode.
        signals: further signals by name, as in `gym_domain`.
    """
    # Actions are only observed, so any bound will do for an infinite range.
    domain = _describe(env, str(env), lambda: env, {}, horizon, (), signals, action_bound=1.0)
    own = dict.fromkeys(signals, SignalInfo(None, None))
    return dataclasses.replace(domain, table={**built_in_table(domain), **own})


def _describe(
    env: Env,
    name: str,
    source: str | Callable[..., Env],
    arguments: Mapping[str, Any],
    horizon: int,
    wrappers: tuple[Callable[[Env], Env], ...],
    signal_functions: Mapping[str, SignalFunction],
    action_bound: float | None,
) -> GymDomain:
    """Return the domain of an environment, without a table of its signals."""
    team = env.unwrapped if isinstance(env.unwrapped, TeamEnv) else None
    own = {f"{agent}.{what}" for agent in (team.agents if team else ()) for what in ("obs", "action", *OWN_SIGNALS)}
    for key in signal_functions:
        if key in own or key in _RESERVED or key.startswith((INFO_PREFIX, OBS_PREFIX)):
            raise DomainError(f"{name}: a signal cannot be called {key!r}; every environment has a signal of that name")
    actions, space = _actions(env.action_space, action_bound, name)
    try:
        if not spaces.flatdim(env.observation_space):
            raise DomainError(f"{name} has empty observations, {env.observation_space}: a policy needs an observation")
    except (NotImplementedError, ValueError):
        raise DomainError(
            f"{name} has observations in {env.observation_space}, which cannot be flattened; "
            "add a wrapper that turns them into a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
        ) from None
    return GymDomain(
        source, arguments, horizon, wrappers, signal_functions, action_bound, name, actions, space,
        env.observation_space, table={}, env_class=type(env.unwrapped) if team is None else team.own_class,
        agent_spaces=() if team is None else _agent_spaces(team, action_bound, name),
        agent_actions=() if team is None else team.own_actions,
    )  # fmt: skip


def _agent_spaces(team: TeamEnv, bound: float | None, name: str) -> tuple[AgentSpace, ...]:
    """Return the agents of an environment with their spaces; their group is that of their name or `agent`."""
    groups = groups_by_name(team.agents)
    group = {agent: named for named, members in groups.items() for agent in members}
    check_agents(name, team.agents, groups | {agent: (agent,) for agent in team.agents if agent not in group})
    return tuple(
        AgentSpace(agent, group.get(agent, agent), int(spaces.flatdim(seen)), _actions(space, bound, name)[0])
        for agent, seen, space in zip(team.agents, team.own_observations, team.own_actions, strict=True)
    )


def _make_env(
    source: str | Callable[..., Env],
    arguments: Mapping[str, Any],
    horizon: int | None,
    wrappers: Sequence[Callable[[Env], Env]],
    name: str,
    compat_wrappers: Sequence[Callable[[Env], Env]] = (),
) -> Env:
    try:
        with sandboxed(), deduplicate_output():
            if isinstance(source, str):
                # The checker of `gymnasium.make` is slow, and rollouts check values themselves. Its time limit would
                # come below the compatibility wrappers, and fails on six values.
                steps = -1 if compat_wrappers else horizon
                env: Env = gymnasium.make(source, max_episode_steps=steps, disable_env_checker=True, **arguments)
            else:
                env = as_team(source(**arguments))
            for wrap in (*compat_wrappers, *wrappers):
                env = wrap(env)
    except DomainError:
        raise
    except Exception as error:  # environment code may raise anything
        raise DomainError(f"cannot make {name}: {format_exception(error)}") from error
    if not isinstance(env, gymnasium.Env):
        raise DomainError(
            f"{name} made a {type(env).__name__}, which is not a gymnasium.Env; for a compiled domain give its class"
        )
    return env


def _actions(space: Any, bound: float | None, name: str) -> tuple[Actions, spaces.Space[Any]]:
    """Return our action space for one of Gymnasium, and the latter with infinite ranges replaced."""
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
                        f"{name} has an infinite action range; bound it with action_bound, "
                        "for example action_bound=1 for actions in [-1, 1], or with a wrapper"
                    )
                low, high = np.maximum(low, -bound), np.minimum(high, bound)
                space = spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)  # type: ignore[arg-type]
            return Continuous(tuple(map(float, low.ravel())), tuple(map(float, high.ravel()))), space
    raise DomainError(
        f"{name} has actions in {space}; PSyCo can act in Box, Discrete, MultiDiscrete and MultiBinary spaces, "
        "so add a wrapper that turns them into one of these"
    )


def time_limit(env: Env) -> int | None:
    """Return the environment's own limit on the steps of an episode, if it has one."""
    limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    while limit is None and isinstance(env, gymnasium.Wrapper):
        limit = getattr(env, "_max_episode_steps", None)
        env = env.env
    return limit


def is_gym_name(name: str) -> bool:
    """Return whether Gymnasium knows this id, with or without a version."""
    return name in gymnasium.registry or any(spec.name == name for spec in gymnasium.registry.values())


def gym_names() -> list[str]:
    """Return all registered ids of Gymnasium."""
    return list(gymnasium.registry)


def import_factory(name: str) -> Any:
    """Return `module:Id` unchanged if the module registers that id; else its class or function."""
    module, _, rest = name.partition(":")
    import_code(module, name)
    return name if is_gym_name(rest) else _as_callable(name)


def _as_callable(thing: Any) -> Any:
    function = import_object(thing) if isinstance(thing, str) else thing
    if not callable(function):
        raise DomainError(f"{thing!r} is not a function or class")
    return function


# ---- the domain --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GymDomain:
    """A Gymnasium environment with a horizon and signals; `gym_domain` makes it."""

    source: str | Callable[..., Env]  # an id, or a function that makes the environment
    arguments: Mapping[str, Any]  # of the environment
    horizon: int
    wrappers: tuple[Callable[[Env], Env], ...]
    signal_functions: Mapping[str, SignalFunction]  # user-defined signals
    action_bound: float | None
    name: str
    actions: Actions
    action_space: spaces.Space[Any]
    observation_space: spaces.Space[Any]
    table: Mapping[str, SignalInfo]  # signals known before running
    env_class: type  # below all wrappers
    compat_wrappers: tuple[Callable[[Env], Env], ...] = ()  # below the user's wrappers
    seeded: bool = True  # whether an episode repeats under its seed
    agent_spaces: tuple[AgentSpace, ...] = ()  # of the agents, where there are several
    agent_actions: tuple[spaces.Space[Any], ...] = ()  # their action spaces in the environment

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents, in the order of observations and actions; empty where there is one agent."""
        return tuple(each.name for each in self.agent_spaces)

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Names of groups and their agents."""
        return {
            group: tuple(each.name for each in self.agent_spaces if each.group == group)
            for group in dict.fromkeys(each.group for each in self.agent_spaces)
        }

    @cached_property
    def observation_size(self) -> int:
        """Length of a flattened observation."""
        return int(spaces.flatdim(self.observation_space))

    @cached_property
    def one_hot(self) -> tuple[int, ...]:
        """Sizes of the one-hot codes that make up a flattened observation; empty if it has other parts."""
        return _one_hot_sizes(self.observation_space)

    @property
    def exact_type(self) -> type[Any]:
        """The type of observations that are kept: bytes of a Box of these, else float32 as long as that suffices."""
        is_bytes = isinstance(self.observation_space, spaces.Box) and self.observation_space.dtype == np.uint8
        return np.uint8 if is_bytes else np.float32

    @cached_property
    def image(self) -> Image | None:
        """The image that an observation is; None if it is anything else."""
        found = image_of(self.observation_space)
        return found if found and math.prod(found.shape) == self.observation_size else None

    @cached_property
    def observation_parts(self) -> dict[str, ObservationPart]:
        """The parts of a Dict or Tuple observation by the names of their signals, such as `obs.goal`."""
        if self.agent_spaces:  # a tuple with the observation of each agent, `agent_0.obs`
            parts, first = {}, 0
            for i, each in enumerate(self.agent_spaces):
                parts[f"{each.name}.obs"] = ObservationPart((i,), self.observation_space[i], first)  # type: ignore[index]
                first += each.size
            return parts
        return dict(_observation_parts(self.observation_space, ObservationPart((), self.observation_space, 0)))

    @property
    def parameters(self) -> dict[str, Any]:
        """Keyword arguments that make this domain again, as plain data; functions by name."""
        extra: dict[str, Any] = {"horizon": self.horizon}
        if self.wrappers:
            extra["wrappers"] = [qualified_name(wrapper) for wrapper in self.wrappers]
        if self.signal_functions:
            extra["signals"] = {name: qualified_name(function) for name, function in self.signal_functions.items()}
        if self.action_bound is not None:
            extra["action_bound"] = self.action_bound
        if not self.seeded:
            extra["seeded"] = False
        return {name: _plain_data(value) for name, value in self.arguments.items()} | extra

    @property
    def sources(self) -> tuple[Any, ...]:
        """Classes and functions whose code determines an episode."""
        return (self.env_class, *self.wrappers, *self.signal_functions.values())

    def make_env(self, *, limit: bool = True) -> Env:
        """Return a new wrapped environment; `limit=False` leaves truncation at the horizon to the caller."""
        env = _make_env(self.source, self.arguments, self.horizon, self.wrappers, self.name, self.compat_wrappers)
        if not limit:
            return _without_step_wrappers(env, self.horizon)
        has_limit = isinstance(self.source, str) and not self.compat_wrappers
        return env if has_limit else TimeLimit(env, self.horizon)

    def flatten(self, observation: Any) -> NDArray[Any]:
        """Return the flat observation `[observation_size]` in its own precision, see `to_floats`.

        Raise ValueError if it does not fit its space.
        """
        match self.observation_space:
            case spaces.Box(shape=shape) if (found := np.shape(observation)) != shape:
                raise ValueError(f"an observation of shape {found}; its space says {shape}")
            case space:
                flat = _flatten(space, observation)
                if flat.shape != (self.observation_size,):
                    raise ValueError(f"an observation of {flat.size} numbers; its space has {self.observation_size}")
                return flat

    @cached_property
    def packed(self) -> bytes:
        """Pickled domain for other processes; functions from a script or notebook go by value."""
        try:
            packed: bytes = cloudpickle.dumps(self)
        except Exception as error:  # pickling runs code of the objects
            raise DomainError(
                f"{self.name} cannot be sent to other processes: {format_exception(error)}; name a class or function "
                "that makes it there from plain data, or do without workers, Ray and step timeout"
            ) from error
        return packed

    def __getstate__(self) -> dict[str, Any]:
        # Without cached properties.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @cached_property
    def to_env_actions(self) -> Callable[[NDArray[Any]], Sequence[Any]]:
        """Function from decoded actions `[B, ...]` to B arguments of `step`; built once, called at every step."""
        match self.action_space:
            case spaces.Discrete(start=start):
                first = int(start)
                return lambda a: (a + first).tolist() if first else a.tolist()
            case spaces.Box(shape=shape, low=low, high=high, dtype=dtype):
                whole = np.issubdtype(dtype, np.integer)
                # Scaling to [low, high] in float32 may exceed it by a rounding error.
                least, most = low.astype(np.float32), high.astype(np.float32)
                exact = bool(((least >= low) & (least + (most - least) <= high)).all())

                if exact and len(shape) == 1 and dtype == np.float32:
                    # An external policy may return float64.
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

    def action_signal(self, actions: Sequence[Any]) -> NDArray[np.float64]:
        """Return the signal `action`, `[B]` or `[B, size]`, of B arguments of `step`."""
        array = np.asarray(actions, np.float64)
        return array if self.actions.size is None else array.reshape(len(actions), self.actions.size)


class ObservationPart(NamedTuple):
    """A part of a Dict or Tuple observation that is neither."""

    path: tuple[Any, ...]  # keys and indices that lead there
    space: spaces.Space[Any]
    first: int  # index of its first entry in the flat observation

    @property
    def size(self) -> int | None:
        """Length of the vector; None for a single number."""
        if isinstance(self.space, spaces.Dict | spaces.Tuple):
            return int(spaces.flatdim(self.space))
        return math.prod(self.space.shape) if self.space.shape else None

    def read(self, observation: Any) -> Any:
        """Return the value of this part, as a number or a vector."""
        for key in self.path:
            observation = observation[key]
        if isinstance(self.space, spaces.Dict | spaces.Tuple):
            return _flatten(self.space, observation)
        return observation if self.size is None else np.ravel(observation)


def _observation_parts(space: Any, part: ObservationPart) -> Iterator[tuple[str, ObservationPart]]:
    """Yield the parts of a space, with the names of their signals; keys that no formula can name are left out."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        if part.path:
            yield OBS_PREFIX + ".".join(map(str, part.path)), part._replace(space=space)
        return
    first = part.first
    for key, inner in space.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
        if str(key).isidentifier() or str(key).isdecimal():
            yield from _observation_parts(inner, ObservationPart((*part.path, key), inner, first))
        first += spaces.flatdim(inner)


def _flatten(space: spaces.Space[Any], observation: Any) -> NDArray[Any]:
    """Return a flat observation. Other than `spaces.flatten`, it does not round to the types of the spaces."""
    match space:
        case spaces.Discrete(n=n, start=start):
            return _one_hot_codes([operator.index(observation) - int(start)], [int(n)], space)
        case spaces.Box():
            array = np.asarray(observation)
            if array.dtype.kind not in NUMERIC_KINDS:
                raise ValueError(f"an observation of {array.dtype}; its space says {space.dtype}")
            return to_floats(array).ravel()
        case spaces.Dict():
            return np.concatenate([_flatten(part, observation[key]) for key, part in space.items()])
        case spaces.Tuple():
            return np.concatenate([_flatten(*pair) for pair in zip(space.spaces, observation, strict=False)])
        case spaces.MultiDiscrete(nvec=nvec, start=start):
            return _one_hot_codes((np.asarray(observation) - start).ravel().tolist(), nvec.ravel().tolist(), space)
    return np.asarray(spaces.flatten(space, observation), np.float32)  # zeros and ones


def _one_hot_codes(indices: list[int], sizes: list[int], space: spaces.Space[Any]) -> NDArray[np.float32]:
    """Return the one-hot codes of these sizes, one after the other."""
    codes, first = np.zeros(sum(sizes), np.float32), 0
    for index, size in zip(indices, sizes, strict=True):
        if not 0 <= index < size:
            raise ValueError(f"an observation outside of {space}")
        codes[first + index] = 1.0
        first += size
    return codes


def _one_hot_sizes(space: spaces.Space[Any]) -> tuple[int, ...]:
    match space:
        case spaces.Discrete(n=n):
            return (int(n),)
        case spaces.MultiDiscrete(nvec=nvec):
            return tuple(nvec.ravel().tolist())
        case spaces.Dict() | spaces.Tuple():
            parts = [_one_hot_sizes(part) for part in (space.values() if isinstance(space, spaces.Dict) else space)]
            return sum(parts, ()) if all(parts) else ()
    return ()


def to_floats(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of numbers in float32 if that has all numbers of their type, else in float64."""
    return array.astype(np.float32 if np.can_cast(array.dtype, np.float32) else np.float64)


def _without_step_wrappers(env: Env, horizon: int) -> Env:
    """Remove the outer wrappers that only count steps and check the order of calls: the caller does both."""
    while type(env) is OrderEnforcing or (type(env) is TimeLimit and env._max_episode_steps >= horizon):
        env = env.env
    return env


def _plain_data(value: Any) -> Any:
    """Return a value that JSON and TOML can hold; anything else as text, for the reader."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return str(value)


# ---- probing -----------------------------------------------------------------------------------------------------


def _probe(domain: GymDomain, env: Env) -> GymDomain:
    """Return the domain with its signals and the compatibility wrappers it needs, found by a few random steps."""
    found = _play_probe(domain, env)
    cost_wrapper: tuple[Callable[[Env], Env], ...] = ()
    if found.has_six_values:
        cost_wrapper = (CostInInfo,)
        wrapped = dataclasses.replace(domain, compat_wrappers=cost_wrapper)
        env = wrapped.make_env()
        try:
            found = _play_probe(wrapped, env)
        finally:
            close_envs(env)
    random_wrapper = (SeededGlobalRandom,) if found.uses_global_random else ()
    return dataclasses.replace(domain, table=found.table, compat_wrappers=(*cost_wrapper, *random_wrapper))


def probe_signals(domain: GymDomain, env: Env) -> dict[str, SignalInfo]:
    """Return the signals of an environment, found by a few random steps."""
    return _play_probe(domain, env).table


class _ProbeResult(NamedTuple):
    table: dict[str, SignalInfo]
    uses_global_random: bool = False  # draws from `np.random` or `random`
    has_six_values: bool = False  # `step` returns a cost, as in Safety-Gymnasium; the rest is then unknown


def _play_probe(domain: GymDomain, env: Env) -> _ProbeResult:
    rng = np.random.default_rng(0)
    table = built_in_table(domain)
    names = list(domain.signal_functions)
    before = global_random_state()
    try:
        with sandboxed():
            observation, info = env.reset(seed=0)
            keys = _info_keys(domain, info)
            for name, value in zip(names, signal_values(domain, names, observation, info), strict=True):
                table[name] = _signal_info(domain.name, name, value)
            for _ in range(PROBE_STEPS):
                y = rng.uniform(-1.0, 1.0, (1, domain.actions.outputs)).astype(np.float32)
                outcome = env.step(domain.to_env_actions(np.asarray(domain.actions.decode(y)))[0])
                if len(outcome) == 6 and not domain.compat_wrappers:
                    return _ProbeResult({}, has_six_values=True)
                observation, _, terminated, truncated, info = outcome
                keys |= _info_keys(domain, info)
                if terminated or truncated:
                    break
    except DomainError:
        raise
    except Exception as error:  # environment code may raise anything
        if not domain.compat_wrappers and _is_unpacking_error(error):
            return _ProbeResult({}, has_six_values=True)
        raise DomainError(f"{domain.name} fails when it is tried out with seed 0: {format_exception(error)}") from error
    info_signals = {key: SignalInfo(None, None) for key in sorted(keys)}
    return _ProbeResult(table | info_signals, uses_global_random=global_random_state() != before)


def _info_keys(domain: GymDomain, info: Mapping[Any, Any]) -> set[str]:
    """Return the signals of `info`; those of agents are `agent_0.info.cost`."""
    if not domain.agent_spaces:
        return {f"{INFO_PREFIX}{key}" for key in info}
    return {f"{agent}.{INFO_PREFIX}{key}" for agent in domain.agents for key in info[agent]}


def _observed_limit(domain: GymDomain, env: Env) -> int:
    """Return the step at which an environment without a stated time limit truncates random episodes by itself."""
    rng, began, steps, truncations, longest = np.random.default_rng(0), time.monotonic(), 0, set[int](), 0
    try:
        with sandboxed():
            for seed in range(1, TRIAL_EPISODES + 1):
                env.reset(seed=seed)
                for t in range(1, TRIAL_STEPS + 1):
                    y = rng.uniform(-1.0, 1.0, (1, domain.actions.outputs)).astype(np.float32)
                    outcome = env.step(domain.to_env_actions(np.asarray(domain.actions.decode(y)))[0])
                    terminated, truncated = outcome[-3:-1]
                    longest, steps = max(longest, t), steps + 1
                    truncations |= {t} if truncated else set()
                    if terminated or truncated or steps >= TRIAL_STEPS or time.monotonic() - began > TRIAL_SECONDS:
                        break
    except Exception as error:  # environment code may raise anything
        raise DomainError(f"{domain.name} fails when it is tried out: {format_exception(error)}") from error
    if truncations == {longest}:
        return longest
    seen = f"{TRIAL_EPISODES} random episodes had up to {longest:,} steps"
    if truncations:
        seen += f", and it truncated some after {', '.join(map(str, sorted(truncations)))}"
    raise DomainError(
        f"{domain.name} does not state after how many steps an episode is truncated ({seen}); state the largest number "
        "of steps: --horizon 200 on the command line, horizon=200 in Python"
    )


def _is_unpacking_error(error: Exception) -> bool:
    """Return whether a wrapper of Gymnasium received more than five values, e.g. the time limit of a registered id."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    is_unpacking = type(error) is ValueError and "too many values to unpack" in str(error)
    return is_unpacking and "gymnasium" in last.filename


def built_in_table(domain: GymDomain) -> dict[str, SignalInfo]:
    """Return the signals of every environment."""
    return dict(BUILT_IN_SIGNALS) | {
        "obs": SignalInfo(domain.observation_size, False),
        "action": SignalInfo(domain.actions.size, False),
        **{name: SignalInfo(None, True) for name in ENDS},
        **{f"{agent}.{name}": SignalInfo(None, name in ENDS) for agent in domain.agents for name in OWN_SIGNALS},
        **{prefix: SignalInfo(None, None) for prefix in info_prefixes(domain)},
        **{name: SignalInfo(part.size, False) for name, part in domain.observation_parts.items()},
    }


ENDS = ("terminated", "truncated")


def info_prefixes(domain: GymDomain) -> list[str]:
    """Return the starts of the names of keys of `info`: that of all, or with several agents one for each."""
    return [f"{agent}.{INFO_PREFIX}" for agent in domain.agents] or [INFO_PREFIX]


def is_info(name: str) -> bool:
    """Return whether a signal is a key of `info`, also of that of an agent, `agent_0.info.cost`."""
    return name.startswith(INFO_PREFIX) or (f".{INFO_PREFIX}" in name and not name.startswith(OBS_PREFIX))


def _signal_info(owner: str, name: str, value: Any) -> SignalInfo:
    array = np.asarray(value)
    if array.ndim > 1 or array.dtype.kind not in NUMERIC_KINDS:
        raise DomainError(
            f"{owner}: the signal {name!r} gives {value!r}; give a number, a Boolean, or a vector of them"
        )
    return SignalInfo(len(array) if array.ndim else None, array.dtype == bool)


# ---- signals -----------------------------------------------------------------------------------------------------


_RESERVED = ("obs", "action", "terminated", "truncated", "end", *BUILT_IN_SIGNALS)


def signal_values(domain: GymDomain, names: Sequence[str], observation: Any, info: dict[str, Any]) -> Iterator[Any]:
    """Yield the values of `info.key`, `obs.part` and user-defined signals in one state; None for a missing key."""
    for name in names:
        if is_info(name):
            yield info_value(info, name)
        elif name in domain.observation_parts:
            yield domain.observation_parts[name].read(observation)
        elif domain.agent_spaces and name in info[TEAM]:
            yield info[TEAM][name]
        else:
            yield domain.signal_functions[name](observation, info)


class Transition(NamedTuple):
    """The latest result of `reset` or `step`."""

    observation: Any
    info: dict[str, Any]
    action: Any  # of the step; in the first state the first action to come
    step: int = 0
    reward: float = 0.0
    total: float = 0.0  # return so far
    terminated: bool = False
    truncated: bool = False


def transition_signals(domain: GymDomain, names: Iterable[str], transition: Transition) -> dict[str, Any]:
    """Return signals in one state by name, copied; None for a missing key of `info`."""
    others = [name for name in names if name not in _RESERVED]
    known: dict[str, Callable[[], Any]] = {
        "obs": lambda: domain.flatten(transition.observation),
        "action": lambda: domain.action_signal([transition.action])[0],
        "reward": lambda: transition.reward,
        "return": lambda: transition.total,
        "step": lambda: transition.step,
        "terminated": lambda: bool(transition.terminated),
        "truncated": lambda: bool(transition.truncated),
    }
    other_values = zip(others, signal_values(domain, others, transition.observation, transition.info), strict=True)
    signals = {name: known[name]() for name in names if name in known}
    for name, value in other_values:
        try:
            signals[name] = snapshot(value)
        except Exception as error:  # conversions of third-party types
            problem = f"the signal {name} is no array of numbers: {format_exception(error)}"
            raise DomainError(f"{domain.name}: {problem}") from error
    return signals


def snapshot(value: Any) -> Any:
    """Return a single value unchanged, anything else as a new array: environments change values in place."""
    # Not `np.array(value)`, which PyTorch answers with a warning.
    return value if type(value) in SINGLE_VALUES else np.asarray(value).copy()


def info_value(info: Mapping[str, Any], name: str) -> Any:
    """Return the value of `info.a`, or of `info.a.b` in a nested dict; None if it is missing."""
    key = name.removeprefix(INFO_PREFIX)
    if key in info:
        return info[key]
    head, dot, rest = key.partition(".")
    return info_value(info[head], rest) if dot and isinstance(info.get(head), Mapping) else None
