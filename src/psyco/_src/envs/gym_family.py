"""Families of Gymnasium environments: every `reset` sets the parameters of the environment anew.

A parameter is an argument of the environment (`gravity`), an attribute of it below all wrappers (`unwrapped.gravity`),
a field of its MuJoCo model (`model.body_mass[1]`), or an entry of the options of `reset` (`options.goal`).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from psyco._src.core.errors import DomainError, format_exception, suggest
from psyco._src.envs.family import (
    FACTOR,
    MAX_CORNERS,
    MEMBERS,
    Distribution,
    check_signal_tables,
    corner_members,
    family_parameters,
    format_values,
    host_values,
    parameter_names,
)
from psyco._src.envs.gym_env import OBS_PREFIX, Env, GymDomain, built_in_table, is_info, probe_signals
from psyco._src.envs.sandbox import close_envs, sandboxed
from psyco._src.envs.variants import FamilyOfEnvironments

UNWRAPPED, MODEL, OPTIONS = "unwrapped.", "model.", "options."
SEED_BITS = 32  # of the seed of an episode; the bits above it are the number of its member
_STEP = re.compile(r"([A-Za-z_]\w*)((?:\[-?\d+\])*)")


@dataclass(frozen=True, eq=False)
class GymFamily(GymDomain, FamilyOfEnvironments):
    """A Gymnasium environment whose parameters are drawn for every episode; `psyco.vary` makes it."""

    distributions: tuple[Distribution, ...] = ()
    partial_signals: frozenset[str] = frozenset()  # keys of `info` that only some members reported when tried out
    observes: bool = False

    @property
    def parameters(self) -> dict[str, Any]:
        """Keyword arguments that make this family again."""
        return super().parameters | family_parameters(self)

    @property
    def sources(self) -> tuple[Any, ...]:
        """Classes and functions whose code determines an episode."""
        return (*super().sources, Distribution, MemberEnv)

    def make_env(self, *, limit: bool = True) -> Env:
        """Return an environment that becomes another member of the family with every `reset`."""
        return MemberEnv(self, limit=limit)

    def make_member(self, arguments: Mapping[str, Any], *, limit: bool) -> Env:
        """Return the environment with these arguments."""
        changed = dataclasses.replace(self, arguments={**self.arguments, **arguments})
        return GymDomain.make_env(changed, limit=limit)


class MemberEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose parameters are a function of the seed of `reset`."""

    def __init__(self, family: GymFamily, *, limit: bool) -> None:
        super().__init__(family.make_member({}, limit=limit))
        self.family, self.limit = family, limit
        self.names = parameter_names(family.distributions)
        self.forced: NDArray[np.float64] | None = None  # parameters instead of drawn ones, for trials
        self.nominal = self._read_nominal()
        self.values = np.zeros(len(self.names))  # of the current member
        self._extend_space()

    def _extend_space(self) -> None:
        """Add the parameters to the observation space of the environment where policies observe them."""
        if self.family.observes:
            self.observation_space = space_with_parameters(self.env.observation_space, len(self.names))

    def observation(self, own: Any) -> Any:
        """Return the observation of the environment, with its parameters where policies observe them."""
        if not self.family.observes:
            return own
        if isinstance(space := self.observation_space, spaces.Box):
            return np.concatenate([np.ravel(own), self.values]).astype(space.dtype)
        return own, self.values.astype(np.float32)

    def step(self, action: Any) -> Any:
        """Step the environment."""
        observation, *rest = self.env.step(action)
        return self.observation(observation), *rest

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Become the member that the seed determines, and reset it."""
        number = int(self.np_random.integers(MEMBERS)) if seed is None else member_number(seed)
        values = host_values(self.family.distributions, number) if self.forced is None else self.forced
        self.values = np.asarray(values)
        own = self._become(dict(zip(self.names, map(float, values), strict=True)))
        seed = None if seed is None else seed % 2**SEED_BITS
        observation, info = self.env.reset(seed=seed, options={**(options or {}), **own} if own else options)
        return self.observation(observation), info

    def _become(self, values: Mapping[str, float]) -> dict[str, float]:
        """Set the parameters, and return those that `reset` takes as options."""
        arguments, options = {}, {}
        for name, value in values.items():
            if name.startswith(OPTIONS):
                options[name.removeprefix(OPTIONS)] = value
            elif not name.startswith((UNWRAPPED, MODEL)):
                arguments[name.removesuffix(FACTOR)] = value * self.nominal[name] if name.endswith(FACTOR) else value
        if arguments:
            self.env.close()
            try:
                self.env = self.family.make_member(arguments, limit=self.limit)
                self._extend_space()
            except DomainError as error:
                raise DomainError(
                    f"{error}: the member of the family with {format_values(values)} does not exist. It cannot count "
                    "as satisfying, so nothing is said; vary the parameters less"
                ) from error
        for name, value in values.items():
            if name.startswith((UNWRAPPED, MODEL)):
                self._set(name, value * self.nominal[name] if name.endswith(FACTOR) else value)
        return options

    def _read_nominal(self) -> dict[str, Any]:
        """Return the values of the environment itself, for factors."""
        found: dict[str, Any] = {}
        for name in self.names:
            if name.startswith((UNWRAPPED, MODEL)):
                found[name] = np.copy(self.read(name))[()]
            elif name.endswith(FACTOR):
                argument = name.removesuffix(FACTOR)
                if not isinstance(self.family.arguments.get(argument), int | float):
                    raise DomainError(
                        f"{self.family.name}: a factor on {argument} needs its value: --set {argument}=..."
                    )
                found[name] = self.family.arguments[argument]
        return found

    def read(self, name: str) -> Any:
        """Return the current value of an attribute or model field."""
        holder, last, indices = self._find(name)
        value = getattr(holder, last)
        return value[indices] if indices else value

    def _set(self, name: str, value: Any) -> None:
        holder, last, indices = self._find(name)
        current = getattr(holder, last)
        if indices:
            current[indices] = value
        elif np.ndim(current):
            if not np.ndim(value):
                raise DomainError(
                    f"{name} has {np.size(current)} entries: name one, {name}[0], or scale all, {name}*=..."
                )
            current[...] = value
        else:
            setattr(holder, last, value)

    def _find(self, name: str) -> tuple[Any, str, tuple[int, ...]]:
        """Return the object that holds an attribute, the attribute's name, and indices into it."""
        path = name.removesuffix(FACTOR)
        path = path if path.startswith(MODEL) else path.removeprefix(UNWRAPPED)
        holder: Any = self.env.unwrapped
        parts = path.split(".")
        for at, part in enumerate(parts):
            found = _STEP.fullmatch(part)
            if found is None or part.startswith("_") or not hasattr(holder, found[1]):
                where = ".".join(["unwrapped", *parts[:at]])
                hint = suggest(part.partition("[")[0], dir(holder))
                raise DomainError(f"{self.family.name} has no {name}: there is no {part!r} in {where}{hint}")
            indices = tuple(int(x) for x in re.findall(r"-?\d+", found[2]))
            if at == len(parts) - 1:
                return holder, found[1], indices
            holder = getattr(holder, found[1])
            for index in indices:
                holder = holder[index]
        raise AssertionError("a name has a last part")


