"""Families of environments: parameters of a domain that are drawn for every episode.

A member of a family has a number below `MEMBERS`, and its parameters are a function of that number. An episode takes
the number from its random key, so members follow from seeds like all other chance events.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import DomainError, check_has, format_exception
from psyco._src.core.files import read_text
from psyco._src.core.wording import plural
from psyco._src.envs.actions import Continuous
from psyco._src.envs.agents import agents_of
from psyco._src.envs.base import CompiledDomain, Domain, State, signal_table
from psyco._src.envs.base import parameters as parameters_of
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.variants import DerivedDomain, FamilyOfEnvironments, is_family
from psyco._src.logic.ast import SignalInfo

MEMBERS = 2**31  # numbers of members
FAMILY_SEED = 30  # of the draws of parameters
TAIL = 2.0**-24  # probability at which a normal distribution is cut off on either side, so that it is bounded
MAX_ROWS = 10_000  # of measured parameters
MAX_CORNERS = 16  # of the box of all members that are tried out beforehand; with more, the ends of each parameter
FACTOR = "*"  # the last character of a parameter that is multiplied, not replaced

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*")
_NORMAL = re.compile(rf"\s*normal\s*\(\s*({_NUMBER})\s*,\s*({_NUMBER})\s*\)\s*")
FORMS = "write a range 0.08..0.12, normal(0.1,0.01), or a list 0.08,0.1,0.12"


@dataclass(frozen=True)
class Distribution:
    """The distribution of one parameter, or of several that are drawn together.

    Args:
        names: the parameters; a name that ends in `*` is a factor on the value of the domain.
        kind: "uniform" (ends), "normal" (mean and standard deviation), or "values", each equally likely.
        rows: the numbers, one row per value: an entry for each name. The two rows of the other kinds have a single
            entry: all parameters take the same number.
    """

    names: tuple[str, ...]
    kind: str
    rows: tuple[tuple[float, ...], ...]

    def quantile(self, u: Any, xp: Any = np) -> list[Any]:
        """Return the value of each parameter, `[...]`, at uniform numbers u `[...]` in (0, 1)."""
        table = np.asarray(self.rows, np.float64)
        if self.kind == "uniform":
            return [table[0, 0] + u * (table[1, 0] - table[0, 0])] * len(self.names)
        if self.kind == "normal":
            from jax.scipy.special import ndtri as jax_ndtri
            from scipy.special import ndtri

            z = (jax_ndtri if xp is jnp else ndtri)(xp.clip(u, TAIL, 1.0 - TAIL))
            return [table[0, 0] + table[1, 0] * z] * len(self.names)
        index = xp.minimum((u * len(table)).astype(int), len(table) - 1)
        return [xp.asarray(column)[index] for column in table.T]

    @property
    def scaling(self) -> list[tuple[float, float]]:
        """For each parameter, middle and half width of its range; of a normal distribution mean and deviation."""
        table = np.asarray(self.rows, np.float64)
        if self.kind == "normal":
            return [(float(table[0, 0]), float(table[1, 0]))] * len(self.names)
        low, high = table.min(axis=0), table.max(axis=0)
        half = np.where(high > low, (high - low) / 2.0, 1.0)
        pairs = [(float(f"{a:.6g}"), float(f"{b:.6g}")) for a, b in zip((low + high) / 2.0, half, strict=True)]
        return pairs * len(self.names) if self.kind == "uniform" else pairs

    @property
    def text(self) -> str:
        """The distribution as `read_distribution` reads it."""
        numbers = [",".join(f"{x!r}" if x % 1 else f"{x:.0f}" for x in row) for row in self.rows]
        if self.kind == "uniform":
            return "..".join(numbers)
        if self.kind == "normal":
            return f"normal({','.join(numbers)})"
        return (";" if len(self.names) > 1 else ",").join(numbers)


def read_distribution(name: str, given: Any) -> Distribution:
    """Return the distribution of a parameter, or of several, `a,b`: from a text, a pair (range) or a list (values)."""
    names = tuple(part.strip() for part in name.split(","))
    if not all(names):
        raise DomainError(f"{name!r} names no parameters; write NAME=0.08..0.12, or NAME,OTHER for several together")
    if isinstance(given, str):
        if found := _RANGE.fullmatch(given):
            given = (float(found[1]), float(found[2]))
        elif found := _NORMAL.fullmatch(given):
            return _checked(Distribution(names, "normal", ((float(found[1]),), (float(found[2]),))))
        else:
            rows = [row.split(",") for row in given.split(";")] if len(names) > 1 else [[x] for x in given.split(",")]
            try:
                given = [[float(x) for x in row] for row in rows]
            except ValueError:
                raise DomainError(f"{name} = {given!r} is no distribution: {FORMS}") from None
    if isinstance(given, tuple) and len(given) == 2 and not any(map(_is_row, given)):
        return _checked(Distribution(names, "uniform", tuple((_number(name, x),) for x in given)))
    if not isinstance(given, list | tuple | np.ndarray):
        raise DomainError(f"{name} = {given!r} is no distribution: {FORMS}; in Python, a pair (low, high) or a list")
    rows = [list(row) if _is_row(row) else [row] for row in given]
    if any(len(row) != len(names) for row in rows):
        raise DomainError(f"{name}: every entry needs {len(names)} numbers, one for each of {', '.join(names)}")
    return _checked(Distribution(names, "values", tuple(tuple(_number(name, x) for x in row) for row in rows)))


def _is_row(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise DomainError(f"{name}: {value!r} is not a finite number")
    return float(value)


def _checked(found: Distribution) -> Distribution:
    """Return a distribution that has more than one value; else raise DomainError."""
    name, table = ",".join(found.names), np.asarray(found.rows)
    if not np.isfinite(table).all():
        raise DomainError(f"{name}: {found.text} is not made of finite numbers")
    if found.kind == "uniform" and not table[0, 0] < table[1, 0]:
        raise DomainError(f"{name}: the range {found.text} is empty; its smaller end stands first")
    if found.kind == "normal" and table[1, 0] <= 0.0:
        raise DomainError(f"{name}: {found.text} needs a standard deviation above 0")
    if found.kind == "values" and not 1 < len(found.rows) <= MAX_ROWS:
        advice = "a fixed value is set with --set" if len(found.rows) < 2 else f"at most {MAX_ROWS:,} are read"
        raise DomainError(f"{name} has {plural(len(found.rows), 'value')}; {advice}")
    return found


def read_measured(path: str | Path) -> dict[str, Any]:
    """Read measured parameters from a CSV file: names in the first line, then one row per measured environment."""
    lines = [row for row in csv.reader(read_text(path, "table of parameters").splitlines()) if any(map(str.strip, row))]
    if len(lines) < 3:
        raise DomainError(f"{path}: measured parameters are a line of names and at least two lines of numbers")
    names, *rows = [[cell.strip() for cell in row] for row in lines]
    for number, row in enumerate(rows, 2):
        for name, cell in itertools.zip_longest(names, row):
            if name is None or cell is None:
                raise DomainError(f"{path}, row {number}: {len(row)} numbers, but {len(names)} names")
            if not re.fullmatch(_NUMBER, cell):
                raise DomainError(f"{path}, row {number}: {name} is {cell!r}, which is not a finite number")
    return {
        ",".join(names): ";".join(",".join(row) for row in rows) if len(names) > 1 else ",".join(r for (r,) in rows)
    }


def vary(
    domain: Domain, parameters: Mapping[str, Any] | None = None, /, *, observe_parameters: bool = False, **further: Any
) -> Domain:
    """Return the family of a domain: every episode takes place in an environment that is drawn from it.

    Args:
        domain: a domain, from `psyco.make`. A family is a domain like any other.
        parameters: distributions by name, where a name is no Python word: `{"unwrapped.gravity": (8, 12)}`.
        further: distributions by name, `max_speed=(0.08, 0.12)`: a pair is a uniform range, a list its equally likely
            values, a text one of `0.08..0.12`, `normal(0.1,0.01)` and `0.08,0.1,0.12`. `max_speed*` is a factor.
            `"a,b"` are parameters that are drawn together: from a list of pairs, or the same number for both from a
            range or a normal distribution.
        observe_parameters: whether policies observe the drawn parameters, at the end of every observation; a policy
            that does needs them wherever it acts.
    """
    if not isinstance(observe_parameters, bool):
        raise DomainError(f"observe_parameters is True or False, got {observe_parameters!r}")
    given = {**(parameters or {}), **further}
    if isinstance(domain, str):
        raise DomainError(f"vary needs a domain: psyco.vary(psyco.make({domain!r}), ...)")
    if agents := agents_of(domain):
        raise DomainError(
            f"{domain.name} has the agents {', '.join(agents)}; a family varies environments of one agent"
        )
    if is_family(domain):
        raise DomainError(f"{domain.name} is a family already: give all of its distributions at once")
    distributions = tuple(read_distribution(name, value) for name, value in given.items())
    names = [name.removesuffix(FACTOR) for each in distributions for name in each.names]
    if not names:
        raise DomainError(f"a family of {domain.name} needs a parameter that varies, as in max_speed=(0.08, 0.12)")
    if doubled := [name for name in names if names.count(name) > 1]:
        raise DomainError(f"{doubled[0]} is varied twice")
    if isinstance(domain, GymDomain):
        from psyco._src.envs.gym_family import gym_family

        return gym_family(domain, distributions, observes=observe_parameters)
    if not isinstance(domain, CompiledDomain):
        raise DomainError(f"{domain!r} is not a domain; psyco.make makes one")
    return dataclasses.replace(_compiled_family(domain, distributions), observes=observe_parameters)


def vary_parameters(distributions: Sequence[Distribution]) -> dict[str, str]:
    """Return the distributions as plain data, by the names of their parameters."""
    return {",".join(each.names): each.text for each in distributions}


def family_parameters(family: FamilyOfEnvironments) -> dict[str, Any]:
    """Return the keyword arguments that make a domain this family."""
    observed = {"observe_parameters": True} if family.observes else {}
    return {"vary": vary_parameters(family.distributions)} | observed


def parameter_names(distributions: Sequence[Distribution]) -> list[str]:
    """Return the parameters that vary, as they were given."""
    return [name for each in distributions for name in each.names]


def corner_members(distributions: Sequence[Distribution], rows: int = MAX_ROWS) -> NDArray[np.float64]:
    """Return parameters `[n, m]` of members: one in the middle, the corners, and the first `rows` of every list.

    Where there are too many corners: two of them, and both ends of every parameter with the others in their middle.
    """
    groups = len(distributions)
    every = 2**groups <= MAX_CORNERS
    corners = itertools.product([0.0, 1.0], repeat=groups) if every else ([0.0] * groups, [1.0] * groups)
    found = [[0.5] * groups, *corners]
    for own, each in enumerate(distributions):
        if each.kind == "values":
            ends = (np.arange(min(len(each.rows), rows)) + 0.5) / len(each.rows)
        else:
            ends = np.array([] if every else [0.0, 1.0])
        found += [[0.5] * own + [end] + [0.5] * (groups - own - 1) for end in ends]
    return values_at(distributions, np.array(found))


def values_at(distributions: Sequence[Distribution], u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the parameters `[..., m]` at uniform numbers `[..., groups]`."""
    columns = [column for i, each in enumerate(distributions) for column in each.quantile(u[..., i])]
    return np.stack([np.broadcast_to(column, u.shape[:-1]) for column in columns], axis=-1)


