"""Show the progress of a run: a live bar on terminals, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
from psyco._src.cli.common import plain, remark, status
from psyco._src.core.wording import plural

if TYPE_CHECKING:
    from psyco._src.learners.metrics import Metrics
    from psyco._src.runs.problem import Problem
    from psyco._src.runs.train import Callback, RunProgress

LINE_EVERY, LINE_AT_LEAST_EVERY = 2.0, 10.0  # seconds between plain lines: while something changes, and at most
WIDE, NARROW = 100, 70  # columns of a terminal
# Phases that compile before their first report, and their text meanwhile.
COMPILED_PHASES = {"cloning": "compiling", "learning": "compiling and playing the first episodes"}
CONSTRAINT_COLUMNS = ("satisfied", "deployed_satisfied", "c_sat", "lambda")


class RunDisplay(Protocol):
    """A display of the progress of a run."""

    def stage(self, progress: RunProgress) -> None:
        """Show the progress within a phase."""

    def rows(self, metrics: Metrics) -> None:
        """Show the metrics of the last segment."""


@contextmanager
def show_progress() -> Iterator[Callback]:
    """Yield a callback that shows the progress of a run."""
    from psyco._src.runs.warm_start import describe_initial_policy  # imports JAX

    with _live() if status.is_terminal and not status.quiet else _lines() as display:
        latest: list[Metrics] = []

        def update(problem: Problem, metrics: Metrics) -> None:
            """Show means over the last segment, whose rows may arrive in several parts."""
            from psyco._src.learners.metrics import Metrics, concatenate

            if not problem.requirement.constraints:
                metrics = Metrics({name: column for name, column in metrics.items() if name not in CONSTRAINT_COLUMNS})
            latest[:] = [concatenate([*latest, metrics]).tail(problem.check_interval)]
            display.rows(latest[0])

        yield psyco.Callback(
            on_plan=lambda plan: status.print(plain(str(plan)), soft_wrap=not status.is_terminal),
            on_start=lambda policy: remark(f"learning starts from {describe_initial_policy(policy)}"),
            on_metrics=update,
            on_progress=display.stage,
        )


def summary(metrics: Metrics, width: int = WIDE) -> str:
    """Return the state of learning in one line, shortened for a narrow terminal.

    The numbers are of the deployed policy, where the learner plays it.
    """
    shown, constrained = "deployed_" if "deployed_return" in metrics else "", "c_sat" in metrics
    values = [f"return {metrics[f'{shown}return'].mean():7.2f}"]
    if constrained:
        values += [f"satisfied {metrics[f'{shown}satisfied'].mean():.3f}"]
    if width >= WIDE:
        means = [column.mean() for name, column in metrics.items() if name.startswith("value[")]
        values += [f"value {', '.join(f'{mean:.3g}' for mean in means)}"] if means else []
        if shown:
            values[0] += f" (exploring {metrics['return'].mean():.2f})"
        if constrained:
            values += [f"c_sat {metrics['c_sat'][-1]:.4f}", f"λ {metrics['lambda'].mean():.2f}"]
    return "  ".join(values if width >= NARROW else values[:1])


class LiveDisplay:
    """A progress bar, for terminals."""

    def __init__(self, bar: Progress, width: int) -> None:
        self.bar, self.width, self.phase, self.first = bar, width, "", 0  # first: progress when the phase began
        self.task = bar.add_task("preparing", total=None, numbers="")

    def stage(self, progress: RunProgress) -> None:
        """Restart the bar for a new phase, except for checks during learning."""
        if progress.phase == "checking":
            self.bar.update(self.task, description=progress.phase)
            return
        if progress.phase != self.phase:
            self.phase = progress.phase
            self.bar.reset(self.task)
            self.first = progress.done
        if _is_cloned(progress):
            self.bar.reset(self.task, description="preparing")
            return
        compiling = progress.phase in COMPILED_PHASES and progress.done == self.first and self.width >= NARROW
        text = f"{progress.phase}: {COMPILED_PHASES[progress.phase]}" if compiling else progress.phase
        self.bar.update(self.task, description=text, total=progress.total, completed=progress.done)

    def rows(self, metrics: Metrics) -> None:
        """Show numbers beside the bar."""
        self.bar.update(self.task, numbers=summary(metrics, self.width))


@contextmanager
def _live() -> Iterator[RunDisplay]:
    width = status.width
    columns: list[ProgressColumn] = [
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=40 if width >= WIDE else 10),
        TextColumn("{task.fields[numbers]}", markup=False),
    ]
    if width >= NARROW:
        columns.append(TimeRemainingColumn())
    with Progress(*columns, console=status) as bar:
        yield LiveDisplay(bar, width)


class PhaseClock:
    """Estimates the remaining time of a phase by its speed after the first report, before which much is compiled."""

    def __init__(self, stage: RunProgress, now: float) -> None:
        self.began, self.at_first = now, stage.done
        self.marks: list[tuple[float, int]] = []  # time and progress at the first and the last further report

    def report(self, stage: RunProgress, now: float) -> None:
        """Enter progress within the phase."""
        if stage.done > (self.marks[-1][1] if self.marks else self.at_first):
            self.marks[1:] = [(now, stage.done)]

    def left(self, total: int, now: float) -> float | None:
        """Return the remaining seconds, which count down between reports; None: not known yet."""
        if len(self.marks) < 2:
            return None
        (first, before), (last, done) = self.marks
        return max((last - first) / (done - before) * (total - done) - (now - last), 0.0)


class PlainDisplay:
    """Plain lines: one every two seconds, and fewer while nothing changes."""

    def __init__(self) -> None:
        self.began = self.last = time.monotonic()
        self.current: RunProgress | None = None
        self.clocks: dict[str, PhaseClock] = {}
        self.printed: RunProgress | None = None  # progress in the last line
        self.wait = LINE_EVERY
        self.summary = ""
        self.turn = Lock()

    def stage(self, progress: RunProgress) -> None:
        """Print a line when it is due, and when a phase begins or ends."""
        with self.turn:
            now = time.monotonic()
            fresh = progress.phase not in self.clocks
            self.clocks.setdefault(progress.phase, PhaseClock(progress, now)).report(progress, now)
            self.current = progress
            learned = progress.phase == "learning" and progress.done >= progress.total  # printed with its metrics
            waits = progress.phase in COMPILED_PHASES and fresh  # the first line comes when there is something to say
            if not learned and not waits and progress.phase != "checking" and (fresh or self._is_time()):
                self._say()
            if _is_cloned(progress):
                self.current, self.began = None, now

    def rows(self, metrics: Metrics) -> None:
        """Keep the metrics for the next line; print the last line at once."""
        with self.turn:
            self.summary = f"  {summary(metrics)}"
            if self.current is not None and self.current.done >= self.current.total:
                self._say()

    def beat(self) -> None:
        """Print a line if one is due; a thread calls this regularly."""
        with self.turn:
            if self._is_time():
                self._say()

    def _is_time(self) -> bool:
        changed = self.current != self.printed
        return time.monotonic() - self.last >= (LINE_EVERY if changed else self.wait)

    def _say(self) -> None:
        self.last = time.monotonic()
        self.wait = min(2 * self.wait, LINE_AT_LEAST_EVERY) if self.current == self.printed else LINE_EVERY
        self.printed = self.current
        if self.current is None:
            remark(f"preparing: compiling and measuring the speed, for {self.last - self.began:.0f} s")
            return
        phase, done, total, unit = self.current
        clock = self.clocks[phase]
        if phase in COMPILED_PHASES and not clock.marks:
            remark(f"{phase}: {COMPILED_PHASES[phase]}, for {self.last - clock.began:.0f} s")
            return
        beside = self.summary if phase in ("learning", "checking") else ""
        share = f"{plural(done, unit.removesuffix('s'))} ({done / max(total, 1):.0%})"
        remark(f"{phase}: {share}{_left(clock, total, self.last)}{beside}")


def _is_cloned(stage: RunProgress) -> bool:
    """Return whether behaviour cloning has ended: the speed of learning is measured next, without reports."""
    return stage.phase == "cloning" and stage.done >= stage.total


def _left(clock: PhaseClock, total: int, now: float) -> str:
    """Return the remaining time of a phase in words, if it is known."""
    from psyco._src.runs.settings import duration

    left = clock.left(total, now)
    return f", about {duration(left)} left" if left else ""


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


@contextmanager
def show_activity(text: str) -> Iterator[Callable[[str], None]]:
    """Show what a command does and for how long, after two seconds; yield a function that changes the text."""
    began, over, texts = time.monotonic(), Event(), [text]

    def beat() -> None:
        wait = LINE_EVERY
        while not over.wait(wait):
            line = f"{texts[-1]}, for {time.monotonic() - began:.0f} s"
            if status.is_terminal:
                spinner.update(plain(line))
            else:
                remark(line)
                wait = min(2 * wait, LINE_AT_LEAST_EVERY)

    with status.status(plain(text)) as spinner:
        thread = Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield texts.append
        finally:
            over.set()
            thread.join()


@contextmanager
def show_episodes() -> Iterator[Callable[[int], None]]:
    """Yield a function that counts the episodes of a verification, and show their number."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        update(f"verifying, {plural(done, 'episode')}")

    with show_activity("verifying") as update:
        yield count
