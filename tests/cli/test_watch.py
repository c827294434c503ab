"""psyco watch: what is printed, who is called, the exit status; and real processes that are killed."""

import dataclasses
import json
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

import psyco as package
from psyco._src.field.service import read_state
from tests.runs.small import environment, psyco

PROMISE = ("--certificate", "P>=0.85 & C>=0.98", "--false-alarm-every", "1000")
GOOD, BAD = "1\n" * 30, "0\n" * 20


def test_the_exit_status_says_whether_it_ended_in_alarm(cli, tmp_path):
    field = tmp_path / "field"
    field.write_text(GOOD + BAD)
    done = cli("watch", *PROMISE, "--outcomes", field)
    assert done.status == 1
    assert re.match(r"ALARM after 3\d episodes: holds no longer: P>=0.85", done.out)
    assert "50 episodes: in alarm" in done.out
    field.write_text(GOOD + BAD + 10 * GOOD)
    done = cli("watch", *PROMISE, "--outcomes", field)
    assert done.status == 0
    assert "\nRECOVERY after " in done.out
    assert cli("watch", *PROMISE, "--outcomes", "-", stdin=GOOD).status == 0


def test_a_page_is_written_in_the_end(cli, tmp_path):
    field, page = tmp_path / "field.csv", tmp_path / "watch.html"
    field.write_text(GOOD + BAD)
    assert cli("watch", *PROMISE, "--outcomes", field, "--page", page).status == 1
    text = page.read_text()
    assert "<h1>field.csv</h1>" in text and ">ALARM</span>" in text and '"live": false' in text.replace('":f', '": f')


def test_json_lines_are_all_that_stands_on_standard_output(cli):
    done = cli("watch", *PROMISE, "--outcomes", "-", "--json", stdin=GOOD + "\n" + BAD)
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line["kind"] for line in lines] == ["warning", "alarm", "end"]
    assert lines[0]["line"] == 31
    assert lines[1]["line"] == lines[1]["episodes"] + 1, "the blank line is no episode"
    assert lines[2]["alarm"] == ['P>=0.85 [ "satisfied" ] & C>=0.98']
    assert list(lines[2]["intervals"]) == lines[2]["alarm"]


def test_the_command_for_alarms_gets_data_in_its_environment_only(cli, tmp_path, monkeypatch):
    log, evil = tmp_path / "log", '"$(touch owned)`touch owned`;touch owned": P>=0.85 [ F a ] & C>=0.98'
    command = f'echo "$PSYCO_EVENT $PSYCO_EPISODE $PSYCO_LOST" >> {log}; echo loud; exit 3'
    field = tmp_path / "field"
    field.write_text(BAD)
    monkeypatch.chdir(tmp_path)
    done = cli("watch", "--certificate", evil, "--outcomes", field, "--json", "--on-alarm", command)
    (episode,) = [json.loads(line)["episodes"] for line in done.out.splitlines() if '"alarm", ' in line]
    assert log.read_text() == f"alarm {episode} $(touch owned)`touch owned`;touch owned\n"
    assert not (tmp_path / "owned").exists()
    assert "ended with status 3" in done.err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("€" * 60_000, "€ ... (cut; 60,000 characters)"),
        ("half a pair \ud83d, a byte \udcff", "half a pair \\ud83d, a byte \\udcff"),
    ],
)
def test_names_of_any_length_and_kind_reach_the_command_for_alarms(cli, tmp_path, name, words):
    log, field, page = (tmp_path / file for file in ("log", "field", "page.html"))
    certificate, state = tmp_path / "certificate.json", tmp_path / "state.json"
    field.write_text(BAD)
    certificate.write_text(package.verify_outcomes([True] * 300, f'"{name}": P>=0.85 [ F a ] & C>=0.98').to_json())
    command = f'printf "%s\\n" "$PSYCO_LOST" > {log}'
    done = cli("watch", "--certificate", certificate, "--outcomes", field, "--on-alarm", command, "--page", page,
               "--state", state)  # fmt: skip
    assert done.status == 1, done.err
    assert log.read_text().endswith(f"{words}\n")
    assert page.stat().st_size and read_state(state)


