"""Names of domains -> domains, and back. Plug-ins add theirs through the entry-point group `psyco.domains`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

from psyco._src.core.checks import check_kinds
from psyco._src.core.errors import DomainError, PsycoError, suggest, told
from psyco._src.core.lazy_registry import Registry
from psyco._src.envs.trust import NOBODY, check_trust

if TYPE_CHECKING:
    from psyco._src.envs.base import Domain

BUILT_IN = Registry(
    "domain",
    {
        "particle-dance": "envs.particle_dance:ParticleDance",
        "obstacle-run": "envs.obstacle_run:ObstacleRun",
    },
)
PREFIXES = Registry(
    "prefix", {"gymnax": "envs.gymnax_env:gymnax_domain", "brax": "envs.brax_env:brax_domain"}
)


class DomainDescription(NamedTuple):
    """How to make a domain again: plain data that can be read, compared and kept without making one."""

    name: str
    parameters: dict[str, Any]


def domain_names() -> list[str]:
    """The names of the built-in domains and of installed plug-ins; nothing is imported for that."""
    return sorted({*BUILT_IN, *_plugins()})


def catalogue() -> dict[str, Callable[..., Domain]]:
    """All known domains by name: the built-in ones and those of installed plug-ins."""
    return {name: point.load() for name, point in _plugins().items()} | dict(BUILT_IN)


def make(name: str | Callable[..., Any], /, **parameters: Any) -> Domain:
    """The domain of that name; `parameters` replace its defaults.

    A name may also be a Gymnasium id (`CartPole-v1`, `module:Id`), a `gymnax:` or `brax:` environment, or what makes a
    domain: a class of a compiled domain, a class or function that gives a Gymnasium environment, or `module:name` of
    one. A Gymnasium environment takes its own parameters and `horizon`, `signals`, `wrappers`, `action_bound`.

    Args:
        name: what to make.
        parameters: of the domain.

    >>> make("particle-dance", horizon=30).horizon
    30
    >>> make("CartPole-v1").observation_size
    4
    """
    try:
        domain = _made(name, parameters)
        hash(domain)  # what is compiled has to be
    except PsycoError:
        raise
    except Exception as error:  # of others, about parameters that may come from a file and be anything
        raise DomainError(f"cannot make {name} with {parameters!r:.200}: {told(error)}") from error
    return domain


def _made(name: str | Callable[..., Any], parameters: dict[str, Any]) -> Domain:
    from psyco._src.envs.gym_env import gym_domain, gym_names, import_source, is_gym_name, name_of

    if not isinstance(name, str):
        return (
            _compiled(name_of(name), name, parameters)
            if _is_compiled(name)
            else gym_domain(name, **parameters)
        )
    if name in BUILT_IN:
        return _compiled(name, BUILT_IN[name], parameters)
    if name in (plugins := _plugins()):
        return _compiled(name, plugins[name].load(), parameters)
    prefix, colon, rest = name.partition(":")
    if colon and prefix in PREFIXES:
        domain: Domain = PREFIXES[prefix](rest, **parameters)
        return domain
    if colon:
        source = import_source(name)
        return _compiled(name, source, parameters) if _is_compiled(source) else gym_domain(name, **parameters)
    if is_gym_name(name):
        return gym_domain(name, **parameters)
    known = domain_names()
    raise DomainError(
        f"unknown domain {name!r}{suggest(name, [*known, *gym_names()])}; known are: {', '.join(known)}, "
        "and every environment of Gymnasium; one of another package has its module in front, as in "
        "highway_env:merge-v1"
    )


def describe(domain: Domain) -> DomainDescription:
    """How to make this domain again: by its name in the catalogue, or else as `module:Class`."""
    from psyco._src.envs.base import parameters
    from psyco._src.envs.gym_env import name_of

    values = parameters(domain)
    if hasattr(domain, "parameters"):  # made of something that has a name: an id, a function
        return DomainDescription(domain.name, values)
    # Ours first: looking for plug-ins takes longer than an episode.
    for registry in (lambda: BUILT_IN, catalogue):
        for name, factory in registry().items():
            if factory is type(domain):
                return DomainDescription(name, values)
    return DomainDescription(name_of(type(domain)), values)


def remake(description: DomainDescription, trust: Collection[str] = NOBODY) -> Domain:
    """The domain that a file describes: a policy, a run, a certificate.

    Such a file may come from a stranger, so it may name what is installed and registered, but no code to import and
    call (`module:name`) unless the user has named it, too.
    """
    check_trust(needed_code(description), trust)
    return make(description.name, **description.parameters)


def needed_code(description: DomainDescription) -> list[str]:
    """The `module:name` that making a domain would import."""
    prefixed = description.name.partition(":")[0] in PREFIXES  # an environment of ours to make, and no module
    named = [
        *([] if prefixed else [description.name]),
        *_texts(description.parameters.get("wrappers")),
        *_texts(description.parameters.get("signals")),
    ]
    return [code for code in named if ":" in code]


def _texts(value: Any) -> Iterator[str]:
    """Every text inside a value of any shape: what a file holds need not look as it should."""
    match value:
        case str():
            yield value
        case Mapping():
            yield from _texts([*value, *value.values()])
        case list() | tuple():
            for each in value:
                yield from _texts(each)


@cache  # all packages that are installed are looked through
def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="psyco.domains")}


def _is_compiled(factory: Any) -> bool:
    """A class of compiled domains; whatever else can be called is taken to make Gymnasium environments."""
    return isinstance(factory, type) and all(
        hasattr(factory, name) for name in ("observe", "signals", "reset", "step")
    )


def _compiled(name: str, factory: Callable[..., Domain], parameters: dict[str, Any]) -> Domain:
    """Make a domain, after a look at its parameters: they must be there, and of the kind that the default is of."""
    if dataclasses.is_dataclass(factory):
        fields = {field.name: field.default for field in dataclasses.fields(factory) if field.init}
        check_kinds(name, parameters, fields)
    return factory(**parameters)
