"""A key that this user has on this machine, for files that nobody else may have written."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path

from psyco._src.core import atomic_io
from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import read_bytes

SIZE = 32  # bytes


@cache
def secret() -> bytes:
    """The key, made on first use; where it cannot be kept, one for this process alone."""
    with suppress(RunError, OSError, RuntimeError):  # there may be no home
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        path = Path(base) / "psyco" / "key"
        with suppress(RunError):
            if len(found := read_bytes(path, "key")) == SIZE:
                return found
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = secrets.token_bytes(SIZE)
        atomic_io.write(path, made)
        path.chmod(0o600)
        return made
    return secrets.token_bytes(SIZE)
