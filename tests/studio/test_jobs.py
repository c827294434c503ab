"""Jobs of the studio: a queue of detached processes that survives the studio."""

import json
import os
import sys
import time

import pytest

from psyco._src.core.errors import RunError
from psyco._src.studio import jobs as module
from psyco._src.studio.jobs import MAX_QUEUED, Jobs, wait_for

pytestmark = pytest.mark.slow

SLEEP = "import time, signal; time.sleep(60)"


@pytest.fixture
def commands(monkeypatch):
    """A job runs a line of Python instead of a command."""
    monkeypatch.setattr(module, "psyco_command", lambda arguments: [sys.executable, "-c", *arguments])


@pytest.fixture
def jobs(tmp_path, commands):
    found = Jobs(tmp_path)
    yield found
    for job in found.all:
        if job.state == "running":
            os.kill(job.pid, 9)
    wait_for(found, 10)


def state(jobs):
    return [job.state for job in jobs.all]


def test_one_runs_and_the_others_wait(jobs):
    for name in ("a", "b", "c"):
        jobs.add("learn", name, ["import time; time.sleep(0.2)"])
    assert state(jobs) == ["running", "queued", "queued"]
    with pytest.raises(RunError, match="at work on a"):
        jobs.add("learn", "a", ["0"])
    wait_for(jobs, 60)
    assert [(job.state, job.status) for job in jobs.all] == [("ended", 0)] * 3


def test_the_queue_has_an_end(jobs):
    jobs.add("learn", "first", [SLEEP])
    for i in range(MAX_QUEUED):
        jobs.add("learn", f"run-{i}", [SLEEP])
    with pytest.raises(RunError, match="waiting already"):
        jobs.add("learn", "more", [SLEEP])
    for i in range(MAX_QUEUED):
        jobs.stop(f"run-{i}")
    assert state(jobs) == ["running"]


def test_stop_interrupts_as_control_c_does(jobs):
    jobs.add(
        "learn",
        "a",
        [f"import sys\nprint('begun', flush=True)\ntry:\n {SLEEP}\nexcept KeyboardInterrupt: sys.exit(130)"],
    )
    until = time.monotonic() + 30
    while "begun" not in jobs.log(jobs.all[0]) and time.monotonic() < until:
        time.sleep(0.05)
    jobs.stop("a")
    wait_for(jobs, 30)
    assert [(job.state, job.status) for job in jobs.all] == [("ended", 130)]
    with pytest.raises(RunError, match="no job of this studio"):
        jobs.stop("a")


STUBBORN = "import signal, time; signal.signal({}); print('deaf', flush=True); time.sleep(60)"


@pytest.mark.parametrize(
    ("ignored", "status"),
    [("signal.SIGINT, signal.SIG_IGN", -15), ("15, signal.SIG_IGN); signal.signal(2, signal.SIG_IGN", -9)],
)
def test_a_job_that_loses_its_interruption_is_asked_again_and_then_killed(jobs, monkeypatch, ignored, status):
    monkeypatch.setattr(module, "ASK_AGAIN_SECONDS", 0.3)
    monkeypatch.setattr(module, "KILL_SECONDS", 2.0)
    jobs.add("learn", "a", [STUBBORN.format(ignored)])
    until = time.monotonic() + 30
    while "deaf" not in jobs.log(jobs.all[0]) and time.monotonic() < until:
        time.sleep(0.05)
    jobs.stop("a")
    wait_for(jobs, 30)
    (job,) = jobs.all
    assert (job.state, job.status, job.interrupted) == ("ended", status, True)


