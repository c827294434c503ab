"""A run folder from a stranger: whatever lies in it, it is looked at, and nothing outside of it is read or written."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psyco._src.core import files
from psyco._src.core.errors import RunError
from psyco._src.reports.run_page import compare_page, run_page
from psyco._src.runs.checkpoint import CheckpointInfo, save_checkpoint
from psyco._src.runs.lock import lock
from psyco._src.runs.session import check_folder_free, resume_run
from psyco._src.runs.store import FILES, METRICS, RUN_INFO, load_run_info, read_run
from tests.runs.small import CONFIG, REQUIREMENT, begun

LEFTOVER = ".config.toml.0123456789abcdef.tmp"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return begun(tmp_path / "run")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("precious")
    return path


def test_a_run_made_by_hand_is_one(run: Path) -> None:
    found = read_run(run)
    assert (found.state, found.problems, found.episodes) == ("stopped", (), 30)


# ---- what is in the place of a file -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("run.log", "requirement.props")])
def test_a_link_out_of_the_folder_is_not_followed(run: Path, secret: Path, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(secret)
    shown = run_page(read_run(run))
    assert "precious" not in shown
    unread = (
        "policy.safetensors",
        "start.safetensors",
        "generation.safetensors",
        "played.safetensors",
        "episodes.json",
        "looks.json",
        "progress.json",  # of live pages; a link counts as no file
    )
    assert name in unread or "is a link out of" in shown
    with pytest.raises(RunError, match="link out of"):
        _ = read_run(run).policy if name == "policy.safetensors" else _resume(run)


@pytest.mark.parametrize("name", ["config.toml", "metrics.csv", "run.json", "certificate.json"])
def test_a_pipe_keeps_nobody_waiting(run: Path, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    assert any("it is a pipe" in problem for problem in read_run(run).problems)
    with pytest.raises(RunError, match="is a pipe; remove it first"):
        _resume(run)


@pytest.mark.parametrize(
    "name", [".lock", LEFTOVER, "metrics.csv", "run.log", "checkpoints", "certificates", "tensorboard"]
)
def test_going_on_writes_nothing_through_a_link(run: Path, secret: Path, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(secret.parent if "." not in name else secret)
    before = sorted(secret.parent.iterdir())
    with pytest.raises(RunError, match="is a link out of"):
        _resume(run)
    assert secret.read_text() == "precious"
    assert sorted(secret.parent.iterdir()) == before


def test_the_lock_is_not_written_through_a_link(run: Path, secret: Path) -> None:
    (run / ".lock").symlink_to(secret)
    with pytest.raises(RunError, match="cannot write in"), lock(run):
        pass
    assert secret.read_text() == "precious"


# ---- what is overwritten ----------------------------------------------------------------------------------------


def test_a_run_is_overwritten_if_an_intact_file_shows_that_psyco_wrote_it(run: Path) -> None:
    check_folder_free(run, overwrite=True)
    (run / "config.toml").write_text("damaged")
    check_folder_free(run, overwrite=True)  # run.json is intact
    (run / "config.toml").write_text(CONFIG.to_toml())
    (run / RUN_INFO).write_text("{}")
    with pytest.raises(RunError, match="is not overwritten"):
        check_folder_free(run, overwrite=True)
    (run / "checkpoints").mkdir()
    save_checkpoint(run, CheckpointInfo(3, CONFIG.identity, "", 1_700_000_000, 0, files.digest(b"")), {"x": np.ones(1)})
    check_folder_free(run, overwrite=True)


def test_a_run_that_was_killed_before_it_described_itself_is_overwritten(tmp_path: Path) -> None:
    for name in (".lock", LEFTOVER, "start.safetensors"):
        (tmp_path / name).touch()
        check_folder_free(tmp_path, overwrite=False)
    (tmp_path / "config.toml").write_text(CONFIG.to_toml())
    check_folder_free(tmp_path, overwrite=True)


@pytest.mark.parametrize("text", ['model = "theirs"', CONFIG.to_toml()], ids=["theirs", "a copy of ours"])
def test_the_work_of_another_program_is_not_overwritten(tmp_path: Path, cli: Callable[..., Any], text: str) -> None:
    """Its configuration has the same name, and may even be a copy of one of ours."""
    (tmp_path / "checkpoints").mkdir()
    for name in ("config.toml", "metrics.csv", "checkpoints/step-1.pt"):
        (tmp_path / name).write_text(text)
    said = cli("synthesize", "particle-dance", "--require", REQUIREMENT, "--out", tmp_path, "--overwrite")
    assert said.status == 2 and "no intact file shows that PSyCo wrote it" in " ".join(said.err.split())
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["checkpoints", "config.toml", "metrics.csv", "step-1.pt"]


def test_results_without_a_configuration_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("theirs")
    with pytest.raises(RunError, match=r"not empty and not a run \(metrics.csv"):
        check_folder_free(tmp_path, overwrite=True)


def test_a_run_with_a_link_out_of_it_is_not_overwritten(run: Path, secret: Path) -> None:
    (run / "tensorboard").symlink_to(secret.parent)
    with pytest.raises(RunError, match="is a link out of"):
        check_folder_free(run, overwrite=True)


# ---- what a file says ---------------------------------------------------------------------------------------------


def _sealed(run: Path, **changes: Any) -> None:
    """run.json with other content, and a checksum that fits: anybody can compute one."""
    content = json.loads((run / RUN_INFO).read_text()) | changes
    del content["sha256"]
    content["sha256"] = files.digest(json.dumps(content, sort_keys=True).encode())
    (run / RUN_INFO).write_text(json.dumps(content))


@pytest.mark.parametrize(
    "changes",
    [
        {"created": "today"},
        {"created": 10**17},
        {"versions": {"jax": 1}},
        {"machine": []},
        {"outcome": {"../secret": "0" * 64}},
        {"outcome": {METRICS: 1}},
        {"remark": 1},
        {"network": "x"},
        {"more": 1},
    ],
    ids=str,
)
def test_a_checksum_that_fits_is_no_reason_to_trust(run: Path, changes: dict[str, Any]) -> None:
    _sealed(run)
    assert load_run_info(run).created == 1_700_000_000
    _sealed(run, **changes)
    with pytest.raises(RunError, match="damaged"):
        load_run_info(run)


def _cell(column: str, value: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        rows = [line.split(",") for line in text.splitlines()]
        rows[-1][rows[0].index(column)] = value
        return "\n".join(map(",".join, rows)) + "\n"

    return change


@pytest.mark.parametrize(
    "change",
    [
        _cell("episodes", "0"),
        _cell("episodes", "-5"),
        _cell("episodes", "9" * 30),
        _cell("episodes", "nan"),
        _cell("generation", ""),
        _cell("satisfied", "1.5"),
        _cell("return", "1e300"),
        _cell("verified_share", "-1"),
        _cell("verdict", "x" * 100),
        lambda text: text.replace("verified_return", "other"),
        lambda text: text.replace("length", "return"),
        lambda text: text + '"' + "x" * 200_000 + "\n",
        lambda text: text + "1,2\n",
    ],
)
def test_a_table_with_impossible_values_is_damaged(run: Path, change: Callable[[str], str]) -> None:
    path = run / METRICS
    path.write_text(change(path.read_text()))
    assert any("metrics.csv is damaged" in problem for problem in read_run(run).problems)


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "", "-1e99", "1e99"])
@pytest.mark.parametrize("column", ["return", "lambda", "cost", "verified_return"])
def test_runs_with_wild_numbers_are_compared_and_shown(run: Path, cli: Any, column: str, value: str) -> None:
    """Found by fuzzing: "cannot convert float NaN to integer"."""
    path = run / METRICS
    path.write_text(_cell(column, value)(path.read_text()))
    assert cli("compare", run, run).status == 0
    assert cli("runs", run, "--json").status == 0
    assert "</html>" in compare_page([read_run(run)] * 2)


def _resume(folder: Path) -> None:
    with resume_run(folder):
        pytest.fail("it was not refused")
