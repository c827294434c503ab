"""Cells on nodes: what is missing there is said with the node's name, and what was computed comes home whole."""

import socket
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

import psyco
from psyco._src.studies import workers
from psyco._src.studies.cell import complete
from psyco._src.studies.study_folder import read_study
from psyco._src.studies.study_plan import Cell, make_plan
from psyco._src.studies.study_progress import StudyProgress
from psyco._src.studies.workers import run_cell
from tests.studies.test_study_folder import ONE, STUDY, WALK, Here

HERE_ONLY = "only_here:Walk"  # a module that is on the machine that starts the study, and on no node


class Node(Here):
    """The process of a node: it cannot import what is not installed there."""

    def __init__(self) -> None:
        pass

    def run(self, cells: Sequence[Cell], folder: Path, progress: StudyProgress, trust: Collection[str]) -> None:
        before = sys.path[:]
        sys.path[:] = [path for path in sys.path if "only_here" not in path]
        sys.modules.pop("only_here", None)
        try:
            super().run(cells, folder, progress, trust)
        finally:
            sys.path[:] = before


class Ray:
    """As much of Ray as a study asks for, in this process: a task is run when it is given away."""

    class Actor:
        def __init__(self, news: Any) -> None:
            self.put = self.take = self
            self.remote = lambda *_: {}

    def remote(self, **_: Any) -> Any:
        def wrap(what: Any) -> Any:
            if isinstance(what, type):
                return type("Made", (), {"remote": staticmethod(lambda: Ray.Actor(what))})
            return type("Task", (), {"remote": staticmethod(lambda *given: Answer(what(*given)))})

        return wrap

    def wait(self, tasks: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return tasks[:1], tasks[1:]

    def get(self, task: Any, timeout: float | None = None) -> Any:
        return task.value if isinstance(task, Answer) else task


class Answer:
    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nodes that have PSyCo and the tests' own environments, but not what lies in `only_here`."""
    here = tmp_path / "only_here"
    here.mkdir()
    (here / "only_here.py").write_text("from tests.environments import Walk\n")
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setattr(workers, "connect_ray", lambda address: Ray())
    monkeypatch.setattr(workers, "_team", Node)


@pytest.mark.more
def test_a_domain_that_is_missing_on_a_node_is_named_and_stops_no_other(nodes: None, tmp_path: Path) -> None:
    content = {key: value for key, value in ONE.items() if key != "domain"} | {
        "seeds": 1,
        "cells": [
            {"label": "there", "domain": STUDY["domain"]},
            {"label": "here", "domain": {"name": HERE_ONLY, "horizon": 9}},
        ],
    }
    study = psyco.study(content, tmp_path / "study", ray="somewhere:6379")
    assert study.counts == {"finished": 1, "failed": 1}
    ((called, error),) = study.failed.items()
    assert "here" in called
    assert error.startswith(f"on node {socket.gethostname()}: ") and "only_here" in error
    assert "\n" not in error.strip() and len(error) < 400
    assert "only_here" in study.page.read_text()
    # What has finished is a run like any other, and the same again tries what failed alone.
    (done,) = [outcome for outcome in study.outcomes if outcome.finished]
    assert done.run is not None and psyco.open_run(done.run.folder).state == "finished"
    stamp = (done.run.folder / "policy.safetensors").stat().st_mtime_ns
    again = psyco.study(content, tmp_path / "study", ray="somewhere:6379")
    assert again.counts == study.counts
    assert (done.run.folder / "policy.safetensors").stat().st_mtime_ns == stamp


@pytest.mark.slow
def test_a_node_whose_psyco_cannot_be_imported_is_said_in_a_sentence(
    nodes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(self: Any, task: Any, timeout: float | None = None) -> Any:
        raise ModuleNotFoundError("No module named 'psyco'")

    monkeypatch.setattr(Ray, "get", missing)
    monkeypatch.setattr(workers, "_task", lambda *_: None)
    study = psyco.study(ONE | {"seeds": 2}, tmp_path / "study", ray="somewhere:6379")
    assert study.counts == {"failed": 2}
    for error in study.failed.values():
        assert "No module named 'psyco'" in error and "every node needs PSyCo and what the domain needs" in error


@pytest.mark.more
def test_no_room_for_what_a_node_sends_home_is_said_and_the_same_again_goes_on(
    nodes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(files: Any, folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(workers, "_write_files", full)
        study = psyco.study(ONE | {"seeds": 1}, tmp_path / "study", ray="somewhere:6379")
    ((_, error),) = study.failed.items()
    assert "No space left on device" in error and "fix it, then start the study again" in error
    assert psyco.study(ONE | {"seeds": 1}, tmp_path / "study", ray="somewhere:6379").complete


@pytest.mark.more
def test_a_disk_that_fills_up_in_a_cell_keeps_the_others_and_the_same_again_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from psyco._src.core import files

    monkeypatch.setattr("psyco._src.studies.runner.WorkerTeam", Here)
    plain, cells = files.write, make_plan(ONE | {"seeds": 2}).cells

    def full(path: Path, data: bytes) -> None:
        if cells[1].name in str(path) and path.name == "policy.safetensors":
            raise files.write_error(path, OSError(28, "No space left on device"))
        plain(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", full)
        study = psyco.study(ONE | {"seeds": 2}, tmp_path / "study")
    assert study.counts == {"finished": 1, "failed": 1}
    ((_, error),) = study.failed.items()
    assert "No space left on device" in error and "Free disk space" in error
    again = psyco.study(ONE | {"seeds": 2}, tmp_path / "study")
    assert again.complete and read_study(tmp_path / "study").complete
    alone = tmp_path / "alone"
    assert not run_cell(complete, alone, cells[1].config, [WALK], lambda *_: None)
    mended = tmp_path / "study" / "cells" / cells[1].name
    for name in ("policy.safetensors", "metrics.csv"):
        assert (mended / name).read_bytes() == (alone / name).read_bytes()
