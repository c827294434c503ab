"""Names of domains -> domains. Plug-ins add theirs through the entry-point group `psyco.domains`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from psyco.domain.base import Domain, suggest
from psyco.domain.brax_env import brax_domain
from psyco.domain.gym_env import gym_domain, gym_names, is_gym_name
from psyco.domain.gymnax_env import gymnax_domain
from psyco.domain.obstacle_run import ObstacleRun
from psyco.domain.particle_dance import ParticleDance
from psyco.errors import DomainError

BUILT_IN: dict[str, Callable[..., Domain]] = {
    ParticleDance.name: ParticleDance,
    ObstacleRun.name: ObstacleRun,
}


def catalogue() -> dict[str, Callable[..., Domain]]:
    """All known domains by name: the built-in ones and those of installed plug-ins."""
    plugins = {point.name: point.load() for point in entry_points(group="psyco.domains")}
    return plugins | BUILT_IN


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
        if name.startswith("gymnax:"):
            return gymnax_domain(name.removeprefix("gymnax:"), **parameters)
        if name.startswith("brax:"):
            return brax_domain(name.removeprefix("brax:"), **parameters)
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
