"""Small reproductions, of all parts and of one part, shared by many tests."""

import fcntl
from pathlib import Path

import pytest

from psyco._src.paper.reproduction import reproduce

TINY = {"episodes": 400, "repetitions": 2}


def made_once(factory: pytest.TempPathFactory, name: str, parts: list[str]) -> Path:
    """The folder of a reproduction of these parts (none: every one); parallel test processes share it."""
    base = factory.getbasetemp()
    out = (base.parent if "popen-gw" in base.name else base) / name
    out.mkdir(exist_ok=True)
    with (out.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "reproduction.html").exists():
            reproduce(parts, out, **TINY)
    return out


@pytest.fixture(scope="session")
def reproduction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "reproduction", [])


@pytest.fixture(scope="session")
def part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "part", ["obstacle-run"])
