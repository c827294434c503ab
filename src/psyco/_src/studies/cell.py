"""One cell of a study: a run like any other, begun or gone on with, and the time that it took.

The time is kept beside the run's own files, in `times.json`, since no result depends on it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from psyco._src.core import atomic_io
from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import from_json, read_bytes, read_text
from psyco._src.envs.trust import NOBODY
from psyco._src.learners.metrics import Metrics
from psyco._src.logic.ast import Requirement
from psyco._src.runs.checkpoint import checkpoint_files
from psyco._src.runs.config import Config, is_sealed, read_config
from psyco._src.runs.lock import is_locked
from psyco._src.runs.problem import Problem
from psyco._src.runs.session import build, execute, resume_run, start_run
from psyco._src.runs.store import CONFIG, is_run
from psyco._src.runs.train import Callback, RunProgress, TrainingState
from psyco._src.studies.pruning import Pruned, PruningThreshold, jump, keep_pruned

TIMES = "times.json"
TOLD_EVERY = 0.2  # seconds between two words about how far it is
KEPT_EVERY = 2.0  # seconds between two notes of the time
PATIENCE = 10.0  # seconds to wait for a process that was killed and has not let go of the folder yet

Tell = Callable[
    [int, int, str], None
]  # what is done of how much, in the unit of its budget, and what it is doing


def complete(
    folder: Path,
    config: Config,
    *,
    trust: Collection[str] = NOBODY,
    tell: Tell | None = None,
    bar: PruningThreshold | None = None,
) -> None:
    """Bring the run of a cell to its end: begin it, or go on with it; what has finished is left as it is.

    Args:
        folder: of the run.
        config: what is run there.
        trust: the code that it may name.
        tell: called now and then with how far it is.
        bar: below which the run is ended before its time; that is kept beside it, and no error.
    """
    watch = _CellFollower(folder, tell or _nobody)
    sinks = [watch.sink, *([jump(folder, bar)] if bar else [])]
    try:
        _complete(folder, config, watch, sinks, trust)
    except Pruned as below:
        assert bar is not None
        keep_pruned(folder, bar, below)


def _complete(
    folder: Path, config: Config, watch: _CellFollower, sinks: Sequence[Callback], trust: Collection[str]
) -> None:
    _wait_until_free(folder)
    if is_run(folder) and not _lost(folder):
        _check_own(folder, config)
        with resume_run(folder, trust=trust) as session:
            if session is None:
                return
            with watch:
                execute(session, sinks=sinks)
    else:
        problem = build(config, trust=trust)
        with start_run(folder, config, problem, overwrite=True) as session, watch:
            execute(session, sinks=sinks)


def belongs(found: Config, cell: Config) -> bool:
    """Whether a run is that of a cell; its configuration has every default written out, so what is told apart by is
    the domain, the requirement and the seed, beside the name of its folder."""
    return (found.domain, found.requirement.strip(), found.settings.seed) == (
        cell.domain,
        cell.requirement.strip(),
        cell.settings.seed,
    )


def first_check(metrics: Metrics, requirement: Requirement) -> int | None:
    """The first row whose check found the requirement satisfied: by its verdict, or by its c_sat where it has none."""
    if not metrics.rows or not requirement.constraints:
        return None
    needed = max(constraint.confidence for constraint in requirement.constraints)
    tested = metrics["verdict"] != ""
    good = np.where(tested, metrics["verdict"] == "SATISFIED", metrics["verified_confidence"] >= needed)
    rows = np.flatnonzero(good)
    return int(rows[0]) if len(rows) else None


# ---- the time ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunTimes:
    """How long a run took, over all sessions; what a kill has cut off is not in it."""

    seconds: float = 0.0  # on the clock
    processor: float = 0.0  # seconds of the processor
    first_check: float | None = (
        None  # seconds on the clock until a check first found the requirement satisfied
    )


def load_times(folder: Path) -> RunTimes:
    """The times of a run; zero where nobody has kept them."""
    try:
        content = from_json(
            read_bytes(folder / TIMES, "description of a run", inside=folder), str(folder / TIMES)
        )
        first = content["first_check"]
        return RunTimes(
            float(content["seconds"]), float(content["processor"]), None if first is None else float(first)
        )
    except (RunError, KeyError, TypeError, ValueError):
        return RunTimes()


class _CellFollower:
    """Follows a run: tells how far it is, and keeps the time; as a context it counts from its beginning to its end."""

    def __init__(self, folder: Path, tell: Tell) -> None:
        self.folder, self.tell = folder, tell
        self.before = RunTimes()
        self.first: float | None = None
        self.began = self.worked = self.told = self.kept = 0.0

    def __enter__(self) -> _CellFollower:
        self.before = load_times(self.folder)
        self.first = self.before.first_check
        self.began, self.worked = time.monotonic(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self._keep()

    @property
    def sink(self) -> Callback:
        return Callback(rows=self._rows, reached=self._reached, progress=self._progress)

    @property
    def now(self) -> RunTimes:
        return RunTimes(
            self.before.seconds + time.monotonic() - self.began,
            self.before.processor + time.process_time() - self.worked,
            self.first,
        )

    def _rows(self, problem: Problem, metrics: Metrics) -> None:
        if self.first is None and first_check(metrics, problem.requirement) is not None:
            self.first = self.now.seconds

    def _progress(self, stage: RunProgress) -> None:
        """After learning, of which alone the length is known, the policy is selected and certified."""
        ended = stage.phase != "learning" or stage.done >= stage.of
        if ended or time.monotonic() - self.told >= TOLD_EVERY:
            self.told = time.monotonic()
            self.tell(stage.of if ended else stage.done, stage.of, "certifying" if ended else "learning")

    def _reached(self, problem: Problem, position: TrainingState) -> None:
        if time.monotonic() - self.kept >= KEPT_EVERY:
            self._keep()

    def _keep(self) -> None:
        self.kept = time.monotonic()
        with suppress(RunError):  # a full disk is for the run itself to report
            atomic_io.write(self.folder / TIMES, (json.dumps(vars(self.now)) + "\n").encode())


def _nobody(*_: Any) -> None:
    pass


# ---- what is in the folder ---------------------------------------------------------------------------------------


def _wait_until_free(folder: Path) -> None:
    until = time.monotonic() + PATIENCE
    while is_locked(folder) and time.monotonic() < until:
        time.sleep(0.1)


def _lost(folder: Path) -> bool:
    """Nothing is left that one could go on with; a study knows what was to be run there, and begins again."""
    if any(checkpoint_files(folder)):
        return False
    try:
        return not is_sealed(read_text(folder / CONFIG, "configuration", inside=folder))
    except RunError:
        return True


def _check_own(folder: Path, config: Config) -> None:
    path = folder / CONFIG
    try:
        text = read_text(path, "configuration", inside=folder)
    except RunError:
        return  # a checkpoint holds a copy
    if is_sealed(text) and not belongs(read_config(text, str(path)), config):
        raise RunError(f"{folder} holds another run than that of this study; move it away")