def member_number(seed: int) -> int:
    """Return the number of the member in an episode with this seed."""
    return (seed >> SEED_BITS) % MEMBERS if seed >> SEED_BITS else seed % MEMBERS


def space_with_parameters(space: spaces.Space[Any], count: int) -> spaces.Space[Any]:
    """Return an observation space with parameters after it: a longer vector for a Box, else a Tuple."""
    if isinstance(space, spaces.Box):
        dtype = np.result_type(space.dtype or np.float32, np.float32)
        low = np.append(np.ravel(space.low), np.full(count, -np.inf)).astype(dtype)
        high = np.append(np.ravel(space.high), np.full(count, np.inf)).astype(dtype)
        return spaces.Box(low, high, dtype=dtype.type)
    return spaces.Tuple((space, spaces.Box(-np.inf, np.inf, (count,), np.float32)))


def gym_family(domain: GymDomain, distributions: tuple[Distribution, ...], *, observes: bool = False) -> GymFamily:
    """Return the family after members at its corners were tried out."""
    fields = {each.name: getattr(domain, each.name) for each in dataclasses.fields(domain)}
    names = parameter_names(distributions)
    if observes and domain.agent_spaces:
        raise DomainError(f"{domain.name} has several agents, and policies of these cannot observe its parameters")
    if observes:
        fields["observation_space"] = space_with_parameters(domain.observation_space, len(names))
    family = GymFamily(**fields, distributions=distributions, observes=observes)
    if observes:
        others = {name for name in domain.table if name != "obs" and not name.startswith(OBS_PREFIX)}
        table = {name: info for name, info in domain.table.items() if name in others}
        family = dataclasses.replace(family, table=table | built_in_table(family))
    table, partial = dict(family.table), set[str]()
    for name in names:
        _check_name(domain, name.removesuffix(FACTOR))
    for values in corner_members(distributions, rows=MAX_CORNERS):
        named = format_values(dict(zip(names, values, strict=True)))
        env: Any = None
        try:
            with sandboxed():
                env = family.make_env()
                env.forced = values
                found = probe_signals(family, env)
                _check_values(env, dict(zip(names, values, strict=True)))
        except DomainError as error:
            raise DomainError(f"{domain.name} cannot vary to {named}: {error}") from error
        except Exception as error:  # environment code may raise anything
            raise DomainError(f"{domain.name} cannot be made with {named}: {format_exception(error)}") from error
        finally:
            if env is not None:
                close_envs(env)
        for what, own, other in (
            ("action space", domain.action_space, env.action_space),
            ("observation space", family.observation_space, env.observation_space),
        ):
            if own != other and not _same_space(own, other, domain):
                raise DomainError(f"{domain.name}: {named} changes the {what} from {own} to {other}")
        keys = {name for name in table | found if is_info(name)}
        check_signal_tables(domain.name, named, _without(table, keys), _without(found, keys))
        partial |= table.keys() ^ found.keys()
    return dataclasses.replace(family, table=_without(table, partial), partial_signals=frozenset(partial))


