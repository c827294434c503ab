"""One tiny reproduction of everything, made once and looked at by many tests."""

import fcntl
from pathlib import Path

import pytest

from psyco._src.paper.reproduce import reproduce

TINY = {"episodes": 400, "repetitions": 2}


@pytest.fixture(scope="session")
def reproduction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a reproduction of every part; parallel test processes share it."""
    base = tmp_path_factory.getbasetemp()
    out = (base.parent if "popen-gw" in base.name else base) / "reproduction"
    out.mkdir(exist_ok=True)
    with (out.parent / "reproduction.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "reproduction.html").exists():
            reproduce([], out, **TINY)
    return out
