"""Which code of others may run: what the user has named, and never what only a file names."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from psyco._src.core.errors import DomainError

NOBODY: frozenset[str] = frozenset()


def names(trust: Collection[str]) -> set[str]:
    """What is trusted; a single name will do."""
    return {trust} if isinstance(trust, str) else set(trust)


def check_trust(needed: Sequence[str], trust: Collection[str]) -> None:
    """Refuse to import any `module:name` that the user has not named, itself or its whole module."""
    named = names(trust)
    missing = [code for code in needed if code not in named and code.partition(":")[0] not in named]
    if not missing:
        return
    if lost := [code for code in missing if code.startswith("__main__:") or "<" in code]:
        raise DomainError(
            f"{lost[0]} was made in a script or a notebook, and its name does not bring it back; "
            "give what it stands for: domain=... in Python, or --domain"
        )
    options = " ".join(f"--trust {code}" for code in missing)
    raise DomainError(
        f"this needs the Python code {', '.join(missing)}, and a file must not choose which code runs; "
        f"if you trust it, name it yourself: {options} (in Python: trust={missing!r})"
    )
