"""Checks of parameters and seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from psyco._src.core.errors import DomainError, RunError, check_has

KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
MOST = 10_000_000  # steps of an episode, or other things that a domain counts: a file must not ask for all memory


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
        if value > MOST:
            raise DomainError(f"{domain}: {name} can be at most {MOST:,}, got {value:,}")


def check_kinds(domain: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse parameters that a domain does not have, or of another kind than their defaults are of."""
    check_has(domain, "parameter", given, defaults, error=DomainError)
    for name, value in given.items():
        kind = type(defaults[name])
        if kind in KINDS and type(value) not in ((int, float) if kind is float else (kind,)):
            raise DomainError(f"{domain}: {name} must be {KINDS[kind]}, got {value!r}")


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
