"""A run of one's own environment is a run like any other: it is read without its code, and used with it, if trusted."""

import json
import shutil
import sys
from pathlib import Path

import pytest

import psyco
from psyco._src.rollout.env_checker import QUICK_EPISODES
from psyco._src.rollout.repeatability import MAX_REPLAYS
from tests.conftest import Said

MODULE = """
import gymnasium
from gymnasium import spaces
from pathlib import Path
import numpy as np

MADE = Path(__file__).with_name("made.txt")


class Slope(gymnasium.Env):
    observation_space = spaces.Box(-10, 10, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self):
        with MADE.open("a") as file:
            file.write("made\\n")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1, 1)
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.x += 0.1 if action else -0.1
        return np.array([self.x], np.float32), -abs(self.x), False, False, {}
"""
REQUIREMENT = "P>=0.3 [ G (abs(obs[0]) <= 5) ] & C>=0.9"
SMALL = ("--episodes", 44, "--max-episodes", 50, "--option", "verify_every=0", "--selection-episodes", 5)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run below `runs`, and the module that it names."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "slope_env.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        psyco.start(
            "slope_env:Slope",
            REQUIREMENT,
            folder / "runs" / "slope",
            parameters={"horizon": 10},
            episodes=44,
            settings=psyco.Settings(max_episodes=50, verify_every=0, selection_episodes=5),
        )
    sys.modules.pop("slope_env", None)
    return folder


@pytest.fixture
def here(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, in the working folder; what earlier calls have imported is forgotten."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    (tmp_path / "made.txt").unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "slope_env", raising=False)
    return tmp_path


@pytest.mark.more
def test_reading_a_run_makes_no_environment_and_imports_nothing_that_it_names(cli, here: Path) -> None:
    """The module is not even there."""
    (here / "slope_env.py").unlink()
    (row,) = json.loads(cli("runs", "--json").out)
    assert (row["domain"], row["progress"], row["state"]) == ("slope_env:Slope", 1.0, "finished")
    page = cli("report", "runs/slope")
    assert page.status == 0, page.err
    assert '"episodes":[{"number"' in (here / "runs/slope/report.html").read_text(), "there are episodes to play"
    shutil.copytree("runs/slope", "runs/other")
    assert cli("compare", "runs/slope", "runs/other", "--out", "both.html").status == 0
    assert psyco.open_run("runs/slope").certificate.verdict is psyco.Verdict.SATISFIED
    assert "slope_env" not in sys.modules
    assert not (here / "made.txt").exists()


def test_reading_an_unfinished_run_makes_no_environment_either(cli, here: Path) -> None:
    for name in ("policy.safetensors", "certificate.json", "episodes.json", "run.json"):
        (here / "runs/slope" / name).unlink()
    assert cli("report", "runs/slope").status == 0
    assert cli("runs").status == 0
    assert "slope_env" not in sys.modules and not (here / "made.txt").exists()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("verify", "runs/slope"), id="verify"),
        pytest.param(("render", "runs/slope", "--episodes", 1), id="render"),
        pytest.param(("verify", "--replay", "runs/slope/certificate.json", "runs/slope"), id="replay"),
        pytest.param(("resume", "runs/slope", "--episodes", "+22"), id="resume", marks=pytest.mark.more),
        pytest.param(
            ("synthesize", "--config", "runs/slope/config.toml", *SMALL, "--out", "again"),
            id="config",
            marks=pytest.mark.more,
        ),
    ],
)
def test_what_has_to_run_the_code_asks_for_trust_and_takes_it(cli, here: Path, command: tuple[object, ...]) -> None:
    refused: Said = cli(*command)
    assert refused.status == 2
    assert "--trust slope_env:Slope" in refused.err
    assert "slope_env" not in sys.modules
    done: Said = cli(*command, "--trust", "slope_env:Slope")
    assert done.status == 0, done.err
    again: Said = cli("verify", "runs/slope")
    assert again.status == 2, "trust is for one call"


@pytest.mark.extra("onnxruntime")
def test_a_policy_is_exported_without_its_environment(cli, here: Path) -> None:
    (here / "slope_env.py").unlink()
    done = cli("export", "runs/slope", "--onnx", "policy.onnx")
    assert done.status == 0, done.err


def test_exact_takes_trust_too(cli, here: Path) -> None:
    done = cli("exact", "runs/slope", "--trust", "slope_env:Slope")
    assert done.status == 2 and "no exact answers" in done.err, "trusted, made, and no finite domain"


