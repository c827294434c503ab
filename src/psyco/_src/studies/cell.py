"""Run one cell of a study: start or resume its run, and record how long it took.

The time is in `times.json` beside the files of the run, since no result depends on it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from psyco._src.core import files
from psyco._src.core.codec import decode, encode
from psyco._src.core.errors import RunError
from psyco._src.core.files import read_bytes, read_text
from psyco._src.envs.registry import TRUST_NOTHING
from psyco._src.learners.metrics import Metrics
from psyco._src.logic.ast import Requirement
from psyco._src.logic.quantifiers import as_comment
from psyco._src.runs.checkpoint import checkpoint_files
from psyco._src.runs.config import Config, is_sealed, read_config
from psyco._src.runs.execute import execute
from psyco._src.runs.lock import is_locked
from psyco._src.runs.problem import Problem
from psyco._src.runs.session import build_problem, resume_run, start_run
from psyco._src.runs.store import CONFIG, is_run
from psyco._src.runs.train import Callback, RunProgress, TrainingState
from psyco._src.studies.objective import Pruner, PruningThreshold

TIMES_FILE = "times.json"
REPORT_INTERVAL = 0.2  # seconds between progress reports
SAVE_INTERVAL = 2.0  # seconds between writes of the time
LOCK_TIMEOUT = 10.0  # seconds to wait for a killed process to release the folder

# Called with the work done, the total, both in the unit of the budget, and the phase.
Report = Callable[[int, int, str], None]


def complete(
    folder: Path,
    config: Config,
    *,
    trust: Collection[str] = TRUST_NOTHING,
    report: Report = lambda done, total, phase: None,
    threshold: PruningThreshold | None = None,
) -> None:
    """Start the run of a cell, or resume it, until it is finished or pruned; a finished run is left unchanged.

    Args:
        folder: of the run.
        config: of the run.
        trust: code that the configuration may import.
        report: called with the progress a few times per second.
        threshold: a run below it is stopped early, which is recorded in its folder and no error.
    """
    follower = _CellFollower(folder, report)
    pruner = Pruner(folder, threshold) if threshold else None
    callbacks = [follower.callback, *([pruner.callback] if pruner else [])]
    _start_or_resume(folder, config, follower, callbacks, trust)
    if pruner and pruner.pruned_at is not None:
        pruner.save()


def _start_or_resume(
    folder: Path,
    config: Config,
    follower: _CellFollower,
    callbacks: Sequence[Callback],
    trust: Collection[str],
) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT
    while is_locked(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    if is_run(folder) and not _is_lost(folder):
        _check_same_run(folder, config)
        with resume_run(folder, trust=trust) as session:
            if session is not None:
                with follower:
                    execute(session, callbacks=callbacks)
    else:
        problem = build_problem(config, trust=trust)
        with start_run(folder, config, problem, overwrite=True) as session, follower:
            execute(session, callbacks=callbacks)


def belongs(found: Config, cell: Config) -> bool:
    """Return whether a run is that of a cell.

    The configuration of a run has every default written out, so domain, requirement and seed are compared. The folder's
    name has the hash of the rest.
    """
    written_out = "\n".join(as_comment(cell.requirement)) + "\n"
    same = found.requirement.strip() == cell.requirement.strip() or found.requirement.lstrip().startswith(written_out)
    return same and (found.domain, found.settings.seed) == (cell.domain, cell.settings.seed)


def first_satisfied_row(metrics: Metrics, requirement: Requirement) -> int | None:
    """Return the first row whose check found the requirement satisfied.

    The check's verdict decides, or where it has none whether c_sat reaches the required confidence.
    """
    if not metrics.rows or not requirement.constraints:
        return None
    required = max(constraint.confidence for constraint in requirement.constraints)
    tested = metrics["verdict"] != ""
    satisfied = np.where(tested, metrics["verdict"] == "SATISFIED", metrics["verified_confidence"] >= required)
    rows = np.flatnonzero(satisfied)
    return int(rows[0]) if len(rows) else None


# ---- time --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunTimes:
    """Duration of a run over all sessions, without the time that a kill cut off."""

    seconds: float = 0.0  # wall clock
    processor: float = 0.0  # processor seconds
    # Wall clock seconds until a check first found the requirement satisfied.
    first_satisfied: float | None = None


def load_times(folder: Path) -> RunTimes:
    """Read the times of a run; zero if there are none."""
    path = folder / TIMES_FILE
    try:
        return decode(read_bytes(path, "description of a run", inside=folder), RunTimes, str(path))
    except RunError:
        return RunTimes()


class _CellFollower:
    """Reports the progress of a run and records its time, from entering the context to leaving it."""

    def __init__(self, folder: Path, report: Report) -> None:
        self.folder, self.report = folder, report
        self.earlier = RunTimes()  # of earlier sessions
        self.first_satisfied: float | None = None
        self.wall_start = self.processor_start = self.reported_at = self.saved_at = 0.0
        self.total = 0  # episodes or steps of learning

    def __enter__(self) -> _CellFollower:
        self.earlier = load_times(self.folder)
        self.first_satisfied = self.earlier.first_satisfied
        self.wall_start, self.processor_start = time.monotonic(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self._save()

    @property
    def callback(self) -> Callback:
        return Callback(on_metrics=self._rows, on_checkpoint=self._reached, on_progress=self._progress)

    @property
    def times(self) -> RunTimes:
        return RunTimes(
            self.earlier.seconds + time.monotonic() - self.wall_start,
            self.earlier.processor + time.process_time() - self.processor_start,
            self.first_satisfied,
        )

    def _rows(self, problem: Problem, metrics: Metrics) -> None:
        if self.first_satisfied is None and first_satisfied_row(metrics, problem.requirement) is not None:
            self.first_satisfied = self.times.seconds

    def _progress(self, stage: RunProgress) -> None:
        # Only learning has a known length; it contains the checks, selection and certification follow it.
        if stage.phase in ("cloning", "checking"):
            return
        if stage.phase == "learning":
            self.total = stage.total
        learned = stage.phase != "learning" or stage.done >= stage.total
        if learned or time.monotonic() - self.reported_at >= REPORT_INTERVAL:
            self.reported_at = time.monotonic()
            self.report(self.total if learned else stage.done, self.total, "certifying" if learned else "learning")

    def _reached(self, problem: Problem, state: TrainingState) -> None:
        if time.monotonic() - self.saved_at >= SAVE_INTERVAL:
            self._save()

    def _save(self) -> None:
        self.saved_at = time.monotonic()
        with suppress(RunError):  # the run itself reports a full disk
            files.write(self.folder / TIMES_FILE, (json.dumps(encode(self.times)) + "\n").encode())


# ---- the folder --------------------------------------------------------------------------------------------------


def _is_lost(folder: Path) -> bool:
    """Return whether the run can be neither resumed nor identified; the study then starts it again."""
    if any(checkpoint_files(folder)):
        return False
    try:
        return not is_sealed(read_text(folder / CONFIG, "configuration", inside=folder))
    except RunError:
        return True


def _check_same_run(folder: Path, config: Config) -> None:
    path = folder / CONFIG
    try:
        text = read_text(path, "configuration", inside=folder)
    except RunError:
        return  # a checkpoint holds a copy
    if is_sealed(text) and not belongs(read_config(text, str(path)), config):
        raise RunError(f"{folder} contains a run that is not part of this study; move it away")
