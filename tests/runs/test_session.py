"""A run that something happened to says so, and goes on to the same bytes."""

import dataclasses
import errno
import itertools
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psyco._src.core import files
from psyco._src.core.errors import RunError
from psyco._src.field.drift import find_reference
from psyco._src.runs.checkpoint import checkpoint_files
from psyco._src.runs.config import Config
from psyco._src.runs.execute import execute
from psyco._src.runs.session import build_problem, default_folder, resume_run, start_run
from psyco._src.runs.store import read_run
from psyco._src.runs.train import Callback
from psyco._src.verification.certificate import CHANGED_CODE_NOTE
from tests.runs.small import CONFIG, outcome

pytestmark = pytest.mark.slow  # whole runs


def resume(folder: Path, **options: Any) -> None:
    with resume_run(folder, **options) as session:
        assert session is not None, "there is something left to do"
        execute(session)


DAMAGED = ["policy.safetensors", "certificates/0001.json", "episodes.json", "metrics.csv", "run.json"]


@pytest.mark.parametrize("name", DAMAGED)
def test_a_finished_run_with_a_damaged_file_is_reported_and_made_whole(
    original: Path, finished: Path, harm: Callable[[Path], None], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    harm(finished / name)
    record = read_run(finished)
    assert record.state == "damaged"
    assert any(name in problem for problem in record.problems)
    with caplog.at_level(logging.WARNING, "psyco"):
        resume(finished)
    assert name in caplog.text
    assert outcome(finished) == outcome(original)
    assert read_run(finished).state == "finished"


def test_the_copy_of_the_newest_certificate_is_written_again(
    original: Path, finished: Path, harm: Callable[[Path], None]
) -> None:
    harm(finished / "certificate.json")
    record = read_run(finished)
    assert record.state == "damaged" and "psyco resume" in record.problems[-1]
    with resume_run(finished) as session:
        assert session is None  # nothing is learned again
    assert outcome(finished) == outcome(original) and read_run(finished).state == "finished"


def test_what_the_policy_saw_is_kept_beside_its_certificate(original: Path) -> None:
    record = read_run(original)
    assert record.certificate is not None
    found = find_reference(original / "certificate.json", record.certificate.policy)
    assert found is not None
    assert found.episodes == 100
    assert found.mean.shape == (record.policy.network.inputs,)
    assert (found.spread > 0.0).all()


@pytest.mark.parametrize("damaged", [1, 2])
def test_the_newest_intact_checkpoint_wins_and_damaged_ones_are_reported(
    original: Path,
    stopped: Path,
    harm: Callable[[Path], None],
    damaged: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = list(checkpoint_files(stopped))
    assert len(files) == 3
    for path in files[:damaged]:
        harm(path)
    with caplog.at_level(logging.WARNING, "psyco"), resume_run(stopped) as session:
        assert session.start is not None
        assert session.start.generation == 150 - 5 * damaged
        execute(session)
    assert caplog.text.count("is damaged") == damaged
    assert outcome(stopped) == outcome(original)


def test_without_any_intact_checkpoint_a_run_starts_over_to_the_same_end(
    original: Path, stopped: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    for path in checkpoint_files(stopped):
        harm(path)
    with caplog.at_level(logging.WARNING, "psyco"):
        resume(stopped)
    assert "learning starts over" in caplog.text
    assert outcome(stopped) == outcome(original)


@pytest.mark.parametrize("name", ["config.toml", "requirement.props", "run.log"])
def test_what_a_checkpoint_knows_is_restored_from_it(
    original: Path, stopped: Path, harm: Callable[[Path], None], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    intact = (stopped / name).read_bytes()
    harm(stopped / name)
    with caplog.at_level(logging.WARNING, "psyco"):
        resume(stopped)
    assert outcome(stopped) == outcome(original)
    if name != "run.log":  # a log is only ever added to
        assert name in caplog.text
        assert (stopped / name).read_bytes() == intact
        assert (stopped / f"{name}.damaged").exists()


def test_an_edited_configuration_does_not_change_a_run(stopped: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = stopped / "config.toml"
    path.write_text(path.read_text().replace("seed = 0", "seed = 1"))
    with caplog.at_level(logging.WARNING, "psyco"), resume_run(stopped) as session:
        assert session.config.settings.seed == 0
    assert "start another run" in caplog.text


def test_a_damaged_configuration_without_a_checkpoint_is_refused(stopped: Path, harm: Callable[[Path], None]) -> None:
    harm(stopped / "config.toml")
    for path in checkpoint_files(stopped):
        path.unlink()
    with pytest.raises(RunError, match="changed or damaged"), resume_run(stopped):
        pass


def test_metrics_damaged_behind_an_older_checkpoint_cost_only_what_came_after(original: Path, stopped: Path) -> None:
    path = stopped / "metrics.csv"
    path.write_bytes(path.read_bytes()[:-200])
    with resume_run(stopped) as session:
        assert session.start is not None
        assert session.start.generation == 145
        execute(session)
    assert outcome(stopped) == outcome(original)


def test_a_finished_run_has_nothing_left_to_do(original: Path, finished: Path) -> None:
    with resume_run(finished) as session:
        assert session is None
    assert outcome(finished) == outcome(original)


@pytest.mark.parametrize(("first", "more"), [(500, "1500"), pytest.param(530, "+970", marks=pytest.mark.more)])
def test_a_longer_run_is_the_run_that_was_long_from_the_start(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, more: str
) -> None:
    """Also where the shorter one ended in the middle of a segment."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    settings = dataclasses.replace(CONFIG.settings, episodes=first)
    config = dataclasses.replace(CONFIG, settings=settings)
    with start_run(tmp_path / "run", config, build_problem(config)) as session:
        execute(session)
    resume(tmp_path / "run", episodes=more)
    found, expected = outcome(tmp_path / "run"), outcome(original)
    for name in ("policy.safetensors", "metrics.csv", "episodes.json"):
        assert found[name] == expected[name]
    longer, whole = read_run(tmp_path / "run").certificate, read_run(original).certificate
    assert longer is not None and whole is not None
    assert len(longer.looks) > len(whole.looks), "its certificate is a further look"


@pytest.mark.parametrize("episodes", ["1000", "many", "-5", "1e5x"])
def test_a_run_is_not_made_shorter_nor_by_nonsense(finished: Path, episodes: str) -> None:
    with pytest.raises(RunError, match="episodes"), resume_run(finished, episodes=episodes):
        pass


@pytest.mark.parametrize("victim", ["sync", "replace"])
def test_a_disk_full_during_a_checkpoint_loses_nothing_that_was_saved(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        start_run(tmp_path / "run", CONFIG, build_problem(CONFIG)) as session,
        monkeypatch.context() as patch,
    ):

        def fill(problem: Any, position: Any) -> None:
            if position.generation == 50:
                patch.setattr(files if victim == "sync" else files.os, victim, full)

        with pytest.raises(RunError, match=r"No space left on device.*psyco resume"):
            execute(session, callbacks=[Callback(on_checkpoint=fill)], checkpoint_every=0)
    with resume_run(tmp_path / "run") as session:
        assert session.start is not None
        assert session.start.generation == 50
        execute(session)
    assert outcome(tmp_path / "run") == outcome(original)


def test_a_run_on_a_disk_that_is_really_full_goes_on_when_there_is_room(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    # Room for the first files and a part of the metrics; the page size decides how large a part.
    size = 10 * os.sysconf("SC_PAGE_SIZE")
    if (
        mount is None
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("mounting a small disk takes more rights than there are here")
    try:
        with (
            start_run(disk / "run", CONFIG, build_problem(CONFIG)) as session,
            pytest.raises(RunError, match="No space left on device"),
        ):
            execute(session, checkpoint_every=0)
        done = read_run(disk / "run").episodes
        assert 0 < done < 1500
        subprocess.run([mount, "-o", "remount,size=10m", disk], check=True)
        with resume_run(disk / "run") as session:
            assert session.start is not None, f"{done} episodes were saved"
            execute(session)
        assert outcome(disk / "run") == outcome(original)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_folder_that_can_only_be_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so the system's answer is made up here: nor can the temporary file be removed."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(RunError, match="Read-only file system"):
        files.write(tmp_path / "file", b"new")


def test_a_clock_that_jumps_back_changes_no_byte(
    original: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    clock = itertools.count(1_000_000, -1000)
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    resume(stopped)
    assert outcome(stopped) == outcome(original)


def test_a_write_that_finds_the_disk_full_says_so_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "file"
    files.write(path, b"old")
    monkeypatch.setattr(files, "sync", full)
    with pytest.raises(RunError, match="No space left on device"):
        files.write(path, b"new" * 100_000)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_an_error_in_an_environment_keeps_what_was_learned(tmp_path: Path) -> None:
    def fail(problem: Any, position: Any) -> None:
        if position.generation == 60:
            raise RunError("the simulator died")

    with (
        start_run(tmp_path / "run", CONFIG, build_problem(CONFIG)) as session,
        pytest.raises(RunError, match="simulator"),
    ):
        execute(session, callbacks=[Callback(on_checkpoint=fail)])
    with resume_run(tmp_path / "run") as session:
        assert session.start is not None
        assert session.start.generation == 60


def test_a_folder_that_holds_a_run_or_something_else_is_refused(finished: Path, tmp_path: Path) -> None:
    problem = build_problem(CONFIG)
    with pytest.raises(RunError, match="--overwrite"), start_run(finished, CONFIG, problem):
        pass
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="not a run"), start_run(other, CONFIG, problem, overwrite=True):
        pass
    assert (other / "thesis.tex").exists()


def test_overwrite_replaces_a_run(original: Path, finished: Path) -> None:
    with start_run(finished, CONFIG, build_problem(CONFIG), overwrite=True) as session:
        assert not (finished / "policy.safetensors").exists()
        execute(session)
    assert outcome(finished) == outcome(original)


@pytest.mark.more
def test_code_that_changed_behind_a_checkpoint_is_refused_or_noted(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def content() -> dict[str, bytes]:
        return {
            path.name: path.read_bytes() for path in stopped.rglob("*") if path.is_file() and path.name != "run.log"
        }

    before = content()
    monkeypatch.setattr("psyco._src.runs.problem.code_digest", lambda _: "f" * 64)
    with pytest.raises(
        RunError, match=r"code of particle-dance has changed .* ffffffffffff\.\.\. now.*--allow-changed-code"
    ):
        resume(stopped)
    assert content() == before, "a refusal changes nothing"
    (stopped / "run.json").write_text("damaged")  # the checkpoint knows it
    with pytest.raises(RunError, match="has changed"):
        resume(stopped)
    with caplog.at_level(logging.WARNING, "psyco"):
        resume(stopped, allow_changed_code=True)
    assert "learning continues with the new code" in caplog.text
    resume(stopped, episodes="+50", allow_changed_code=True)
    resume(stopped, episodes="+50")  # it learned with this code until the last checkpoint
    certificate = read_run(stopped).certificate
    assert certificate is not None and certificate.notes[0] == CHANGED_CODE_NOTE


def test_unknown_code_is_no_change(stopped: Path, original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyco._src.runs.problem.code_digest", lambda _: None)
    resume(stopped)
    assert outcome(stopped) == outcome(original)


def test_default_names_are_readable_and_free(tmp_path: Path) -> None:
    assert default_folder("particle-dance", tmp_path) == tmp_path / "particle-dance-1"
    (tmp_path / "particle-dance-1").mkdir()
    assert default_folder("particle-dance", tmp_path) == tmp_path / "particle-dance-2"
    assert default_folder("ALE/Pong-v5", tmp_path).name == "ALE-Pong-v5-1"
    assert default_folder("../..", tmp_path).parent == tmp_path


def test_a_policy_whose_file_was_changed_is_not_used(finished: Path) -> None:
    path = finished / "policy.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1  # still a valid policy file, with one parameter changed
    path.write_bytes(bytes(data))
    with pytest.raises(RunError, match="not what the run wrote"):
        _ = read_run(finished).policy


def test_a_run_of_a_multi_part_state_is_restored_leaf_by_leaf(tmp_path: Path) -> None:
    """Any pytree of arrays: the structure comes from the learner, the file holds nothing but arrays."""
    import numpy as np

    from psyco._src.runs.checkpoint import CheckpointInfo, load_checkpoint, save_checkpoint

    tree = {"a": (np.arange(3.0), [np.int32(4)]), "b": np.zeros((2, 2), bool), "none": None}
    (tmp_path / "checkpoints").mkdir()
    save_checkpoint(tmp_path, CheckpointInfo(7, "id", "", 0, 0, ""), tree)
    loaded = load_checkpoint(next(checkpoint_files(tmp_path)))
    empty = {"a": (np.zeros(3), [np.int32(0)]), "b": np.ones((2, 2), bool), "none": None}
    restored = loaded.restore(empty)
    assert restored["a"][1][0] == 4
    np.testing.assert_array_equal(restored["a"][0], tree["a"][0])
    with pytest.raises(RunError, match="another learner"):
        loaded.restore({"a": empty["a"]})
    with pytest.raises(RunError, match=r"float64\[3\], not float32"):
        loaded.restore(empty | {"a": (np.zeros(3, np.float32), [np.int32(0)])})


def test_a_configuration_repeats_the_run_that_wrote_it(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from psyco._src.runs.config import load_config

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    config: Config = load_config(original / "config.toml")
    with start_run(tmp_path / "again", config, build_problem(config)) as session:
        execute(session)
    assert outcome(tmp_path / "again") == outcome(original)


def test_a_segment_whose_verification_failed_is_done_again(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row lacks what an undisturbed run has there, so no checkpoint may stand behind it."""
    from psyco._src.core.errors import EpisodeError
    from psyco._src.runs import train

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    real = train.verify_parameters

    def fail(*arguments: Any, **settings: Any) -> Any:
        if (tmp_path / "run" / "metrics.csv").read_text().count("\n") >= 30:
            raise EpisodeError("dance", 7, 3, "it fell apart")
        return real(*arguments, **settings)

    with (
        start_run(tmp_path / "run", CONFIG, build_problem(CONFIG)) as session,
        monkeypatch.context() as patch,
    ):
        patch.setattr(train, "verify_parameters", fail)
        with pytest.raises(EpisodeError, match="it fell apart"):
            execute(session, checkpoint_every=0)
    assert (tmp_path / "run" / "policy.safetensors").exists(), "what was learned is kept"
    assert read_run(tmp_path / "run").metrics.rows == 30, "the failed segment's rows are there"
    with resume_run(tmp_path / "run") as session:
        assert session is not None and session.start is not None
        assert session.start.generation == 25
        execute(session)
    assert outcome(tmp_path / "run") == outcome(original)
