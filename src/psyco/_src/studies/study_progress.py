"""How far a study is, cell by cell, and when it will have come to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from psyco._src.studies.study_plan import Cell

WAITING, RUNNING, FINISHED, FAILED = "waiting", "running", "finished", "failed"


@dataclass
class CellProgress:
    """Where one cell stands."""

    cell: Cell
    state: str = WAITING
    done: int = 0  # of its budget of learning, in episodes or steps
    doing: str = ""  # "learning", "certifying"
    error: str = ""  # of one that failed
    kept: bool = False  # it had finished before
    since: float | None = None  # when it began, on the clock of `time.monotonic`
    at_first: int = 0  # what of that had been there when it began
    seconds: float = 0.0  # that it took in this session, once it has finished

    @property
    def total(self) -> int:
        """Its budget of learning, in episodes or steps."""
        return self.cell.config.settings.steps or self.cell.config.settings.episodes

    @property
    def share(self) -> float:
        """Of its work that is done, 0 to 1; what follows learning counts for a twentieth."""
        return 1.0 if self.state in (FINISHED, FAILED) else 0.95 * min(1.0, self.done / self.total)


@dataclass
class StudyProgress:
    """Where all cells stand; whoever executes them tells it, and it tells `listener`."""

    cells: dict[str, CellProgress]  # by name, in the order of the plan
    listener: Callable[[StudyProgress], None] = lambda progress: None

    @classmethod
    def of(cls, cells: Sequence[Cell], listener: Callable[[StudyProgress], None]) -> StudyProgress:
        """Before anything has happened."""
        return cls({cell.name: CellProgress(cell) for cell in cells}, listener)

    def count(self, state: str) -> int:
        """How many cells are in that state."""
        return sum(standing.state == state for standing in self.cells.values())

    @property
    def running(self) -> list[CellProgress]:
        """The cells that are worked on now."""
        return [standing for standing in self.cells.values() if standing.state == RUNNING]

    @property
    def left(self) -> float | None:
        """Seconds to the end, about; None before a cell has come to its end in this session.

        What is left is taken at the middle pace of the cells that have ended: the first ones of a kind are slow, since
        they compile.
        """
        paces = [
            s.seconds / (s.total - s.at_first)
            for s in self.cells.values()
            if s.seconds and s.total > s.at_first
        ]
        todo = sum((1.0 - s.share) * s.total for s in self.cells.values())
        return todo * median(paces) / max(1, len(self.running)) if paces else None

    def tell(self) -> None:
        """Something has happened, or a little time has gone by."""
        self.listener(self)

    def started(self, name: str, done: int = 0) -> None:
        """A cell is worked on; so much of its budget had been spent before."""
        standing = self.cells[name]
        standing.state, standing.doing, standing.error = RUNNING, "starting", ""
        standing.since, standing.done, standing.at_first = time.monotonic(), done, done
        self.tell()

    def reached(self, name: str, done: int, doing: str) -> None:
        """A cell has come so far."""
        self.cells[name].done, self.cells[name].doing = done, doing
        self.tell()

    def ended(self, name: str, error: str = "") -> None:
        """A cell has finished, or failed."""
        standing = self.cells[name]
        standing.state, standing.error = (FAILED, error) if error else (FINISHED, "")
        standing.seconds = 0.0 if error or standing.since is None else time.monotonic() - standing.since
        self.tell()

    def again(self, name: str) -> None:
        """A cell waits again: its process or its node was lost."""
        self.cells[name].state = WAITING
        self.tell()
