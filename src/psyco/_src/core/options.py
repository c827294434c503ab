"""One declaration per setting: type, default, range and one line of help, in the metadata of a dataclass field.

    @dataclass(frozen=True, kw_only=True)
    class PPO:
        clip: float = option(0.2, "clipping range of the probability ratio", above=0.0)

`declared(PPO)` lists these declarations. The command line, the configuration file, the reference pages and the search
space of `psyco tune` are generated from that list or checked against it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from typing import Any, TypeAlias

from psyco._src.core.errors import PsycoError, RunError, check_known

KEY = "psyco"  # of a declaration in the metadata of a dataclass field
# The type of a setting -> the abstract type of accepted values, and its name in messages.
KINDS: dict[type, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
}


@dataclass(frozen=True)
class Declaration:
    """The declaration of one setting."""

    name: str
    default: Any  # None: chosen automatically
    help: str  # one line
    kind: type | None  # bool, int, float or str; None: checked by the class itself
    minimum: float | None  # values may be equal to it
    above: float | None  # values must be larger
    maximum: float | None
    below: float | None
    choices: tuple[str, ...]
    search: Any  # the range that `psyco tune` searches; None: not searched by default
    group: str  # heading on the command line

    def check(self, value: Any, *, error: type[PsycoError] = RunError) -> Any:
        """Return the value as a plain Python object; raise `error` with the allowed values otherwise."""
        if value is None and self.default is None:
            return None
        if self.kind is None:
            return value
        accepted, _ = KINDS[self.kind]
        if not isinstance(value, accepted) or isinstance(value, bool) != (self.kind is bool):
            raise error(f"{self.name} must be {self.expected}, got {value!r}")
        if self.choices:
            check_known(self.name, value, self.choices)
            return value
        if self.kind in (int, float) and not self._within(value):
            raise error(f"{self.name} must be {self.expected}, got {value!r}")
        return self.kind(value)

    @property
    def expected(self) -> str:
        """The accepted values in words, as in "a whole number of at least 1"."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return f"{KINDS[self.kind][1] if self.kind else 'a value'}{self._limits}"

    def read(self, text: str) -> Any:
        """Return the value that a text stands for, checked; raise `RunError` where it is of another type."""
        word = text.strip()
        try:
            if self.kind is bool:
                return {"true": True, "false": False}[word.lower()]
            value = word if self.kind is None else self.kind(word)
        except (KeyError, ValueError):
            called = KINDS[self.kind][1] if self.kind else ""
            raise RunError(f"{self.name} must be {called}{self._limits}, got {word!r}") from None
        return self.check(value)

    def _within(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
            and (self.below is None or value < self.below)
        )

    @property
    def _limits(self) -> str:
        words = {
            "of at least": self.minimum,
            "above": self.above,
            "of at most": self.maximum,
            "below": self.below,
        }
        said = [f"{word} {limit:g}" for word, limit in words.items() if limit is not None]
        return f" {' and '.join(said)}" if said else ""


def option(
    default: Any,
    help: str,
    *,
    kind: type | None = None,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    choices: Sequence[str] = (),
    search: Any = None,
    group: str = "",
) -> Any:
    """Declare a dataclass field.

    Args:
        default: the value where none is given; None means that it is chosen automatically.
        help: one line for help texts and reference pages.
        kind: bool, int, float or str; by default the type of `default`.
        minimum: the smallest value.
        above: a limit that values must exceed.
        maximum: the largest value.
        below: a limit that values must stay below.
        choices: the accepted words.
        search: the range that `psyco tune` searches.
        group: heading on the command line.
    """
    found = kind or (type(default) if type(default) in KINDS else None)
    declaration = Declaration("", default, help, found, minimum, above, maximum, below, tuple(choices), search, group)
    return dataclasses.field(default=default, metadata={KEY: declaration})


def declared(cls: Any) -> Mapping[str, Declaration]:
    """Return the declarations of a dataclass, by field name; those of the class itself come before inherited ones."""
    return _declarations(cls if isinstance(cls, type) else type(cls))


@cache
def _declarations(cls: type) -> Mapping[str, Declaration]:
    order = {name: place for place, name in enumerate(cls.__annotations__)}
    fields = sorted(dataclasses.fields(cls), key=lambda field: order.get(field.name, len(order)))
    return {
        field.name: dataclasses.replace(field.metadata[KEY], name=field.name)
        for field in fields
        if KEY in field.metadata
    }


def check_declared(instance: Any, *, error: type[PsycoError] = RunError) -> None:
    """Check every declared field of a frozen dataclass; call it from `__post_init__`."""
    for name, declaration in declared(instance).items():
        object.__setattr__(instance, name, declaration.check(getattr(instance, name), error=error))


def changed(instance: Any) -> dict[str, Any]:
    """Return the declared fields whose value differs from the default."""
    return {
        name: getattr(instance, name)
        for name, declaration in declared(instance).items()
        if getattr(instance, name) != declaration.default
    }


# Search ranges of a learner's options for `psyco tune`.
#
# Each learner declares them beside its options:
#
#     learning_rate: float = option(0.03, "Learning rate.", above=0.0, search=NumberRange(0.003, 0.3, log=True))
#
# Every combination of values in the ranges must make a learner. An option without a range is searched only on request.


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
