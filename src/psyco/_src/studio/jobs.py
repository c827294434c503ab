"""Jobs: ordinary commands in processes of their own, and a queue of those that wait.

A process is detached: it survives the studio, which finds it again by its number and start time in `.studio/jobs.json`.
One that was asked to stop and does not, because an interruption was lost in other people's code, is asked again, and
then killed with all its processes: a run folder survives that.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from psyco._src.core import files
from psyco._src.core.errors import RunError
from psyco._src.runs.lock import NO_LINK

FOLDER = ".studio"  # inside of the folder of runs
JOBS = "jobs.json"
MAX_QUEUED = 20
MAX_KEPT = 50  # ended jobs that are remembered
MAX_LOG_BYTES = 4000  # of the end of a log that a page shows
DECIDED = (0, 1, 3)  # exit statuses of a command that has a result
INTERRUPTED = (130, 143, -signal.SIGINT, -signal.SIGTERM)  # by the program, or before and after it could
STOPPED = (1, -9)  # while Python started, or killed: interrupted too if it was asked to stop
ASK_AGAIN_SECONDS = 15.0  # after which a job that was asked to stop gets SIGTERM
KILL_SECONDS = 60.0

JobState = Literal["queued", "running", "ended"]


@dataclass(frozen=True)
class StudioJob:
    """A command of the studio."""

    number: int
    kind: str  # learn, resume, counterexamples
    run: str  # name of the run folder
    arguments: tuple[str, ...]  # of `psyco`
    state: JobState = "queued"
    pid: int = 0
    began: str = ""  # start of the process, which tells it from a later one with the same number
    status: int | None = None  # exit status, if it is known
    stopped: bool = False  # it was asked to stop

    @property
    def interrupted(self) -> bool:
        """Whether it ended because it was interrupted."""
        return self.status in INTERRUPTED or (self.stopped and self.status in STOPPED)

    @property
    def log(self) -> str:
        """Name of its log."""
        return f"job-{self.number}.log"


class Jobs:
    """The jobs of one folder; at most `at_once` run, the others wait."""

    def __init__(self, folder: Path, at_once: int = 1) -> None:
        self.folder, self.at_once = folder / FOLDER, at_once
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.asked: dict[int, tuple[float, int]] = {}  # number of a job -> when it was asked to stop, latest signal
        self.lock = threading.RLock()  # requests and the watch of the studio have threads of their own
        self.all: list[StudioJob] = self._load()

    def add(self, kind: str, run: str, arguments: Sequence[str]) -> StudioJob:
        """Enter a command into the queue; it starts as soon as there is room."""
        with self.lock:
            if sum(job.state == "queued" for job in self.all) >= MAX_QUEUED:
                raise RunError(f"{MAX_QUEUED} jobs are waiting already; remove one first")
            if run in self.active:
                raise RunError(f"a job is at work on {run}, or waits for it")
            number = 1 + max((job.number for job in self.all), default=0)
            job = StudioJob(number, kind, run, tuple(arguments))
            self.all.append(job)
            self.advance()
            return next(each for each in self.all if each.number == number)

    @property
    def active(self) -> set[str]:
        """Names of the runs that jobs work on or wait for; most have no folder yet."""
        return {job.run for job in self.all if job.state != "ended"}

    def advance(self) -> None:
        """Notice ended processes, start waiting jobs, and write the list if it changed."""
        with self.lock:
            before = list(self.all)
            self.all = [self._looked_at(job) for job in self.all]
            for job in self.all:
                if job.stopped and job.state == "running":
                    self._insist(job)
            running = sum(job.state == "running" for job in self.all)
            for i, job in enumerate(self.all):
                if job.state == "queued" and running < self.at_once:
                    self.all[i] = self._started(job)
                    running += self.all[i].state == "running"
            self._forget_old()
            if self.all != before:
                self._save()

    def stop(self, run: str) -> None:
        """Interrupt the job of a run as Ctrl-C would, so that it can be resumed; remove it if it still waits."""
        with self.lock:
            job = next((job for job in self.all if job.run == run and job.state != "ended"), None)
            if job is None:
                raise RunError(f"no job of this studio is at work on {run}; stop it where it was started")
            if job.state == "queued":
                self.all.remove(job)
                self._save()
            elif _began(job.pid) == job.began:
                self.all[self.all.index(job)] = replace(job, stopped=True)
                self._save()
                self.asked[job.number] = (time.monotonic(), signal.SIGINT)
                os.kill(job.pid, signal.SIGINT)

    def _insist(self, job: StudioJob) -> None:
        """Ask a job again that goes on after it was asked to stop, and kill it in the end."""
        since, latest = self.asked.setdefault(job.number, (time.monotonic(), signal.SIGINT))  # by an earlier studio
        waited = time.monotonic() - since
        if waited >= KILL_SECONDS:
            with contextlib.suppress(OSError):
                os.killpg(job.pid, signal.SIGKILL)
        elif waited >= ASK_AGAIN_SECONDS and latest == signal.SIGINT:
            self.asked[job.number] = (since, signal.SIGTERM)
            with contextlib.suppress(OSError):
                os.kill(job.pid, signal.SIGTERM)

    def problem(self, job: StudioJob) -> str:
        """Return what a page shows of a job that has ended without a result; empty if a later one has its run."""
        later = any(other.run == job.run and other.number > job.number for other in self.all)
        if job.state != "ended" or job.status is None or later:
            return ""
        if job.interrupted:
            begun = os.path.lexists(self.folder.parent / job.run)
            return "" if begun else "interrupted before its first results; start it again"
        return "" if job.status in DECIDED else self.log(job)

    def log(self, job: StudioJob) -> str:
        """Return the end of the log of a job."""
        try:
            with os.fdopen(os.open(self.folder / job.log, os.O_RDONLY | NO_LINK), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_LOG_BYTES))
                return file.read(MAX_LOG_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def _looked_at(self, job: StudioJob) -> StudioJob:
        if job.state != "running":
            return job
        child = self.children.get(job.number)
        if child is not None:
            return job if child.poll() is None else replace(job, state="ended", status=child.returncode)
        return job if _began(job.pid) == job.began else replace(job, state="ended")

    def _started(self, job: StudioJob) -> StudioJob:
        self._make_folder()
        path = self.folder / job.log
        path.unlink(missing_ok=True)  # a link of that name may lead anywhere
        with open(path, "xb") as log:
            try:
                child = subprocess.Popen(
                    psyco_command(job.arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                log.write(f"error: cannot start a process: {error}\n".encode())
                return replace(job, state="ended", status=2)
        self.children[job.number] = child
        return replace(job, state="running", pid=child.pid, began=_began(child.pid))

    def _forget_old(self) -> None:
        ended = [job for job in self.all if job.state == "ended"]
        for job in ended[: max(0, len(ended) - MAX_KEPT)]:
            self.all.remove(job)
            self.children.pop(job.number, None)
            self.asked.pop(job.number, None)
            with contextlib.suppress(OSError):
                (self.folder / job.log).unlink()

    def _make_folder(self) -> None:
        make_own_folder(self.folder)

    def _save(self) -> None:
        self._make_folder()
        content = json.dumps([asdict(job) for job in self.all], indent=1)
        files.write(self.folder / JOBS, content.encode())

    def _load(self) -> list[StudioJob]:
        """Return the jobs of an earlier studio; none if the file is damaged."""
        try:
            rows = json.loads((self.folder / JOBS).read_text(encoding="utf-8"))
            return list(_read_jobs(rows))
        except (OSError, ValueError, TypeError, KeyError):
            return []


def make_own_folder(folder: Path) -> None:
    """Make the folder of the studio's own files; raise RunError where a link would lead out of the folder of runs."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror}") from None
    if folder.is_symlink():
        raise RunError(f"{folder} is a link; the studio writes only below {folder.parent}: delete the link")


def _read_jobs(rows: Iterable[dict[str, Any]]) -> Iterable[StudioJob]:
    """Yield running and ended jobs. A file never starts anything: what waited when the studio ended waits no more."""
    for row in rows:
        job = StudioJob(**{**row, "arguments": tuple(map(str, row["arguments"]))})
        checks = isinstance(job.number, int), isinstance(job.pid, int), isinstance(job.began, str)
        if all(checks) and job.state in ("running", "ended"):
            yield job


def psyco_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of this program; the working folder is no place to import from."""
    return [sys.executable, "-P", "-m", "psyco", *arguments]


def _began(pid: int) -> str:
    """Return when a process began, as a text; empty if there is none, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        if os.path.isdir("/proc/self"):
            return ""
    try:
        asked = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, timeout=5, check=False)
        return asked.stdout.decode(errors="replace").strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def wait_for(jobs: Jobs, seconds: float) -> None:
    """Wait until all running jobs have ended, for tests and for the end of a program."""
    until = time.monotonic() + seconds
    while any(job.state != "ended" for job in jobs.all) and time.monotonic() < until:
        jobs.advance()
        time.sleep(0.05)
