"""Requirements without formulas, for outcomes that somebody else has judged."""

from __future__ import annotations

import re

from psyco._src.logic.ast import Requirement
from psyco._src.logic.parser import parse

# A probability with nothing to speak of.
_BARE = re.compile(
    r"\bP\s*(?:=\s*\?|(?:>=|<=|>|<|≥|≤)\s*[\d.eE+-]+|in\s*\[[^\[\]]*\])(?=\s*(?:&|∧|and\b|;|$))"
)


def outcome_requirement(text: str) -> Requirement:
    """A requirement in which `P>=0.85` may stand without a formula, for outcomes that somebody else has judged."""
    return parse(_BARE.sub(lambda bound: f'{bound[0]} [ "satisfied" ]', text))
