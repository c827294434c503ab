"""Recipes for environments that people use are true, and the benchmark of real problems does what it says."""

import csv
import re
import shlex
from pathlib import Path

import pytest

import psyco
from benchmarks import real

PAGE = (Path(__file__).parents[1] / "docs" / "real.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(block.replace("\\\n", " ")) for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)]
NEEDS = {
    "HalfCheetah-v5": "mujoco",
    "Ant-v5": "mujoco",
    "bullet_safety_gym:SafetyBallCircle-v0": "bullet_safety_gym",
    "LunarLander-v3": "Box2D",
    "highway_env:merge-v1": "highway_env",
}


@pytest.mark.more
@pytest.mark.parametrize(
    "words",
    [pytest.param(words, id=f"{words[1]}-{words[2]}", marks=pytest.mark.extra(NEEDS[words[2]])) for words in COMMANDS],
)
def test_every_recipe_works_with_a_small_budget(words: list[str], cli, tmp_path: Path) -> None:
    small = list(words[1:])
    if "--time" in small:  # too little of it is an error on a slow machine
        small[small.index("--time")] = "--steps"
    for option, value in (("--steps", "500"), ("--out", str(tmp_path / "run"))):
        if option in small:
            small[small.index(option) + 1] = value
    if "--horizon" not in small:
        small += ["--horizon", "50"]
    if small[0] == "synthesize":
        small += ["--option", "population=4", "--max-episodes", "5"]
    said = cli(*small)
    assert said.status in (0, 1, 3), said.err  # any verdict will do, an error will not
    assert small[0] == "check" or (tmp_path / "run" / "certificate.json").exists()


def test_every_task_is_a_requirement_that_can_be_read() -> None:
    for name, task in real.TASKS.items():
        requirement = psyco.parse(task.require)
        assert bool(requirement.constraints) != name.endswith("-free")


@pytest.mark.more
def test_the_benchmark_runs_a_task_once_and_puts_it_into_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["Pendulum", "--seeds", "0", "--steps", "400", "--jobs", "1", "--out", str(tmp_path)]
    arguments += ["--option=--option=population=4", "--option=--max-episodes=5", "--option=--learner=safe-es"]
    real.main(arguments)
    (row,) = csv.DictReader((tmp_path / "results.csv").open())
    assert row["verdict"] in ("SATISFIED", "VIOLATED", "UNDECIDED") and float(row["return"]) < 0
    assert 0 < float(row["learning"]) <= float(row["total"])
    assert "| Pendulum | steps 400 |" in (tmp_path / "results.md").read_text()
    monkeypatch.setattr(real, "follow", lambda *_: pytest.fail("it was run again"))
    real.main(arguments)
    (again,) = csv.DictReader((tmp_path / "results.csv").open())
    assert again == row


def test_an_unknown_task_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        real.main(["Hoper"])
    assert "there are: HalfCheetah" in capsys.readouterr().err


@pytest.mark.more
def test_an_expected_cost_alone_is_learned_on_a_host_domain() -> None:
    """A requirement without any formula has no column of satisfaction, also in the checks while learning."""
    result = psyco.synthesize(
        psyco.make("Pendulum-v1", horizon=20),
        "R{obs[2] >= 1}<=15 [ C ] within [0,21] & C>=0.9",
        episodes=20,
        settings=psyco.Settings(learner="safe-es", options={"population": 4}, max_episodes=20),
    )
    assert [finding.episodes for finding in result.certificate.findings] != [0]
