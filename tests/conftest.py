"""What all tests share: examples that don't change from run to run, a quiet environment, the browser."""

import io
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.internal.constants_ast import Constants

# Tools of others: no display, no phoning home, no login. Set before anything imports them.
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("WANDB_MODE", "offline")

# A shell's background job ignores Ctrl-C, and so does all that it starts; some tests send it to programs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What one test compiles serves the others, in other processes and in later runs.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# The same examples in every run, on every machine. A first call may compile, so time is no failure.
# Hypothesis would also draw constants of the modules that are loaded, and which these are depends on the tests before.
settings.register_profile("psyco", derandomize=True, deadline=None)
settings.load_profile("psyco")
HypothesisProvider._local_constants = Constants()


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium; where there is none the test is skipped, or fails if CI=true."""
    candidates = (os.environ.get("CHROMIUM") or "chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, candidates)), None)
    if path is None:
        message = "no Chromium here: install the package chromium or set CHROMIUM"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture(scope="session")
def compiler() -> str:
    """The path of a C compiler; where there is none the test is skipped, or fails if CI=true."""
    path = shutil.which(os.environ.get("CC") or "cc")
    if path is None:
        message = "no C compiler here: install cc or set CC"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture(scope="module", autouse=True)
def room_for_programs() -> Iterator[None]:
    """A process of tests compiles thousands of programs."""
    yield
    if "jax" in sys.modules:
        from psyco._src.studies.workers import clear_compiled_programs

        clear_compiled_programs()


class Said(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Said]]:
    """The program in this process, from its entry point on, with nothing left over from call to call."""
    from psyco._src.cli import main

    logger = logging.getLogger("psyco")
    before = logger.handlers[:], logger.level, logger.propagate

    def call(*arguments: object, stdin: str = "") -> Said:
        path = sys.path[:]
        monkeypatch.setattr(sys, "argv", ["psyco", "--no-compile-cache", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main()
        sys.path[:] = path
        out, err = capsys.readouterr()
        return Said(int(ended.value.code or 0), out, err)

    yield call
    logger.handlers[:], logger.level, logger.propagate = before
