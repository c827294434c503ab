"""Words in messages that depend on numbers."""

from __future__ import annotations


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: `1 episode`, `1,204 episodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
