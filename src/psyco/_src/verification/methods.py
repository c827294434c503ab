"""The registry: method name -> test; and how the permitted error is shared among constraints and looks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psyco._src.core.errors import RunError, check_has
from psyco._src.core.lazy_registry import Registry

if TYPE_CHECKING:  # the names of the methods are there without NumPy
    from psyco._src.envs.value_bounds import ValueRange
    from psyco._src.logic.ast import Constraint, Expectation, Question, Requirement
    from psyco._src.verification.base import MeanTask, MeanTest, Test

# Frozen dataclasses with the field `task`, and options with defaults.
METHODS = Registry(
    "verification method",
    {
        "anytime": "verification.anytime:Anytime",
        "calibrated": "verification.calibrated:Calibrated",
        "bayes": "verification.bayes:Bayes",
        "sprt": "verification.sprt:SPRT",
        "fixed": "verification.fixed_sample:Fixed",
    },
)
MEAN_METHODS = Registry(
    "verification method for means",
    {
        "anytime": "verification.betting:Betting",
        "bayes": "verification.bayes:BayesMean",
        "fixed": "verification.fixed_sample:FixedMean",
    },
)
DEFAULT_METHOD = "anytime"
DEFAULT_MAX_EPISODES = 10_000  # of a certificate
LARGEST_CAP = (
    20_000  # of what is planned or calibrated: that takes seconds, and four times as long at twice the cap
)


def make_tests(
    method: str,
    requirement: Requirement,
    *,
    spans: Sequence[ValueRange] = (),
    max_episodes: int | None = None,
    share: float = 1.0,
    **options: Any,
) -> list[Test | MeanTest]:
    """One test per constraint, with levels that make the verdict about all of them as reliable as about one.

    With δ_k = 1 - c_k for constraint k of K, and `share` the part of the error that this look may use:

    - "all hold" needs every constraint accepted. If it is wrong, some constraint fails and was accepted, and that
      happens with probability at most δ_k. So every constraint is accepted at its full δ_k: no splitting.
    - "not all hold" needs one constraint rejected. If it is wrong, any of the K may have been the one. So each is
      rejected at δ_k / K, and the whole errs with probability at most the mean of the δ_k.

    `bayes` makes no statement about error rates, and thresholds each posterior as the paper does.

    Args:
        method: a name in `METHODS`; in `MEAN_METHODS`, too, if a constraint is about an expected value.
        requirement: what must hold.
        spans: where the values of its expectations lie, one after the other.
        max_episodes: there will be no more than so many.
        share: see above.
        **options: of the method.
    """
    from psyco._src.logic.ast import Constraint

    kind = METHODS[method]
    split = max(len(requirement.constraints), 1) if kind.error_rate else 1
    left = iter(spans)
    tests: list[Test | MeanTest] = []
    for constraint in requirement.constraints:
        delta = share * (1.0 - constraint.confidence)
        levels: dict[str, Any] = {
            "false_accept": delta,
            "false_reject": delta / split,
            "max_episodes": max_episodes,
        }
        if isinstance(constraint, Constraint):
            tests.append(make_test(method, constraint, **levels, **options))
        else:
            tests.append(make_mean_test(method, mean_task(constraint, next(left), **levels), **options))
    return tests


def mean_task(stated: Expectation | Question, span: ValueRange, **levels: Any) -> MeanTask:
    """What is asked about an expected value whose episodes lie in `span`; nothing is, by a question."""
    from psyco._src.verification.base import MeanTask

    bounds = {name: getattr(stated, name) for name in ("lower", "upper") if hasattr(stated, name)}
    return MeanTask(span.lo, span.hi, steps=span.steps, **bounds, **levels)


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
    from psyco._src.verification.base import Task

    kind = METHODS[method]
    check_has(method, "option", options, method_options(method))
    delta = 1.0 - constraint.confidence
    task = Task(
        constraint,
        delta if false_accept is None else false_accept,
        delta if false_reject is None else false_reject,
        max_episodes,
    )
    test: Test = kind(task, **options)
    return test


def make_mean_test(method: str, task: MeanTask, **options: Any) -> MeanTest:
    """Set a method up for one task about a mean."""
    if method in METHODS and method not in MEAN_METHODS:
        raise RunError(
            f"the method {method!r} tests probabilities only; for expected values there are: {', '.join(MEAN_METHODS)}"
        )
    kind = MEAN_METHODS[method]
    check_has(method, "option", options, method_options(method, MEAN_METHODS))
    test: MeanTest = kind(task, **options)
    return test


def method_options(method: str, methods: Registry = METHODS) -> dict[str, Any]:
    """The options of a method and their defaults."""
    return {f.name: f.default for f in dataclasses.fields(methods[method]) if f.name != "task"}
