"""`progress.json`, from which the live page of a run shows what it does."""

from types import SimpleNamespace

import numpy as np
import pytest

import psyco
from psyco._src.runs.live_progress import PROGRESS, LiveProgress, Moment, load_progress
from psyco._src.runs.train import Callback, RunProgress

REQUIREMENT = "P>=0.1 [ G (distance >= 0.0) ] & C>=0.8"


def batch(*satisfied):
    column = np.array(satisfied, bool)[:, None]
    return SimpleNamespace(satisfied=column, returns=column[:, 0])


def test_the_outcomes_of_a_look_are_counted_and_start_anew_with_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("psyco._src.runs.live_progress.WRITE_EVERY", 0.0)
    with LiveProgress(tmp_path / PROGRESS) as progress:
        progress.on_progress(RunProgress("certifying", 3, 100, "episodes"))
        progress.on_look(0, batch(1, 0, 1))
        progress.on_look(3, batch(1, 1))
        assert load_progress(tmp_path) == Moment("certifying", 3, 100, "episodes", ((4, 1),))
        progress.on_look(0, batch(0))
        assert load_progress(tmp_path).counts == ((0, 1),)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"phase": 1, "unit": 2, "done": "x", "total": 1, "counts": []}',
                                  '{"phase": "a", "unit": "b", "done": 1, "total": 1, "counts": [3]}'])  # fmt: skip
def test_a_damaged_file_is_none(tmp_path, text):
    (tmp_path / PROGRESS).write_text(text)
    assert load_progress(tmp_path) is None


@pytest.mark.more
def test_a_run_says_what_it_does_and_leaves_nothing_behind(tmp_path):
    seen = []
    callback = Callback(on_look=lambda first, episodes: seen.append(load_progress(tmp_path / "run")))
    run = psyco.start("particle-dance", REQUIREMENT, tmp_path / "run", episodes=500, callbacks=[callback])
    assert not (tmp_path / "run" / PROGRESS).exists()
    assert seen and seen[-1].phase in ("selecting", "certifying")
    assert run.certificate is not None
