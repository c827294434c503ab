"""The folder of a study, also from a stranger: nothing outside of it is touched, and one process works in it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import psyco
from psyco._src.runs.lock import lock
from psyco._src.studies.cell import complete
from psyco._src.studies.pareto import make_pareto_spec
from psyco._src.studies.study_folder import read_study
from psyco._src.studies.study_plan import StudyPlan, make_plan
from tests.runs.small import begun

DANCE = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"
STUDY: dict[str, Any] = {"seeds": 1, "requirement": DANCE, "domain": {"name": "particle-dance"}}
FORMULA = "G (distance >= 0.1)"


@pytest.fixture(autouse=True)
def nobody_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("runner", "trials"):
        monkeypatch.setattr(f"psyco._src.studies.{module}.WorkerTeam", lambda *_: pytest.fail("a run was started"))


def content(folder: Path) -> dict[Path, bytes | str]:
    """Return everything in a folder, links as their targets."""
    return {
        path: str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def plant(folder: Path, name: str, target: Path) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to(target)


def plan() -> StudyPlan:
    return make_plan(STUDY)


def study(folder: Path) -> None:
    (folder / "study.toml").write_text(plan().to_toml())
    psyco.study(folder)


def tune(folder: Path) -> None:
    (folder / "tuning.toml").write_text("")
    psyco.tune("particle-dance", DANCE, folder, trials=2)


def front(folder: Path) -> None:
    psyco.pareto_front("particle-dance", FORMULA, folder, p=[0.5, 0.9], seeds=1)


def cell_name() -> str:
    return f"cells/{plan().cells[0].name}"


def point_name() -> str:
    return f"cells/{make_pareto_spec('particle-dance', FORMULA, p=[0.5, 0.9], seeds=1).plan.cells[0].name}"


CASES = [
    *((study, name) for name in ("cells", cell_name(), f"{cell_name()}/checkpoints", "failures", "study.log", ".lock")),
    *((front, name) for name in ("cells", point_name(), "pareto.csv")),
    *(
        pytest.param(tune, name, marks=pytest.mark.extra("optuna"))
        for name in ("search", "rerun", "validation", "search/cells", "search/cells/x", "validation/cells/x", ".lock")
    ),
]


@pytest.mark.parametrize(("command", "name"), CASES, ids=lambda value: getattr(value, "__name__", str(value))[:24])
def test_a_link_out_of_the_folder_is_refused_before_anything_is_written(
    command: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    """Found by a security reader: `cells/NAME -> elsewhere` deleted and wrote a run elsewhere."""
    elsewhere, folder = begun(tmp_path / "elsewhere"), tmp_path / "study"
    folder.mkdir()
    plant(folder, name, elsewhere if "." not in name.rpartition("/")[2] or "/" in name else elsewhere / "config.toml")
    if command is front:
        (folder / "study.toml").write_text("")
    before = content(elsewhere)
    with pytest.raises(psyco.RunError, match=r"is a link out of .*; nothing is written there"):
        command(folder)
    assert content(elsewhere) == before
    assert name == ".lock" or not (folder / ".lock").exists()


def test_reading_a_study_follows_no_link(tmp_path: Path) -> None:
    elsewhere, folder = begun(tmp_path / "elsewhere"), tmp_path / "study"
    plant(folder, cell_name(), elsewhere)
    (outcome,) = read_study(folder, plan()).outcomes
    assert outcome.state == "damaged" and outcome.run is None and "is a link" in outcome.error
    plant(tmp_path / "other", "cells", folder / "cells")
    with pytest.raises(psyco.RunError, match="cells is a link"):
        read_study(tmp_path / "other", plan())
    (tmp_path / "secret").write_text("precious")
    plant(tmp_path / "third", "study.toml", tmp_path / "secret")
    with pytest.raises(psyco.RunError, match="is a link out of"):
        read_study(tmp_path / "third")


def test_a_folder_in_the_place_of_a_cell_is_replaced_only_if_it_is_a_run_of_ours(tmp_path: Path) -> None:
    (cell,) = plan().cells
    other = tmp_path / cell.name
    (other / "checkpoints").mkdir(parents=True)
    (other / "config.toml").write_text('model = "theirs"')
    (other / "checkpoints" / "step-1.pt").write_text("weeks of work")
    before = content(other)
    with pytest.raises(psyco.RunError, match="is not overwritten: no intact file shows that PSyCo wrote it"):
        complete(other, cell.config)
    assert {path: text for path, text in content(other).items() if path.name != ".lock"} == before


@pytest.mark.extra("optuna")
def test_a_second_process_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """The second one has other settings; before, `tune` wrote them into the tuning.toml of the first."""
    for marker in ("study.toml", "tuning.toml"):
        (tmp_path / marker).write_text("the first")
    with lock(tmp_path):
        before = content(tmp_path)
        with pytest.raises(psyco.RunError, match="in use by another process"):
            psyco.study(STUDY | {"seeds": 3}, tmp_path)
        with pytest.raises(psyco.RunError, match="in use by another process"):
            psyco.tune("particle-dance", DANCE, tmp_path, trials=3)
        assert content(tmp_path) == before


def test_leftovers_of_a_kill_are_no_content_and_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".study.toml.0123456789abcdef.tmp"
    leftover.write_text("half a")
    with lock(tmp_path), pytest.raises(psyco.RunError, match="in use by another process"):
        psyco.study(STUDY, tmp_path)
    assert leftover.exists()  # of the process that holds the lock
    with pytest.raises(pytest.fail.Exception, match="a run was started"):
        psyco.study(STUDY, tmp_path)
    assert not leftover.exists() and (tmp_path / "study.toml").exists()
