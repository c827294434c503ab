"""Report misspelt or misplaced keyword arguments of the public functions, with a suggestion."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import ParamSpec, TypeVar

from psyco._src.core.errors import ArgumentError, suggest
from psyco._src.core.options import declared
from psyco._src.learners.learner_registry import LEARNERS
from psyco._src.rollout.execution import Execution
from psyco._src.runs.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")
# Arguments that collect options, and their types.
OBJECTS: dict[str, tuple[type, ...]] = {"settings": (Settings,), "execution": (Execution,)}


def verb(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a public function: a keyword that is unknown or of another type raises `ArgumentError` with a remedy."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*arguments: P.args, **keywords: P.kwargs) -> R:
        for name in keywords:
            if name not in known:
                hint = next(_places(name, known), "") or suggest(name, known)
                raise ArgumentError(f"psyco.{function.__name__} has no argument {name!r}{hint}")
        for name, kinds in OBJECTS.items():
            value = keywords.get(name)
            # A study file has settings as a table, so the functions for many runs take a mapping too.
            accepted = (*kinds, Mapping) if function.__name__ in ("pareto_front", "tune") else kinds
            if value is not None and not isinstance(value, accepted):
                raise ArgumentError(f"{name} must be a psyco.{kinds[0].__name__}(...), got {value!r}")
        return function(*arguments, **keywords)

    return checked


def _places(name: str, known: list[str]) -> Iterator[str]:
    """Yield the object that declares an argument of this name: settings, execution or a learner."""
    if "execution" in known and name in declared(Execution):
        yield f"; it is part of execution: execution=psyco.Execution({name}=...)"
    if "settings" in known and name in declared(Settings):
        yield f"; it is a setting: settings=psyco.Settings({name}=...)"
    for learner in LEARNERS if "learner" in known else ():
        if name in declared(cls := LEARNERS[learner]):
            yield f"; it is an option of a learner: learner=psyco.{cls.__name__}({name}=...)"
