"""The time that a study has left, by what its cells have shown so far."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from psyco._src.cli import study
from psyco._src.runs.train import RunProgress
from psyco._src.studies import study_progress
from psyco._src.studies.cell import _CellFollower
from psyco._src.studies.study_progress import StudyProgress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the study, as a list of one number."""
    now = [0.0]
    for module in (study_progress, study):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def cell(name: str) -> Any:
    return SimpleNamespace(
        name=name, label=name, config=SimpleNamespace(settings=SimpleNamespace(steps=0, episodes=100))
    )


def test_the_time_left_is_that_of_two_workers_and_counts_down(clock: list[float]) -> None:
    """Five cells of 100 s each by two workers: 300 s in all."""
    progress = StudyProgress.of([cell(name) for name in "abcde"], lambda _: None)
    progress.mark_started("a")
    progress.mark_started("b")
    assert progress.seconds_left is None
    for now, done in ((50.0, 50), (97.5, 100)):  # the rest is selection and certificate
        clock[0] = now
        for name in "ab":
            progress.update(name, done, "learning")
        assert progress.seconds_left == pytest.approx(300.0 - now, rel=0.1), "before the first has finished"
    for now, ended, started in ((100.0, "ab", "cd"), (200.0, "cd", "e"), (300.0, "e", "")):
        clock[0] = now
        assert now == 100.0 or progress.seconds_left == pytest.approx(300.0 - now)
        for name in ended:
            progress.mark_ended(name)
        for name in started:
            progress.mark_started(name)
    assert progress.seconds_left == 0.0


def test_the_time_left_counts_down_between_two_reports(clock: list[float]) -> None:
    """A cell compiles for 30 s, and is silent again for 30 s after its first report."""
    progress = StudyProgress.of([cell("a"), cell("b")], lambda _: None)
    progress.mark_started("a")
    clock[0] = 30.0
    progress.update("a", 50, "learning")
    expected = 2 * 100 * 30 / (0.95 * 50)
    for now in (30.0, 45.0, 60.0):
        clock[0] = now
        progress.update("a", 50, "learning")
        assert progress.seconds_left == pytest.approx(expected - now)
    clock[0] = 70.0
    progress.update("a", 90, "learning")  # 40 in 40 s; another cell is expected to start as slowly
    rest, other = (100 - 0.95 * 90) * 40 / (0.95 * 40), 100 * 70 / (0.95 * 90)
    assert progress.seconds_left == pytest.approx(rest + other)


def test_a_line_is_repeated_every_ten_seconds_only(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(study, "remark", said.append)
    monkeypatch.setattr(study, "status", SimpleNamespace(is_terminal=False))
    display = study.StudyDisplay()
    progress = StudyProgress.of([cell("a"), cell("b")], display.show)
    progress.mark_started("a")
    for now in range(1, 31):
        clock[0] = float(now)
        progress.update("a", 50 * (now > 20), "learning")
    assert [line.partition(" [")[0] for line in said] == ["a 0%", "a 0%", "a 48%"]


def test_a_resumed_cell_is_expected_to_take_the_rest(clock: list[float]) -> None:
    progress = StudyProgress.of([cell("a"), cell("b")], lambda _: None)
    progress.mark_started("a")
    clock[0] = 100.0
    progress.mark_ended("a")
    progress.mark_started("b", done=75)
    assert progress.seconds_left == 25.0


def test_a_cell_reports_the_progress_of_learning_whatever_phase_follows(tmp_path: Path) -> None:
    said: list[tuple[int, int, str]] = []
    follower = _CellFollower(tmp_path, lambda *report: said.append(report))
    for phase, done, total in (
        ("cloning", 9, 9), ("learning", 50, 400), ("checking", 3, 10), ("learning", 400, 400),
        ("selecting", 5, 20), ("certifying", 8, 60), ("comparing with baselines", 1, 3),
    ):  # fmt: skip
        follower.reported_at = 0.0
        follower._progress(RunProgress(phase, done, total, "episodes"))
    assert said == [(50, 400, "learning"), *[(400, 400, "certifying")] * 4]
