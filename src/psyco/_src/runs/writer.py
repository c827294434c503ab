"""The callback that writes the run folder: it appends metrics, and writes checkpoints at intervals."""

from __future__ import annotations

import hashlib
import logging
import time
from pathlib import Path
from typing import Any

from psyco._src.core import files
from psyco._src.core.errors import RunError
from psyco._src.learners.metrics import Metrics
from psyco._src.runs.checkpoint import FOLDER, CheckpointInfo, save_checkpoint
from psyco._src.runs.problem import Problem
from psyco._src.runs.store import METRICS, POLICY
from psyco._src.runs.train import TrainingState, current_policy

logger = logging.getLogger(__name__)

CHECKPOINT_EVERY = 2.0  # seconds
MAX_CHECKPOINT_SHARE = 0.01  # maximum part of the time that writing checkpoints may take


class RunWriter:
    """Writes metrics and checkpoints; as a context manager it saves the last state on exit.

    Args:
        folder: the run folder.
        header: fields that all checkpoints of the run share: identity, config, created.
        size: bytes of metrics.csv that belong to the state from which the run is resumed.
        every: seconds between checkpoints; 0: after every segment.
    """

    def __init__(self, folder: Path, header: dict[str, Any], size: int, every: float) -> None:
        self.folder, self.header, self.size, self.every = folder, header, size, every
        path = folder / METRICS
        try:
            (folder / FOLDER).mkdir(exist_ok=True)
            self.file = path.open("r+b" if path.exists() else "w+b", buffering=0)
            self.digest = hashlib.sha256(self.file.read(size))
            self.file.truncate(size)
        except OSError as error:
            raise files.write_error(path, error) from None
        self.unsaved: tuple[CheckpointInfo, TrainingState] | None = None
        self.due = time.monotonic() + every

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.save()
        except RunError:
            if kind is None:  # otherwise it was a last attempt, which must not hide the original error
                raise
        finally:
            self.file.close()

    def on_metrics(self, problem: Problem, metrics: Metrics) -> None:
        """Append rows to metrics.csv."""
        data = metrics.to_csv(header=self.size == 0).encode()
        try:
            self.file.seek(self.size)
            view = memoryview(data)
            while view:
                view = view[self.file.write(view) :]
        except OSError as error:
            raise files.write_error(self.folder / METRICS, error) from None
        self.digest.update(data)
        self.size += len(data)

    def on_checkpoint(self, problem: Problem, state: TrainingState) -> None:
        """Keep the state, and save it if a checkpoint is due."""
        info = CheckpointInfo(
            generation=state.generation,
            metrics_size=self.size,
            metrics_digest=self.digest.hexdigest(),
            **self.header,
        )
        self.unsaved = info, state
        if time.monotonic() >= self.due:
            self.save()

    def on_error(self, problem: Problem, state: TrainingState) -> None:
        """Write the current policy, uncertified, after an episode has failed."""
        files.write(self.folder / POLICY, current_policy(problem, state).to_bytes())

    def save(self) -> None:
        """Write a checkpoint of the last state, unless it is saved already."""
        if self.unsaved is None:
            return
        info, state = self.unsaved
        began = time.monotonic()
        try:
            files.sync(self.file.fileno())
        except OSError as error:
            raise files.write_error(self.folder / METRICS, error) from None
        save_checkpoint(self.folder, info, state)
        logger.debug("checkpoint after %d generations", info.generation)
        self.unsaved = None
        now = time.monotonic()
        # On a slow disk checkpoints are written less often, so that they take at most their share of the time.
        self.due = now + max(self.every, (now - began) / MAX_CHECKPOINT_SHARE) if self.every else now
