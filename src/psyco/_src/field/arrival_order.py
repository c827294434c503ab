"""The order in which a watch counts episodes that end in another order than they began.

An `index` states the order of beginning: outcomes are held back until all episodes that began before have ended. With
times (`started`) it is only checked that no episode ends before an earlier one, since times do not show which episodes
still run. Without either, the order of the lines is taken as that of the beginning.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from psyco._src.core.errors import RunError
from psyco._src.field.field_test import Count, EpisodeValue
from psyco._src.field.ingest import IncomingEpisode
from psyco._src.verification.recorded_columns import (
    DEFAULT_IN_FLIGHT,
    INDEX,
    MAX_IN_FLIGHT,
    STARTED,
    RecordedStart,
    check_later,
    parse_start,
)

MAX_GAPS = 1000  # the latest gaps in the episode numbers are kept
MAX_REMEMBERED = 1000  # the latest counted outcomes are kept, to be compared with repetitions

OrderColumn: TypeAlias = Literal["index", "started", "line"]
HeldValues: TypeAlias = tuple[EpisodeValue, ...]  # of each constraint


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
            return EpisodeIds(self.first, number, self.missing), True, ""
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


class HeldEpisode(NamedTuple):
    """The outcome of an episode that waits for episodes that began before, or did so before it was counted."""

    number: Count  # its index
    line: Count
    values: HeldValues


class OrderState(NamedTuple):
    """The order of a watch, in its state file."""

    column: OrderColumn | None = None  # None before the first episode
    first_index: Count = 0
    next_index: Count = 0  # to be counted
    held: tuple[HeldEpisode, ...] = ()
    counted: tuple[HeldEpisode, ...] = ()  # the latest, up to the next index
    started: str | None = None  # when the last episode began
    line: Count = 0  # of the last episode


class ArrivalOrder:
    """Decides which episodes are counted now.

    Args:
        state: the order so far.
        in_flight: number of episodes, from the oldest that has not ended to the newest that has, beyond which the watch
            ends with an error; an episode that never ends would hold back all others.
    """

    def __init__(self, state: OrderState = OrderState(), in_flight: int = DEFAULT_IN_FLIGHT) -> None:
        if not 1 <= in_flight <= MAX_IN_FLIGHT:
            raise RunError(f"the number of episodes in flight is 1 to {MAX_IN_FLIGHT:,}, got {in_flight:,}")
        self.in_flight, self.column, self.first_index = in_flight, state.column, state.first_index
        self.next_index, self.line = state.next_index, state.line  # the next index to count
        self.held = {held.number: held for held in state.held}
        self.counted = {counted.number: counted for counted in state.counted}
        self.open_index = self.next_index  # of the oldest episode that has not ended
        self._advance()
        self.start = RecordedStart() if state.started is None else parse_start({STARTED: state.started}, "the state")

    @property
    def state(self) -> OrderState:
        """The order as plain data."""
        held = tuple(self.held[index] for index in sorted(self.held))
        started = None if self.start.started is None else str(self.start.started.value)
        counted = tuple(self.counted.values())
        return OrderState(self.column, self.first_index, self.next_index, held, counted, started, self.line)

    @property
    def waiting(self) -> str:
        """What outcomes wait for, in words; empty where none are held back."""
        count = len(self.held) - (self.open_index - self.next_index)
        if not count:
            return ""
        those = "1 outcome is" if count == 1 else f"{count:,} outcomes are"
        return f"{those} held back until {INDEX} {self.open_index} has ended, which began before"

    def is_counted(self, index: int) -> bool:
        """Return whether the outcome of an episode was counted or is held back, or is not to be counted."""
        return index < self.next_index or index in self.held

    def check(self, episode: IncomingEpisode, origin: object) -> None:
        """Raise RunError where the order of an episode is not known, or too many episodes are in flight."""
        index, started = episode.start
        column = self._column(episode)
        if self.column not in (None, column):
            have = {"index": f"has {INDEX!r}", "started": f"has {STARTED!r}", "line": f"has no {INDEX!r}"}[column]
            raise RunError(
                f"line {episode.line} of {origin} {have}, unlike the episodes before; state the order of all alike"
            )
        if column == "started" and self.start.started is not None:
            check_later(self.start, RecordedStart(None, started), self.line, f"line {episode.line} of {origin}")
        if index is not None and index - self.open_index >= self.in_flight:
            raise RunError(
                f"line {episode.line} of {origin}: {INDEX} {index} has ended, but {INDEX} {self.open_index} has not, "
                f"so more than {self.in_flight:,} episodes would be in flight. If that episode was lost, add a line "
                "with the outcome that it should count as, and raise --in-flight once"
            )

    def check_repetition(self, episode: IncomingEpisode, origin: object) -> None:
        """Raise RunError where an episode comes again with another outcome, as far as outcomes are remembered."""
        index, values = episode.start.number, tuple(episode.values or ())
        known = None if index is None else self.held.get(index) or self.counted.get(index)
        if known is not None and known.values != values:
            raise RunError(
                f"line {episode.line} of {origin}: {INDEX} {index} comes again with outcome {_describe(values)}; on "
                f"line {known.line} it was {_describe(known.values)}. Remove the wrong line; if that is the earlier "
                "one, begin anew with another --state"
            )

    def note(self, episode: IncomingEpisode) -> None:
        """Note an episode that was counted or is held back."""
        self.column, self.line = self._column(episode), episode.line
        if self.column == "started":
            self.start = episode.start

    def hold(self, index: int, line: int, values: HeldValues) -> None:
        """Hold back an outcome until it is dropped."""
        self.held[index] = HeldEpisode(index, line, values)
        self._advance()

    def _advance(self) -> None:
        while self.open_index in self.held:
            self.open_index += 1

    def ready(self, count: int) -> list[HeldEpisode]:
        """Return at most `count` outcomes, all that began before which have ended, in their order."""
        return [self.held[index] for index in range(self.next_index, min(self.open_index, self.next_index + count))]

    def drop(self, count: int) -> None:
        """Forget outcomes that have been counted."""
        for index in range(self.next_index, self.next_index + count):
            self.counted[index] = self.held.pop(index)
            self.counted.pop(index - MAX_REMEMBERED, None)
        self.next_index += count

    def _column(self, episode: IncomingEpisode) -> OrderColumn:
        return "index" if episode.start.number is not None else "started" if episode.start.started else "line"


def _describe(values: HeldValues) -> str:
    """Return the outcome or value of each constraint in words."""
    numbers = [(f"{float(total)!r}".removesuffix(".0"), steps) for total, steps in values]
    return ", ".join(total if steps == 1 else f"{total} in {steps} steps" for total, steps in numbers)