def host_values(distributions: Sequence[Distribution], number: int) -> NDArray[np.float64]:
    """Return the parameters `[m]` of a member of a Gymnasium family."""
    return values_at(distributions, np.random.default_rng((number, FAMILY_SEED)).random(len(distributions)))


def member_parameters(domain: Domain, number: int) -> dict[str, float]:
    """Return the parameters of a member of a family by name."""
    distributions: tuple[Distribution, ...] = domain.distributions  # type: ignore[attr-defined]
    values = host_values(distributions, number) if isinstance(domain, GymDomain) else _device_values(domain, number)
    return dict(zip(parameter_names(distributions), map(float, values), strict=True))


def values_of_members(domain: Domain, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the parameters `[N, m]` of members of a family."""
    distributions: tuple[Distribution, ...] = domain.distributions  # type: ignore[attr-defined]
    if isinstance(domain, GymDomain):
        return np.stack([host_values(distributions, number) for number in numbers.tolist()])
    draw = jax.vmap(lambda number: member_values(distributions, number))
    return np.asarray(draw(jnp.asarray(numbers, jnp.uint32)), np.float64)


def check_member(domain: Domain, number: int) -> None:
    """Raise DomainError for a member of a compiled family that the constructor of its domain refuses."""
    if isinstance(domain, Family):
        domain._concrete(_device_values(domain, number))


# ---- compiled domains -------------------------------------------------------------------------------------------


class FamilyState(NamedTuple):
    """The parameters of the environment, and its state."""

    values: Array  # [m]
    inner: State


@dataclass(frozen=True)
class Family(DerivedDomain, FamilyOfEnvironments):
    """A compiled domain whose parameters are drawn for every episode; `vary` makes it.

    The parameters are part of the state, so all members share one compiled program.
    """

    base: CompiledDomain
    distributions: tuple[Distribution, ...]
    # Where parameters change the range of continuous actions: ends of the range as affine functions of the parameters,
    # [2, outputs, m + 1]. An action is scaled from the range of the base to that of the member.
    action_ends: tuple[Any, ...] = ()
    observes: bool = False

    @property
    def observation_size(self) -> int:
        """Length of an observation vector."""
        return self.base.observation_size + len(self.observed_parameters)

    @property
    def has_mask(self) -> bool:
        """Whether observations end with an action mask."""
        return bool(getattr(self.base, "has_mask", False))

    @property
    def parameters(self) -> dict[str, Any]:
        """Keyword arguments that make this family again."""
        return parameters_of(self.base) | family_parameters(self)

    @property
    def sources(self) -> tuple[Any, ...]:
        """Classes whose code determines an episode."""
        return (*super().sources, Distribution)

    @cached_property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest values of signals among the members at the corners of the family."""
        found: dict[str, tuple[float, float]] = {}
        for values in corner_members(self.distributions):
            for name, (low, high) in getattr(self._concrete(values), "ranges", {}).items():
                old = found.get(name, (math.inf, -math.inf))
                found[name] = min(old[0], low), max(old[1], high)
        return found

    def member(self, key: Array) -> Member:
        """Return the environment of the episode with this key."""
        number = jax.random.key_data(key)[..., 0] & np.uint32(MEMBERS - 1)
        return Member(self, member_values(self.distributions, number))

    def reset(self, key: Array) -> FamilyState:
        """Return a random initial state of a random member."""
        return self.member(key).reset(key)

    def step(self, key: Any, state: FamilyState, action: Array) -> tuple[FamilyState, Array, Array | bool]:
        """Return next state, reward and termination."""
        inner, reward, done = self._at(state.values).step(key, state.inner, self._scale(state.values, action))
        return FamilyState(state.values, inner), reward, done

    def observe(self, state: FamilyState) -> Array:
        """Return the observation, with the parameters at its end if policies observe them."""
        own: Array = self._at(state.values).observe(state.inner)
        return jnp.concatenate([own, state.values]) if self.observes else own

    def signals(self, state: FamilyState) -> Mapping[str, Array]:
        """Return the signals of the base."""
        return self._at(state.values).signals(state.inner)

    def _at(self, values: Any) -> Any:
        """Return the base with these parameters `[m]`, which may be traced: its own checks are not run."""
        return _with_parameters(self.base, dict(self._replaced(values)))

    def _concrete(self, values: NDArray[np.float64]) -> CompiledDomain:
        """Return the base with these parameters `[m]`, checked as when it is made."""
        changed = dict(self._replaced(values))
        try:
            if not hasattr(self.base, "with_parameters"):
                return dataclasses.replace(self.base, **changed)  # type: ignore[type-var]
            return _with_parameters(self.base, changed)
        except Exception as error:  # code of the domain
            raise DomainError(f"{self.name} cannot be made with {format_values(changed)}: {error}") from error

    def _replaced(self, values: Any) -> Iterator[tuple[str, Any]]:
        """Yield the fields of the base that change, and their values."""
        known = _fields(self.base)
        for i, name in enumerate(parameter_names(self.distributions)):
            field, value = name.removesuffix(FACTOR), values[i]
            value = value * known[field] if name.endswith(FACTOR) else value
            if isinstance(value, np.floating):
                value = float(value)
            if isinstance(known[field], int):
                value = round(value) if isinstance(value, float) else jnp.round(value).astype(jnp.int32)
            yield field, value

    def _scale(self, values: Array, action: Array) -> Array:
        if not self.action_ends:
            return action
        ends = jnp.asarray(self.action_ends, jnp.float32) @ jnp.append(values, 1.0).astype(jnp.float32)
        low, high = np.asarray(self.actions.low, np.float32), np.asarray(self.actions.high, np.float32)
        return ends[0] + (action - low) / (high - low) * (ends[1] - ends[0])


@dataclass(frozen=True, eq=False)
class Member:
    """One environment of a family while its code is traced; everything else is that of the base."""

    family: Family
    values: Any  # [m]

    def reset(self, key: Array) -> FamilyState:
        """Return a random initial state."""
        return FamilyState(self.values, self.family._at(self.values).reset(key))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.family._at(self.values), name)  # `draw`, where the base has it


