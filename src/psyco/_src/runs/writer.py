"""The sink that is the run's folder: metrics are appended, checkpoints written now and then."""

from __future__ import annotations

import hashlib
import logging
import time
from pathlib import Path
from typing import Any

from psyco._src.core import atomic_io
from psyco._src.core.errors import RunError
from psyco._src.learners.metrics import Metrics
from psyco._src.runs import checkpoint as checkpoints
from psyco._src.runs.checkpoint import save_checkpoint
from psyco._src.runs.store import METRICS, POLICY
from psyco._src.runs.train import TrainingState, deployed
from psyco._src.runs.problem import Problem

logger = logging.getLogger(__name__)

CHECKPOINT_EVERY = 2.0  # seconds
CHECKPOINT_SHARE = 0.01  # of the time, at most


class RunWriter:
    """Keeps what a run tells; as a context it saves the last state when it is left.

    Args:
        folder: of the run.
        same: what every checkpoint of this run says: its identity, its configuration, when it was created.
        size: bytes of the metrics that belong to where the run goes on.
        every: seconds between checkpoints; 0: after every segment.
    """

    def __init__(self, folder: Path, same: dict[str, Any], size: int, every: float) -> None:
        self.folder, self.same, self.size, self.every = folder, same, size, every
        path = folder / METRICS
        try:
            (folder / checkpoints.FOLDER).mkdir(exist_ok=True)
            self.file = path.open("r+b" if path.exists() else "w+b", buffering=0)
            self.digest = hashlib.sha256(self.file.read(size))
            self.file.truncate(size)
            self.file.seek(0)
            # A run that an earlier version began goes on with the columns that it has.
            self.columns = self.file.read(size).partition(b"\n")[0].decode().split(",") if size else None
        except OSError as error:
            raise atomic_io.failed(path, error) from None
        self.pending: tuple[checkpoints.CheckpointInfo, TrainingState] | None = None  # not saved yet
        self.due = time.monotonic() + every

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.save()
        except RunError:
            if kind is None:  # else it was a last attempt, which must not hide the error that brought us here
                raise
        finally:
            self.file.close()

    def rows(self, problem: Problem, metrics: Metrics) -> None:
        """Append to the table."""
        if self.columns:
            metrics = Metrics({name: metrics[name] for name in self.columns})
        data = metrics.to_csv(header=self.size == 0).encode()
        try:
            self.file.seek(self.size)
            view = memoryview(data)
            while view:
                view = view[self.file.write(view) :]
        except OSError as error:
            raise atomic_io.failed(self.folder / METRICS, error) from None
        self.digest.update(data)
        self.size += len(data)

    def reached(self, problem: Problem, position: TrainingState) -> None:
        """Remember where learning stands; save if it is time."""
        about = checkpoints.CheckpointInfo(
            generation=position.generation,
            metrics_size=self.size,
            metrics_digest=self.digest.hexdigest(),
            **self.same,
        )
        self.pending = about, position
        if time.monotonic() >= self.due:
            self.save()

    def stopped(self, problem: Problem, position: TrainingState) -> None:
        """What was learned before an episode failed is kept, though nobody has certified it."""
        atomic_io.write(self.folder / POLICY, deployed(problem, position).to_bytes())

    def save(self) -> None:
        """Write a checkpoint of the last whole segment, unless it is there already."""
        if self.pending is None:
            return
        about, position = self.pending
        began = time.monotonic()
        try:
            atomic_io.sync(self.file.fileno())
        except OSError as error:
            raise atomic_io.failed(self.folder / METRICS, error) from None
        save_checkpoint(self.folder, about, position)
        logger.debug("checkpoint after %d generations", about.generation)
        self.pending = None
        now = time.monotonic()
        # Where the disk is slow, save less often, so that saving takes no more than its share of the time.
        self.due = now + max(self.every, (now - began) / CHECKPOINT_SHARE) if self.every else now
