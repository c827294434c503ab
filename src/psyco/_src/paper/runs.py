"""Repetitions: computed side by side on the available cores, each kept on disk as soon as it is finished.

They are no cells of a study, for three reasons. A repetition counts only for the sources and versions that it was
computed with, where a study goes on with what it finds; its table is kept to the last bit, where that of a run has nine
digits, which the figures' data would show; and it ends with learning, where a run goes on to a certificate.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.domain.catalogue import describe
from psyco._src.learn.metrics import Metrics, concatenate
from psyco._src.policy.file import Policy, policy_for
from psyco._src.synthesis.loop import Sink, deployed, learn
from psyco._src.synthesis.problem import Problem
from psyco._src.versions import versions

PACKAGE = Path(__file__).parents[1]
# The rooms that decide how a run goes; the others may change without making a kept run outdated.
DECISIVE = ("spec", "domain", "policy", "rollout", "learn", "smc", "certify", "synthesis")


class Repetition(NamedTuple):
    """A finished repetition."""

    metrics: Metrics  # one row per generation
    policy: Policy  # that learning ended with
    seconds: float  # from its start to its end


class Completion(NamedTuple):
    """How far all runs together are."""

    runs: int  # finished
    all_runs: int
    episodes: int  # of learning, done
    all_episodes: int


class Stopped(Exception):
    """Another run failed or the user interrupted: this one ends without a result."""


def gather(
    problems: Iterable[Problem], folder: Path, on_progress: Callable[[Completion], None], *, workers: int
) -> tuple[dict[str, Repetition], int]:
    """All runs by their digest, and how many of them had to be computed; the others were found in `folder`.

    Equal problems are run once. Threads suffice for side by side: compiled code does not hold Python's lock.
    """
    todo = {digest(problem): problem for problem in problems}
    found = {key: _load(folder, problem) for key, problem in todo.items()}
    done = {key: run for key, run in found.items() if run is not None}
    missing = [problem for key, problem in todo.items() if key not in done]
    # Neighbours in the queue differ in more than their seed, so two workers seldom compile the same code.
    missing.sort(key=lambda problem: problem.settings.seed)
    computed = len(missing)
    lock, stop = threading.Lock(), threading.Event()
    episodes = sum(p.settings.episodes for key, p in todo.items() if key in done)
    total = sum(p.settings.episodes for p in todo.values())

    def report(more: int) -> None:
        nonlocal episodes
        with lock:
            episodes += more
            on_progress(Completion(len(done), len(todo), episodes, total))

    def work(problem: Problem) -> None:
        run = _compute(problem, report, stop)
        _save(folder, problem, run)
        with lock:
            done[digest(problem)] = run
        report(0)

    folder.mkdir(parents=True, exist_ok=True)
    report(0)
    with ThreadPoolExecutor(workers) as pool:
        try:
            jobs = [pool.submit(work, problem) for problem in missing]
            wait(jobs, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()  # only heard by runs that are still going on: after a failure or Ctrl-C
            pool.shutdown(cancel_futures=True)
    failed = [error for job in jobs if not job.cancelled() and (error := job.exception())]
    if failed:
        raise next((error for error in failed if not isinstance(error, Stopped)), failed[0])
    return {key: done[key] for key in todo}, computed


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def digest(problem: Problem) -> str:
    """What a run is a function of, in one word."""
    return hashlib.sha256(_description(problem).encode()).hexdigest()


def _description(problem: Problem) -> str:
    about: dict[str, Any] = {
        "domain": describe(problem.domain),
        "requirement": str(problem.requirement),
        "settings": dataclasses.asdict(problem.settings),
        "versions": versions(),
        "code": _code(),
    }
    return json.dumps(about, sort_keys=True)


@cache
def _code() -> str:
    """A hash of our own sources, so that no run of other code is taken for one of this code."""
    files = [
        path for room in DECISIVE for path in (PACKAGE / room).rglob("*") if path.suffix in (".py", ".lark")
    ]
    content = hashlib.sha256()
    for path in sorted(files):
        content.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return content.hexdigest()


def _compute(problem: Problem, report: Callable[[int], None], stop: threading.Event) -> Repetition:
    began = time.perf_counter()
    parts: list[Metrics] = []

    def collect(problem: Problem, metrics: Metrics) -> None:
        if stop.is_set():
            raise Stopped
        parts.append(metrics)
        report(metrics.rows * problem.learner.episodes_per_generation)

    at = learn(problem, [Sink(rows=collect)])
    return Repetition(concatenate(parts), deployed(problem, at), time.perf_counter() - began)


def _path(folder: Path, problem: Problem) -> Path:
    settings = problem.settings
    words = (
        problem.domain.name,
        settings.options["calibration"],
        f"seed{settings.seed}",
        digest(problem)[:16],
    )
    return folder / ("-".join(words) + ".npz")


def _save(folder: Path, problem: Problem, run: Repetition) -> None:
    """Whole or not at all: an interruption leaves no half of a file under the final name."""
    path = _path(folder, problem)
    unfinished = path.with_suffix(".part")
    parts: dict[str, Any] = {f"metrics/{name}": column for name, column in run.metrics.items()}
    parts |= {"description": _description(problem), "theta": run.policy.theta, "seconds": run.seconds}
    with unfinished.open("wb") as file:
        np.savez_compressed(file, **parts)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def _load(folder: Path, problem: Problem) -> Repetition | None:
    """A kept run; None where there is none, or where its file is damaged (every part carries a checksum)."""
    try:
        with np.load(_path(folder, problem), allow_pickle=False) as file:
            parts: dict[str, NDArray[Any]] = {name: file[name] for name in file.files}
        if str(parts["description"]) != _description(problem):
            return None
        metrics = Metrics(
            {name.removeprefix("metrics/"): parts[name] for name in parts if name.startswith("metrics/")}
        )
        return Repetition(
            metrics, policy_for(problem.domain, problem.network, parts["theta"]), float(parts["seconds"])
        )
    # What zip files complain with, depending on where the damage is.
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return None