def member_values(distributions: Sequence[Distribution], number: Array) -> Array:
    """Return the parameters `[m]` of a member of a compiled family."""
    u = jax.random.uniform(jax.random.fold_in(jax.random.key(FAMILY_SEED), number), (len(distributions),))
    return jnp.stack([x for i, each in enumerate(distributions) for x in each.quantile(u[i], jnp)]).astype(jnp.float32)


def _device_values(family: Any, number: int) -> NDArray[np.float64]:
    return np.asarray(member_values(family.distributions, jnp.uint32(number)), np.float64)


def format_values(values: Mapping[str, Any]) -> str:
    """Format parameters for a message."""
    return ", ".join(f"{name}={value:.6g}" for name, value in values.items())


def _fields(base: CompiledDomain) -> dict[str, Any]:
    """Return the parameters of a domain that are numbers."""
    every = base.variable_parameters if hasattr(base, "variable_parameters") else parameters_of(base)
    declared: Any = dataclasses.fields(base) if dataclasses.is_dataclass(base) else ()
    types = {each.name: each.type for each in declared}
    return {
        name: float(x) if types.get(name) in (float, "float") else x  # a float may be given as a whole number
        for name, x in every.items()
        if isinstance(x, int | float) and not isinstance(x, bool) and name != "horizon"
    }


