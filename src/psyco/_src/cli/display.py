"""Show the progress of a run: a live bar on terminals, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Protocol

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

import psyco
from psyco._src.cli.common import remark, status

if TYPE_CHECKING:
    from psyco._src.learners.metrics import Metrics
    from psyco._src.runs.problem import Problem
    from psyco._src.runs.train import Callback, RunProgress

LINE_EVERY = 2.0  # seconds between plain lines
WIDE, NARROW = 100, 70  # columns of a terminal


class RunDisplay(Protocol):
    """A display of the progress of a run."""

    def stage(self, stage: RunProgress) -> None:
        """Show the progress within a phase."""

    def rows(self, metrics: Metrics) -> None:
        """Show the metrics of the last segment."""


@contextmanager
def show_progress() -> Iterator[Callback]:
    """Yield a callback that shows the progress of a run."""
    with _live() if status.is_terminal and not status.quiet else _lines() as display:
        latest: list[Metrics] = []

        def update(problem: Problem, metrics: Metrics) -> None:
            """Show means over the last segment, whose rows may arrive in several parts."""
            from psyco._src.learners.metrics import concatenate

            latest[:] = [concatenate([*latest, metrics]).tail(problem.check_interval)]
            display.rows(latest[0])

        yield psyco.Callback(on_plan=lambda plan: remark(str(plan)), on_metrics=update, on_progress=display.stage)


def summary(metrics: Metrics, width: int = WIDE) -> str:
    """Return the state of learning in one line, shortened for a narrow terminal.

    The numbers are of the deployed policy, where the learner plays it.
    """
    shown = "deployed_" if "deployed_return" in metrics else ""
    values = [
        f"return {metrics[f'{shown}return'].mean():7.2f}",
        f"satisfied {metrics[f'{shown}satisfied'].mean():.3f}",
    ]
    if width >= WIDE:
        means = [column.mean() for name, column in metrics.items() if name.startswith("value[")]
        values += [f"value {', '.join(f'{mean:.3g}' for mean in means)}"] if means else []
        if shown:
            values[0] += f" (exploring {metrics['return'].mean():.2f})"
        values += [f"c_sat {metrics['c_sat'][-1]:.4f}", f"λ {metrics['lambda'].mean():.2f}"]
    return "  ".join(values if width >= NARROW else values[:1])


class LiveDisplay:
    """A progress bar, for terminals."""

    def __init__(self, bar: Progress, width: int) -> None:
        self.bar, self.width, self.phase = bar, width, ""
        self.task = bar.add_task("preparing", total=None, now="")

    def stage(self, stage: RunProgress) -> None:
        """Restart the bar for a new phase, except for checks during learning."""
        if stage.phase == "checking":
            self.bar.update(self.task, description=stage.phase)
            return
        if stage.phase != self.phase:
            self.phase = stage.phase
            self.bar.reset(self.task)
        self.bar.update(self.task, description=stage.phase, total=stage.total, completed=stage.done)

    def rows(self, metrics: Metrics) -> None:
        """Show numbers beside the bar."""
        self.bar.update(self.task, now=summary(metrics, self.width))


@contextmanager
def _live() -> Iterator[RunDisplay]:
    width = status.width
    columns: list[ProgressColumn] = [
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=40 if width >= WIDE else 10),
        TextColumn("{task.fields[now]}", markup=False),
    ]
    if width >= NARROW:
        columns.append(TimeRemainingColumn())
    with Progress(*columns, console=status) as bar:
        yield LiveDisplay(bar, width)


class PlainDisplay:
    """Plain lines, one every two seconds, also during long steps."""

    def __init__(self) -> None:
        self.began = self.last = time.monotonic()
        self.now: RunProgress | None = None
        self.at_first = 0  # value of `done` at the first report of the phase
        self.summary = ""
        self.turn = Lock()

    def stage(self, stage: RunProgress) -> None:
        """Print a line when it is due, and when a phase begins or ends."""
        with self.turn:
            fresh = self.now is None or stage.phase != self.now.phase
            if fresh:
                self.began, self.at_first = time.monotonic(), stage.done
            self.now = stage
            learned = stage.phase == "learning" and stage.done >= stage.total  # printed with its metrics
            if not learned and stage.phase != "checking" and (fresh or self._is_time()):
                self._say()

    def rows(self, metrics: Metrics) -> None:
        """Keep the metrics for the next line; print the last line at once."""
        with self.turn:
            self.summary = f"  {summary(metrics)}"
            if self.now is not None and self.now.done >= self.now.total:
                self._say()

    def beat(self) -> None:
        """Print a line if one is due; a thread calls this regularly."""
        with self.turn:
            if self._is_time():
                self._say()

    def _is_time(self) -> bool:
        return time.monotonic() - self.last >= LINE_EVERY

    def _say(self) -> None:
        self.last = time.monotonic()
        if self.now is None:
            remark(f"preparing, for {self.last - self.began:.0f} s")
            return
        phase, done, total, unit = self.now
        beside = self.summary if phase in ("learning", "checking") else ""
        remark(f"{phase}: {done:,} {unit} ({done / max(total, 1):.0%}){self._left(done, total)}{beside}")

    def _left(self, done: int, total: int) -> str:
        """Return the remaining time of the phase, by its speed so far."""
        from psyco._src.runs.settings import duration

        took, made = self.last - self.began, done - self.at_first
        return (
            f", about {duration(took / made * (total - done))} left" if made > 0 and took > 1.0 and done < total else ""
        )


@contextmanager
def _lines() -> Iterator[RunDisplay]:
    lines, over = PlainDisplay(), Event()

    def beat() -> None:
        while not over.wait(LINE_EVERY / 4):
            lines.beat()

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        over.set()
        thread.join()
