"""How learning is going, in one line that replaces itself: in a terminal and in a notebook alike."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from psyco._src.learners.metrics import Metrics, concatenate
from psyco._src.runs.problem import Problem
from psyco._src.runs.train import Callback, RunProgress

EVERY = 0.3  # seconds between two lines
WIDTH = 20  # of the bar, in characters


def progress(stream: TextIO | None = None) -> Callback:
    """A sink that shows how learning is going: `psyco.synthesize(domain, requirement, sinks=[psyco.progress()])`.

    Return and satisfied share are means over the last segment, of the policy that would be deployed where the learner
    plays episodes of that.

    Args:
        stream: where the line goes; by default standard output, which notebooks show below the cell.
    """
    out = sys.stdout if stream is None else stream
    stage: list[RunProgress] = []
    latest: list[Metrics] = []
    next_line = 0.0

    def show(problem: Problem, metrics: Metrics) -> None:
        nonlocal next_line
        latest[:] = [concatenate([*latest, metrics]).tail(problem.segment)]
        at = stage[-1]
        if time.monotonic() < next_line and at.done < at.of:
            return
        next_line = time.monotonic() + EVERY
        filled = min(WIDTH, int(WIDTH * at.done / at.of))
        kind = "deployed_" if "deployed_return" in latest[0] else ""
        means = [f"{name} {latest[0][kind + name].mean():.3g}" for name in ("return", "satisfied")]
        line = (
            f"{'█' * filled}{'░' * (WIDTH - filled)} {at.done:,} of {at.of:,} {at.unit}  {'  '.join(means)}"
        )
        out.write(f"\r{line:<90}" + ("\n" if at.done >= at.of else ""))
        out.flush()

    return Callback(rows=show, progress=lambda now: stage.__setitem__(slice(None), [now]))