def _with_parameters(base: Any, changed: Mapping[str, Any]) -> Any:
    """Return a copy of a domain with other parameters, without the checks of its constructor."""
    if hasattr(base, "with_parameters"):
        return base.with_parameters(**changed)
    copy = object.__new__(type(base))
    for each in dataclasses.fields(base):
        object.__setattr__(copy, each.name, changed.get(each.name, getattr(base, each.name)))
    return copy


def _compiled_family(base: CompiledDomain, distributions: tuple[Distribution, ...]) -> Family:
    """Return the family after everything that can be checked before it runs."""
    names = [name.removesuffix(FACTOR) for name in parameter_names(distributions)]
    if "horizon" in names:
        raise DomainError(f"{base.name}: the horizon cannot vary; all episodes of a family have one limit")
    check_has(base.name, "parameter that can vary", names, _fields(base), error=DomainError)
    if not hasattr(base, "with_parameters"):
        if not dataclasses.is_dataclass(base):
            raise DomainError(f"{base.name} is no dataclass, so its parameters cannot vary")
        if fixed := set(names) - {each.name for each in dataclasses.fields(base)}:
            raise DomainError(
                f"{min(fixed)} of {base.name} cannot vary: all transitions were computed from it when the domain was "
                f"made. Make the domain once for each value, with --set {min(fixed)}=..."
            )
    distributions = tuple(_whole(each, _fields(base)) for each in distributions)
    family = Family(base, distributions)
    members = [(values, family._concrete(values)) for values in corner_members(distributions)]
    tried = set(map(tuple, corner_members(distributions, rows=MAX_CORNERS)))  # finding signals takes milliseconds
    for values, member in members:
        named = format_values(dict(zip(names, values, strict=True)))
        _check_copied(base.name, named, member, family._at(values))
        for what, own, other in (
            ("horizon", base.horizon, member.horizon),
            ("observations", base.observation_size, member.observation_size),
            (
                "action space",
                (type(base.actions), base.actions.outputs),
                (type(member.actions), member.actions.outputs),
            ),
            ("action space", _discrete(base.actions), _discrete(member.actions)),
        ):
            if own != other:
                raise DomainError(f"{base.name}: {named} changes the {what}; all members of a family share one")
        if tuple(values) in tried:
            check_signal_tables(base.name, named, signal_table(base), signal_table(member))
    ends = _action_ends(base, members)
    _check_traced(family, {i for end in ends for row in end for i, weight in enumerate(row) if weight})
    return dataclasses.replace(family, action_ends=ends)


