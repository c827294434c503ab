"""Every error PSyCo raises on purpose, so that `except PsycoError` is enough at a boundary."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple

_WIDTH = 100  # characters of a source line that are shown around the caret


class SourceLocation(NamedTuple):
    """Where something stands in a text; it carries its source line, so an error can show it at any later time."""

    line: int  # from 1
    column: int  # from 1
    source: str  # the whole line

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"

    def picture(self) -> str:
        """The source line with a caret under the place; a long line is cut to what surrounds the caret."""
        start = max(0, min(self.column - 1 - _WIDTH // 2, len(self.source) - _WIDTH))
        shown = self.source[start : start + _WIDTH].replace("\t", " ").rstrip()
        return f"  {shown}\n  {' ' * (self.column - 1 - start)}^"


class PsycoError(Exception):
    """The parent of all errors of this package."""


class RequirementError(PsycoError):
    """A requirement or formula that cannot be read, or that does not fit what it is used on."""

    def __init__(self, problem: str, place: SourceLocation | None = None, advice: str = "") -> None:
        lines = [problem] if place is None else [f"{problem} at {place}:", place.picture()]
        super().__init__("\n".join(lines + [advice] * bool(advice)))
        self.place = place

    @property
    def line(self) -> int | None:
        """Line of the offending text, from 1; None where no text is known."""
        return self.place and self.place.line

    @property
    def column(self) -> int | None:
        """Column of the offending text, from 1; None where no text is known."""
        return self.place and self.place.column


class DomainError(PsycoError):
    """A domain that does not exist, is set up wrongly, or breaks its own protocol."""


class RunError(PsycoError):
    """A run that cannot start, go on, or be read back."""


class MissingFileError(RunError):
    """A file that is not there."""


class ArgumentError(PsycoError, TypeError):
    """An argument that a function does not have."""


class EpisodeError(RunError):
    """An episode that could not be played to its end, because of its environment or of a policy from elsewhere."""

    def __init__(self, environment: str, seed: int, step: int, problem: str) -> None:
        where = f"at step {step}" if step else "in reset"
        super().__init__(f"{environment}, episode with seed {seed}, {where}: {problem}")
        self.environment, self.seed, self.step, self.problem = environment, seed, step, problem

    def __reduce__(self) -> tuple[type, tuple[str, int, int, str]]:
        return EpisodeError, (self.environment, self.seed, self.step, self.problem)


class RangeError(RunError, ValueError):
    """A value outside of the range that a test of its mean was told."""

    def __init__(self, position: int, value: float, range_text: str) -> None:
        super().__init__(
            f"value {position} (the first is 0) is {value!r}, outside of the stated range {range_text}; "
            "the test of a mean is sound only for values in their range, so state a wider one"
        )
        self.position, self.value = position, value


# ---- errors of others -------------------------------------------------------------------------------------------

_LONGEST = 1000  # characters of what others say


def told(error: BaseException) -> str:
    """`ZeroDivisionError: division by zero`: what a stranger's code raised, even if that cannot be printed."""
    try:
        text = str(error)
    except Exception:  # its `__str__` is a stranger's, too
        text = "(what it says cannot be printed)"
    return f"{type(error).__name__}: {text if len(text) <= _LONGEST else f'{text[:_LONGEST]}...'}"


# ---- misspelt words ---------------------------------------------------------------------------------------------


def suggest(word: str, known: Iterable[str]) -> str:
    """` (did you mean ...?)` for a misspelt word, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_known(kind: str, word: str, known: Iterable[str]) -> None:
    """Refuse a word that is not one of the known ones: `unknown learner 'snse' (did you mean 'snes'?)`."""
    if word not in (words := list(known)):
        raise RunError(f"unknown {kind} {word!r}{suggest(str(word), words)}; there are: {', '.join(words)}")


def check_has(
    owner: str,
    kind: str,
    given: Iterable[str],
    known: Iterable[str],
    error: type[PsycoError] = RunError,
) -> None:
    """Refuse what its owner does not have: `safe-es has no option 'alfa' (did you mean 'alpha'?)`."""
    words = list(known)
    for word in given:
        if word not in words:
            has = f"it has: {', '.join(words)}" if words else "it has none"
            raise error(f"{owner} has no {kind} {word!r}{suggest(str(word), words)}; {has}")
