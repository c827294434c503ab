"""Checks that every domain makes of its parameters."""

from __future__ import annotations

import math

from psyco._src.errors import DomainError


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