def _check_name(domain: GymDomain, name: str) -> None:
    """Raise DomainError for a parameter that the environment does not have; objects are looked into later."""
    if name in ("horizon", "wrappers", "signals", "action_bound", "seeded"):
        raise DomainError(f"{domain.name}: {name} cannot vary; all members of a family share one")
    if name.startswith((UNWRAPPED, MODEL, OPTIONS)):
        if name == OPTIONS:
            raise DomainError(f"{domain.name}: {name} names no option of reset; write options.NAME")
        return
    source = domain.env_class if isinstance(domain.source, str) else domain.source
    taken = inspect.signature(source).parameters
    if name not in taken and not any(each.kind is each.VAR_KEYWORD for each in taken.values()):
        raise DomainError(
            f"{domain.name} has no argument {name!r}{suggest(name, taken)}; its arguments are: "
            f"{', '.join(taken) or 'none'}. Attributes are named unwrapped.NAME, model fields model.NAME, options of "
            "reset options.NAME"
        )


def _without(table: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: info for name, info in table.items() if name not in names}


def _same_space(own: Any, other: Any, domain: GymDomain) -> bool:
    """Return whether two action spaces differ only where infinite ends were replaced (`action_bound`)."""
    return own is domain.action_space and domain.action_bound is not None and own.shape == other.shape


def _check_values(env: MemberEnv, values: Mapping[str, float]) -> None:
    """Raise DomainError for an attribute that has lost its value during the trial."""
    for name, value in values.items():
        if name.startswith((UNWRAPPED, MODEL)):
            wanted = value * env.nominal[name] if name.endswith(FACTOR) else value
            if not np.allclose(env.read(name), wanted, rtol=1e-6):
                raise DomainError(
                    f"{name} was set to {wanted}, and is {env.read(name)} after a few steps: it cannot be set"
                )