def _check_copied(name: str, named: str, made: Any, copied: Any) -> None:
    """Raise DomainError for a member whose constructor computes attributes that a copy does not have."""
    if hasattr(made, "with_parameters"):
        return
    own, other = (
        {each.name: getattr(x, each.name) for each in dataclasses.fields(x)} | getattr(x, "__dict__", {})
        for x in (made, copied)
    )
    for attribute in sorted(own):
        cached = isinstance(getattr(type(made), attribute, None), cached_property)
        if not cached and not (attribute in other and _equal(own[attribute], other[attribute])):
            raise DomainError(
                f"{name} cannot vary to {named}: its constructor computes {attribute} from its parameters, and members "
                "are made without it. Compute it in a property, or write a method with_parameters(**changed)"
            )


def _equal(own: Any, other: Any) -> bool:
    if own is other:
        return True
    try:
        return bool(np.all(own == other))
    except Exception:  # values of the domain, which may not be comparable
        return False


def _whole(found: Distribution, known: Mapping[str, Any]) -> Distribution:
    """Return the distribution of a whole number: a range is the list of its whole numbers."""
    whole = [i for i, name in enumerate(found.names) if not name.endswith(FACTOR) and isinstance(known[name], int)]
    if not whole:
        return found
    if found.kind == "uniform":
        (low,), (high,) = found.rows
        found = _checked(
            Distribution(
                found.names,
                "values",
                tuple((x,) * len(found.names) for x in np.arange(math.ceil(low), high + 0.5).tolist() if x <= high),
            )
        )
    for i in whole:
        if found.kind == "normal" or any(row[i] % 1 for row in found.rows):
            raise DomainError(f"{found.names[i]} is a whole number: write a range 4..6 or a list 4,5,6 of such")
    return found


