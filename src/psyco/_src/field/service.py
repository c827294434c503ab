"""A watch over a file or a stream, which survives interruptions.

The evidence is saved together with the position in the source: after every piece of the source, and after the consumer
of an alarm has asked for the next event. A kill at any moment loses no outcome and counts none twice; an alarm that was
not handled is raised again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec

from psyco._src.core import files
from psyco._src.core.codec import decode, encode
from psyco._src.core.errors import MissingFileError, RunError
from psyco._src.core.files import from_json, read_bytes, read_part
from psyco._src.field.drift import Drift, Reference
from psyco._src.field.field_test import Alarm, FieldTest, Interval
from psyco._src.field.ingest import EPISODE_COLUMN, IncomingEpisode, ReadPosition, parse_outcomes, parse_traces
from psyco._src.runs.lock import lock_file
from psyco._src.verification.certificate import now

# The state file of a watch: the evidence, together with the position up to which the source was read.
#
# The file may come from a stranger, so every field is validated.


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
    files.write(path, json.dumps({**content, "checksum": _checksum(content)}).encode())


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
    return files.digest(json.dumps(content, sort_keys=True).encode())


STREAM_NAME = "the input"
READ_BYTES = 2**16  # per read
MAX_EPISODE_BYTES = 2**30
TAIL_BYTES = 4096  # before the position, whose hash identifies the source
MAX_HISTORY_POINTS = 200
MAX_ALARMS = 100  # the latest ones are kept
POLL_SECONDS = 0.25  # between two reads at the end of a followed file

ShouldStop: TypeAlias = Callable[[float], bool]  # waits at most this many seconds; returns whether to stop


class FieldEvent(NamedTuple):
    """A message about the watch."""

    kind: Literal["alarm", "recovery", "warning", "note", "progress"]
    line: int  # of the source
    text: str
    alarm: Alarm | None = None


@dataclass
class WatchSession:
    """A field test that is fed from a source.

    Args:
        field_test: counts the outcomes.
        traces: episodes come as traces, whose outcomes are computed first; else as outcomes.
        state: the state file; None: no state is kept.
        reference: the observations of the policy at certification.
    """

    field_test: FieldTest
    traces: bool = False
    state: Path | None = None
    reference: Reference | None = None
    progress: WatchProgress = field(default_factory=WatchProgress)
    saved: WatchProgress | None = None  # in the state file
    # Hash of the bytes before the position; "" for a stream, None before the first read.
    tail: str | None = None
    # The bytes of a file that were read last, and their offset.
    buffer: bytes = b""
    buffer_offset: int = 0

    def set_reference(self, reference: Reference | None) -> None:
        """Look for drift from the observations at certification, if those are known."""
        if reference is not None and len(self.progress.drift.total) not in (0, len(reference.mean)):
            raise RunError(f"{self.state} is damaged: its drift is that of another policy; begin a new one")
        self.reference = reference

    # ---- sources ----

    def read_file(self, path: Path, *, follow: bool, should_stop: ShouldStop) -> Iterator[FieldEvent]:
        """Read a file from the position of the state.

        Args:
            path: the file.
            follow: wait for more at the end of the file.
            should_stop: waits, and says when to stop.
        """
        yield from self._saving(self._read_file(path, follow, should_stop), path)

    def _read_file(self, path: Path, follow: bool, should_stop: ShouldStop) -> Iterator[FieldEvent]:
        if self.tail == "":
            raise RunError(
                f"{self.state} has counted a stream: it is not known which of its episodes are also in {path}. "
                "Continue with the stream, give a new --state, or say --new-file if none are"
            )
        size = READ_BYTES
        while not should_stop(0.0):
            before = self.progress.position
            data = self._read(path, size)
            at_end = len(data) < size
            # Without a state nothing continues from here, so an incomplete end is counted too.
            complete = at_end and not follow and self.state is None
            for episode in self._parse(data, before, str(path), at_end=complete):
                yield from self._count(episode, path)
                if should_stop(0.0):
                    return
            self.save(path)
            self.tail = self._tail()
            if self.progress.position != before:
                size = READ_BYTES
                yield self._progress_event()
            elif not at_end:
                size *= 2
                if size > MAX_EPISODE_BYTES:
                    raise RunError(
                        f"line {before.line + 1} of {path}: an episode has at most {MAX_EPISODE_BYTES:,} bytes"
                    )
            elif follow:
                should_stop(POLL_SECONDS)
            else:
                if data:
                    what = "episode" if self.traces else "line"
                    text = f"the last {what} is not complete: not counted yet"
                    yield FieldEvent("warning", before.line + 1, text)
                return

    def _read(self, path: Path, size: int) -> bytes:
        """Return the next bytes; RunError where the file is not the one that was read so far."""
        offset = self.progress.position.offset
        known = min(offset, TAIL_BYTES)
        data = read_part(path, "recording", offset - known, known + size)
        if len(data) < known:
            raise RunError(
                f"{path} has become shorter: {offset:,} bytes of it were read. If it is a new file, a rotated log for "
                "example, say --new-file; episodes with numbers are counted once even so"
            )
        if self.tail is not None and files.digest(data[:known]) != self.tail:
            raise RunError(
                f"{path} is not the file that was followed: its content before byte {offset:,} differs. "
                "Give that file, a new --state, or --new-file"
            )
        self.buffer, self.buffer_offset = data, offset - known
        return data[known:]

    def _tail(self) -> str:
        """Return the hash of the bytes before the position in the file."""
        end = self.progress.position.offset - self.buffer_offset
        return files.digest(self.buffer[max(end - TAIL_BYTES, 0) : end])

    def read_stream(self, pieces: Iterable[bytes], *, should_stop: ShouldStop) -> Iterator[FieldEvent]:
        """Read a stream to its end; its episodes have numbers, or it begins with those counted before."""
        yield from self._saving(self._read_stream(pieces, should_stop), None)

    def _read_stream(self, pieces: Iterable[bytes], should_stop: ShouldStop) -> Iterator[FieldEvent]:
        if self.tail:
            raise RunError(f"{self.state} has followed a file; continue with that file, or give a new --state")
        buffer, position = b"", ReadPosition()
        counted, repeated, skipping = self.field_test.episodes, 0, True
        for piece in chain(pieces, [None]):
            if piece is None and should_stop(0.0):
                return
            buffer += piece or b""
            start = position.offset
            for episode in self._parse(buffer, position, STREAM_NAME, at_end=piece is None):
                position = episode.position
                if episode.outcome is not None and skipping:
                    is_new = repeated >= counted if episode.id is None else self.progress.ids.add(episode.id)[1]
                    if not is_new:
                        repeated += 1
                        continue
                    skipping = False
                    if repeated:
                        text = f"the first {repeated:,} episodes were counted before"
                        yield FieldEvent("note", episode.line, text)
                yield from self._count(episode, None)
                if should_stop(0.0):
                    return
            buffer = buffer[position.offset - start :]
            self.save(None)
            yield self._progress_event()
        if skipping and repeated < counted and self.progress.ids.last is None:
            raise RunError(
                f"{STREAM_NAME} has {repeated:,} episodes, {counted:,} were counted before: a stream without numbers "
                f"(a column or key {EPISODE_COLUMN!r}) begins with the episodes that were counted; give all of it, or "
                "a new --state"
            )

    def _saving(self, events: Iterator[FieldEvent], source: Path | None) -> Iterator[FieldEvent]:
        """Yield the events; save at the end and after an error in the input.

        An exception in the consumer (GeneratorExit here) does not save: its alarm must be raised again.
        """
        try:
            yield from events
        except RunError:
            self.save(source)
            raise
        self.save(source)

    def _progress_event(self) -> FieldEvent:
        in_alarm = "in alarm" if self.field_test.in_alarm else "no alarm"
        text = f"{self.field_test.episodes:,} episodes: {in_alarm}"
        return FieldEvent("progress", self.progress.position.line, text)

    # ---- episodes ----

    def _parse(self, data: bytes, start: ReadPosition, origin: str, *, at_end: bool) -> Iterator[IncomingEpisode]:
        parse = parse_traces if self.traces else parse_outcomes
        return parse(data, start, self.field_test.constraints, origin, at_end=at_end)

    def _count(self, episode: IncomingEpisode, source: Path | None) -> Iterator[FieldEvent]:
        """Count one episode; the progress changes as a whole, before the events are yielded."""
        progress = self.progress._replace(position=episode.position)
        events: list[FieldEvent] = []
        if episode.problem:
            events.append(FieldEvent("warning", episode.line, episode.problem))
        elif episode.outcome is not None:
            ids, is_new, problem = progress.ids.add(episode.id)
            progress = progress._replace(ids=ids)
            if problem:
                events.append(FieldEvent("warning", episode.line, problem))
            if is_new:
                self._check_observations(episode, source)  # before anything is counted
                try:
                    alarm = self.field_test.update(episode.outcome)
                except RunError as error:
                    raise RunError(f"line {episode.line} of {source or STREAM_NAME}: {error}") from None
                progress = self._with_history(progress, alarm, episode.line)
                if alarm is not None:
                    kind: Literal["alarm", "recovery"] = "alarm" if alarm.lost else "recovery"
                    events.append(FieldEvent(kind, episode.line, str(alarm), alarm))
                if self.reference is not None and episode.observations is not None:
                    drift = progress.drift.update(self.reference, episode.observations)
                    drifted = drift.drifted(self.reference)
                    new = drifted.keys() - set(progress.drifted)
                    events += [FieldEvent("warning", episode.line, drifted[i]) for i in sorted(new)]
                    progress = progress._replace(drift=drift, drifted=tuple(drifted))
        self.progress = progress
        yield from events
        if any(event.alarm for event in events):
            self.save(source)

    def _with_history(self, progress: WatchProgress, alarm: Alarm | None, line: int) -> WatchProgress:
        """Return the progress with the alarm and a point of the history, which is thinned out where it gets long."""
        if alarm is not None:
            record = AlarmRecord(alarm.episode, alarm.lost, alarm.recovered, line, now())
            progress = progress._replace(alarms=(*progress.alarms, record)[-MAX_ALARMS:])
        if alarm is None and self.field_test.episodes % progress.stride:
            return progress
        history = (*progress.history, self.current_point())
        if len(history) <= MAX_HISTORY_POINTS:
            return progress._replace(history=history)
        return progress._replace(history=history[::2], stride=2 * progress.stride)

    def current_point(self) -> HistoryPoint:
        """Return the current point of the history."""
        test = self.field_test
        return HistoryPoint(test.episodes, test.intervals, tuple(evidence.lost for evidence in test.evidence))

    def _check_observations(self, episode: IncomingEpisode, source: Path | None) -> None:
        """Raise RunError where observations have another size: they are those of another policy."""
        if self.reference is not None and episode.observations is not None:
            have, want = episode.observations.shape[1], len(self.reference.mean)
            if have != want:
                raise RunError(
                    f"line {episode.line} of {source or STREAM_NAME}: an observation has {have} entries, the policy "
                    f"was certified with {want}"
                )

    # ---- the state ----

    def save(self, source: Path | None) -> None:
        """Write the state file, if the progress has changed."""
        if self.state is None or self.progress is self.saved:
            return
        position = ReadPosition() if source is None else self.progress.position
        tail = "" if source is None else self._tail()
        progress = self.progress._replace(position=position)
        policy = _policy(self.field_test)
        write_state(self.state, WatchState(self.traces, policy, self.field_test.state, tail, progress))
        self.saved = self.progress


def lock_state(state: Path | None) -> AbstractContextManager[None]:
    """Keep other processes from using the same state file."""
    return nullcontext() if state is None else lock_file(state.with_name(f".{state.name}.lock"), state)


def open_session(
    make_test: Callable[[dict[str, Any] | None], FieldTest],
    *,
    traces: bool,
    state: Path | None,
    new_file: bool = False,
) -> WatchSession:
    """Begin a watch, or continue that of a state file.

    Args:
        make_test: makes the field test, from the state of an earlier one or None.
        traces: as in `WatchSession`.
        state: as in `WatchSession`.
        new_file: the source is another file than that of the state, and is read from its beginning.
    """
    found = None if state is None else read_state(state)
    if found is None:
        return WatchSession(make_test(None), traces, state)
    field_test = make_test(found.field_test)
    if found.policy != _policy(field_test):
        raise RunError(
            f"{state} was begun with the certificate of another policy, sha256:{str(found.policy)[:16]}; a new "
            "policy needs a new --state"
        )
    if found.traces != traces:
        kind = "--traces" if found.traces else "--outcomes"
        raise RunError(f"{state} was begun with {kind}; continue with that, or give a new --state")
    progress, count = found.progress, len(field_test.constraints)
    if any((len(point.intervals), len(point.lost)) != (count, count) for point in progress.history):
        raise RunError(f"{state} is damaged: its history is that of other constraints; begin a new one")
    if new_file:
        progress = progress._replace(position=ReadPosition())
    tail = None if new_file else found.tail
    return WatchSession(field_test, traces, state, progress=progress, saved=progress, tail=tail)


def _policy(field_test: FieldTest) -> str | None:
    """Return the digest of the certified policy; None without a certificate."""
    return None if field_test.certificate is None else field_test.certificate.policy
