"""The registry: method name -> test for one constraint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psyco.errors import RunError
from psyco.spec.formula import Constraint
from psyco.verification.base import Test
from psyco.verification.bayes import Bayes

METHODS: dict[str, Callable[..., Test]] = {
    "bayes": Bayes,
}


def make_test(method: str, constraint: Constraint, **options: Any) -> Test:
    """Set a method up for one constraint."""
    if method not in METHODS:
        raise RunError(f"unknown verification method {method!r}; there are: {', '.join(METHODS)}")
    return METHODS[method](constraint, **options)