def _discrete(actions: Any) -> Any:
    return None if isinstance(actions, Continuous) else actions


def check_signal_tables(name: str, named: str, own: Mapping[str, SignalInfo], other: Mapping[str, SignalInfo]) -> None:
    """Raise DomainError for a signal that only some members have."""
    for signal in sorted(own.keys() ^ other.keys()):
        raise DomainError(f"{name}: the signal {signal} exists only for some members, not with {named}")
    for signal, info in own.items():
        if info != other[signal]:
            raise DomainError(f"{name}: the signal {signal} has another type with {named}")


def _check_traced(family: Family, scale_actions: set[int]) -> None:
    """Raise DomainError for a parameter that compiled code cannot vary, or that nothing depends on.

    The parameters with the numbers `scale_actions` may change the range of actions alone.
    """
    names = parameter_names(family.distributions)

    def episode(*values: Any) -> Any:
        key = jax.random.key(0)
        member = Member(family, values)  # one by one: of a stacked array, every parameter depends on every other
        drawn = jax.tree.map(lambda x: x[0], member.draw(key)) if hasattr(member, "draw") else key
        state = member.reset(key)
        after = family.step(drawn, state, jnp.asarray(family.actions.decode(jnp.zeros(family.actions.outputs))))
        return state.inner, after[0].inner, *after[1:], family.observe(after[0]), dict(family.signals(after[0]))

    for i, name in enumerate(names):

        def alone(x: Any, i: int = i) -> Any:
            first = [jnp.float32(v) for v in corner_members(family.distributions)[0]]
            return episode(*first[:i], x, *first[i + 1 :])

        try:
            traced = jax.make_jaxpr(alone)(jnp.float32(1.0))
        except Exception as error:  # code of the domain, which expects a plain number
            raise DomainError(
                f"{name} of {family.name} cannot vary: its code needs a fixed number there "
                f"({format_exception(error).splitlines()[0]:.200})"
            ) from error
        if not _depends(traced.jaxpr) and i not in scale_actions:
            raise DomainError(f"{name} of {family.name} cannot vary: nothing in an episode depends on it")


def _depends(jaxpr: Any) -> bool:
    """Return whether an output depends on the input."""
    tainted = set(jaxpr.invars)
    for eqn in jaxpr.eqns:
        if any(not hasattr(v, "val") and v in tainted for v in eqn.invars):
            tainted |= set(eqn.outvars)
    return any(not hasattr(v, "val") and v in tainted for v in jaxpr.outvars)


def _action_ends(
    base: CompiledDomain, members: Sequence[tuple[NDArray[np.float64], CompiledDomain]]
) -> tuple[Any, ...]:
    """Return the ends of the action range as affine functions of the parameters; empty if it is the same for all."""
    if not isinstance(base.actions, Continuous) or all(member.actions == base.actions for _, member in members):
        return ()
    inputs = np.array([[*values, 1.0] for values, _ in members])
    ends = np.array([[member.actions.low, member.actions.high] for _, member in members])  # type: ignore[union-attr]
    flat = ends.reshape(len(ends), -1)
    weights, *_ = np.linalg.lstsq(inputs, flat, rcond=None)
    if not np.allclose(inputs @ weights, flat, rtol=1e-6, atol=1e-9):
        raise DomainError(f"{base.name}: the varied parameters change the action space, and not in proportion to them")
    rounded = np.round(weights.T, 12).reshape(2, -1, inputs.shape[1]).tolist()
    return tuple(tuple(map(tuple, end)) for end in rounded)
