"""Loading any file of a run folder runs no code from it."""

import pickle
from contextlib import suppress
from pathlib import Path

import pytest

from psyco._src.core.errors import PsycoError
from psyco._src.reports.run_page import run_page
from psyco._src.runs.checkpoint import checkpoint_files
from psyco._src.runs.session import resume_run
from psyco._src.runs.store import FILES, read_run

pytestmark = pytest.mark.slow  # whole runs


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
    for use in (
        lambda: run_page(read_run(stopped)),
        lambda: read_run(stopped).policy,
        lambda: _resume(stopped),
    ):
        with suppress(PsycoError):  # saying no is fine
            use()
    assert not fuse.exists()


def test_the_bomb_would_go_off(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "exploded")))
    assert (tmp_path / "exploded").exists()


def _resume(folder: Path) -> None:
    with resume_run(folder):
        pass


def test_a_configuration_that_names_code_is_refused(tmp_path: Path) -> None:
    """`module:name` is a domain when a user types it; a file must not choose what is imported and called."""
    from psyco._src.runs.config import read_config
    from psyco._src.runs.session import build_problem

    text = "requirement = 'P>=0.5 [ G step >= 0 ]'\n[domain]\nname = 'pathlib:Path.cwd'"
    config = read_config(text, "config.toml")  # it can be looked at
    with pytest.raises(PsycoError, match="must not choose which code runs"):
        build_problem(config)
