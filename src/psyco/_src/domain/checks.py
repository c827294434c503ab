"""Checks of parameters and seeds."""

from __future__ import annotations

import math
from numbers import Integral

from psyco._src.errors import DomainError, RunError


def check_positive(domain: str, **values: float) -> None:
    """Refuse parameters that are not positive finite numbers."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DomainError(f"{domain}: {name} must be a number, got {value!r}")
        if not (value > 0 and math.isfinite(value)):
            raise DomainError(f"{domain}: {name} must be positive, got {value!r}")


def check_whole(domain: str, **values: int) -> None:
    """Refuse parameters that are not positive whole numbers."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DomainError(f"{domain}: {name} must be a whole number of at least 1, got {value!r}")


def check_seed(seed: int) -> int:
    """Seeds are whole numbers that fit JAX's keys on every platform."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= seed < 2**31:
        raise RunError(f"a seed is a whole number from 0 to {2**31 - 1}, got {seed!r}")
    return int(seed)


def check_count(name: str, value: int, least: int = 1) -> int:
    """A number of episodes or the like, as a plain int."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise RunError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)
