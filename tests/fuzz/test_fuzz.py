"""A short slice of `make fuzz`, the same in every run, and every input that was a finding once."""

from pathlib import Path
from random import Random

import pytest

from tests.fuzz import __main__ as fuzzer
from tests.fuzz.judge import corpus, judge, warm_up
from tests.fuzz.kinds import KINDS, Place
from tests.fuzz.watch import watched

INPUTS = {"requirement": 200, "request": 200, "command-line": 40}  # of each kind; 40 of the others
NEEDS = {
    "request": pytest.mark.extra("starlette", "uvicorn"),
    "onnx": pytest.mark.extra("onnx", "onnxruntime"),
    "tuning": pytest.mark.extra("optuna"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("fuzz") / "place")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=NEEDS.get(kind, ())) for kind in KINDS])
def test_inputs_that_are_almost_right_end_in_an_answer_or_an_error_of_ours(kind: str, place: Place) -> None:
    warm_up(kind, place)
    rng = Random(f"slice {kind}")
    for _ in range(INPUTS.get(kind, 40)):
        data = KINDS[kind].make(rng, place)
        assert judge(kind, data, place) is None, data[:2000]


@pytest.mark.parametrize(
    ("kind", "path"),
    [pytest.param(kind, path, id=f"{kind}-{path.name}", marks=NEEDS.get(kind, ())) for kind, path in corpus()],
)
def test_a_finding_is_none_any_more(kind: str, path: Path, place: Place) -> None:
    warm_up(kind, place)
    assert judge(kind, path.read_bytes(), place) is None


def test_the_fuzzer_counts_and_keeps_what_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(data: bytes, place: Place) -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(fuzzer, "CORPUS", tmp_path)
    monkeypatch.setattr(fuzzer, "TURN", 0.01)
    monkeypatch.setitem(KINDS, "traces", KINDS["traces"]._replace(attempt=fail))
    monkeypatch.setattr("sys.argv", ["fuzz", "--minutes", "0.0001", "--kind", "traces", "--kind", "outcomes"])
    assert fuzzer.main() == 1
    assert len(list((tmp_path / "traces").iterdir())) == 1, "one of each fault"
    assert [line.split()[5] for line in capsys.readouterr().out.splitlines()[-3:]] == ["1", "0", "1"]


def test_the_watch_sees_what_must_not_happen(tmp_path: Path) -> None:
    import os
    import pickle
    import socket
    import subprocess
    import sys

    (tmp_path / "here").mkdir()
    with watched(tmp_path / "here") as seen:
        (tmp_path / "here" / "file").write_text("fine")
        (tmp_path / "there").write_text("not fine")
        os.mkdir(tmp_path / "folder")
        subprocess.run([sys.executable, "-c", ""], check=True)
        exec("pass")
        pickle.loads(pickle.dumps(Random))
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
    words = ["writes to", "os.mkdir", "subprocess.Popen", "it runs", "pickle.find_class", "socket.bind"]
    assert [word for word in words if not any(word in each for each in seen)] == []
    assert not any("file'" in each for each in seen)
