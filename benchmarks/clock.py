"""Timing on a machine that may be busy: processor time, on one core, the best of a few alternating rounds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process, and all threads it starts, on one core."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def side_by_side(work: dict[str, Callable[[], object]], *, rounds: int = 5) -> dict[str, float]:
    """Seconds of processor time of each piece of work; all are run in turn, `rounds` times, and the best counts."""
    best = dict.fromkeys(work, float("inf"))
    for _ in range(rounds):
        for name, run in work.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    return best
