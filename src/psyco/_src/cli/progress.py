"""How learning is going: a live line on terminals, plain lines now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from psyco._src.cli.common import status
from psyco._src.synthesis.problem import Problem, Snapshot

LINE_EVERY = 5.0  # seconds between plain lines


@contextmanager
def show_progress(problem: Problem, done: int = 0) -> Iterator[Callable[[Problem, Snapshot], None]]:
    """Gives the function to call after every segment; `done` generations were done before."""
    show = _live if status.is_terminal and not status.quiet else _lines
    with show(problem, done) as update:
        yield update


def summary(snapshot: Snapshot) -> str:
    """The state of learning in one line."""
    m = snapshot.metrics
    return (
        f"return {m['return'].mean():7.2f}  satisfied {m['satisfied'].mean():.3f}  "
        f"c_sat {m['c_sat'][-1]:.4f}  λ {m['lambda'].mean():.2f}"
    )


@contextmanager
def _live(problem: Problem, done: int) -> Iterator[Callable[[Problem, Snapshot], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[now]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=status) as bar:
        task = bar.add_task("compiling", total=problem.generations, completed=done, now="")

        def update(problem: Problem, snapshot: Snapshot) -> None:
            last = snapshot.generation >= problem.generations
            description = "verifying" if last else "learning"
            bar.update(task, description=description, completed=snapshot.generation, now=summary(snapshot))

        yield update


@contextmanager
def _lines(problem: Problem, done: int) -> Iterator[Callable[[Problem, Snapshot], None]]:
    next_line = time.monotonic()

    def update(problem: Problem, snapshot: Snapshot) -> None:
        nonlocal next_line
        if time.monotonic() < next_line and snapshot.generation < problem.generations:
            return
        next_line = time.monotonic() + LINE_EVERY
        episodes = int(snapshot.metrics["episodes"][-1])
        share = snapshot.generation / problem.generations
        status.print(
            f"{episodes:,} episodes ({share:.0%})  {summary(snapshot)}", highlight=False, soft_wrap=True
        )

    yield update
