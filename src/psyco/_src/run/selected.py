"""What the selection has found so far, in one file, so that an interrupted one goes on where it was.

It decides about nothing but the order of candidates: a certificate rests on episodes of its own. So a file that is not
as it should be is not an error; its episodes are played again.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from psyco._src import durable
from psyco._src.errors import RunError
from psyco._src.reading import read_bytes
from psyco._src.run.folder import SELECTION

EVERY = 2.0  # seconds between two writings


class Selected:
    """Rows of episodes by policy, in a run's folder until it has finished; left by an error, as a context, it saves."""

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        self.path, self.due = folder / SELECTION, time.monotonic() + EVERY
        try:
            found = load(read_bytes(self.path, "selection", inside=folder))
        except (RunError, ValueError, KeyError, SafetensorError):
            found = {}
        self.rows: dict[str, NDArray[np.float64]] = {
            name: rows for name, rows in found.items() if rows.dtype == np.float64 and rows.ndim == 2
        }

    def __enter__(self) -> Selected:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # interrupted: the error that brought us here is what must be heard of
            with suppress(RunError):
                self.save()

    def get(self, digest: str) -> NDArray[np.float64] | None:
        """Those of a policy's first episodes `[n, 1 + C]`; None: there are none."""
        return self.rows.get(digest)

    def put(self, digest: str, rows: NDArray[np.float64]) -> None:
        """Keep them; written now and then, and when the selection is left."""
        self.rows[digest] = rows
        if time.monotonic() >= self.due:
            self.save()

    def save(self) -> None:
        """Write the file, if there is anything to write."""
        from safetensors.numpy import save

        if self.rows:
            durable.write(self.path, save(self.rows))
        self.due = time.monotonic() + EVERY

    def forget(self) -> None:
        """The run has finished: nobody needs them any more."""
        self.path.unlink(missing_ok=True)
