"""Progress of a study, cell by cell, and an estimate of the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from statistics import median

from psyco._src.studies.study_plan import Cell

WAITING, RUNNING, FINISHED, FAILED = "waiting", "running", "finished", "failed"
LEARNING_FRACTION = 0.95  # of the work of a run; selection and certification are the rest


@dataclass
class CellProgress:
    """Progress of one cell."""

    cell: Cell
    state: str = WAITING
    done: int = 0  # episodes or steps of learning
    phase: str = ""  # "starting", "learning", "certifying"
    error: str = ""  # of a failed cell
    reused: bool = False  # finished before this session
    started_at: float | None = None  # by `time.monotonic`
    marks: list[tuple[float, int]] = field(default_factory=list)  # time and `done` when it grew, first and last
    done_before: int = 0  # `done` when this session began
    seconds: float = 0.0  # duration in this session, once finished

    @property
    def total(self) -> int:
        """Training budget in episodes or steps."""
        return self.cell.config.settings.steps or self.cell.config.settings.episodes

    @property
    def work(self) -> int:
        """The part of the budget that is left to this session when it begins."""
        return self.total - self.done_before

    def pace(self, *, compiled: bool = False) -> float | None:
        """Return the seconds per episode or step, `compiled`: without the time before the first of several reports."""
        if not self.marks or self.started_at is None:
            return None
        points = [(self.started_at, self.done_before), *self.marks]
        (first, before), (last, done) = points[-2 if compiled else 0], points[-1]
        return (last - first) / (LEARNING_FRACTION * (done - before))

    def seconds_left(self, pace: float, now: float) -> float:
        """Return the seconds left at this pace, which count down between reports."""
        last, done = self.marks[-1] if self.marks else (self.started_at or now, self.done_before)
        return max(pace * (self.work - LEARNING_FRACTION * (done - self.done_before)) - (now - last), 0.0)

    @property
    def fraction(self) -> float:
        """Fraction of the work that is done, 0 to 1."""
        if self.state in (FINISHED, FAILED):
            return 1.0
        return LEARNING_FRACTION * min(1.0, self.done / self.total)


@dataclass
class StudyProgress:
    """Progress of all cells; workers update it, and every update calls `on_progress`."""

    cells: dict[str, CellProgress]  # by name, in the order of the plan
    on_progress: Callable[[StudyProgress], None] = lambda progress: None
    workers: int = 0  # largest number of cells that ran at the same time

    @classmethod
    def of(cls, cells: Sequence[Cell], on_progress: Callable[[StudyProgress], None]) -> StudyProgress:
        """Return the progress before the first cell starts."""
        return cls({cell.name: CellProgress(cell) for cell in cells}, on_progress)

    def count(self, state: str) -> int:
        """Return the number of cells in a state."""
        return sum(cell.state == state for cell in self.cells.values())

    @property
    def running(self) -> list[CellProgress]:
        """Cells that are running."""
        return [cell for cell in self.cells.values() if cell.state == RUNNING]

    @property
    def seconds_left(self) -> float | None:
        """Estimate of the seconds left; None before a cell has shown its speed in this session.

        A cell is expected to take as long, per episode or step, as the median of those that have finished; before one
        has, as those that run. Cells that wait go one by one to the next free worker, of as many as were seen.
        """
        finished = [cell.seconds / cell.work for cell in self.cells.values() if cell.seconds and cell.work]
        now = time.monotonic()
        paces = finished or [pace for cell in self.running if (pace := cell.pace())]
        if not paces:
            return None
        pace = median(paces)
        left = [cell.seconds_left(cell.pace(compiled=True) or pace, now) for cell in self.running]
        free_after = left + [0.0] * (self.workers - len(left))  # of each worker
        heapify(free_after)
        for cell in self.cells.values():
            if cell.state == WAITING:
                heapreplace(free_after, free_after[0] + pace * cell.work)
        return max(free_after)

    def notify(self) -> None:
        """Call `on_progress`."""
        self.on_progress(self)

    def mark_started(self, name: str, done: int = 0) -> None:
        """Record that a cell runs; `done` of its budget was spent in earlier sessions."""
        cell = self.cells[name]
        cell.state, cell.phase, cell.error = RUNNING, "starting", ""
        cell.started_at, cell.done, cell.done_before, cell.marks = time.monotonic(), done, done, []
        self.workers = max(self.workers, len(self.running))
        self.notify()

    def update(self, name: str, done: int, phase: str) -> None:
        """Record how far a cell has come."""
        cell = self.cells[name]
        if done > cell.done:
            cell.marks[1:] = [(time.monotonic(), done)]
        cell.done, cell.phase = done, phase
        self.notify()

    def mark_ended(self, name: str, error: str = "") -> None:
        """Record that a cell has finished, or failed with an error."""
        cell = self.cells[name]
        cell.state, cell.error = (FAILED, error) if error else (FINISHED, "")
        cell.seconds = 0.0 if error or cell.started_at is None else time.monotonic() - cell.started_at
        self.notify()

    def mark_waiting(self, name: str) -> None:
        """Record that a cell waits again because its process or node was lost."""
        self.cells[name].state = WAITING
        self.notify()
