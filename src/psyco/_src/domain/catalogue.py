"""Names of domains -> domains. Plug-ins add theirs through the entry-point group `psyco.domains`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from psyco._src.domain.base import Domain
from psyco._src.domain.brax_env import brax_domain
from psyco._src.domain.gym_env import gym_domain, gym_names, is_gym_name
from psyco._src.domain.gymnax_env import gymnax_domain
from psyco._src.domain.obstacle_run import ObstacleRun
from psyco._src.domain.particle_dance import ParticleDance
from psyco._src.errors import DomainError, suggest

BUILT_IN: dict[str, Callable[..., Domain]] = {
    ParticleDance.name: ParticleDance,
    ObstacleRun.name: ObstacleRun,
}
PREFIXES: dict[str, Callable[..., Domain]] = {"gymnax:": gymnax_domain, "brax:": brax_domain}


def catalogue() -> dict[str, Callable[..., Domain]]:
    """All known domains by name: the built-in ones and those of installed plug-ins."""
    plugins = {point.name: point.load() for point in entry_points(group="psyco.domains")}
    return plugins | BUILT_IN


# Code that the user has named: a file that names it too may have it imported.
_TRUSTED: set[str] = set()


def trust(*names: str) -> None:
    """Let files name this code (`module:name`); call it with what the user typed, never with what a file says."""
    _TRUSTED.update(names)


def remake(name: str, **parameters: Any) -> Domain:
    """The domain that a file names: a policy, a run, a certificate.

    Such a file may come from a stranger, so it may name what is installed and registered, but no code to import and
    call (`module:name`) unless the user has named it, too.
    """
    named = [name, *parameters.get("wrappers", ()), *dict(parameters.get("signals", {})).values()]
    for code in named:
        if ":" in str(code) and not str(code).startswith(tuple(PREFIXES)) and code not in _TRUSTED:
            raise DomainError(
                f"this needs the Python code {code}, and a file must not choose which code runs; "
                f"if you trust it, name it yourself: --trust {code}"
            )
    return make(name, **parameters)


def make(name: str | Callable[..., Any], **parameters: Any) -> Domain:
    """The domain of that name; `parameters` replace its defaults.

    A name may also be a Gymnasium id (`CartPole-v1`, `module:Id`), a `gymnax:` or `brax:` environment, or what makes a
    Gymnasium environment: a class, a function, or `module:name` of one. See `gym_domain` for their parameters.

    >>> make("particle-dance", horizon=30).horizon
    30
    >>> make("CartPole-v1").observation_size
    4
    """
    if not isinstance(name, str):
        return gym_domain(name, **parameters)
    known = catalogue()
    if name not in known:
        prefix, _, rest = name.partition(":")
        if f"{prefix}:" in PREFIXES:
            return PREFIXES[f"{prefix}:"](rest, **parameters)
        if ":" in name or is_gym_name(name):
            return gym_domain(name, **parameters)
        raise DomainError(
            f"unknown domain {name!r}{suggest(name, [*known, *gym_names()])}; known are: "
            f"{', '.join(sorted(known))}, and every environment of Gymnasium"
        )
    factory = known[name]
    if dataclasses.is_dataclass(factory):
        names = [field.name for field in dataclasses.fields(factory) if field.init]
        for key in parameters:
            if key not in names:
                raise DomainError(
                    f"{name} has no parameter {key!r}{suggest(key, names)}; it has: {', '.join(names)}"
                )
    return factory(**parameters)
