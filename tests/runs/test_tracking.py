"""What was logged can be read back from where it was logged to."""

import dataclasses
import json
import math
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from psyco._src.core.errors import RunError
from psyco._src.runs import tracking
from psyco._src.runs.execute import execute
from psyco._src.runs.session import build_problem, resume_run, start_run
from psyco._src.runs.store import load_metrics
from psyco._src.runs.train import Callback
from tests.runs.small import CONFIG

pytestmark = pytest.mark.slow  # needs extras

SETTINGS = dataclasses.replace(CONFIG.settings, episodes=300)


def interrupted_and_resumed(folder: Path, *trackers: str) -> Any:
    """A run in two processes' worth of sessions, as trackers have to live with it."""

    def stop(problem: Any, position: Any) -> None:
        if position.generation == 15:
            raise KeyboardInterrupt

    config = dataclasses.replace(CONFIG, settings=SETTINGS, tracking=trackers)
    with start_run(folder, config, build_problem(config)) as session, pytest.raises(KeyboardInterrupt):
        execute(session, callbacks=[Callback(on_checkpoint=stop)])
    time.sleep(1.1)  # trackers name their files by the second, and a run is rarely resumed within the same
    with resume_run(folder, track=trackers) as session:
        assert session is not None
        return execute(session).certificate


def rows(folder: Path, name: str) -> dict[int, float]:
    """What the run's own metrics say, by episode count."""
    metrics = load_metrics(folder)
    return {
        int(step): value
        for step, value in zip(metrics["episodes"], metrics[name], strict=True)
        if not math.isnan(value)
    }


@pytest.mark.extra("tensorboardX", "tensorboard")
def test_tensorboard_reads_back_every_row(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing import event_accumulator as accumulator

    certificate = interrupted_and_resumed(tmp_path / "run", "tensorboard")
    logged: dict[str, dict[int, float]] = {}
    for file in (tmp_path / "run" / "tensorboard").iterdir():
        events = accumulator.EventAccumulator(str(file), size_guidance={"scalars": 0})
        events.Reload()
        for name in events.Tags()["scalars"]:
            logged.setdefault(name, {}).update({e.step: e.value for e in events.Scalars(name)})
    for name in ("return", "c_sat", "lambda", "verified_share"):
        assert logged[name] == pytest.approx(rows(tmp_path / "run", name), rel=1e-6)
    assert logged["certificate/return"][0] == pytest.approx(certificate.mean_return, rel=1e-6)


@pytest.mark.extra("mlflow")
def test_mlflow_reads_back_one_run_with_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    certificate = interrupted_and_resumed(tmp_path / "run", "mlflow")
    from mlflow import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("psyco")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "run"
    assert run.info.status == "FINISHED"
    assert run.data.tags["verdict"] == certificate.verdict.name
    assert run.data.params["learner.population"] == "10"
    for name in ("return", "verified_share"):
        history = {m.step: m.value for m in client.get_metric_history(run.info.run_id, name)}
        assert history == pytest.approx(rows(tmp_path / "run", name), rel=1e-6)


@pytest.mark.extra("wandb")
def test_wandb_keeps_every_row_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    certificate = interrupted_and_resumed(tmp_path / "run", "wandb")
    deadline = time.monotonic() + 60
    history, summary = read_wandb(tmp_path / "run")
    while len(history) < 30 and time.monotonic() < deadline:  # a process of its own writes them
        time.sleep(0.5)
        history, summary = read_wandb(tmp_path / "run")
    for name in ("return", "verified_share"):
        logged = {int(row["episodes"]): row[name] for row in history if name in row}
        assert logged == pytest.approx(rows(tmp_path / "run", name), rel=1e-6)
    assert summary["verdict"] == certificate.verdict.name


def read_wandb(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """History rows and summary of all offline files of a run."""
    from wandb.proto import wandb_internal_pb2

    history, summary = [], {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in log_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                history.append({item_name(i): json.loads(i.value_json) for i in record.history.item})
            elif record.WhichOneof("record_type") == "summary":
                summary |= {item_name(i): json.loads(i.value_json) for i in record.summary.update}
    return history, summary


def item_name(item: Any) -> str:
    return item.key or item.nested_key[0]


def log_records(data: bytes) -> Iterator[bytes]:
    """W&B's files are LevelDB logs behind seven bytes: blocks of 32 KiB, chunks of checksum, length, type and data."""
    block, whole, last = 32768, 1, 4
    record, place = b"", 7
    while place + 7 <= len(data):
        if block - place % block < 7:  # too short for a header: padding
            place += block - place % block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (whole, last):
            yield record
            record = b""


def test_a_tracker_that_fails_costs_a_warning_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Flaky:
        def __init__(self, run: tracking.RunName) -> None:
            self.calls = 0

        def log(self, metrics: Any) -> None:
            self.calls += 1
            if self.calls == 2:
                raise ConnectionError("the server has gone")

        def finish(self, certificate: Any) -> None:
            raise AssertionError("it is out")

        close = finish

    monkeypatch.setattr(tracking, "TRACKERS", {"flaky": Flaky})
    config = dataclasses.replace(CONFIG, settings=SETTINGS, tracking=("flaky",))
    with start_run(tmp_path / "run", config, build_problem(config)) as session:
        assert execute(session).certificate
    assert "tracking with flaky failed and ends here: the server has gone" in caplog.text


def test_a_tracker_that_cannot_start_costs_a_warning_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(run: tracking.RunName) -> Any:
        raise TimeoutError("nobody answers")

    monkeypatch.setattr(tracking, "TRACKERS", {"absent": refuse})
    with tracking.start_trackers(("absent",), tracking.RunName(tmp_path, "id", {})) as started:
        assert not started.trackers
    assert "tracking with absent could not start: nobody answers" in caplog.text


@pytest.mark.parametrize("extra", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tensorboardX" if extra == "tensorboard" else extra, None)
    config = dataclasses.replace(CONFIG, settings=SETTINGS, tracking=(extra,))
    with (
        start_run(tmp_path / "run", config, build_problem(config)) as session,
        pytest.raises(RunError, match=rf'pip install "psyco\[{extra}\]"'),
    ):
        execute(session)


def test_a_file_cannot_ask_for_trackers_that_reach_beyond_its_folder(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert tracking.permitted_trackers(["tensorboard", "wandb", "mlflow"], []) == ("tensorboard",)
    assert "--track wandb" in caplog.text and "--track mlflow" in caplog.text
    assert tracking.permitted_trackers(["wandb"], ["wandb"]) == ("wandb",)
    with pytest.raises(RunError, match="unknown tracker"):
        tracking.permitted_trackers([], ["nobody"])