def test_a_job_that_is_killed_takes_its_processes_along(jobs, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "KILL_SECONDS", 0.5)
    worker = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); "
    jobs.add("learn", "a", [f"{worker}{STUBBORN.format('2, signal.SIG_IGN')}"])
    until = time.monotonic() + 30
    while "deaf" not in jobs.log(jobs.all[0]) and time.monotonic() < until:
        time.sleep(0.05)
    (job,) = jobs.all
    os.killpg(job.pid, 0)
    another = Jobs(tmp_path)  # a later studio goes on asking
    another.stop("a")
    while another.all[0].state == "running" and time.monotonic() < until:
        another.advance()
        jobs.advance()
        time.sleep(0.05)
    while time.monotonic() < until:  # until init has collected the worker
        try:
            os.killpg(job.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("a process of the job goes on")


@pytest.mark.more
@pytest.mark.parametrize("seconds", [0.0, 0.2, 0.6, 1.0, 1.5, 2.5])
def test_a_run_that_is_stopped_while_its_process_starts_ends(tmp_path, seconds):
    """It imports, and has no handler, no folder, or no simulator yet."""
    jobs = Jobs(tmp_path)
    words = ["synthesize", "particle-dance", "--require", "P>=0.1 [ G (distance >= 0.0) ]", "--episodes", "2000000"]
    jobs.add("learn", "a", [*words, "--out", str(tmp_path / "a")])
    time.sleep(seconds)
    jobs.stop("a")
    wait_for(jobs, module.ASK_AGAIN_SECONDS + 60)
    (job,) = jobs.all
    assert job.state == "ended" and job.interrupted, jobs.log(job)


def test_what_a_page_shows_of_an_interrupted_job(jobs, tmp_path):
    """A sentence at most, whatever Python wrote; an error is shown until the run is tried again."""
    jobs.add("learn", "a", [SLEEP])  # dies of the signal, or of KeyboardInterrupt with a traceback
    jobs.stop("a")
    wait_for(jobs, 30)
    (job,) = jobs.all
    assert job.stopped and job.interrupted
    assert jobs.problem(job) == "interrupted before its first results; start it again"
    (tmp_path / "a").mkdir()
    assert jobs.problem(job) == ""
    jobs.add("learn", "b", ["print('error: no'); raise SystemExit(2)"])
    wait_for(jobs, 30)
    assert jobs.problem(jobs.all[1]) == "error: no\n" and not jobs.all[1].interrupted
    jobs.add("learn", "b", ["0"])
    assert jobs.problem(jobs.all[1]) == ""
    assert Jobs(tmp_path).all[0] == job


def test_another_studio_finds_running_jobs_and_starts_none(jobs, tmp_path):
    jobs.add("learn", "a", [SLEEP])
    jobs.add("learn", "b", [SLEEP])
    other = Jobs(tmp_path)
    other.advance()
    assert [(job.run, job.state) for job in other.all] == [("a", "running")]
    other.stop("a")
    jobs.all = [job for job in jobs.all if job.run == "a"]
    wait_for(jobs, 30)
    other.advance()
    assert state(other) == ["ended"]


def test_the_number_of_another_process_is_not_taken_for_a_job(jobs, tmp_path):
    jobs.add("learn", "a", ["0"])
    wait_for(jobs, 30)
    file = tmp_path / ".studio" / "jobs.json"
    rows = json.loads(file.read_text())
    rows[0] |= {"state": "running", "pid": os.getpid(), "began": "1"}
    file.write_text(json.dumps(rows))
    other = Jobs(tmp_path)
    other.advance()
    assert state(other) == ["ended"]


@pytest.mark.parametrize("text", ["", "[", "3", '[{"number": 1}]', '[{"x": 1}]', "[[]]", '{"a": 1}'])
def test_a_damaged_list_is_an_empty_one(tmp_path, text):
    (tmp_path / ".studio").mkdir()
    (tmp_path / ".studio" / "jobs.json").write_text(text)
    assert Jobs(tmp_path).all == []


def test_a_log_is_written_through_no_link(jobs, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / ".studio").mkdir()
    (tmp_path / ".studio" / "job-1.log").symlink_to(precious)
    jobs.add("learn", "a", ["print('hello')"])
    wait_for(jobs, 30)
    assert precious.read_text() == "mine" and jobs.log(jobs.all[0]) == "hello\n"
    (tmp_path / ".studio" / "job-1.log").unlink()
    (tmp_path / ".studio" / "job-1.log").symlink_to(precious)
    assert jobs.log(jobs.all[0]) == ""
