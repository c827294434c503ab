"""`psyco runs`, `compare`, `report`, `resume` and the ways of being loud or quiet, as a user meets them."""

import json
import re
from pathlib import Path

import pytest

import psyco
from psyco._src.runs.execute import execute
from psyco._src.runs.session import build_problem, start_run
from tests.runs.small import CONFIG, environment, outcome
from tests.runs.small import psyco as psyco_process

pytestmark = pytest.mark.slow  # whole commands, some as processes


@pytest.fixture(scope="module")
def env():
    return environment()


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two finished runs that differ in their seed, and one that something happened to."""
    import dataclasses
    import shutil

    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        config = dataclasses.replace(CONFIG, settings=dataclasses.replace(CONFIG.settings, seed=seed))
        with start_run(folder / f"seed-{seed}", config, build_problem(config)) as session:
            execute(session)
    shutil.copytree(folder / "seed-0", folder / "hurt")
    (folder / "hurt" / "certificate.json").write_text("{")
    return folder


@pytest.fixture
def call(cli):
    """What a command that is expected to end with this status said."""

    def call(*arguments, status=0):
        done = cli(*arguments)
        assert done.status == status, done.err
        return done.out, done.err

    return call


def test_runs_lists_every_run_also_a_damaged_one(runs, call):
    out, _ = call("runs", runs)
    assert re.search(r"seed-0 .*particle-dance .*P>=0.85 .*(SATISFIED|VIOLATED|UNDECIDED) .*100%", out)
    assert "certificate.json is damaged, or no JSON file" in out
    rows = {Path(row["run"]).name: row for row in json.loads(call("runs", runs, "--json")[0])}
    assert {row["state"] for row in rows.values()} == {"finished", "damaged"}
    assert rows["seed-1"]["progress"] == 1.0
    assert rows["seed-1"]["verdict"] in ("SATISFIED", "VIOLATED", "UNDECIDED")
    assert 0.0 <= rows["seed-1"]["confidence"] <= 1.0


def test_compare_shows_curves_differences_and_verdicts_and_writes_a_page(runs, call, tmp_path):
    page = tmp_path / "compare.html"
    out, _ = call("compare", runs / "seed-0", runs / "seed-1", "--out", page)
    assert re.search(r"settings.seed .* 0 .* 1 ", out)
    assert len(re.findall(r"[▁▂▃▄▅▆▇█]{20}", out)) >= 8, "four curves of two runs"
    assert "</html>" in page.read_text()
    content = json.loads(call("compare", runs / "seed-0", runs / "seed-1", "--json")[0])
    assert content["differences"] == {"settings.seed": [0, 1]}


def test_report_writes_a_page_into_the_run(runs, call):
    out, _ = call("report", runs / "seed-0")
    assert out == f"page: {runs / 'seed-0' / 'report.html'}\n"
    assert "</html>" in (runs / "seed-0" / "report.html").read_text()


@pytest.mark.more
@pytest.mark.extra("starlette", "uvicorn")
def test_report_serves_on_loopback_and_ends_cleanly_on_ctrl_c(runs, env):
    import signal
    import urllib.request

    process = psyco_process("report", "--serve", runs / "seed-0", env=env)
    url = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline()).group()
    with urllib.request.urlopen(url) as page:
        assert b"</html>" in page.read()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in err


@pytest.mark.more
def test_off_a_terminal_there_are_plain_whole_lines_and_quiet_is_quiet(cli, tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(CONFIG.to_toml())
    loud = cli("synthesize", "--config", path, "--out", tmp_path / "loud")
    verdict = psyco.open_run(tmp_path / "loud").certificate.verdict
    assert loud.status == {"SATISFIED": 0, "VIOLATED": 1, "UNDECIDED": 3}[verdict.name]
    assert "\x1b" not in loud.out + loud.err, "no colours, no moving display"
    assert "1,500 episodes (100%)" in loud.err
    certificate = next(line for line in loud.out.splitlines() if "P>=0.85" in line)
    assert certificate.rstrip().endswith("C>=0.9"), "lines are not broken at 80 columns"
    quiet = cli("synthesize", "-q", "--config", path, "--out", tmp_path / "quiet")
    assert quiet.err == ""
    assert "kept in" in quiet.out
    talkative = cli("resume", "-v", tmp_path / "quiet", "--episodes", "+50")
    assert "resumed after 150 of 155 generations" in talkative.err
    assert "resumed after 155" in cli("-v", "resume", tmp_path / "quiet", "--episodes", "+50").err


@pytest.mark.more
def test_options_go_over_a_configuration_file(cli, tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(CONFIG.to_toml())
    folder = tmp_path / "run"
    cli("synthesize", "--config", path, "--episodes", "100", "--option", "learning_rate=0.5", "--out", folder)
    text = (folder / "config.toml").read_text()
    assert "episodes = 100\n" in text
    assert "learning_rate = 0.5\n" in text
    assert "population = 10\n" in text, "the rest is the file's"
    assert len(outcome(folder)) == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["synthesize"], "is missing: give it, or a configuration"),
        (["synthesize", "particle-dance"], "--require is missing"),
        (["synthesize", "--config", "nowhere.toml"], "nowhere.toml"),
        (
            ["synthesize", "particle-dance", "--require", "P>=0.5 [ G step >= 0 ]", "--track", "mlflw"],
            "'mlflow'",
        ),
        (["resume", "nowhere"], "not a run folder"),
        (["runs", "nowhere"], "there is no folder"),
        (["report", "nowhere"], "not a run folder"),
        (["compare", "one"], "two or more"),
    ],
)
def test_bad_input_is_one_message_and_status_2(arguments, words, call):
    _, err = call(*arguments, status=2)
    assert words in err