@pytest.mark.more
def test_a_run_that_goes_on_plays_no_scaling_episode_again(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(here)
    psyco.resume("runs/slope", episodes="+22", trust=["slope_env:Slope"])
    made = (here / "made.txt").read_text().count("made")
    # One to look at its spaces, then as many as play side by side (22 offspring and checks, later 50 of the test), and
    # the samples for the page; the 32 of the scaling and a second probe are not among them.
    assert made <= 1 + 64 + 3


def test_workers_make_their_environments_once_per_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning, checks, selection and certificate use the same ones."""
    monkeypatch.syspath_prepend(here)
    psyco.synthesize(
        "slope_env:Slope",
        REQUIREMENT,
        parameters={"horizon": 10},
        episodes=44,
        learner="safe-es",
        settings=psyco.Settings(
            verify_every=22, verify_episodes=10, max_episodes=20, selection_episodes=10, normalization="none"
        ),
    )
    made = (here / "made.txt").read_text().count("made")
    # One to look at, one for each row of a generation, one for each episode that is replayed, and those of the check.
    assert 1 + 22 < made <= 1 + 22 + MAX_REPLAYS + 2 * QUICK_EPISODES + 1


@pytest.mark.more
def test_a_run_does_not_go_on_with_other_code_unless_that_is_asked_for(cli, here: Path) -> None:
    changed = MODULE.replace("-abs(self.x)", "-2 * abs(self.x)")
    (here / "slope_env.py").write_text(changed)
    more = ("resume", "runs/slope", "--episodes", "+22", "--trust", "slope_env:Slope")
    refused: Said = cli(*more)
    assert refused.status == 2
    assert "the code of slope_env:Slope has changed since the last checkpoint" in refused.err
    done: Said = cli(*more, "--allow-changed-code")
    assert done.status == 0, done.err
    assert "note: The code of the environment changed during this run" in done.out
    again: Said = cli("verify", "--replay", "runs/slope/certificate.json", "runs/slope", "--trust", "slope_env:Slope")
    assert again.status == 0, again.err


def test_hints_are_commands_that_a_shell_takes(cli, here: Path) -> None:
    (here / "runs/slope").rename(here / "runs/my slope")
    (here / "runs/my slope/policy.safetensors").unlink()
    refused = cli("verify", "runs/my slope", "--trust", "slope_env:Slope")
    assert "psyco resume 'runs/my slope' --trust slope_env:Slope" in refused.err


def test_a_whole_module_may_be_trusted_and_a_word_is_no_set_of_letters(cli, here: Path) -> None:
    done = cli("verify", "runs/slope", "--trust", "slope_env")
    assert done.status == 0, done.err
    for wrong in ("my_slope_env:Slopes", "s", ""):
        with pytest.raises(psyco.DomainError, match="must not choose which code runs"):
            psyco.verify("runs/slope", trust=wrong)
    assert psyco.verify("runs/slope", trust="slope_env:Slope").verdict is psyco.Verdict.SATISFIED


def test_all_missing_trust_is_asked_for_at_once() -> None:
    from psyco._src.envs.registry import DomainDescription, make_from_description

    with pytest.raises(psyco.DomainError, match=r"--trust a:B --trust c:d"):
        make_from_description(DomainDescription("a:B", {"wrappers": ["c:d"]}))
    with pytest.raises(psyco.DomainError, match=r"cannot be imported by name; .*--domain"):
        make_from_description(DomainDescription("__main__:B", {}))


@pytest.mark.more
def test_a_failing_sample_for_the_page_costs_no_certificate(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from psyco._src.core.errors import EpisodeError
    from psyco._src.runs import execute

    def fail(*_: object) -> bytes:
        raise EpisodeError("slope", 3, 1, "it fell over")

    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(execute, "sample_episodes", fail)
    run = psyco.resume("runs/slope", episodes="+22", trust=["slope_env"])
    assert run.state == "finished" and run.certificate is not None
    assert not (here / "runs/slope/episodes.json").exists()
    assert psyco.report(run).exists()


def test_a_run_goes_on_in_its_own_domain_only(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(here)
    other = psyco.make("slope_env:Slope", horizon=5)
    with pytest.raises(psyco.RunError, match="this domain is not that of the run"):
        psyco.resume("runs/slope", episodes="+22", domain=other)
