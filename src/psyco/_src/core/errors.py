"""All exceptions of PSyCo, so that `except PsycoError` suffices at a boundary, and helpers for their messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple

EXCERPT_WIDTH = 100  # characters of a source line shown around the caret
MAX_MESSAGE_LENGTH = 1000  # characters of a message from user or third-party code


class SourceLocation(NamedTuple):
    """Position in a text, with the source line for error messages."""

    line: int  # from 1
    column: int  # from 1
    source: str  # the whole line

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"

    def excerpt(self) -> str:
        """Return the source line with a caret under the column; a long line is cut around the caret."""
        start = max(0, min(self.column - 1 - EXCERPT_WIDTH // 2, len(self.source) - EXCERPT_WIDTH))
        shown = self.source[start : start + EXCERPT_WIDTH].replace("\t", " ").rstrip()
        return f"  {shown}\n  {' ' * (self.column - 1 - start)}^"


class PsycoError(Exception):
    """Base class of all errors of this package."""


class RequirementError(PsycoError):
    """A requirement or formula that cannot be parsed, or that does not fit its domain."""

    def __init__(self, problem: str, location: SourceLocation | None = None, advice: str = "") -> None:
        lines = [problem] if location is None else [f"{problem} at {location}:", location.excerpt()]
        super().__init__("\n".join(lines + [advice] * bool(advice)))
        self.location = location

    @property
    def line(self) -> int | None:
        """Line of the offending text, from 1; None if there is no text."""
        return self.location and self.location.line

    @property
    def column(self) -> int | None:
        """Column of the offending text, from 1; None if there is no text."""
        return self.location and self.location.column


class DomainError(PsycoError):
    """A domain that does not exist, has wrong parameters, or breaks its protocol."""


class RunError(PsycoError):
    """A run that cannot start, continue or be read, or another failed operation."""


class MissingFileError(RunError):
    """A file that does not exist."""


class ArgumentError(PsycoError, TypeError):
    """An unknown argument of a function."""


class EpisodeError(RunError):
    """An episode that failed because of its environment or an external policy."""

    def __init__(self, environment: str, seed: int, step: int, problem: str) -> None:
        where = f"at step {step}" if step else "in reset"
        super().__init__(f"{environment}, episode with seed {seed}, {where}: {problem}")
        self.environment, self.seed, self.step, self.problem = environment, seed, step, problem

    def __reduce__(self) -> tuple[type, tuple[str, int, int, str]]:
        return EpisodeError, (self.environment, self.seed, self.step, self.problem)


class RangeError(RunError, ValueError):
    """A value outside of the range stated to a test of its mean."""

    def __init__(self, position: int, value: float, range_text: str) -> None:
        super().__init__(
            f"value {position} (the first is 0) is {value!r}, outside of the stated range {range_text}; "
            "the test of a mean is sound only for values in their range, so state a wider one"
        )
        self.position, self.value = position, value


def format_exception(error: BaseException) -> str:
    """Return e.g. `ZeroDivisionError: division by zero` for an exception from user or third-party code."""
    try:
        text = str(error)
    except Exception:  # its `__str__` is foreign code, too
        text = "(its message cannot be printed)"
    short = text if len(text) <= MAX_MESSAGE_LENGTH else f"{text[:MAX_MESSAGE_LENGTH]}..."
    return f"{type(error).__name__}: {short}"


def suggest(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean ...?)` for a misspelt word, or an empty text."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_known(kind: str, word: str, known: Iterable[str]) -> None:
    """Raise RunError for an unknown word: `unknown learner 'snse' (did you mean 'snes'?)`."""
    if word not in (words := list(known)):
        raise RunError(f"unknown {kind} {word!r}{suggest(str(word), words)}; there are: {', '.join(words)}")


def check_has(
    owner: str,
    kind: str,
    given: Iterable[str],
    known: Iterable[str],
    error: type[PsycoError] = RunError,
) -> None:
    """Raise an error for unknown names: `safe-es has no option 'alfa' (did you mean 'alpha'?)`."""
    words = list(known)
    for word in given:
        if word not in words:
            has = f"it has: {', '.join(words)}" if words else "it has none"
            raise error(f"{owner} has no {kind} {word!r}{suggest(str(word), words)}; {has}")
