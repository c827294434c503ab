"""The colours of verdicts, for terminals and for pages."""

from __future__ import annotations

from typing import NamedTuple

from psyco._src.verification.base import Verdict


class VerdictColour(NamedTuple):
    """The colours of a verdict: legible on every background, distinguishable for the colour-blind."""

    terminal: str
    light: str  # on a light page
    dark: str  # on a dark page


COLOURS = {
    Verdict.SATISFIED: VerdictColour("green", "#00795a", "#3ecfa2"),
    Verdict.VIOLATED: VerdictColour("red", "#b8400a", "#ff8a5c"),
    Verdict.UNDECIDED: VerdictColour("yellow", "#8a6100", "#e9b949"),
    Verdict.ANSWERED: VerdictColour("blue", "#1f5fa8", "#7fb4f0"),
}
# CSS variables --satisfied, --violated, --undecided, --answered, for light and dark pages.
CSS = "".join(f"--{v.name.lower()}:light-dark({c.light},{c.dark});" for v, c in COLOURS.items())


def terminal_colour(verdict: str) -> str:
    """Return the terminal colour of a verdict's name; empty for other words."""
    return COLOURS[Verdict[verdict]].terminal if verdict in Verdict.__members__ else ""
