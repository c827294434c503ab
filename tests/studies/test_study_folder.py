"""Studies in their folders: every cell is computed once, also after interruptions; tables and page."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psyco
from psyco._src.studies.aggregate import make_tables, to_csv
from psyco._src.studies.cell import complete, first_satisfied_row
from psyco._src.studies.study_folder import read_study
from psyco._src.studies.study_plan import Cell, make_plan
from psyco._src.studies.study_progress import StudyProgress
from psyco._src.studies.workers import run_cell
from psyco._src.verification.findings import Finding
from tests.making import flat
from tests.reports.test_run_page import HANGING_OVER, OVERLAPPING, open_page

pytestmark = pytest.mark.slow  # other processes

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "study.toml"
EASY = "P>=0.1 [ G (obs[0] <= 9) ] & C>=0.8"
HARD = "P>=0.999 [ G (obs[0] <= 0) ] & C>=0.8"
WALK = "tests.environments:Walk"
STUDY: dict[str, Any] = {
    "title": "Which <learner>?",
    "seeds": 3,
    "domain": {"name": WALK, "horizon": 9},
    "settings": {
        "episodes": 24, "verify_every": 12, "verify_episodes": 10, "max_episodes": 60, "selection_episodes": 2,
        "candidates": 2, "normalization": "none", "hidden": 4,
    },
    "learner": {"population": 4},
    "grid": {
        "requirement": [{"name": "easy", "text": EASY}, {"name": "hard", "text": HARD}],
        "learner": ["snes", "safe-es"],
    },
}  # fmt: skip
ONE = {key: value for key, value in STUDY.items() if key != "grid"} | {"requirement": EASY}
TABLES = ("cells", "summary", "comparisons", "profiles", "curves")


class Here:
    """A worker team without processes."""

    def __init__(self, workers: int, log: Path) -> None:
        pass

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, cells: Sequence[Cell], folder: Path, progress: StudyProgress, trust: Collection[str]) -> None:
        for cell in cells:
            progress.mark_started(cell.name)
            tell = partial(self._tell, progress, cell.name)
            progress.mark_ended(
                cell.name, run_cell(complete, folder / cell.name, cell.config, trust, tell, cell.pruning)
            )

    def _tell(self, progress: StudyProgress, name: str, done: int, total: int, doing: str) -> None:
        progress.update(name, done, doing)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyco._src.studies.runner.WorkerTeam", Here)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> psyco.Study:
    seen: list[tuple[int, float | None]] = []

    def listen(progress: StudyProgress) -> None:
        seen.append((progress.count("finished"), progress.seconds_left))

    study = psyco.study(STUDY, tmp_path_factory.mktemp("studies") / "done", workers=2, on_progress=listen)
    assert study.complete, study.failed
    assert seen[0] == (0, None) and seen[-1][0] == 12
    assert any(left is not None for _, left in seen)
    return study


@pytest.fixture
def copied(done: psyco.Study, tmp_path: Path) -> Path:
    """Return a copy of the study in another folder."""
    return Path(shutil.copytree(done.folder, tmp_path / "copied"))


def tables(folder: Path) -> dict[str, bytes]:
    return {name: (folder / f"{name}.csv").read_bytes() for name in TABLES}


@pytest.mark.more
def test_a_cell_gives_the_same_run_as_psyco_start(done: psyco.Study, tmp_path: Path) -> None:
    outcome = done.outcomes[1]
    assert outcome.run is not None
    settings = flat(parameters={"horizon": 9}, seed=1, **STUDY["settings"], learner="snes", options={"population": 4})
    alone = psyco.start(WALK, EASY, tmp_path / "alone", **settings)
    assert alone.policy.digest == outcome.run.policy.digest
    assert (alone.folder / "metrics.csv").read_bytes() == (outcome.run.folder / "metrics.csv").read_bytes()
    assert psyco.open_run(outcome.run.folder).state == "finished"


def test_the_tables_agree_with_the_runs(done: psyco.Study) -> None:
    rows = list(csv.DictReader(io.StringIO((done.folder / "cells.csv").read_text())))
    assert len(rows) == 12 == len(list((done.folder / "cells").iterdir()))
    for row in rows:
        run = psyco.open_run(done.folder / "cells" / row["cell"])
        assert run.certificate is not None and run.config is not None
        finding = run.certificate.findings[0]
        assert isinstance(finding, Finding)
        assert row["verdict"] == run.certificate.verdict.name
        assert float(row["return"]) == pytest.approx(run.certificate.mean_return, rel=1e-8)
        assert float(row["lower[0]"]) == pytest.approx(finding.lower, rel=1e-8)
        assert int(row["episodes"]) == run.episodes
        lengths = run.metrics["length"] * np.diff(run.metrics["episodes"], prepend=0)
        assert int(row["steps"]) == round(lengths.sum())
        first = first_satisfied_row(run.metrics, psyco.parse(run.config.requirement))
        assert row["first_satisfied_episodes"] == ("" if first is None else str(run.metrics["episodes"][first]))
    by_task = {(row["task"], row["method"]): row for row in done.tables.summary}
    assert by_task["easy", "snes"]["certified"] == sum(
        row["verdict"] == "SATISFIED" and row["task"] == "easy" and row["method"] == "snes" for row in rows
    )
    assert by_task["all tasks", "snes"]["runs"] == 6
    times = list(csv.DictReader(io.StringIO((done.folder / "times.csv").read_text())))
    assert all(float(row["seconds"]) > 0 for row in times)


@pytest.mark.extra("pandas")
def test_the_tables_are_data_frames(done: psyco.Study) -> None:
    assert len(done.to_pandas()) == 12 == len(done.to_pandas("times"))
    with pytest.raises(psyco.RunError, match="did you mean 'cells'"):
        done.to_pandas("cell")


def test_methods_are_aggregated_over_tasks_if_they_have_all_of_them(done: psyco.Study) -> None:
    some = [o for o in done.outcomes if (o.cell.task, o.cell.method) != ("hard", "snes")]
    rows = {(row["task"], row["method"]): row for row in make_tables(some).summary}
    assert ("all tasks", "snes") not in rows and rows["all tasks", "safe-es"]["scaled"] == 1
    (compared,) = make_tables(some).comparisons
    assert compared["tasks"] == 1


def test_a_repeated_study_computes_nothing(copied: Path, done: psyco.Study) -> None:
    states: list[int] = []
    again = psyco.study(copied, trust=[WALK], on_progress=lambda progress: states.append(len(progress.running)))
    assert again.complete and not any(states)
    assert tables(copied) == tables(done.folder)


@pytest.mark.more
def test_further_seeds_compute_only_those(tmp_path: Path, here: None) -> None:
    folder = tmp_path / "one"
    assert len(psyco.study(ONE | {"seeds": 1}, folder).outcomes) == 1
    before = {path: path.stat().st_mtime_ns for path in folder.glob("cells/*/policy.safetensors")}
    file = tmp_path / "one.toml"
    file.write_text(make_plan(ONE).to_toml())
    with pytest.raises(psyco.RunError, match=r"--trust tests\.environments:Walk"):
        psyco.study(file, folder)
    more = psyco.study(file, folder, seeds="0:2", trust=[WALK])
    assert more.complete and [o.cell.seed for o in psyco.open_study(folder).outcomes] == [0, 1]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not (tmp_path / "one" / "failures").exists()


def test_damaged_and_interrupted_cells_are_repaired_to_the_same_bytes(
    copied: Path, done: psyco.Study, here: None
) -> None:
    first, second, third = (copied / "cells" / outcome.cell.name for outcome in done.outcomes[:3])
    (first / "policy.safetensors").write_bytes(b"x")
    shutil.rmtree(second)
    shutil.rmtree(third / "checkpoints")
    (third / "config.toml").write_text("seed")  # damaged, and no checkpoint holds a copy
    assert [o.state for o in psyco.open_study(copied).outcomes[:4]] == [
        "damaged",
        "waiting",
        "damaged",
        "finished",
    ]
    mended = psyco.study(copied, trust=[WALK])
    assert mended.complete
    assert tables(copied) == tables(done.folder)


def test_another_run_in_the_folder_of_a_cell_is_kept_and_reported(copied: Path, here: None) -> None:
    study = psyco.open_study(copied)
    first, second = (copied / "cells" / outcome.cell.name for outcome in study.outcomes[:2])
    shutil.rmtree(first)
    shutil.copytree(second, first)
    found = psyco.study(copied, trust=[WALK])
    assert not found.complete
    assert ["not part of this study" in error for error in found.failed.values()] == [True]
    assert psyco.open_run(first).state == "finished"


@pytest.mark.more
def test_a_failed_cell_is_reported_and_stops_no_other(tmp_path: Path, cli: Callable[..., Any], here: None) -> None:
    study = ONE | {"seeds": 1, "grid": {"domain": {"fault": ["raise", ""]}}}
    found = psyco.study(study, tmp_path / "walks")
    assert found.counts == {"failed": 1, "finished": 1}
    (error,) = found.failed.values()
    assert "at step 3" in error and "the simulator fell over" in error
    again = psyco.open_study(tmp_path / "walks")
    assert again.failed == found.failed and "the simulator fell over" in again.page.read_text()
    said = cli("study", "status", tmp_path / "walks")
    assert said.status == 1 and "at step 3" in said.out
    said = cli("study", tmp_path / "walks", "--trust", WALK)  # tries it again
    assert said.status == 1 and "at step 3" in said.err and "1 failed, 1 finished" in said.out


@pytest.mark.more
def test_a_cell_that_kills_its_process_is_resumed_or_reported(tmp_path: Path) -> None:
    marker = str(tmp_path / "marker")
    study = ONE | {"seeds": 1, "grid": {"domain": {"fault": ["kill", "crash once"], "marker": [marker]}}}
    found = psyco.study(study, tmp_path / "walks", workers=2)
    assert found.counts == {"failed": 1, "finished": 1}
    (killed,) = found.failed.values()
    assert "it ended its process 3 times" in killed and "SIGKILL" in killed


def test_a_locked_folder_is_refused(copied: Path) -> None:
    from psyco._src.runs.lock import lock

    with lock(copied), pytest.raises(psyco.RunError, match="in use by another process"):
        psyco.study(copied, trust=[WALK])


def test_a_full_disk_is_reported_and_results_stay(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from psyco._src.core import files

    before = tables(copied)

    def full(path: Path, data: bytes) -> None:
        raise files.write_error(path, OSError(28, "No space left on device"))

    monkeypatch.setattr("psyco._src.core.files.write", full)
    with pytest.raises(psyco.RunError, match="No space left on device; its previous content is intact"):
        psyco.study(copied, trust=[WALK])
    assert tables(copied) == before and psyco.open_study(copied).complete


@pytest.mark.more
def test_a_started_run_is_resumed(tmp_path: Path) -> None:
    cell = make_plan(ONE).cells[0]

    class Stop(Exception):
        pass

    def stop(done: int, total: int, doing: str) -> None:
        raise Stop

    with pytest.raises(Stop):
        complete(tmp_path / "run", cell.config, trust=[WALK], report=stop)
    assert psyco.open_run(tmp_path / "run").state == "stopped"
    told: list[str] = []
    complete(tmp_path / "run", cell.config, trust=[WALK], report=lambda done, total, doing: told.append(doing))
    assert psyco.open_run(tmp_path / "run").state == "finished" and told[-1] == "certifying"


# ---- the command -------------------------------------------------------------------------------------------------


def test_the_command_prints_the_results(copied: Path, cli: Callable[..., Any]) -> None:
    said = cli("study", copied, "--trust", WALK)
    assert said.status == 0
    assert "12 runs: 12 finished" in said.out and "all tasks" in said.out and "beats one of" in said.out
    found = json.loads(cli("study", copied, "--json", "--trust", WALK).out)
    assert found["complete"] and len(found["cells"]) == 12 and found["summary"][0]["task"] == "easy"
    assert cli("study", "status", copied).status == 0
    shutil.rmtree(copied / "cells" / found["cells"][-1]["cell"])
    said = cli("study", "status", copied)
    assert said.status == 3 and "11 finished, 1 waiting" in said.out
    assert json.loads(cli("study", "status", copied, "--json").out)["counts"]["waiting"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("study", "nowhere.toml"), "there is no file of that name"),
        (("study", EXAMPLE, "--seeds", "x"), "takes a number of seeds"),
        (("study", EXAMPLE, "more"), "one study at a time"),
        (("study", "status", EXAMPLE, "more"), "one study at a time"),
        (("study", "status", ROOT / "docs"), "is not the folder of a study"),
        (("study", "status"), "there are no studies"),
    ],
)
def test_bad_input_is_status_2(
    arguments: tuple[Any, ...], words: str, cli: Callable[..., Any], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli(*arguments)
    assert said.status == 2 and words in said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_the_page_shows_everything_and_fits(done: psyco.Study, browser: Any, width: int, scheme: str) -> None:
    options = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    with open_page(browser, done.page.as_uri(), **options) as page:
        assert page.locator("h1").inner_text() == "Which <learner>?"
        assert page.locator(".verdict .badge").first.inner_text() == "COMPLETE"
        assert page.locator(".chart").count() == 6 + 2 + 4
        for figure in page.locator(".chart").all():
            assert not figure.evaluate(OVERLAPPING)
            assert not figure.evaluate(HANGING_OVER)
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_csv_table_has_the_columns_of_all_rows() -> None:
    rows = [
        {"a": 1.5, "lower[0]": 0.1, "cell": "x"},
        {"a": np.nan, "lower[1]": 2.0, "lower[0]": None, "cell": "y,z"},
    ]
    assert to_csv(rows) == 'a,lower[0],lower[1],cell\n1.5,0.1,,x\n,,2,"y,z"\n'
    assert to_csv([]) == ""


# ---- interruptions ------------------------------------------------------------------------------------------------


def _started(plan: Path, folder: Path) -> Any:
    return subprocess.Popen(
        [sys.executable, "-m", "psyco", "study", str(plan), "--out", str(folder), "--trust", WALK],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


@pytest.mark.more
def test_kills_change_no_byte(done: psyco.Study, tmp_path: Path) -> None:
    """SIGKILLs at random moments of the study; then it is resumed to the end."""
    plan, folder = tmp_path / "study.toml", tmp_path / "killed"
    plan.write_text(make_plan(STUDY).to_toml())
    rng = np.random.default_rng(0)
    kills = 0
    while kills < 6:
        process = _started(plan, folder)
        until = time.monotonic() + 120
        while not (folder / "cells").is_dir() and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(float(rng.uniform(0.0, 4.0)))
        if process.poll() is not None:  # it has finished: some cells are deleted, to start again
            assert process.returncode == 0
            for path in sorted((folder / "cells").iterdir())[:6]:
                shutil.rmtree(path)
            continue
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    process = _started(plan, folder)
    assert process.wait() == 0
    assert tables(folder) == tables(done.folder)


@pytest.mark.extra("ray")
@pytest.mark.more
def test_losing_one_of_two_ray_nodes_changes_no_byte(done: psyco.Study, tmp_path: Path) -> None:
    import threading

    import ray
    from ray.cluster_utils import Cluster

    memory = 100 * 2**20
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": memory})
    try:
        node = nodes.add_node(num_cpus=1, object_store_memory=memory)
        removed: list[int] = []

        def lose(progress: StudyProgress) -> None:
            if progress.count("finished") >= 3 and not removed:
                removed.append(progress.count("finished"))
                threading.Thread(target=lambda: nodes.remove_node(node, allow_graceful=False)).start()

        study = psyco.study(STUDY, tmp_path / "lost", ray=nodes.address, on_progress=lose)
        assert study.complete and removed and removed[0] < 12
    finally:
        ray.shutdown()
        nodes.shutdown()
    assert tables(tmp_path / "lost") == tables(done.folder)


def test_reading_writes_nothing(copied: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    study = read_study(copied)
    assert study.complete and repr(study).endswith("12 cells, 12 finished>")
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*")} == before