def test_a_state_lets_it_go_on_and_a_certificate_may_be_a_file(cli, tmp_path):
    certificate, state, field = (tmp_path / name for name in ("certificate.json", "state.json", "field.csv"))
    certificate.write_text(package.verify_outcomes([True] * 300, "P>=0.85 & C>=0.98").to_json())
    what = ("watch", "--certificate", certificate, "--outcomes", field, "--state", state)
    field.write_text("episode,satisfied\n1,1\n")
    assert "1 episode: no alarm" in cli(*what).out
    field.write_text("episode,satisfied\n1,1\n2,1\n5,0\n")
    done = cli(*what)
    assert "3 episodes: no alarm" in done.out
    assert "warning: line 4: episodes 3 to 4 are missing" in done.err
    assert "the verdict of the certificate" not in done.err
    certificate.write_text(package.verify_outcomes([False] * 300, "P>=0.85 & C>=0.98").to_json())
    assert "the verdict of the certificate is VIOLATED" in cli(*what).err


def test_traces_are_judged_and_drift_is_said(cli, tmp_path):
    certificate, field, kept = (tmp_path / name for name in ("certificate.json", "field.csv", "episodes.json"))
    made = package.verify_outcomes([True] * 300, "P>=0.85 [ F a ] & C>=0.98")
    certificate.write_text(dataclasses.replace(made, domain="x", policy="f" * 64).to_json())
    field.write_text("episode,a,obs[0]\n" + "".join(f"{i},{int(i < 5)},3.5\n" for i in range(40)))
    what = ("watch", "--certificate", certificate, "--traces", field, "--false-alarm-every", 1000)
    done = cli(*what)
    assert (done.status, "40 episodes: in alarm" in done.out) == (1, True)
    assert "drift is not tested" in done.err
    seen = {"policy": "f" * 64, "episodes": 100, "mean": [0.0], "spread": [1.0]}
    kept.write_text(json.dumps({"observations": seen}))
    assert "warning: line 31: obs[0] has drifted since certification" in cli(*what).err


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (("--outcomes", "-"), "1\nx\n", "line 2 of the input: an outcome is 0 or 1"),
        ((), "", "one of --outcomes and --traces"),
        (("--outcomes", "a", "--traces", "b"), "", "one of --outcomes and --traces"),
        (("--outcomes", "-", "--follow"), "", "leave out --follow"),
        (("--outcomes", "/dev/null"), "", "it is a device"),
        (("--outcomes", "missing"), "", "there is no file of that name"),
        (("--outcomes", "-", "--range", "1"), "", "--range takes two numbers"),
        (("--outcomes", "-", "--false-alarm-every", "0.5"), "", "1 to 1e+15"),
    ],
)
def test_bad_input_is_exit_status_2(cli, arguments, stdin, words):
    done = cli("watch", "--certificate", "P>=0.85", *arguments, stdin=stdin)
    assert done.status == 2
    assert words in done.err


def test_parallel_episodes_are_counted_in_the_order_of_their_beginning(cli):
    what = ("watch", *PROMISE, "--outcomes", "-", "--json")
    done = cli(*what, stdin="index,outcome\n1,0\n3,1\n0,1\n")
    *_, warning, end = map(json.loads, done.out.splitlines())
    assert (end["episodes"], end["held_back"]) == (2, 1)
    assert warning["message"] == "1 outcome is held back until index 2 has ended, which began before"
    assert cli(*what, "--first-index", 3, stdin="index,outcome\n3,1\n").status == 0
    done = cli(*what, "--in-flight", 2, stdin="index,outcome\n2,1\n")
    assert done.status == 2
    assert "index 2 has ended, but index 0 has not" in done.err


def test_traces_without_an_end_are_an_error_or_violated(cli, tmp_path):
    field = tmp_path / "field.csv"
    field.write_text("episode,a,terminated\n1,1,0\n2,1,1\n")
    what = ("watch", "--certificate", "P>=0.85 [ F a ]", "--traces", field)
    done = cli(*what)
    assert (done.status, "line 2 of" in done.err, "--cut violated" in done.err) == (2, True, True)
    assert "2 episodes" in cli(*what, "--cut", "violated").out
    assert "--cut is error or violated" in cli(*what, "--cut", "no").err


def test_expected_values_get_their_range_on_the_command_line(cli):
    what = ("watch", "--certificate", "R{x}<=25 [ C ]", "--outcomes", "-")
    assert cli(*what, stdin="10\n").status == 2
    assert cli(*what, "--range", "0,100", stdin="10\n12.5\n").status == 0


# ---- processes --------------------------------------------------------------------------------------------------


def wait_until(process, there):
    while process.poll() is None and not there():
        time.sleep(0.005)
    assert process.poll() is None, process.communicate()


