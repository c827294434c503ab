"""A requirement from whatever people hand over: itself, its text, or the file that holds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from psyco._src.core.errors import RequirementError, RunError
from psyco._src.core.safe_io import read_text
from psyco._src.logic.ast import Requirement

AnyRequirement: TypeAlias = Requirement | str | Path

FILES = (".props", ".prop", ".pctl", ".txt")  # a requirement with such an ending is a file's name


def as_requirement(
    requirement: AnyRequirement, parser: Callable[[str], Requirement] | None = None
) -> Requirement:
    """The requirement itself, its text, or the file that holds it."""
    if isinstance(requirement, Requirement):
        return requirement
    if not isinstance(requirement, str | Path):
        raise RequirementError(f"{requirement!r} is no requirement; give its text, or the name of a file")
    # Here, since a parser takes longer to load than everything else that `psyco.runtime` needs.
    from psyco._src.logic.parser import parse

    text = str(requirement)
    if isinstance(requirement, Path) or _is_file(requirement):
        try:
            text = read_text(requirement, "requirement")
        except RunError as error:
            raise RequirementError(str(error)) from None
    return (parser or parse)(text)


def _is_file(text: str) -> bool:
    """Does a text name a file? One that is there but can't be read does, too."""
    if text.strip().endswith(FILES):
        return True
    try:
        return not Path(text).is_dir() and Path(text).exists()  # a pipe, too: whoever reads it says so
    except PermissionError:
        return True
    except (OSError, ValueError):  # too long for a name, or with characters that no name has
        return False
