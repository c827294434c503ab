"""What all verbs have in common: a misspelt argument is an error of ours, with a suggestion."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from psyco._src.core.errors import ArgumentError, suggest
from psyco._src.learners.learner_registry import LEARNERS, learner_options

P = ParamSpec("P")
R = TypeVar("R")


def verb(function: Callable[P, R]) -> Callable[P, R]:
    """The function itself, but for arguments that it does not have."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*arguments: P.args, **keywords: P.kwargs) -> R:
        for name in keywords:
            if name not in known:
                hint = suggest(name, known) or _option(name, known)
                raise ArgumentError(f"psyco.{function.__name__} has no argument {name!r}{hint}")
        return function(*arguments, **keywords)

    return checked


def _option(name: str, known: list[str]) -> str:
    """Hyperparameters of learners used to be arguments, and are what one tries first."""
    if "learner_options" in known and any(name in learner_options(learner) for learner in LEARNERS):
        return f"; it is an option of a learner: learner_options={{{name!r}: ...}}"
    return ""
