"""Outward rounding of printed numbers: a printed bound or error rate never claims more than was shown."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_EXACT = Context(prec=400)  # holds every finite float with some digits behind the point


def percent(rate: float) -> str:
    """Return an error rate in percent, rounded up to three digits: 2%, 0.1%."""
    return f"{_percentage(rate).normalize():f}%"


def confidence_percent(level: float) -> str:
    """Return a confidence 1 - δ in percent, rounded down: 98.66%."""
    return f"{(100 - _percentage(1.0 - level)).normalize():f}%"


def rounded_down(p: float, digits: int = 4) -> str:
    """Return a lower bound with `digits` decimals."""
    return _rounded(p, digits, ROUND_FLOOR)


def rounded_up(p: float, digits: int = 4) -> str:
    """Return an upper bound with `digits` decimals."""
    return _rounded(p, digits, ROUND_CEILING)


def _rounded(p: float, digits: int, way: str) -> str:
    if not math.isfinite(p):
        return str(p)
    return format(Decimal(str(p)).quantize(Decimal(10) ** -digits, way, _EXACT), "f")


def _percentage(rate: float) -> Decimal:
    # Seven digits first: 1 - 0.98 is a little more than 0.02.
    return Context(prec=3, rounding=ROUND_CEILING).create_decimal(f"{100 * rate:.7g}")
