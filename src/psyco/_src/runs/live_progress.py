"""`progress.json`: what a run does at this moment, for its live page; it is deleted when the run ends."""

from __future__ import annotations

import json
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.core.files import from_json, read_bytes
from psyco._src.rollout.episodes import Episodes
from psyco._src.runs.train import RunProgress

PROGRESS = "progress.json"
WRITE_EVERY = 0.25  # seconds


class LiveProgress:
    """Callbacks that write phase, progress, and the outcomes of the current look to a file, a few times per second."""

    def __init__(self, path: Path) -> None:
        self.path, self.due = path, 0.0
        self.phase: dict[str, Any] = {}
        self.satisfied: NDArray[np.int64] | None = None  # [K], of the current look
        self.episodes = 0  # of the current look

    def on_progress(self, progress: RunProgress) -> None:
        """Note the phase."""
        new = progress.phase != self.phase.get("phase")
        self.phase = progress._asdict()
        self._write(at_once=new)

    def on_look(self, first: int, episodes: Episodes) -> None:
        """Count the outcomes of a batch of episodes of a look; `first` is the index of its first episode."""
        if not first:
            self.satisfied, self.episodes = None, 0
        counted = np.asarray(episodes.satisfied).sum(axis=0, dtype=np.int64)
        self.satisfied = counted if self.satisfied is None else self.satisfied + counted
        self.episodes += len(episodes.returns)
        self._write()

    def __enter__(self) -> LiveProgress:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _write(self, *, at_once: bool = False) -> None:
        if not at_once and time.monotonic() < self.due:
            return
        self.due = time.monotonic() + WRITE_EVERY
        counts = [] if self.satisfied is None else [[s, self.episodes - s] for s in self.satisfied.tolist()]
        # Not `files.write`: it waits for the disk, and after a crash it is of no use.
        with suppress(OSError):
            temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}.tmp")
            with temporary.open("x", encoding="utf-8") as file:
                json.dump({**self.phase, "counts": counts}, file)
            temporary.replace(self.path)


class Moment(NamedTuple):
    """What a run does."""

    phase: str
    done: int
    total: int
    unit: str
    counts: tuple[tuple[int, int], ...]  # satisfying and violating episodes of the current look, by constraint


def load_progress(folder: Path) -> Moment | None:
    """Return what a run does, from the file in its folder; None if there is none or if it cannot be read."""
    try:
        content = from_json(read_bytes(folder / PROGRESS, "progress", inside=folder), PROGRESS)
        phase, unit = (str(content[name])[:60] for name in ("phase", "unit"))
        counts = tuple((max(0, int(s)), max(0, int(v))) for s, v in content["counts"])
        return Moment(phase, int(content["done"]), int(content["total"]), unit, counts)
    except (RunError, KeyError, TypeError, ValueError):
        return None
