"""The registry: method name -> test; and how the permitted error is shared among constraints and looks."""

from __future__ import annotations

import dataclasses
from typing import Any

from psyco._src.errors import RunError, suggest
from psyco._src.smc.anytime import Anytime
from psyco._src.smc.base import Task, Test
from psyco._src.smc.bayes import Bayes
from psyco._src.smc.calibrated import Calibrated
from psyco._src.smc.fixed import Fixed
from psyco._src.smc.sprt import SPRT
from psyco._src.spec.formula import Constraint, Requirement

# Frozen dataclasses with the field `task`, and options with defaults.
METHODS: dict[str, type[Test]] = {
    "anytime": Anytime,
    "calibrated": Calibrated,
    "bayes": Bayes,
    "sprt": SPRT,
    "fixed": Fixed,
}
DEFAULT_METHOD = "anytime"


def make_tests(
    method: str,
    requirement: Requirement,
    *,
    max_episodes: int | None = None,
    share: float = 1.0,
    **options: Any,
) -> list[Test]:
    """One test per constraint, with levels that make the verdict about all of them as reliable as about one.

    With δ_k = 1 - c_k for constraint k of K, and `share` the part of the error that this look may use:

    - "all hold" needs every constraint accepted. If it is wrong, some constraint fails and was accepted, and that
      happens with probability at most δ_k. So every constraint is accepted at its full δ_k: no splitting.
    - "not all hold" needs one constraint rejected. If it is wrong, any of the K may have been the one. So each is
      rejected at δ_k / K, and the whole errs with probability at most the mean of the δ_k.

    `bayes` makes no statement about error rates, and thresholds each posterior as the paper does.
    """
    kind = find_method(method)
    split = max(len(requirement.constraints), 1) if kind.error_rate else 1
    return [
        make_test(
            method,
            constraint,
            max_episodes=max_episodes,
            false_accept=share * (1.0 - constraint.confidence),
            false_reject=share * (1.0 - constraint.confidence) / split,
            **options,
        )
        for constraint in requirement.constraints
    ]


def make_test(
    method: str,
    constraint: Constraint,
    *,
    max_episodes: int | None = None,
    false_accept: float | None = None,
    false_reject: float | None = None,
    **options: Any,
) -> Test:
    """Set a method up for one constraint; without error levels, both are one minus its confidence."""
    kind = find_method(method)
    known = method_options(method)
    for option in options:
        if option not in known:
            has = f"it has: {', '.join(known)}" if known else "it has none"
            raise RunError(f"{method} has no option {option!r}{suggest(option, list(known))}; {has}")
    delta = 1.0 - constraint.confidence
    task = Task(
        constraint,
        delta if false_accept is None else false_accept,
        delta if false_reject is None else false_reject,
        max_episodes,
    )
    return kind(task, **options)  # type: ignore[call-arg]


def find_method(method: str) -> type[Test]:
    """The method of that name."""
    if method not in METHODS:
        raise RunError(
            f"unknown verification method {method!r}{suggest(method, list(METHODS))}; "
            f"there are: {', '.join(METHODS)}"
        )
    return METHODS[method]


def method_options(method: str) -> dict[str, Any]:
    """The options of a method and their defaults."""
    return {f.name: f.default for f in dataclasses.fields(find_method(method)) if f.name != "task"}  # type: ignore[arg-type]
