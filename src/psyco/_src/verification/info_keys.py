"""Keys of `info` that an environment did not report: where one is missing it counts as 0, which must not go unsaid."""

from __future__ import annotations

from typing import Any

from psyco._src.core.errors import RequirementError, SourceLocation, suggest
from psyco._src.envs.base import Domain, signal_table
from psyco._src.envs.gym_env import INFO
from psyco._src.logic.ast import Label, Requirement, Signal, roots, walk
from psyco._src.logic.validate import subjects


def check_keys(requirement: Requirement, domain: Domain, absent: Any) -> list[str]:
    """Notes for the certificate on keys that were missing now and then; one that never appeared is an error.

    Args:
        requirement: whose `info.` signals are meant.
        domain: where the episodes took place.
        absent: the column of Episodes `[B, I]`; None if no formula names a key.
    """
    if absent is None:
        return []
    named = {
        node.name: node
        for subject in subjects(requirement)
        for tree in roots(subject)
        for node in walk(tree)
        if isinstance(node, Signal | Label) and node.name.startswith(INFO)
    }
    notes = []
    for key, parts in zip(sorted(named), absent.T, strict=True):
        nowhere, somewhere = int((parts == 1).sum()), int(((parts > 0) & (parts < 1)).sum())
        if nowhere == len(parts):
            raise unknown_key(domain, key, f"in none of the {len(parts):,} episodes", named[key].place)
        if nowhere or somewhere:
            found = [f"all states of {nowhere:,}"] * bool(nowhere) + [f"some of {somewhere:,}"] * bool(
                somewhere
            )
            notes.append(
                f"{key} was missing in {' and '.join(found)} of the {len(parts):,} episodes; where it is missing it "
                "counts as 0, or false."
            )
    return notes


def unknown_key(
    domain: Domain, key: str, where: str, place: SourceLocation | None = None
) -> RequirementError:
    """What to say of a key that was nowhere to be seen, with its place in the requirement."""
    known = [name for name in signal_table(domain) if name.startswith(INFO) and name != INFO]
    return RequirementError(
        f"{domain.name} reported {key} {where}{suggest(key, known)}",
        place,
        f"keys seen when it was tried out: {', '.join(known) or 'none'}; correct the name, or let the environment "
        "report the key: where it is missing it would count as 0, and nothing would be shown",
    )
