"""A watch that survives: what was counted is written down together with how far the source was read.

The state is saved after every piece of the source, and after whoever is told of an alarm has dealt with it. So a kill
at any moment loses no outcome and counts none twice; an alarm that was not yet dealt with is raised again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from psyco._src.core import atomic_io
from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import read_part
from psyco._src.field.drift import Reference
from psyco._src.field.field_test import Alarm, FieldTest
from psyco._src.field.ingest import EPISODE, IncomingEpisode, ReadPosition, outcomes, traces
from psyco._src.field.watch_state import (
    FORMAT,
    AlarmRecord,
    HistoryPoint,
    WatchProgress,
    WatchState,
    read_state,
    write_state,
)
from psyco._src.runs.lock import lock_file
from psyco._src.verification.certificate import now

INPUT = "the input"  # what a stream is called
PIECE = 2**16  # bytes that are read at a time
LARGEST = 2**30  # bytes of one episode
TAIL = 4096  # bytes before the position by which a source is known again
POINTS = 200  # of the interval over time
ALARMS = 100  # that are listed
POLL = 0.25  # seconds between two looks at a file that is followed

Stop: TypeAlias = Callable[[float], bool]  # waits so many seconds, or less; should the watch end?


class FieldEvent(NamedTuple):
    """What somebody should know."""

    kind: Literal["alarm", "recovery", "warning", "note", "progress"]
    line: int  # of the source
    text: str
    alarm: Alarm | None = None


BEGINNING = WatchProgress()


@dataclass
class WatchSession:
    """One process that watches.

    Args:
        watcher: counts the outcomes.
        traces: episodes arrive as signals that are judged first.
        state: the file that everything is kept in; None: nothing is kept.
        reference: what the policy saw when it was certified.
    """

    watcher: FieldTest
    traces: bool = False
    state: Path | None = None
    reference: Reference | None = None
    progress: WatchProgress = BEGINNING
    saved: WatchProgress | None = None  # what the file holds
    # A hash of what stands before the position; "" for a stream, None if nothing was read yet.
    tail: str | None = None
    piece: bytes = b""  # of a file, what was read last,
    begin: int = 0  # from this byte on

    def refer_to(self, reference: Reference | None) -> None:
        """Look for drift from what the policy saw when it was certified, if that is known."""
        if reference is not None and len(self.progress.drift.total) not in (0, len(reference.mean)):
            raise RunError(f"{self.state} is damaged: its drift is that of another policy; begin a new one")
        self.reference = reference

    # ---- sources ----

    def follow(self, path: Path, *, on: bool, stop: Stop) -> Iterator[FieldEvent]:
        """Read a file from where the state left it.

        Args:
            path: of the file.
            on: go on when its end is reached, and wait for more.
            stop: says when to end.
        """
        yield from self._kept(self._follow(path, on, stop), path)

    def _follow(self, path: Path, on: bool, stop: Stop) -> Iterator[FieldEvent]:
        if self.tail == "":
            raise RunError(
                f"{self.state} has counted a stream: which of its episodes are in {path}, too, nobody knows. Go on "
                "with the stream, give a new --state, or say --new-file if none are"
            )
        size = PIECE
        while not stop(0.0):
            before = self.progress.position
            data = self._read(path, size)
            at_end = len(data) < size
            # Without a state nobody comes back for what is not complete, so it is taken as it is.
            whole = at_end and not on and self.state is None
            for arrival in self._arrivals(data, before, str(path), whole=whole):
                yield from self._take(arrival, path)
                if stop(0.0):
                    return
            self.save(path)
            self.tail = self._tail()
            if self.progress.position != before:
                size = PIECE
                yield self._going()
            elif not at_end:
                size *= 2
                if size > LARGEST:
                    raise RunError(
                        f"line {before.line + 1} of {path}: more than {LARGEST:,} bytes are no episode"
                    )
            elif on:
                stop(POLL)
            else:
                if data:
                    what = "episode" if self.traces else "line"
                    yield FieldEvent(
                        "warning", before.line + 1, f"the last {what} is not complete: not counted yet"
                    )
                return

    def _read(self, path: Path, size: int) -> bytes:
        """What comes next, if the file is still the one that was read so far."""
        offset = self.progress.position.offset
        known = min(offset, TAIL)
        data = read_part(path, "recording", offset - known, known + size)
        if len(data) < known:
            raise RunError(
                f"{path} has become shorter: {offset:,} bytes of it were read. If it is a new file, a rotated log for "
                "example, say --new-file; episodes with numbers are counted once even so"
            )
        if self.tail is not None and atomic_io.digest(data[:known]) != self.tail:
            raise RunError(
                f"{path} is not the file that was followed: what stands before byte {offset:,} differs. "
                "Give that file, a new --state, or --new-file"
            )
        self.piece, self.begin = data, offset - known
        return data[known:]

    def _tail(self) -> str:
        """A hash of what stands before the position in the file."""
        end = self.progress.position.offset - self.begin
        return atomic_io.digest(self.piece[max(end - TAIL, 0) : end])

    def listen(self, pieces: Iterable[bytes], *, stop: Stop) -> Iterator[FieldEvent]:
        """Read a stream to its end. It has numbers for its episodes, or else begins with those counted before."""
        yield from self._kept(self._listen(pieces, stop), None)

    def _listen(self, pieces: Iterable[bytes], stop: Stop) -> Iterator[FieldEvent]:
        if self.tail:
            raise RunError(f"{self.state} has followed a file; go on with that file, or give a new --state")
        buffer, position = b"", ReadPosition()
        before, again, fresh = self.watcher.episodes, 0, False
        for piece in chain(pieces, [None]):
            if piece is None and stop(0.0):
                return
            buffer += piece or b""
            start = position.offset
            for arrival in self._arrivals(buffer, position, INPUT, whole=piece is None):
                position = arrival.position
                if arrival.outcome is not None and not fresh:
                    new = again >= before if arrival.id is None else self.progress.ids.after(arrival.id)[1]
                    if not new:
                        again += 1
                        continue
                    fresh = True
                    if again:
                        text = f"the first {again:,} episodes were counted before"
                        yield FieldEvent("note", arrival.line, text)
                yield from self._take(arrival, None)
                if stop(0.0):
                    return
            buffer = buffer[position.offset - start :]
            self.save(None)
            yield self._going()
        if not fresh and again < before and self.progress.ids.last is None:
            raise RunError(
                f"{INPUT} has {again:,} episodes, {before:,} were counted before: without numbers (a column or key "
                f"{EPISODE!r}) a stream begins with what was counted; give all of it, or a new --state"
            )

    def _kept(self, events: Iterator[FieldEvent], source: Path | None) -> Iterator[FieldEvent]:
        """The same; at the end, also at a bad one, what is known is written down.

        But not if whoever is told breaks down: then an alarm is not dealt with, and has to be raised again.
        """
        try:
            yield from events
        except RunError:
            self.save(source)
            raise
        self.save(source)

    def _going(self) -> FieldEvent:
        in_alarm = "in alarm" if self.watcher.in_alarm else "no alarm"
        return FieldEvent(
            "progress", self.progress.position.line, f"{self.watcher.episodes:,} episodes: {in_alarm}"
        )

    # ---- episodes ----

    def _arrivals(
        self, data: bytes, start: ReadPosition, origin: str, *, whole: bool
    ) -> Iterator[IncomingEpisode]:
        read = traces if self.traces else outcomes
        return read(data, start, self.watcher.watched, origin, whole=whole)

    def _take(self, arrival: IncomingEpisode, source: Path | None) -> Iterator[FieldEvent]:
        """Count one episode; what is known changes as a whole, and is then told."""
        progress = self.progress._replace(position=arrival.position)
        events: list[FieldEvent] = []
        if arrival.problem:
            events.append(FieldEvent("warning", arrival.line, arrival.problem))
        elif arrival.outcome is not None:
            ids, new, problem = progress.ids.after(arrival.id)
            progress = progress._replace(ids=ids)
            if problem:
                events.append(FieldEvent("warning", arrival.line, problem))
            if new:
                self._check_inputs(arrival, source)  # before anything is counted
                try:
                    alarm = self.watcher.update(arrival.outcome)
                except RunError as error:
                    raise RunError(f"line {arrival.line} of {source or INPUT}: {error}") from None
                progress = self._recorded(progress, alarm, arrival.line)
                if alarm is not None:
                    kind: Literal["alarm", "recovery"] = "alarm" if alarm.lost else "recovery"
                    events.append(FieldEvent(kind, arrival.line, str(alarm), alarm))
                if self.reference is not None and arrival.seen is not None:
                    drift = progress.drift.updated(self.reference, arrival.seen)
                    departed = drift.departed(self.reference)
                    fresh = departed.keys() - set(progress.departed)
                    events += [FieldEvent("warning", arrival.line, departed[i]) for i in sorted(fresh)]
                    progress = progress._replace(drift=drift, departed=tuple(departed))
        self.progress = progress
        yield from events
        if any(event.alarm for event in events):
            self.save(source)

    def _recorded(self, progress: WatchProgress, alarm: Alarm | None, line: int) -> WatchProgress:
        """The history, thinned out where it gets long, and the list of alarms."""
        if alarm is not None:
            happened = AlarmRecord(alarm.episode, alarm.lost, alarm.recovered, line, now())
            progress = progress._replace(alarms=(*progress.alarms, happened)[-ALARMS:])
        if alarm is None and self.watcher.episodes % progress.stride:
            return progress
        history = (*progress.history, self.point())
        if len(history) <= POINTS:
            return progress._replace(history=history)
        return progress._replace(history=history[::2], stride=2 * progress.stride)

    def point(self) -> HistoryPoint:
        """Where the watch stands, for the history."""
        watcher = self.watcher
        return HistoryPoint(watcher.episodes, watcher.intervals, tuple(kept.lost for kept in watcher.known))

    def _check_inputs(self, arrival: IncomingEpisode, source: Path | None) -> None:
        """An observation of another size is one of another policy."""
        if self.reference is not None and arrival.seen is not None:
            have, want = arrival.seen.shape[1], len(self.reference.mean)
            if have != want:
                raise RunError(
                    f"line {arrival.line} of {source or INPUT}: an observation has {have} entries, the policy was "
                    f"certified with {want}"
                )

    # ---- the state ----

    def save(self, source: Path | None) -> None:
        """Write down what is known, if it has changed."""
        if self.state is None or self.progress is self.saved:
            return
        position = ReadPosition() if source is None else self.progress.position
        tail = "" if source is None else self._tail()
        certificate = self.watcher.certificate
        policy = None if certificate is None else certificate.policy
        progress = self.progress._replace(position=position)
        write_state(self.state, WatchState(FORMAT, self.traces, policy, self.watcher.state, tail, progress))
        self.saved = self.progress


def held(state: Path | None) -> AbstractContextManager[None]:
    """Nobody else may use the same state meanwhile."""
    return nullcontext() if state is None else lock_file(state.with_name(f".{state.name}.lock"), state)


def open_session(
    make: Callable[[dict[str, Any] | None], FieldTest],
    *,
    traces: bool,
    state: Path | None,
    new_file: bool = False,
) -> WatchSession:
    """Begin a watch, or go on with that of a state.

    Args:
        make: the watcher, from the state of an earlier one or None.
        traces: as in `Session`.
        state: as in `Session`.
        new_file: the source is another one than that of the state, and is read from its beginning.
    """
    kept = None if state is None else read_state(state)
    if kept is None:
        return WatchSession(make(None), traces, state)
    watcher = make(kept.watcher)
    if kept.policy != (watcher.certificate and watcher.certificate.policy):
        raise RunError(
            f"{state} was begun with the certificate of another policy, sha256:{str(kept.policy)[:16]}; a new "
            "policy needs a new --state"
        )
    if kept.traces != traces:
        kind = "--traces" if kept.traces else "--outcomes"
        raise RunError(f"{state} was begun with {kind}; go on with that, or give a new --state")
    progress, count = kept.progress, len(watcher.watched)
    if any((len(point.intervals), len(point.lost)) != (count, count) for point in progress.history):
        raise RunError(f"{state} is damaged: its history is that of other constraints; begin a new one")
    if new_file:
        progress = progress._replace(position=ReadPosition())
    tail = None if new_file else kept.tail
    return WatchSession(watcher, traces, state, progress=progress, saved=progress, tail=tail)
