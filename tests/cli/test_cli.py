"""The program as its users meet it: exit statuses, messages without tracebacks."""

import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from importlib.metadata import EntryPoint

import pytest

import psyco
from psyco._src.cli.app import COMMANDS
from psyco._src.core.options import declared
from psyco._src.envs import registry

pytestmark = pytest.mark.slow  # whole commands, some as processes

DANCE = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"


EASY = "P>=0.3 [ G (distance >= 0.1 | collisions <= 9) ] & C>=0.9"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A real process, once."""
    folder = tmp_path_factory.mktemp("runs") / "dance"
    words = [
        "synthesize",
        "particle-dance",
        "--require",
        EASY,
        "--episodes",
        "2000",
        "--learner",
        "snes",
        "--out",
        folder,
    ]
    done = subprocess.run([sys.executable, "-m", "psyco", *words], capture_output=True, text=True, timeout=300)
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
def test_the_exit_status_of_verify_is_the_verdict(cli, run, require, status, verdict):
    done = cli("verify", run, "--require", require, "--max-episodes", 100, "--method", "bayes", "--json")
    assert done.status == status, done.err
    assert json.loads(done.out)["verdict"] == verdict


def test_render_writes_a_picture_and_an_animation(cli, run, tmp_path):
    done = cli("render", run, "--out", tmp_path / "pictures", "--episodes", 1, "--film-format", "gif")
    assert done.status == 0, done.err
    assert (tmp_path / "pictures" / "trajectory.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "pictures" / "trajectory.gif").read_bytes().startswith(b"GIF89a")
    certified = ("render", run / "certificate.json", "--out", tmp_path, "--episodes", 1, "--no-animation")
    assert "trajectory.png" in cli(*certified, "--episode", 1).out
    assert cli(*certified, "--episode", 99999).status == 2


def test_domains_are_listed_for_people_and_for_programs(cli):
    assert "particle-dance" in cli("domains").out
    listed = json.loads(cli("domains", "--json").out)
    assert listed["obstacle-run"]["parameters"]["grid"] == 5
    assert listed["particle-dance"]["signals"]["agent"]["size"] == 2


def test_a_domain_that_cannot_be_imported_is_named_in_the_list(cli, monkeypatch):
    point = EntryPoint("broken", "tests.environments:Nothing", "psyco.domains")
    monkeypatch.setattr(registry, "_plugins", lambda: {point.name: point})
    said = cli("domains")
    assert said.status == 2 and "cannot make broken" in said.err and "Nothing" in said.err


BAD = [
    (["synthesize", "particle-danc", "--require", DANCE], "did you mean 'particle-dance'"),
    (["synthesize", "particle-dance", "--require", "P>=0.85 [ G (distanc >= 0.1) ]"], "did you mean"),
    (["synthesize", "particle-dance", "--require", "P>=1.85 [ G distance >= 0.1 ]"], "1.85"),
    (["synthesize", "particle-dance", "--require", "P>=0.85 [ G distance >= ]"], "column"),
    (["synthesize", "particle-dance", "--require", "C>=0.9"], "C"),
    (["synthesize", "particle-dance", "--require", "P>=0.85 [ F<=99 distance < 1 ]"], "horizon"),
    (
        ["synthesize", "particle-dance", "--require", "nowhere.props"],
        "cannot read the requirement nowhere.props: there is no file",
    ),
    (["synthesize", "particle-dance", "--require", DANCE, "--episodes", "0"], "episodes must be"),
    (["synthesize", "particle-dance", "--require", DANCE, "--set", "horizon=-3"], "horizon must be"),
    (["synthesize", "particle-dance", "--require", DANCE, "--set", "horizon"], "NAME=VALUE"),
    (["synthesize", "particle-dance", "--require", DANCE, "--method", "guess"], "method"),
    (["synthesize", "particle-dance", "--require", DANCE, "--learner", "guess"], "learner"),
    (
        ["synthesize", "particle-dance", "--require", DANCE, "--option", "calibration=hard"],
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
    (
        ["synthesize", "particle-dance", "--require", DANCE, "--hidden", "64,a"],
        "--hidden takes the units of each hidden layer, as in 32 or 64,64; got '64,a'",
    ),
    (["synthesize", "particle-dance", "--require", DANCE, "--hidden", "0,64"], "of at least 1"),
    (["synthesize", "particle-dance"], "--require"),
    (["verify", "nowhere"], "there is no file"),
    (["verify", "{run}", "--domain", "obstacle-run"], "made for particle-dance"),
    (["verify", "{run}/policy.safetensors"], "--require"),
    (["verify", "{run}/metrics.csv", "--require", DANCE], "not a PSyCo policy"),
    (["render", "nowhere"], "there is no file"),
    (["frobnicate"], "No such command"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD, ids=lambda value: "-".join(value)[:50] if isinstance(value, list) else ""
)
def test_bad_input_gets_its_message_and_status_2(cli, run, arguments, message):
    done = cli(*(argument.replace("{run}", str(run)) for argument in arguments))
    assert done.status == 2, done.out + done.err
    assert message in re.sub(r"\s+", " ", done.err.replace("│", " "))


@pytest.mark.more
def test_any_option_of_a_learner_can_be_given(cli, tmp_path):
    cli(
        "synthesize", "obstacle-run", "--require", "P>=0.1 [ F target ] & C>=0.9", "--episodes", 44,
        "--max-episodes", 50, "--option", "margin=0.2", "--option", "control=soft", "--out", tmp_path / "run",
        "--hidden", "4,3",
    )  # fmt: skip
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["learner"]["margin"] == 0.2
    assert config["learner"]["control"] == "soft"
    assert config["settings"]["hidden"] == [4, 3]


def test_a_finished_run_is_not_overwritten(cli, run):
    before = (run / "policy.safetensors").read_bytes()
    done = cli("synthesize", "particle-dance", "--require", DANCE, "--episodes", 20, "--out", run)
    assert done.status == 2 and str(run) in done.err.replace("\n", "")
    assert (run / "policy.safetensors").read_bytes() == before


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(cli, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "200")
    done = cli(command, "--help")
    assert done.status == 0
    assert f"psyco {command}" in done.out and "Example" in done.out


def test_help_of_synthesize_fits_on_two_screens_and_names_every_option(cli, monkeypatch) -> None:
    """Two screens of 50 lines; an option without a line there has one in the list of `--option help`."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli("synthesize", "--help").out.rstrip().splitlines()
    assert len(shown) <= 100 and max(map(len, shown)) == 80
    every = " ".join([*shown, cli("synthesize", "--option", "help").out])
    for cls in (psyco.Settings, psyco.Execution, psyco.PPO, psyco.SafeES):
        for name in declared(cls):
            assert f"--{name.replace('_', '-')} " in every or f"  {name} = " in every, name


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_within_a_callback_of_the_garbage_collector_is_not_lost(number, status):
    program = f"""
import gc, os, signal, sys, time
import psyco._src.cli as cli
def app(**_):
    def callback(*_):
        gc.callbacks.clear()
        os.kill(os.getpid(), {int(number)})
        time.sleep(0.1)
    gc.callbacks.append(callback)
    gc.collect()
    time.sleep(60)
sys.modules["psyco._src.cli.app"] = type(sys)("app")
sys.modules["psyco._src.cli.app"].app = app
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "interrupted\n")


@pytest.mark.more
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
    try:
        _, errors = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        # Python loses a signal that arrives in a finalizer; a person presses again.
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
