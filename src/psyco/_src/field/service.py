"""A watch over a file or a stream, which survives interruptions.

The evidence is saved together with the position in the source: after every piece of the source, and after the consumer
of an alarm has asked for the next event. A kill at any moment loses no outcome and counts none twice; an alarm that was
not handled is raised again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from psyco._src.core import files
from psyco._src.core.checks import check_count
from psyco._src.core.codec import decode, encode
from psyco._src.core.errors import MissingFileError, RunError
from psyco._src.core.files import from_json, read_bytes, read_part
from psyco._src.core.wording import plural
from psyco._src.field.arrival_order import ArrivalOrder, EpisodeIds, OrderState
from psyco._src.field.drift import ObservationSums, Reference
from psyco._src.field.field_test import Alarm, FieldTest, Interval
from psyco._src.field.ingest import UNSTATED, IncomingEpisode, OutcomeParser, Parser, ReadPosition, TraceParser
from psyco._src.runs.lock import lock_file
from psyco._src.verification.certificate import now
from psyco._src.verification.recorded_columns import DEFAULT_IN_FLIGHT, EPISODE, INDEX, Cut

# The state file of a watch: the evidence, together with the position up to which the source was read.
#
# The file may come from a stranger, so every field is validated.


STATE_FORMAT = "psyco-watch-session-2"


class HistoryPoint(NamedTuple):
    """The intervals and alarms of all constraints after an episode."""

    episode: int
    intervals: tuple[Interval, ...]
    lost: tuple[bool, ...]


class Snapshot:
    """The evidence after an episode. Its intervals are computed when they are shown or saved: most never are."""

    def __init__(self, test: FieldTest) -> None:
        self.episode, self.constraints, self.evidence = test.episodes, test.constraints, test.evidence

    @cached_property
    def point(self) -> HistoryPoint:
        """The point of the history."""
        pairs = list(zip(self.constraints, self.evidence, strict=True))
        intervals = tuple(constraint.interval(evidence) for constraint, evidence in pairs)
        return HistoryPoint(self.episode, intervals, tuple(evidence.lost for _, evidence in pairs))


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
    order: OrderState = OrderState()
    ids: EpisodeIds = EpisodeIds()
    stride: Annotated[int, msgspec.Meta(ge=1)] = 1  # episodes between two points of the history
    history: tuple[HistoryPoint, ...] = ()
    alarms: tuple[AlarmRecord, ...] = ()
    drift: ObservationSums = ObservationSums()
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
    files.write(path, json.dumps({**content, "checksum": files.json_digest(content)}).encode())


def read_state(path: Path) -> WatchState | None:
    """Return the content of a state file; None where there is none."""
    try:
        content = from_json(read_bytes(path, "state of a watch"), str(path))
    except MissingFileError:
        return None
    checksum = content.pop("checksum", None) if isinstance(content, dict) else None
    if checksum != files.json_digest(content):
        raise RunError(f"{path} is no state of a watch, or it is damaged; give another --state to begin anew")
    if (found := content.pop("format", None)) != STATE_FORMAT:
        raise RunError(f"{path} has format {found!r:.100}; this version reads {STATE_FORMAT!r}")
    state = decode(content, WatchState, str(path))
    ids, order, drift = state.progress.ids, state.progress.order, state.progress.drift
    if (ids.first is None) != (ids.last is None):
        raise RunError(f"{path} is damaged: it has only one of the first and the last episode number")
    held = [episode.number for episode in order.held]
    if order.next_index < order.first_index or held != sorted(set(held)) or (held and held[0] < order.next_index):
        raise RunError(f"{path} is damaged: the indices of the episodes that it holds back do not fit each other")
    counted = [episode.number for episode in order.counted]
    if counted != list(range(max(order.next_index - len(counted), order.first_index), order.next_index)):
        raise RunError(f"{path} is damaged: the indices of the episodes that it has counted do not fit each other")
    has_observations = {bool(drift.episodes), drift.states > 0.0, bool(drift.total)}
    if len(has_observations) > 1 or len(drift.total) != len(drift.far):
        raise RunError(f"{path} is damaged: the sums of its observations do not fit each other")
    return state


STREAM_NAME = "the input"
READ_BYTES = 2**16  # per read
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


class WatchSession:
    """A field test that is fed from a source.

    Args:
        field_test: counts the outcomes.
        traces: episodes come as traces, whose outcomes are computed first; else as outcomes.
        state: the state file; None: no state is kept.
        progress: of an earlier session.
        tail: hash of the bytes before the position of that session; "" for a stream, None where it is not known.
        in_flight: as in `ArrivalOrder`.
        cut: what a trace without an end is.
    """

    def __init__(
        self,
        field_test: FieldTest,
        traces: bool = False,
        state: Path | None = None,
        *,
        progress: WatchProgress = WatchProgress(),
        tail: str | None = None,
        in_flight: int = DEFAULT_IN_FLIGHT,
        cut: Cut = "error",
    ) -> None:
        self.field_test, self.traces, self.state, self.cut = field_test, traces, state, cut
        self.position, self.ids, self.order = progress.position, progress.ids, ArrivalOrder(progress.order, in_flight)
        self.stride, self.alarms = progress.stride, progress.alarms
        self.drift, self.drifted = progress.drift, progress.drifted
        self.reference: Reference | None = None  # observations of the policy at certification
        self.tail, self.tail_offset = tail, self.position.offset
        self.changed = True  # since the state was saved
        self.history: tuple[HistoryPoint | Snapshot, ...] = progress.history
        # The bytes of a file that were read last, and their offset.
        self.buffer, self.buffer_offset = b"", self.position.offset

    def set_reference(self, reference: Reference | None) -> None:
        """Look for drift from the observations at certification, if those are known."""
        if reference is not None and len(self.drift.total) not in (0, len(reference.mean)):
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
        yield from self._release(path)
        parser, read_to, tail = self._parser(self.position, str(path)), self.position.offset, self.tail
        while not should_stop(0.0):
            data = self._read(path, read_to, tail)
            read_to, tail = read_to + len(data), files.digest(self.buffer[-TAIL_BYTES:])
            at_end, before = len(data) < READ_BYTES, self.position
            # Without a state nothing continues from here, so an incomplete end is counted too.
            complete = at_end and not follow and self.state is None
            yield from self._count_all(parser.feed(data, at_end=complete), parser, path, should_stop)
            if should_stop(0.0):
                return
            self.save(path)
            # The next position may lie before the incomplete line, but not before the last complete one.
            unneeded = max(parser.lines.offset - TAIL_BYTES - self.buffer_offset, 0)
            self.buffer, self.buffer_offset = self.buffer[unneeded:], self.buffer_offset + unneeded
            if self.position != before:
                yield self._progress_event()
            if at_end and follow:
                should_stop(POLL_SECONDS)
            elif at_end:
                if parser.is_waiting:
                    what = "episode" if self.traces else "line"
                    text = f"the last {what} is not complete: not counted yet"
                    yield FieldEvent("warning", self.position.line + 1, text)
                yield from self._waiting_event()
                return

    def _read(self, path: Path, offset: int, tail: str | None) -> bytes:
        """Return the next bytes; RunError where the file is not the one whose bytes before `offset` have this hash."""
        known = min(offset, TAIL_BYTES)
        data = read_part(path, "recording", offset - known, known + READ_BYTES)
        if len(data) < known:
            raise RunError(
                f"{path} has become shorter: {offset:,} bytes of it were read. If it is a new file, a rotated log for "
                "example, say --new-file; episodes with numbers are counted once even so"
            )
        if tail is not None and files.digest(data[:known]) != tail:
            raise RunError(
                f"{path} is not the file that was followed: its content before byte {offset:,} differs. "
                "Give that file, a new --state, or --new-file"
            )
        if not self.buffer:
            self.buffer, self.buffer_offset = data[:known], offset - known
        self.buffer += data[known:]
        return data[known:]

    def _update_tail(self) -> str:
        """Return the hash of the bytes before the position in the file."""
        if self.tail is None or self.position.offset != self.tail_offset:
            end = self.position.offset - self.buffer_offset
            self.tail = files.digest(self.buffer[max(end - TAIL_BYTES, 0) : end])
            self.tail_offset = self.position.offset
        return self.tail

    def read_stream(self, pieces: Iterable[bytes], *, should_stop: ShouldStop) -> Iterator[FieldEvent]:
        """Read a stream to its end; its episodes have numbers, or it begins with those counted before."""
        yield from self._saving(self._read_stream(pieces, should_stop), None)

    def _read_stream(self, pieces: Iterable[bytes], should_stop: ShouldStop) -> Iterator[FieldEvent]:
        if self.tail:
            raise RunError(f"{self.state} has followed a file; continue with that file, or give a new --state")
        yield from self._release(None)
        parser = self._parser(ReadPosition(), STREAM_NAME)
        counted, repeated, first_new = self.field_test.episodes + len(self.order.held), 0, 0

        def further(episodes: Iterator[IncomingEpisode]) -> Iterator[IncomingEpisode]:
            """Leave out the episodes that were counted before."""
            nonlocal repeated, first_new
            for episode in episodes:
                if episode.values is not None and not first_new:
                    if not self._is_new(episode, repeated >= counted):
                        self.order.check_repetition(episode, STREAM_NAME)
                        repeated += 1
                        continue
                    first_new = episode.line
                yield episode

        for piece in chain(pieces, [None]):
            if piece is None and should_stop(0.0):
                return
            is_known = bool(first_new)
            episodes = further(parser.feed(piece or b"", at_end=piece is None))
            yield from self._count_all(episodes, parser, None, should_stop)
            if repeated and first_new and not is_known:
                yield FieldEvent("note", first_new, f"the first {repeated:,} episodes were counted before")
            if should_stop(0.0):
                return
            self.save(None)
            yield self._progress_event()
        yield from self._waiting_event()
        if not first_new and repeated < counted and self.ids.last is None and self.order.column != "index":
            raise RunError(
                f"{STREAM_NAME} has {repeated:,} episodes, {counted:,} were counted before: a stream without numbers "
                f"(a column or key {INDEX!r} or {EPISODE!r}) begins with the episodes that were counted; give all of "
                "it, or a new --state"
            )

    def _is_new(self, episode: IncomingEpisode, further: bool) -> bool:
        """Return whether an episode of a stream was not counted; without a number, if it comes after as many."""
        if episode.start.number is not None:
            return not self.order.is_counted(episode.start.number)
        return further if episode.id is None else self.ids.add(episode.id)[1]

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
        text = f"{plural(self.field_test.episodes, 'episode')}: {in_alarm}"
        return FieldEvent("progress", self.position.line, "; ".join(filter(None, [text, self.order.waiting])))

    def _waiting_event(self) -> Iterator[FieldEvent]:
        if self.order.waiting:
            yield FieldEvent("warning", self.position.line, self.order.waiting)

    # ---- episodes ----

    def _parser(self, start: ReadPosition, origin: str) -> Parser:
        if not self.traces:
            return OutcomeParser(start, self.field_test, origin)
        return TraceParser(start, self.field_test, origin, cut=self.cut, observations=self.reference is not None)

    def _count_all(
        self, episodes: Iterator[IncomingEpisode], parser: Parser, source: Path | None, should_stop: ShouldStop
    ) -> Iterator[FieldEvent]:
        """Count episodes until the watch is stopped; before an error in the input, all that came before it."""
        pending: list[IncomingEpisode] = []
        problem, room = None, self._room
        try:
            for episode in episodes:
                is_plain = episode.id is None and episode.start is UNSTATED and episode.observations is None
                if is_plain and episode.values is not None and self.order.column in (None, "line"):
                    pending.append(episode)
                    if len(pending) < room:
                        continue
                else:
                    yield from self._flush(pending, parser, source)
                    yield from self._arrive(episode, parser, source)
                yield from self._flush(pending, parser, source)
                room = self._room
                if should_stop(0.0):
                    break
        except RunError as error:
            problem = error
        yield from self._flush(pending, parser, source)
        yield from self._release(source)
        if problem is not None:
            raise problem

    @property
    def _room(self) -> int:
        """Number of episodes to the next point of the history."""
        return self.stride - self.field_test.episodes % self.stride

    def _flush(self, pending: list[IncomingEpisode], parser: Parser, source: Path | None) -> Iterator[FieldEvent]:
        """Count outcomes that come in the order in which they are counted, and forget them."""
        while pending:
            count, alarm = self.field_test.count([episode.values or [] for episode in pending])
            last = pending[count - 1]
            del pending[:count]
            self.order.note(last)
            self.position, self.changed = ReadPosition(last.offset, last.last_line, parser.header), True
            yield from self._record(alarm, last.line, source)

    def _arrive(self, episode: IncomingEpisode, parser: Parser, source: Path | None) -> Iterator[FieldEvent]:
        """Count an episode or hold it back; everything is checked before anything changes."""
        position = ReadPosition(episode.offset, episode.last_line, parser.header)
        if episode.values is None:
            self.position, self.changed = position, True
            if episode.problem:
                yield FieldEvent("warning", episode.line, episode.problem)
            return
        index = episode.start.number
        if index is None:
            ids, is_new, problem = self.ids.add(episode.id)
        else:
            ids, is_new = self.ids, not self.order.is_counted(index)
            self.order.check_repetition(episode, source or STREAM_NAME)
            problem = "" if is_new else self._repetition(index)
        alarm = None
        if is_new:
            self._check_observations(episode, source)
            self.order.check(episode, source or STREAM_NAME)
            if index is None:
                _, alarm = self.field_test.count([episode.values])
            else:
                self.order.hold(index, episode.line, tuple(episode.values))
            self.order.note(episode)
        self.position, self.ids, self.changed = position, ids, True
        if problem:
            yield FieldEvent("warning", episode.line, problem)
        if is_new and self.reference is not None and episode.observations is not None:
            yield from self._drift_events(self.reference, episode.observations, episode.line)
        if is_new and index is None:
            yield from self._record(alarm, episode.line, source)

    def _repetition(self, index: int) -> str:
        if index < self.order.first_index:
            return f"{INDEX} {index} is not counted: the watch begins with {INDEX} {self.order.first_index}"
        return f"{INDEX} {index} was counted before; it is not counted again"

    def _drift_events(self, reference: Reference, observations: NDArray[np.float64], line: int) -> Iterator[FieldEvent]:
        """Compare the observations of an episode with those at certification."""
        self.drift = self.drift.update(reference, observations)
        drifted = self.drift.drifted(reference)
        new = drifted.keys() - set(self.drifted)
        self.drifted = tuple(drifted)
        yield from [FieldEvent("warning", line, drifted[i]) for i in sorted(new)]

    def _release(self, source: Path | None) -> Iterator[FieldEvent]:
        """Count the outcomes that were held back and need not wait any longer."""
        while ready := self.order.ready(self._room):
            count, alarm = self.field_test.count([held.values for held in ready])
            self.order.drop(count)
            self.changed = True
            yield from self._record(alarm, ready[count - 1].line, source)

    def _record(self, alarm: Alarm | None, line: int, source: Path | None) -> Iterator[FieldEvent]:
        """Add a point to the history where it is time; yield an alarm.

        The alarm is saved when its consumer asks for the next event.
        """
        if alarm is not None or self.field_test.episodes % self.stride == 0:
            self.history = (*self.history, Snapshot(self.field_test))
        if len(self.history) > MAX_HISTORY_POINTS:
            self.history, self.stride = self.history[::2], 2 * self.stride
        if alarm is not None:
            record = AlarmRecord(alarm.episode, alarm.lost, alarm.recovered, line, now())
            self.alarms = (*self.alarms, record)[-MAX_ALARMS:]
            yield FieldEvent("alarm" if alarm.lost else "recovery", line, str(alarm), alarm)
            self.save(source)

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

    @property
    def progress(self) -> WatchProgress:
        """The progress as plain data."""
        return WatchProgress(
            self.position, self.order.state, self.ids, self.stride, self.points, self.alarms, self.drift, self.drifted
        )

    @property
    def points(self) -> tuple[HistoryPoint, ...]:
        """The history with its intervals."""
        return tuple(each.point if isinstance(each, Snapshot) else each for each in self.history)

    def save(self, source: Path | None) -> None:
        """Write the state file, if anything has changed."""
        if self.state is None or not self.changed:
            return
        progress, tail = self.progress, "" if source is None else self._update_tail()
        if source is None:
            progress = progress._replace(position=ReadPosition())
        policy = _policy(self.field_test)
        write_state(self.state, WatchState(self.traces, policy, self.field_test.state, tail, progress))
        self.changed = False


def lock_state(state: Path | None) -> AbstractContextManager[None]:
    """Keep other processes from using the same state file."""
    if state is None:
        return nullcontext()
    if not state.name or (os.path.exists(state) and not os.path.isfile(state)):
        raise RunError(f"{str(state)!r} is not the name of a file; give --state the name of one")
    return lock_file(state.with_name(f".{state.name}.lock"), state)


def open_session(
    make_test: Callable[[dict[str, Any] | None], FieldTest],
    *,
    traces: bool,
    state: Path | None,
    new_file: bool = False,
    first_index: int | None = None,
    in_flight: int = DEFAULT_IN_FLIGHT,
    cut: Cut = "error",
) -> WatchSession:
    """Begin a watch, or continue that of a state file.

    Args:
        make_test: makes the field test, from the state of an earlier one or None.
        traces: as in `WatchSession`.
        state: as in `WatchSession`.
        new_file: the source is another file than that of the state, and is read from its beginning.
        first_index: the index of the first episode; default: that of the state, or 0.
        in_flight: as in `WatchSession`.
        cut: as in `WatchSession`.
    """
    found = None if state is None else read_state(state)
    if found is None:
        first = check_count("first_index", first_index or 0, 0)
        progress = WatchProgress(order=OrderState(first_index=first, next_index=first))
        return WatchSession(make_test(None), traces, state, progress=progress, in_flight=in_flight, cut=cut)
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
    if first_index not in (None, progress.order.first_index):
        raise RunError(
            f"{state} was begun with index {progress.order.first_index:,}; leave out --first-index, or give a new "
            "--state"
        )
    if any((len(point.intervals), len(point.lost)) != (count, count) for point in progress.history):
        raise RunError(f"{state} is damaged: its history is that of other constraints; begin a new one")
    for known in (*progress.order.counted, *progress.order.held):
        try:
            field_test.check_values(known.values)
        except RunError as error:
            raise RunError(f"{state} is damaged: {error}; begin a new one") from None
    if new_file:
        progress = progress._replace(position=ReadPosition())
    session = WatchSession(
        field_test,
        traces,
        state,
        progress=progress,
        tail=None if new_file else found.tail,
        in_flight=in_flight,
        cut=cut,
    )
    session.changed = False
    return session


def _policy(field_test: FieldTest) -> str | None:
    """Return the digest of the certified policy; None without a certificate."""
    return None if field_test.certificate is None else field_test.certificate.policy
