"""Which code a domain is: a hash of its source, so that a certificate notices when the simulator changes."""

from __future__ import annotations

import hashlib
import inspect
from functools import cache
from typing import Any

from psyco._src.envs.base import Domain


def code_digest(domain: Domain) -> str | None:
    """SHA-256 of the source code of a domain's class; None where it cannot be found, as in a compiled module.

    A domain that is made of something else, such as an environment and its wrappers, names that in `sources`. What
    these import is not looked at.
    """
    return _digest(tuple(getattr(domain, "sources", (type(domain),))))


@cache
def _digest(sources: tuple[Any, ...]) -> str | None:
    try:
        texts = [inspect.getsource(each) for each in sources]
    except (OSError, TypeError):
        return None
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
