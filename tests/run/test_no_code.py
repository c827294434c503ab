"""Loading any file of a run folder runs no code from it."""

import pickle
from pathlib import Path

import pytest

from psyco.errors import PsycoError
from psyco.report.page import run_page
from psyco.run.checkpoint import checkpoint_files
from psyco.run.folder import FILES, find_policy, read_run
from psyco.run.session import resume_run


class Bomb:
    """What a pickle can do to who loads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["pickle", "python"])
@pytest.mark.parametrize("victim", [*FILES, "checkpoint"])
def test_a_file_from_a_stranger_runs_nothing(stopped: Path, tmp_path: Path, victim: str, kind: str) -> None:
    fuse = tmp_path / "exploded"
    code = f"__import__('pathlib').Path({str(fuse)!r}).touch()"
    bomb = pickle.dumps(Bomb(fuse)) if kind == "pickle" else code.encode()
    targets = list(checkpoint_files(stopped)) if victim == "checkpoint" else [stopped / victim]
    for path in targets:
        path.write_bytes(bomb)
    for use in (lambda: run_page(read_run(stopped)), lambda: find_policy(stopped), lambda: _resume(stopped)):
        try:
            use()
        except PsycoError:
            pass  # saying no is fine
    assert not fuse.exists()


def test_the_bomb_would_go_off(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "exploded")))
    assert (tmp_path / "exploded").exists()


def _resume(folder: Path) -> None:
    with resume_run(folder):
        pass
