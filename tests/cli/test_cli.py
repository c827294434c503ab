"""The program as its users meet it: real processes, exit statuses, messages without tracebacks."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib

import pytest

DANCE = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"


def psyco(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "psyco", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "dance"
    done = psyco(
        "synthesize",
        "particle-dance",
        "--require",
        DANCE,
        "--episodes",
        2000,
        "--learner",
        "snes",
        "--out",
        folder,
    )
    assert done.returncode == 0, done.stderr
    assert "c_sat" in done.stdout and str(folder) in done.stdout
    return folder


def test_a_run_leaves_its_files(run):
    assert {"policy.safetensors", "certificate.json", "metrics.csv", "requirement.props", "config.toml"} <= {
        path.name for path in run.iterdir()
    }
    assert (run / "metrics.csv").read_text().count("\n") == 101


@pytest.mark.parametrize(
    ("require", "status", "verdict"),
    [
        ("P>=0.5 [ G step <= 50 ]", 0, "SATISFIED"),
        ("P>=0.5 [ F step > 50 ]", 1, "VIOLATED"),
        ("P>=0.97 [ G step <= 50 ] & C>=0.99999", 3, "UNDECIDED"),
    ],
)
def test_the_exit_status_of_verify_is_the_verdict(run, require, status, verdict):
    done = psyco("verify", run, "--require", require, "--max-episodes", 100, "--method", "bayes", "--json")
    assert done.returncode == status, done.stderr
    assert json.loads(done.stdout)["verdict"] == verdict


def test_render_writes_a_picture_and_an_animation(run, tmp_path):
    done = psyco("render", run, "--out", tmp_path / "pictures", "--episodes", 1)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "pictures" / "trajectory.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "pictures" / "trajectory.gif").read_bytes().startswith(b"GIF89a")


def test_domains_are_listed_for_people_and_for_programs():
    assert "particle-dance" in psyco("domains").stdout
    listed = json.loads(psyco("domains", "--json").stdout)
    assert listed["obstacle-run"]["parameters"]["grid"] == 5
    assert listed["particle-dance"]["signals"]["agent"]["size"] == 2


BAD = [
    (["synthesize", "particle-danc", "--require", DANCE], "did you mean 'particle-dance'"),
    (["synthesize", "particle-dance", "--require", "P>=0.85 [ G (distanc >= 0.1) ]"], "did you mean"),
    (["synthesize", "particle-dance", "--require", "P>=1.85 [ G distance >= 0.1 ]"], "1.85"),
    (["synthesize", "particle-dance", "--require", "P>=0.85 [ G distance >= ]"], "column"),
    (["synthesize", "particle-dance", "--require", "C>=0.9"], "C"),
    (["synthesize", "particle-dance", "--require", "P>=0.85 [ F<=99 distance < 1 ]"], "horizon"),
    (["synthesize", "particle-dance", "--require", "nowhere.props"], "no requirement file"),
    (["synthesize", "particle-dance", "--require", DANCE, "--episodes", "0"], "episodes must be"),
    (["synthesize", "particle-dance", "--require", DANCE, "--set", "horizon=-3"], "horizon must be"),
    (["synthesize", "particle-dance", "--require", DANCE, "--set", "horizon"], "NAME=VALUE"),
    (["synthesize", "particle-dance", "--require", DANCE, "--method", "guess"], "method"),
    (["synthesize", "particle-dance", "--require", DANCE, "--learner", "guess"], "learner"),
    (
        ["synthesize", "particle-dance", "--require", DANCE, "--calibration", "hard"],
        "has no option 'calibration'",
    ),
    (["synthesize", "particle-dance", "--require", DANCE, "--option", "margn=0.2"], "did you mean 'margin'"),
    (
        ["synthesize", "particle-dance", "--require", DANCE, "--option", "margin=wide"],
        "margin must be a number",
    ),
    (
        ["synthesize", "particle-dance", "--require", DANCE, "--option", "checks=true"],
        "must be a whole number",
    ),
    (["synthesize", "particle-dance"], "--require"),
    (["verify", "nowhere"], "no policy file"),
    (["verify", "{run}", "--domain", "obstacle-run"], "made for particle-dance"),
    (["verify", "{run}/policy.safetensors"], "--require"),
    (["verify", "{run}/metrics.csv", "--require", DANCE], "not a PSyCo policy"),
    (["render", "nowhere"], "no policy file"),
    (["frobnicate"], "No such command"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD, ids=lambda value: "-".join(value)[:50] if isinstance(value, list) else ""
)
def test_bad_input_gets_its_message_and_status_2(run, arguments, message):
    done = psyco(*(argument.replace("{run}", str(run)) for argument in arguments))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert message in re.sub(r"\s+", " ", done.stderr.replace("│", " "))


def test_any_option_of_a_learner_can_be_given(tmp_path):
    done = psyco(
        "synthesize", "obstacle-run", "--require", "P>=0.1 [ F target ] & C>=0.9", "--episodes", 44,
        "--option", "margin=0.2", "--option", "control=soft", "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["learner"]["margin"] == 0.2
    assert config["learner"]["control"] == "soft"


def test_a_finished_run_is_not_overwritten(run):
    before = (run / "policy.safetensors").read_bytes()
    done = psyco("synthesize", "particle-dance", "--require", DANCE, "--episodes", 20, "--out", run)
    assert done.returncode == 2 and str(run) in done.stderr.replace("\n", "")
    assert (run / "policy.safetensors").read_bytes() == before


@pytest.mark.parametrize("command", ["synthesize", "verify", "render", "domains"])
def test_help_shows_an_example(command):
    done = psyco(command, "--help", env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0
    assert f"psyco {command}" in done.stdout and "Example" in done.stdout


def test_ctrl_c_ends_cleanly(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "psyco", "synthesize", "obstacle-run", "--learner", "snes", "--require",
         "P>=0.9 [ G (!caught | collisions <= 1) ] & C>=0.98", "--episodes", "20000000", "--out", tmp_path / "run"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    metrics = tmp_path / "run" / "metrics.csv"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
