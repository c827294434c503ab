"""The callback that writes the run folder."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from psyco._src.learners.metrics import Metrics
from psyco._src.runs.checkpoint import checkpoint_files, load_checkpoint
from psyco._src.runs.train import TrainingState
from psyco._src.runs.writer import RunWriter

HEADER = {"identity": "id", "config": "text", "created": 1}


def rows(first: int) -> Metrics:
    return Metrics({"generation": np.arange(first, first + 2), "return": np.linspace(0.1, 0.9, 2)})


def test_rows_after_the_checkpoint_are_dropped_and_written_again(tmp_path: Path) -> None:
    kept, later = rows(0).to_csv(), "2,0.1\n3,0."
    (tmp_path / "metrics.csv").write_text(kept + later)
    with RunWriter(tmp_path, HEADER, len(kept), 0.0) as writer:
        writer.on_metrics(None, rows(2))  # type: ignore[arg-type]
        writer.on_checkpoint(None, TrainingState(4, np.zeros(3)))  # type: ignore[arg-type]
    content = kept + rows(2).to_csv(header=False)
    assert (tmp_path / "metrics.csv").read_text() == content
    info = load_checkpoint(next(checkpoint_files(tmp_path))).info
    assert (info.generation, info.metrics_size) == (4, len(content))
    assert info.metrics_digest == hashlib.sha256(content.encode()).hexdigest()


def test_the_last_state_is_saved_when_an_error_ends_the_run(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, HEADER, 0, 1000.0)
    writer.on_checkpoint(None, TrainingState(7, np.ones(3)))  # type: ignore[arg-type]
    assert not list(checkpoint_files(tmp_path))  # it is not due yet
    with pytest.raises(KeyboardInterrupt), writer:
        raise KeyboardInterrupt
    assert load_checkpoint(next(checkpoint_files(tmp_path))).info.generation == 7
