"""Checks of domain parameters, seeds and counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from psyco._src.core.errors import DomainError, RunError, check_has

TYPE_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
# Largest horizon or other count of a domain. A config file of unknown origin must not claim all memory.
MAX_COUNT = 10_000_000
MAX_SEED = 2**31 - 1


def check_positive(domain: str, **values: float) -> None:
    """Raise DomainError unless all values are positive finite numbers."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DomainError(f"{domain}: {name} must be a number, got {value!r}")
        if not (value > 0 and math.isfinite(value)):
            raise DomainError(f"{domain}: {name} must be positive, got {value!r}")


def check_whole(domain: str, **values: int) -> None:
    """Raise DomainError unless all values are whole numbers from 1 to `MAX_COUNT`."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DomainError(f"{domain}: {name} must be a whole number of at least 1, got {value!r}")
        if value > MAX_COUNT:
            raise DomainError(f"{domain}: {name} can be at most {MAX_COUNT:,}, got {value:,}")


def check_parameters(domain: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise DomainError for an unknown parameter, or a value of another type than the parameter's default."""
    check_has(domain, "parameter", given, defaults, error=DomainError)
    for name, value in given.items():
        kind = type(defaults[name])
        if kind in TYPE_WORDS and type(value) not in ((int, float) if kind is float else (kind,)):
            raise DomainError(f"{domain}: {name} must be {TYPE_WORDS[kind]}, got {value!r}")


def check_seed(seed: int) -> int:
    """Return the seed as an int, if it fits a JAX key on every platform; else raise RunError."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= seed <= MAX_SEED:
        raise RunError(f"a seed is a whole number from 0 to {MAX_SEED}, got {seed!r}")
    return int(seed)


def check_count(name: str, value: int, minimum: int = 1) -> int:
    """Return a count, e.g. of episodes, as an int; raise RunError if it is below `minimum`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise RunError(f"{name} must be a whole number of at least {minimum}, got {value!r}")
    return int(value)
