"""Search ranges of a learner's options for `psyco tune`.

Each learner declares them beside its options:

    learning_rate: float = option(0.03, "Learning rate.", above=0.0, search=NumberRange(0.003, 0.3, log=True))

Every combination of values in the ranges must make a learner. An option without a range is searched only on request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from psyco._src.core.errors import RunError
from psyco._src.core.options import Declaration

MIN_LOG_RATIO = 10.0  # a given range is logarithmic from this ratio of its ends on, if the option declares none


@dataclass(frozen=True)
class NumberRange:
    """An interval of numbers, both ends included; whole numbers if the option is one.

    Args:
        low: the smaller end.
        high: the larger end.
        log: search on a logarithmic scale.
    """

    low: float
    high: float
    log: bool = False

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{', logarithmic' * self.log}"


@dataclass(frozen=True, init=False)
class OptionChoice:
    """A finite set of values."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))


Ranges: TypeAlias = Mapping[str, NumberRange | OptionChoice]


def read_range(text: str, option: Declaration) -> NumberRange | OptionChoice:
    """Return the range that a text such as `0.01:0.3` or `10,20,40` states for an option."""
    name = option.name
    if found := re.fullmatch(r"([^:,]+):([^:,]+)", text):
        low, high = map(option.read, found.groups())
        if option.kind not in (int, float) or not low < high:
            raise RunError(f"{name}={text} is not allowed: a range has two numbers, the smaller first, as in 0.01:0.3")
        declared_log = isinstance(option.search, NumberRange) and option.search.log
        wide = low > 0 and high >= MIN_LOG_RATIO * low
        return NumberRange(low, high, log=low > 0 and (declared_log or (wide and option.search is None)))
    values = tuple(map(option.read, text.split(",")))
    if len(values) < 2 or len(set(values)) < len(values):
        raise RunError(
            f"{name}={text} is not allowed: give a range, as in {name}=0.01:0.3, or at least two different values, "
            f"as in {name}=10,20; a single value is given by --option {name}=..."
        )
    return OptionChoice(*values)
