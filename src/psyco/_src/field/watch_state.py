"""The state file of a watch: the evidence, together with the position up to which the source was read.

The file may come from a stranger, so every field is validated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from psyco._src.core import atomic_io
from psyco._src.core.codec import decode, encode
from psyco._src.core.errors import MissingFileError, RunError
from psyco._src.core.safe_io import from_json, read_bytes
from psyco._src.field.drift import Drift
from psyco._src.field.field_test import Interval
from psyco._src.field.ingest import ReadPosition

STATE_FORMAT = "psyco-watch-session-1"
MAX_GAPS = 1000  # the latest gaps in the episode numbers are kept


class EpisodeIds(NamedTuple):
    """The numbers of the episodes that have been counted, where episodes have numbers."""

    first: int | None = None
    last: int | None = None
    missing: tuple[tuple[int, int], ...] = ()  # first and last number of each gap between those two

    def add(self, number: int | None) -> tuple[EpisodeIds, bool, str]:
        """Return the numbers with one more episode, whether it is new, and a warning about it, if any."""
        if number is None:
            return self, True, ""
        if self.first is None or self.last is None:
            return EpisodeIds(number, number), True, ""
        if number == self.last + 1:
            return self._replace(last=number), True, ""
        if number > self.last:
            gap = (self.last + 1, number - 1)
            which = f"episode {gap[0]} is" if gap[0] == gap[1] else f"episodes {gap[0]} to {gap[1]} are"
            missing = (*self.missing, gap)[-MAX_GAPS:]
            return EpisodeIds(self.first, number, missing), True, f"{which} missing; late ones are counted"
        late = f"episode {number} comes late; it is counted"
        if number < self.first:
            gaps = ((number + 1, self.first - 1),) if number + 1 < self.first else ()
            return EpisodeIds(number, self.last, (*gaps, *self.missing)[-MAX_GAPS:]), True, late
        for i, (first, last) in enumerate(self.missing):
            if first <= number <= last:
                rest = [gap for gap in ((first, number - 1), (number + 1, last)) if gap[0] <= gap[1]]
                missing = (*self.missing[:i], *rest, *self.missing[i + 1 :])
                return self._replace(missing=missing), True, late
        return self, False, f"episode {number} was counted before; it is not counted again"


class HistoryPoint(NamedTuple):
    """The intervals and alarms of all constraints after an episode."""

    episode: int
    intervals: tuple[Interval, ...]
    lost: tuple[bool, ...]


class AlarmRecord(NamedTuple):
    """An alarm or a recovery."""

    episode: int
    lost: tuple[str, ...]
    recovered: tuple[str, ...]
    line: int
    time: str


class WatchProgress(NamedTuple):
    """The progress of a watch, without the evidence of its field test."""

    position: ReadPosition = ReadPosition()
    ids: EpisodeIds = EpisodeIds()
    stride: Annotated[int, msgspec.Meta(ge=1)] = 1  # episodes between two points of the history
    history: tuple[HistoryPoint, ...] = ()
    alarms: tuple[AlarmRecord, ...] = ()
    drift: Drift = Drift()
    drifted: tuple[int, ...] = ()  # inputs that have drifted


class WatchState(NamedTuple):
    """The content of a state file."""

    traces: bool  # as in `WatchSession`
    policy: str | None  # digest of the policy
    field_test: dict[str, Any]  # `FieldTest.state`, which `FieldTest` validates
    tail: str  # hash of the bytes before the position; "" for a stream
    progress: WatchProgress


def write_state(path: Path, state: WatchState) -> None:
    """Write a state file atomically."""
    content = {"format": STATE_FORMAT, **encode(state)}
    atomic_io.write(path, json.dumps({**content, "checksum": _checksum(content)}).encode())


def read_state(path: Path) -> WatchState | None:
    """Return the content of a state file; None where there is none."""
    try:
        content = from_json(read_bytes(path, "state of a watch"), str(path))
    except MissingFileError:
        return None
    checksum = content.pop("checksum", None) if isinstance(content, dict) else None
    if checksum != _checksum(content):
        raise RunError(f"{path} is no state of a watch, or it is damaged; give another --state to begin anew")
    if (found := content.pop("format", None)) != STATE_FORMAT:
        raise RunError(f"{path} has format {found!r:.100}; this version reads {STATE_FORMAT!r}")
    state = decode(content, WatchState, str(path))
    ids, drift = state.progress.ids, state.progress.drift
    if (ids.first is None) != (ids.last is None):
        raise RunError(f"{path} is damaged: it has only one of the first and the last episode number")
    counted = {bool(drift.episodes), drift.states > 0.0, bool(drift.total)}
    if len(counted) > 1 or len(drift.total) != len(drift.far):
        raise RunError(f"{path} is damaged: the sums of its observations do not fit each other")
    return state


def _checksum(content: Any) -> str:
    return atomic_io.digest(json.dumps(content, sort_keys=True).encode())
