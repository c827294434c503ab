import threading
import time

import numpy as np
import pytest

from psyco._src.learn.metrics import Metrics
from psyco._src.paper.experiments import FOUR, NONE, OBSTACLE_RUN, ONE
from psyco._src.paper.runs import DECISIVE, PACKAGE, _load, digest, gather

pytestmark = pytest.mark.slow  # computes many runs

TINY = OBSTACLE_RUN.resized(episodes=200)
PROBLEMS = [TINY.problem(ONE, seed) for seed in range(3)]


def quiet(progress):
    pass


def same(a, b):
    assert a.policy.to_bytes() == b.policy.to_bytes()
    assert a.metrics.to_csv() == b.metrics.to_csv()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(folder):
    """Three finished runs, computed one after the other."""
    found, computed = gather(PROBLEMS, folder, quiet, workers=1)
    assert computed == 3
    return found


def test_the_number_of_workers_does_not_change_a_run(runs, tmp_path):
    again, _ = gather(PROBLEMS, tmp_path, quiet, workers=3)
    for key, run in runs.items():
        same(run, again[key])


def test_finished_runs_are_kept_and_read_back_as_they_were(runs, folder):
    again, computed = gather(PROBLEMS, folder, quiet, workers=1)
    assert computed == 0
    for key, run in runs.items():
        same(run, again[key])


def test_an_interrupted_reproduction_continues_where_it_stopped(runs, tmp_path):
    def interrupt(progress):
        if progress.runs == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gather(PROBLEMS, tmp_path, interrupt, workers=1)
    again, computed = gather(PROBLEMS, tmp_path, quiet, workers=1)
    assert computed == 1
    for key, run in runs.items():
        same(run, again[key])


def test_ctrl_c_ends_the_runs_that_are_going_on(monkeypatch, tmp_path):
    """The main thread is interrupted while two endless runs are computed beside it."""
    begun = threading.Barrier(3, timeout=30)

    def endless(problem, sinks):
        begun.wait()
        while True:
            time.sleep(0.01)
            sinks[0].rows(problem, Metrics({"return": np.zeros(1)}))

    def interrupted(*_, **__):
        begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr("psyco._src.paper.runs.learn", endless)
    monkeypatch.setattr("psyco._src.paper.runs.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gather(PROBLEMS, tmp_path, quiet, workers=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", [lambda data: data[:-100], lambda data: b"", lambda data: _flipped(data)])
def test_a_damaged_file_is_computed_again(runs, folder, tmp_path, damage):
    for path in folder.glob("*.npz"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    victim = min(tmp_path.glob("*.npz"))
    victim.write_bytes(damage(victim.read_bytes()))
    again, computed = gather(PROBLEMS, tmp_path, quiet, workers=1)
    assert computed == 1
    for key, run in runs.items():
        same(run, again[key])


def test_a_half_written_file_is_not_taken_for_a_run(runs, folder, tmp_path):
    path = min(folder.glob("*.npz"))
    (tmp_path / path.name).with_suffix(".part").write_bytes(path.read_bytes()[:1000])
    _, computed = gather(PROBLEMS, tmp_path, quiet, workers=1)
    assert computed == len(PROBLEMS)


def test_everything_that_changes_a_run_changes_its_digest():
    others = [
        TINY.problem(ONE, 0),
        TINY.problem(ONE, 1),
        TINY.problem(FOUR, 0),
        TINY.problem(NONE, 0),
        TINY.resized(episodes=220).problem(ONE, 0),
        OBSTACLE_RUN.problem(ONE, 0),
    ]
    assert len({digest(problem) for problem in others}) == len(others)
    assert digest(TINY.problem(ONE, 0)) == digest(PROBLEMS[0])


def test_equal_problems_are_run_once(runs, folder):
    found, _ = gather([*PROBLEMS, *PROBLEMS], folder, quiet, workers=1)
    assert len(found) == len(PROBLEMS)


def test_progress_ends_at_the_whole(tmp_path):
    seen = []
    gather(PROBLEMS[:2], tmp_path, seen.append, workers=2)
    assert seen[0] == (0, 2, 0, 400)
    assert seen[-1] == (2, 2, 400, 400)
    assert [p.episodes for p in seen] == sorted(p.episodes for p in seen)


def _flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]


def test_no_damage_to_a_file_gets_past_us(runs, folder, tmp_path):
    """A byte flipped anywhere: the run is read as it was, or not at all."""
    path = min(folder.glob("*.npz"))
    data = path.read_bytes()
    problem = next(p for p in PROBLEMS if digest(p)[:16] in path.name)
    for place in range(0, len(data), max(1, len(data) // 150)):
        (tmp_path / path.name).write_bytes(data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :])
        run = _load(tmp_path, problem)
        if run is not None:
            same(run, runs[digest(problem)])


def test_the_rooms_that_decide_how_a_run_goes_are_there() -> None:
    assert [room for room in DECISIVE if not (PACKAGE / room).is_dir()] == []
