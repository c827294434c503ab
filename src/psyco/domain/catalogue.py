"""Names of domains -> domains. Plug-ins add theirs through the entry-point group `psyco.domains`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from psyco.domain.base import Domain, suggest
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


def make(name: str, **parameters: Any) -> Domain:
    """The domain of that name; `parameters` replace its defaults.

    >>> make("particle-dance", horizon=30).horizon
    30
    """
    known = catalogue()
    if name not in known:
        raise DomainError(
            f"unknown domain {name!r}{suggest(name, list(known))}; known are: {', '.join(sorted(known))}"
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
