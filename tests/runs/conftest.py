"""One finished run, made once and copied by whoever wants to do something to it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from psyco._src.runs.execute import execute
from psyco._src.runs.session import build_problem, start_run
from tests.runs.small import CONFIG


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never touched; a checkpoint after every segment, so there are as many as are kept."""
    folder = tmp_path_factory.mktemp("runs") / "original"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        with start_run(folder, CONFIG, build_problem(CONFIG)) as session:
            execute(session, checkpoint_every=0)
    return folder


@pytest.fixture
def finished(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the finished run."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    return Path(shutil.copytree(original, tmp_path / "run"))


@pytest.fixture
def stopped(finished: Path) -> Path:
    """A copy as it was just before its outcome was written."""
    import dataclasses

    from psyco._src.runs.store import load_run_info

    for name in ("policy.safetensors", "certificate.json", "episodes.json"):
        (finished / name).unlink()
    dataclasses.replace(load_run_info(finished), outcome={}).save(finished)
    return finished


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(bytes(data))


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.fixture(params=[_truncate, _flip, _empty], ids=["truncated", "flipped", "emptied"])
def harm(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """What can happen to a file."""
    return request.param
