"""Registry of verification methods, and the split of the permitted error among constraints and looks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psyco._src.core.errors import RunError, check_has
from psyco._src.core.lazy_registry import Registry

if TYPE_CHECKING:  # the method names are available without importing NumPy
    from psyco._src.envs.value_bounds import ValueRange
    from psyco._src.logic.ast import Constraint, Expectation, Question, Requirement
    from psyco._src.verification.base import MeanTask, MeanTest, Test

# Each is a frozen dataclass with the field `task`, and options with defaults.
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
CVAR_METHODS = Registry(
    "verification method for CVaR",
    {
        "anytime": "verification.cvar:BettingCVaR",
        "bayes": "verification.cvar:BayesCVaR",
        "fixed": "verification.cvar:FixedCVaR",
    },
)
DEFAULT_METHOD = "anytime"
DEFAULT_MAX_EPISODES = 10_000  # of a certificate
# Of a plan or a calibration: that takes seconds, and four times as long at twice the cap.
LARGEST_CAP = 20_000


def make_tests(
    method: str,
    requirement: Requirement,
    *,
    value_ranges: Sequence[ValueRange] = (),
    max_episodes: int | None = None,
    share: float = 1.0,
    **options: Any,
) -> list[Test | MeanTest]:
    """Return one test per constraint, with levels that make the joint verdict as reliable as a single one.

    With δ_k = 1 - c_k for constraint k of K, scaled by `share`, the fraction of the error that this look may use:

    - "all hold" needs every constraint accepted. If it is wrong, some constraint fails and was accepted, and that
      happens with probability at most δ_k. So every constraint is accepted at its full δ_k: no splitting.
    - "not all hold" needs one constraint rejected. If it is wrong, any of the K may have been rejected. So each is
      rejected at δ_k / K, and the joint error probability is at most the mean of the δ_k.

    `bayes` has no error rates, and thresholds each posterior as the paper does.

    Args:
        method: a name in `METHODS`; in `MEAN_METHODS`, too, if a constraint is about an expected value.
        requirement: the requirement under test.
        value_ranges: ranges of the values of its expectations, in their order.
        max_episodes: maximum number of episodes; None if unknown.
        share: fraction of the permitted error.
        **options: options of the method.
    """
    from psyco._src.logic.ast import Constraint

    kind = METHODS[method]
    split = max(len(requirement.constraints), 1) if kind.error_rate else 1
    ranges = iter(value_ranges)
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
            tests.append(make_mean_test(method, mean_task(constraint, next(ranges), **levels), **options))
    return tests


def mean_task(stated: Expectation | Question, value_range: ValueRange, **levels: Any) -> MeanTask:
    """Return the task of an expectation or a question; a question has no bounds to test."""
    from psyco._src.verification.base import MeanTask

    bounds = {name: getattr(stated, name) for name in ("lower", "upper") if hasattr(stated, name)}
    cvar = getattr(stated.subject, "cvar", None)
    return MeanTask(value_range.lo, value_range.hi, steps=value_range.steps, cvar=cvar, **bounds, **levels)


def make_test(
    method: str,
    constraint: Constraint,
    *,
    max_episodes: int | None = None,
    false_accept: float | None = None,
    false_reject: float | None = None,
    **options: Any,
) -> Test:
    """Return the test of one constraint; the error rates default to one minus its confidence."""
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
    """Return the test of one task about a mean or a CVaR."""
    if method in METHODS and method not in MEAN_METHODS:
        raise RunError(
            f"the method {method!r} tests probabilities only; for expected values there are: {', '.join(MEAN_METHODS)}"
        )
    methods = MEAN_METHODS if task.cvar is None else CVAR_METHODS
    kind = methods[method]
    check_has(method, "option", options, method_options(method, methods))
    test: MeanTest = kind(task, **options)
    return test


def method_options(method: str, methods: Registry = METHODS) -> dict[str, Any]:
    """Return the options of a method and their defaults."""
    return {f.name: f.default for f in dataclasses.fields(methods[method]) if f.name != "task"}