def counted(state: Path) -> int:
    return json.loads(state.read_text())["field_test"]["episodes"] if state.exists() else -1


@pytest.mark.slow
def test_killed_at_any_moment_while_it_follows_nothing_is_lost_or_counted_twice(tmp_path, cli):
    rng = random.Random(0)
    lines = [f"{i},{int(rng.random() < 0.8)}\n" for i in range(3000)]
    field, state, whole = (tmp_path / name for name in ("field.csv", "state.json", "whole.csv"))
    what = ("watch", *PROMISE, "--outcomes", field, "--state", state, "--follow")
    field.write_text("episode,satisfied\n")
    at = 0
    for _ in range(3):
        process = psyco(*what, env=environment(tmp_path))
        moment = counted(state) + rng.randrange(1, 800)
        while process.poll() is None and counted(state) < moment and at < len(lines):
            with field.open("a") as file:
                text = "".join(lines[at : at + 20])
                half = len(text) // 2
                file.write(text[:half])
                file.flush()
                file.write(text[half:])
            at += 20
            time.sleep(0.002)
        process.kill()
        assert process.wait() == -signal.SIGKILL, process.communicate()
    with field.open("a") as file:
        file.write("".join(lines[at:]))
    last = psyco(*what, env=environment(tmp_path))
    wait_until(last, lambda: counted(state) == len(lines))
    last.send_signal(signal.SIGTERM)
    out, errors = last.communicate()
    assert last.returncode in (0, 1), errors
    assert "3,000 episodes: " in out and "Traceback" not in errors and "missing" not in errors
    whole.write_text("episode,satisfied\n" + "".join(lines))
    undisturbed = tmp_path / "undisturbed.json"
    assert cli("watch", *PROMISE, "--outcomes", whole, "--state", undisturbed).status == last.returncode
    a, b = map(read_state, (state, undisturbed))
    assert a.field_test == b.field_test
    for part in ("ids", "history", "position"):
        assert getattr(a.progress, part) == getattr(b.progress, part)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_watch_that_waits_for_input(tmp_path, number):
    import subprocess
    import sys

    state = tmp_path / "state.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "psyco", "watch", *PROMISE, "--outcomes", "-", "--state", str(state), "--json"],
        env=environment(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(BAD.encode() + b"1")
    process.stdin.flush()
    wait_until(process, lambda: counted(state) == 20)
    process.send_signal(number)
    out, errors = process.communicate()
    assert process.returncode == 1, errors
    assert json.loads(out.splitlines()[-1])["kind"] == "end"
    assert counted(state) == 20, "the line that was not complete is not counted"


# ---- the command for alarms -------------------------------------------------------------------------------------


def is_alive(process_id: int) -> bool:
    stat = Path(f"/proc/{process_id}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.more
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_for_alarms_that_hangs_ends_with_the_watch(tmp_path, number):
    """Also where it ignores SIGTERM and has a child; the alarm is raised again."""
    field, state, child = (tmp_path / name for name in ("field", "state.json", "child"))
    field.write_text(BAD)
    what = ("watch", *PROMISE, "--outcomes", field, "--state", state)
    command = f"trap '' TERM; sleep 1000 & echo $! > {child}.tmp; mv {child}.tmp {child}; wait; sleep 1000"
    process = psyco(*what, "--on-alarm", command, env=environment(tmp_path))
    wait_until(process, child.exists)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    if number == signal.SIGTERM:
        assert process.returncode == 1, errors
        assert "was ended with the watch" in errors and "Traceback" not in errors
    until = time.monotonic() + 10
    while is_alive(int(child.read_text())) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_alive(int(child.read_text()))
    again = psyco(*what, "--on-alarm", "true", env=environment(tmp_path))
    assert "ALARM" in again.communicate()[0]
    last = psyco(*what, "--on-alarm", "true", env=environment(tmp_path))
    assert "ALARM" not in last.communicate()[0]


def test_a_command_for_alarms_may_leave_something_running(cli, tmp_path):
    field, child = tmp_path / "field", tmp_path / "child"
    field.write_text(BAD)
    done = cli("watch", *PROMISE, "--outcomes", field, "--on-alarm", f"sleep 30 & echo $! > {child}")
    assert done.status == 1
    assert is_alive(int(child.read_text())) or not Path("/proc/self/stat").exists()
    os.kill(int(child.read_text()), signal.SIGKILL)
