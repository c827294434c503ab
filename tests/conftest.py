"""What all tests share: examples that don't change from run to run, a quiet environment, the browser."""

import gc
import importlib
import io
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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

# What one test compiles serves the others, in other processes and in later runs. JAX compiles a program again if its
# file is incomplete, as while another process writes it.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# The same examples in every run, on every machine. A first call may compile, so time is no failure.
# Hypothesis would also draw constants of the modules that are loaded, and which these are depends on the tests before.
settings.register_profile("psyco", derandomize=True, deadline=None)
settings.register_profile("quick", settings.get_profile("psyco"), max_examples=20)  # `make quick`
settings.load_profile("psyco")
HypothesisProvider._local_constants = Constants()


# `make test` has the default install and leaves out what needs more; `make test-all` has everything, and runs that.
EVERYTHING_IS_HERE = os.environ.get("PSYCO_TEST_ALL") == "1"
# These have no wheels for newer versions of Python, and are skipped there.
NEWEST_PYTHON = {"bullet_safety_gym": (3, 11), "rtamt": (3, 12)}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Import what a test with `extra("module", ...)` needs, before its fixtures do; a browser needs Playwright."""
    needed = [name for mark in item.iter_markers("extra") for name in mark.args]
    needed += ["playwright.sync_api"] * (item.get_closest_marker("browser") is not None)
    for name in needed:
        try:
            importlib.import_module(name)
        except ImportError as error:
            if EVERYTHING_IS_HERE and sys.version_info[:2] <= NEWEST_PYTHON.get(name, (9, 9)):
                pytest.fail(f"could not import {name}: {error}. `make test-all` runs with every extra", pytrace=False)
            pytest.skip(f"could not import {name}: {error}")


LEFT_OUT = pytest.StashKey[dict[str, int]]()


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count what `make test` leaves to `make test-all`; in a worker of xdist too."""
    counts = items[0].config.stash.setdefault(LEFT_OUT, {"extra": 0, "more": 0})
    for item in items:
        if item.get_closest_marker("extra") or item.get_closest_marker("browser"):
            counts["extra"] += 1
        elif item.get_closest_marker("more") or item.get_closest_marker("full"):
            counts["more"] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the counts of a worker home."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the counts of a worker: all collect the same."""
    if counts := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[LEFT_OUT] = counts


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the last line what was left out, and how to run it."""
    counts = config.stash.get(LEFT_OUT, None)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if counts and any(counts.values()) and reporter and not EVERYTHING_IS_HERE and not hasattr(config, "workerinput"):
        also = f", and {counts['more']} take long" if counts["more"] else ""
        reporter.write_line(f"{counts['extra']} tests need an extra{also}: make test-all")


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


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """A Chromium that runs; for tests with the mark `browser`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


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
    """Drop compiled programs between modules where they take much: thousands take gigabytes, and they are on disk."""
    yield
    if "jax" in sys.modules and memory() > 950e6:
        import jax

        jax.clear_caches()
        gc.collect()


def memory() -> float:
    """Bytes that this process has in memory; infinite where that is not known."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return float("inf")


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
