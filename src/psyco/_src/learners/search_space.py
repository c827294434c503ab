"""What is worth trying of a learner's options: each learner says it beside them, in its `ranges`, for `psyco tune`.

    ranges: ClassVar[Ranges] = {"alpha": Range(0.003, 0.3, log=True), "strategy": Choice("SNES", "PGPE"), **STEERED}

Every combination must make a learner. An option without a range is not searched unless somebody names it with one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from psyco._src.core.errors import RunError

FACTOR = 10.0  # ends that lie so far apart are searched by factors, where nobody says otherwise


@dataclass(frozen=True)
class NumberRange:
    """All numbers between two ends, both included; whole ones where the option is a whole number.

    Args:
        low: the smaller end.
        high: the larger one.
        log: by factors instead of by differences.
    """

    low: float
    high: float
    log: bool = False

    def __contains__(self, value: object) -> bool:
        return (
            isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high
        )

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{', by factors' * self.log}"


@dataclass(frozen=True, init=False)
class OptionChoice:
    """One of some values."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))


Ranges: TypeAlias = Mapping[str, NumberRange | OptionChoice]

# Of the learners that steer by episodes of their deployed policy.
STEERED: Ranges = {
    "margin": NumberRange(0.05, 0.7),
    "curriculum": NumberRange(0.0, 0.6),
    "gain": NumberRange(0.005, 1.0, log=True),
    "memory": NumberRange(20.0, 300.0, log=True),
}


def read_range(
    name: str, text: str, default: Any, declared: NumberRange | OptionChoice | None
) -> NumberRange | OptionChoice:
    """The range that somebody has typed: `0.01:0.3`, or values as in `10,20,40`.

    Args:
        name: of the option.
        text: what was typed.
        default: of the option, which says what kind it is of.
        declared: its range by the learner, if it has one, which says whether it goes by factors.
    """
    if found := re.fullmatch(r"([^:,]+):([^:,]+)", text):
        low, high = (_value(name, part, default) for part in found.groups())
        if isinstance(low, bool | str) or isinstance(high, bool | str) or not low < high:
            raise RunError(
                f"{name}={text} is not allowed: a range has two numbers, the smaller first, as in 0.01:0.3"
            )
        declared_log = isinstance(declared, NumberRange) and declared.log
        wide = low > 0 and high >= FACTOR * low
        return NumberRange(low, high, log=low > 0 and (declared_log or (wide and declared is None)))
    values = tuple(_value(name, part, default) for part in text.split(","))
    if len(values) < 2 or len(set(values)) < len(values):
        raise RunError(
            f"{name}={text} is not allowed: give a range, as in {name}=0.01:0.3, or two values or more that differ, "
            f"as in {name}=10,20; one value alone is for --option {name}=..."
        )
    return OptionChoice(*values)


def _value(name: str, text: str, default: Any) -> Any:
    """What a word means for an option of this kind."""
    word = text.strip()
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[word.lower()]
        return type(default)(word)
    except (KeyError, ValueError):
        kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
        raise RunError(f"{name}: {word!r} is not allowed; the option is {kinds[type(default)]}") from None
