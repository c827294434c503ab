"""The file that a watch is kept in: what was counted, and how far the source was read, written down together.

It may come from a stranger, so everything in it is of the kind that it is declared to be here.
"""

from __future__ import annotations

import json
from itertools import repeat
from pathlib import Path
from types import EllipsisType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from psyco._src.core import atomic_io
from psyco._src.core.errors import MissingFileError, RunError
from psyco._src.core.safe_io import from_json, read_bytes
from psyco._src.field.drift import Drift
from psyco._src.field.field_test import Interval
from psyco._src.field.ingest import ReadPosition

FORMAT = "psyco-watch-session-1"
GAPS = 1000  # that are remembered


class EpisodeIds(NamedTuple):
    """Which episodes have been counted, where they have numbers."""

    first: int | None = None
    last: int | None = None
    missing: tuple[tuple[int, int], ...] = ()  # the first and the last number of each gap between these

    def after(self, number: int | None) -> tuple[EpisodeIds, bool, str]:
        """With one more episode: is it new, and what is odd about it?"""
        if number is None:
            return self, True, ""
        if self.first is None or self.last is None:
            return EpisodeIds(number, number), True, ""
        if number == self.last + 1:
            return self._replace(last=number), True, ""
        if number > self.last:
            gap = (self.last + 1, number - 1)
            which = f"episode {gap[0]} is" if gap[0] == gap[1] else f"episodes {gap[0]} to {gap[1]} are"
            more = (*self.missing, gap)[-GAPS:]
            return EpisodeIds(self.first, number, more), True, f"{which} missing; late ones are counted"
        late = f"episode {number} comes late; it is counted"
        if number < self.first:
            gaps = ((number + 1, self.first - 1),) if number + 1 < self.first else ()
            return EpisodeIds(number, self.last, (*gaps, *self.missing)[-GAPS:]), True, late
        for i, (first, last) in enumerate(self.missing):
            if first <= number <= last:
                rest = [gap for gap in ((first, number - 1), (number + 1, last)) if gap[0] <= gap[1]]
                missing = (*self.missing[:i], *rest, *self.missing[i + 1 :])
                return self._replace(missing=missing), True, late
        return self, False, f"episode {number} was counted before; it is not counted again"


class HistoryPoint(NamedTuple):
    """Where a watch stood, for every constraint."""

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
    """What is known besides what the watcher knows."""

    position: ReadPosition = ReadPosition()
    ids: EpisodeIds = EpisodeIds()
    stride: int = 1  # episodes between two points of the history
    history: tuple[HistoryPoint, ...] = ()
    alarms: tuple[AlarmRecord, ...] = ()
    drift: Drift = Drift()
    departed: tuple[int, ...] = ()  # inputs that have left their range


class WatchState(NamedTuple):
    """All that is kept."""

    format: str
    traces: bool  # as in `Session`
    policy: str | None  # the digest of what is watched
    watcher: dict[str, Any]  # for a `Watcher`, which checks it
    tail: str  # a hash of what stands before the position; "" for a stream
    progress: WatchProgress


def write_state(path: Path, state: WatchState) -> None:
    """Write it as a whole, or not at all."""
    content = _plain(state)
    atomic_io.write(path, json.dumps({**content, "checksum": _checksum(content)}).encode())


def read_state(path: Path) -> WatchState | None:
    """What `write_state` has written; None if there is no such file."""
    try:
        content = from_json(read_bytes(path, "state of a watch"), str(path))
    except MissingFileError:
        return None
    checksum = content.pop("checksum", None) if isinstance(content, dict) else None
    if checksum != _checksum(content):
        raise RunError(f"{path} is no state of a watch, or it is damaged; give another --state to begin anew")
    if content.get("format") != FORMAT:
        raise RunError(f"{path} has format {content.get('format')!r:.100}; this version reads {FORMAT!r}")
    try:
        state: WatchState = _of_kind(WatchState, content)
        position, ids, drift = state.progress.position, state.progress.ids, state.progress.drift
        if min(position.offset, position.line, state.progress.stride - 1) < 0:
            raise ValueError("a number below its least")
        if (ids.first is None) != (ids.last is None):
            raise ValueError("the first number of an episode without the last")
        if len({bool(drift.episodes), drift.states > 0.0, bool(drift.total)}) > 1 or len(drift.total) != len(
            drift.far
        ):
            raise ValueError("episodes without what was seen in them")
    except (TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error!s:.200}); give another --state to begin anew") from None
    return state


def _checksum(content: Any) -> str:
    return atomic_io.digest(json.dumps(content, sort_keys=True).encode())


def _plain(value: Any) -> Any:
    """Named tuples as objects."""
    if hasattr(value, "_asdict"):
        return {name: _plain(each) for name, each in value._asdict().items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _of_kind(kind: Any, value: Any) -> Any:
    """What `_plain` has made of something of this kind; TypeError or ValueError if it can't have."""
    parts, origin = get_args(kind), get_origin(kind)
    if origin is UnionType:  # or None
        return None if value is None else _of_kind(parts[0], value)
    if origin is tuple and isinstance(value, list):
        kinds = repeat(parts[0], len(value)) if isinstance(parts[-1], EllipsisType) else parts
        return tuple(_of_kind(each, entry) for each, entry in zip(kinds, value, strict=True))
    if hasattr(kind, "_fields") and isinstance(value, dict) and set(value) == set(kind._fields):
        hints = get_type_hints(kind)
        return kind(**{name: _of_kind(hints[name], entry) for name, entry in value.items()})
    if type(value) is (origin or kind) or (kind is float and type(value) is int):
        return float(value) if kind is float else value
    raise TypeError(f"{value!r:.100} in the place of {getattr(kind, '__name__', kind)}")
