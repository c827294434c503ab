"""How learning is going: a live line on terminals, plain lines now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from psyco._src.cli.common import remark, status

if TYPE_CHECKING:
    from psyco._src.learn.metrics import Metrics
    from psyco._src.synthesis.problem import Problem

LINE_EVERY = 5.0  # seconds between plain lines
WIDE, NARROW = 100, 70  # columns of a terminal

Show = Callable[["Problem", "Metrics"], None]


@contextmanager
def show_progress() -> Iterator[Show]:
    """Gives the function to call with the rows of the metrics table, as they come."""
    with _live() if status.is_terminal and not status.quiet else _lines() as show:
        latest: list[Metrics] = []

        def update(problem: Problem, metrics: Metrics) -> None:
            """Numbers are means over the last segment, in however many parts its rows come."""
            from psyco._src.learn.metrics import concatenate

            latest[:] = [concatenate([*latest, metrics]).tail(problem.segment)]
            show(problem, latest[0])

        yield update


def summary(metrics: Metrics, width: int = WIDE) -> str:
    """The state of learning in one line; on a narrow terminal what matters most."""
    values = [f"return {metrics['return'].mean():7.2f}", f"satisfied {metrics['satisfied'].mean():.3f}"]
    if width >= WIDE:
        means = [column.mean() for name, column in metrics.items() if name.startswith("value[")]
        values += [f"value {', '.join(f'{mean:.3g}' for mean in means)}"] if means else []
        values += [f"c_sat {metrics['c_sat'][-1]:.4f}", f"λ {metrics['lambda'].mean():.2f}"]
    return "  ".join(values if width >= NARROW else values[:1])


@contextmanager
def _live() -> Iterator[Show]:
    width = status.width
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=40 if width >= WIDE else 10),
        TextColumn("{task.fields[now]}", markup=False),
    ]
    if width >= NARROW:
        columns.append(TimeRemainingColumn())
    with Progress(*columns, console=status) as bar:
        task = bar.add_task("preparing", total=None, now="")

        def update(problem: Problem, metrics: Metrics) -> None:
            done = int(metrics["generation"][-1]) + 1
            description = "verifying" if done >= problem.generations else "learning"
            now = summary(metrics, width)
            bar.update(task, description=description, total=problem.generations, completed=done, now=now)

        yield update


@contextmanager
def _lines() -> Iterator[Show]:
    next_line = time.monotonic()

    def update(problem: Problem, metrics: Metrics) -> None:
        nonlocal next_line
        done = int(metrics["generation"][-1]) + 1
        if time.monotonic() < next_line and done < problem.generations:
            return
        next_line = time.monotonic() + LINE_EVERY
        share = done / problem.generations
        remark(f"{int(metrics['episodes'][-1]):,} episodes ({share:.0%})  {summary(metrics)}")

    yield update
