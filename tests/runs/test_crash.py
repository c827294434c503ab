"""A process that dies at any moment of writing, tried at every one of them; see test_kill.py for real ones."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from psyco._src.core import files
from psyco._src.runs.execute import execute
from psyco._src.runs.problem import Problem
from psyco._src.runs.session import build_problem, resume_run, start_run
from psyco._src.runs.store import is_run
from tests.runs.small import CONFIG, outcome

pytestmark = pytest.mark.slow  # one run for every moment of writing

# Three segments of two generations, each ending in a checkpoint.
SETTINGS = dataclasses.replace(CONFIG.settings, episodes=60, verify_every=20, verify_episodes=10, max_episodes=20)
SMALL = dataclasses.replace(CONFIG, settings=SETTINGS)


class Died(BaseException):
    """In the place of SIGKILL: nobody catches it, and what cleans up afterwards writes nothing any more."""


@contextmanager
def dying(moment: int, how: str) -> Iterator[Callable[[], int]]:
    """Die at the n-th fsync or rename: before, after, or with half of the file on disk; gives how many there were."""
    fsync, replace, count = os.fsync, os.replace, 0

    def reached(act: Callable[[], Any], half: Callable[[], Any]) -> None:
        nonlocal count
        count += 1
        if count > moment:
            raise Died
        if count < moment:
            act()
            return
        {"before": lambda: None, "half": half, "after": act}[how]()
        raise Died

    def sync(descriptor: int) -> None:
        def half() -> None:
            if os.path.isfile(f"/proc/self/fd/{descriptor}"):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)

        reached(lambda: fsync(descriptor), half)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "sync", sync)
        patch.setattr(files.os, "replace", lambda a, b: reached(lambda: replace(a, b), lambda: None))
        yield lambda: count


def go_on(folder: Path, problem: Problem) -> None:
    """What a user would do: resume, or start again if nothing was written yet."""
    if not is_run(folder):
        with start_run(folder, SMALL, problem) as session:
            execute(session, checkpoint_every=0)
        return
    with resume_run(folder, domain=problem.domain) as found:
        if found is not None:
            execute(found, checkpoint_every=0)


@pytest.mark.parametrize(
    ("how", "every"),
    [("half", 8), *(pytest.param(how, 1, marks=pytest.mark.more) for how in ("before", "half", "after"))],
)
def test_a_death_at_any_moment_of_writing_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, every: int
) -> None:
    """`make test` tries every eighth moment, `make test-all` each of them."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    problem = build_problem(SMALL)
    go_on(tmp_path / "first", problem)  # which compiles, and keeps what it compiled in files of its own
    with dying(10**9, how) as moments:
        go_on(tmp_path / "whole", problem)
    assert moments() > 30, "configuration, checkpoints, outcome: each with its fsyncs and renames"
    expected = outcome(tmp_path / "whole")
    for moment in range(1, moments() + 1, every):
        folder = tmp_path / f"run-{moment}"
        with dying(moment, how), suppress(Died):
            go_on(folder, problem)
            pytest.fail("it lived")
        with dying(moment // 2 + 1, how), suppress(Died):  # and once more, on the way back
            go_on(folder, problem)
        go_on(folder, problem)
        assert outcome(folder) == expected, f"after a death {how} moment {moment}"
