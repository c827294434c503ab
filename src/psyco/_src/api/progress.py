"""Show the progress of learning in one updating line, in a terminal or a notebook."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from psyco._src.learners.metrics import Metrics, concatenate
from psyco._src.runs.problem import Problem
from psyco._src.runs.train import Callback, RunProgress

LINE_INTERVAL = 0.3  # seconds
BAR_WIDTH = 20  # characters


def progress(stream: TextIO | None = None) -> Callback:
    """Return a callback with a progress line: `psyco.synthesize(domain, requirement, callbacks=[psyco.progress()])`.

    Return and satisfied share are means over the last segment, of the deployed policy where the learner plays it.

    Args:
        stream: output stream; default: standard output, which notebooks show below the cell.
    """
    out = sys.stdout if stream is None else stream
    stage: list[RunProgress] = []
    latest: list[Metrics] = []
    next_line = 0.0

    def show(problem: Problem, metrics: Metrics) -> None:
        nonlocal next_line
        latest[:] = [concatenate([*latest, metrics]).tail(problem.check_interval)]
        at = stage[-1]
        if time.monotonic() < next_line and at.done < at.total:
            return
        next_line = time.monotonic() + LINE_INTERVAL
        filled = min(BAR_WIDTH, int(BAR_WIDTH * at.done / at.total))
        kind = "deployed_" if "deployed_return" in latest[0] else ""
        means = [f"{name} {latest[0][kind + name].mean():.3g}" for name in ("return", "satisfied")]
        line = f"{'█' * filled}{'░' * (BAR_WIDTH - filled)} {at.done:,} of {at.total:,} {at.unit}  {'  '.join(means)}"
        out.write(f"\r{line:<90}" + ("\n" if at.done >= at.total else ""))
        out.flush()

    return Callback(on_metrics=show, on_progress=lambda now: stage.__setitem__(slice(None), [now]))
