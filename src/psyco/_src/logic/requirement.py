"""Requirements from user input: a Requirement, its text, or the path of its file."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from psyco._src.core.errors import RequirementError, RunError
from psyco._src.core.files import read_text
from psyco._src.logic.ast import Requirement

AnyRequirement: TypeAlias = Requirement | str | Path

REQUIREMENT_SUFFIXES = (".props", ".prop", ".pctl", ".txt")  # text with such an ending is a file name

_PROBABILITY_WITHOUT_FORMULA = re.compile(
    r"\bP\s*(?:=\s*\?|(?:>=|<=|>|<|≥|≤)\s*[\d.eE+-]+|in\s*\[[^\[\]]*\])"
    r"(?:\s+in\s+[\d.]+\s*%\s*of\s+(?:all\s+)?environments)?(?=\s*(?:&|∧|and\b|;|$))"
)


def as_requirement(requirement: AnyRequirement, parser: Callable[[str], Requirement] | None = None) -> Requirement:
    """Return a requirement given as such, as text, or as a file; `parser` replaces `parse`."""
    if isinstance(requirement, Requirement):
        return requirement
    if not isinstance(requirement, str | Path):
        raise RequirementError(f"{requirement!r} is not a requirement; give its text, or the name of a file")
    # Imported here because the parser takes longer to load than everything else in `psyco.runtime`.
    from psyco._src.logic.parser import parse

    text = str(requirement)
    if isinstance(requirement, Path) or _is_file(requirement):
        try:
            text = read_text(requirement, "requirement")
        except RunError as error:
            raise RequirementError(str(error)) from None
    return (parser or parse)(text)


def with_min_return(requirement: Requirement, least: float) -> Requirement:
    """Return the requirement with a constraint: an episode returns at least this much with probability 0.5 or more.

    A bound on the mean return can be tested only where the range of the return is known.
    """
    from psyco._src.logic.parser import parse

    if not math.isfinite(least):
        raise RequirementError(f"a least return is a finite number, got {least}")
    if not requirement.goal.maximize:
        raise RequirementError(
            "a least return does not fit the goal to minimise the return",
            advice=f'give a largest one as a constraint, as in P>=0.5 [ F ("end" & return <= {least:g}) ]',
        )
    further = parse(f'P>=0.5 [ F ("end" & return >= {least!r}) ]').constraints
    return Requirement(requirement.goal, (*requirement.constraints, *further), requirement.questions)


def outcome_requirement(text: str) -> Requirement:
    """Parse a requirement for recorded outcomes: `P>=0.85` may stand without a formula."""
    from psyco._src.logic.parser import parse

    found = parse(_PROBABILITY_WITHOUT_FORMULA.sub(lambda bound: f'{bound[0]} [ "satisfied" ]', text))
    for stated in (*found.constraints, *found.questions):
        if (group := stated.for_each) is not None:
            advice = "write a property for every agent, as many as there are columns of outcomes"
            raise RequirementError(f"how many agents {group.name} stands for is not known here", group.location, advice)
    return found


def _is_file(text: str) -> bool:
    """Return whether a text names a file, readable or not."""
    if text.strip().endswith(REQUIREMENT_SUFFIXES):
        return True
    try:
        return not Path(text).is_dir() and Path(text).exists()  # also a pipe, which `read_text` refuses
    except PermissionError:
        return True
    except (OSError, ValueError):  # too long for a file name, or with characters that are not allowed in one
        return False
