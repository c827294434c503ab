"""Real processes, killed with SIGKILL at random moments, and resumed until they are through."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.run.small import CONFIG, environment, outcome, psyco

pytestmark = pytest.mark.slow  # needs other processes

KILLS_PER_RUN = 5
VERDICTS = (0, 1, 3)  # exit statuses of a run that has come to its end
DYING = str(Path(__file__).parent / "die_while_writing.py")


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "small.toml"
    path.write_text(CONFIG.to_toml())
    return path


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, env: dict[str, str], config: Path
) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    process = psyco("synthesize", "--config", config, "--out", folder, env=env)
    _, errors = process.communicate()
    assert process.returncode in VERDICTS, errors
    return outcome(folder)


def go_on(folder: Path, config: Path) -> tuple[str | Path, ...]:
    """The command that a user would give: resume, or start again if nothing was written yet."""
    begun = (folder / "config.toml").exists()
    what = ("resume", folder) if begun else ("synthesize", "--config", config, "--out", folder)
    return (*what, "--checkpoint-every", "0")


def kill_from_outside(folder: Path, config: Path, env: dict[str, str], chance: random.Random) -> str | None:
    """At a random size of the metrics, so at a random moment of learning however fast the machine is."""
    metrics = folder / "metrics.csv"
    have = metrics.stat().st_size if metrics.exists() else 0
    target = have + chance.randint(0, 4000)
    process = psyco(*go_on(folder, config), env=env)
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > target):
        time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.01))
    process.kill()
    _, errors = process.communicate()
    assert process.returncode in (*VERDICTS, -signal.SIGKILL), errors
    return "from outside" if process.returncode < 0 else None  # it was faster than we were


def kill_from_inside(folder: Path, config: Path, env: dict[str, str], chance: random.Random) -> str | None:
    how = chance.choice(["before", "after", "half"])
    moment = str(chance.randint(1, 25))
    process = psyco(moment, how, *go_on(folder, config), env=env, program=(DYING,))
    _, errors = process.communicate()
    assert process.returncode in (*VERDICTS, -signal.SIGKILL), errors
    return f"inside a write ({how})" if process.returncode < 0 else None  # it had fewer moments than that


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.full)])
def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(
    tmp_path: Path, env: dict[str, str], config: Path, undisturbed: dict[str, bytes], kills: int
) -> None:
    chance = random.Random(0)
    counts: dict[str, int] = {}
    runs = 0
    while sum(counts.values()) < kills:
        folder = tmp_path / f"run-{runs}"
        runs += 1
        for attempt in range(KILLS_PER_RUN):
            method = kill_from_inside if attempt % 2 else kill_from_outside
            if (how := method(folder, config, env, chance)) is not None:
                counts[how] = counts.get(how, 0) + 1
        process = psyco(*go_on(folder, config), env=env)
        _, errors = process.communicate()
        assert process.returncode in VERDICTS, errors
        assert outcome(folder) == undisturbed, f"run {runs} after {counts}"
    total = sum(counts.values())
    print(f"{total} kills {counts} in {runs} runs, each resumed and equal to the undisturbed one to the byte")


def test_ctrl_c_ends_cleanly_and_resume_ends_with_the_same_bytes(
    tmp_path: Path, env: dict[str, str], config: Path, undisturbed: dict[str, bytes]
) -> None:
    folder = tmp_path / "run"
    process = psyco("synthesize", "--config", config, "--out", folder, env=env)
    while process.poll() is None and not (folder / "metrics.csv").exists():
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate()
    assert process.returncode == 130, errors
    assert f"psyco resume {folder}" in errors
    assert "Traceback" not in errors + out
    process = psyco("resume", folder, env=env)
    _, errors = process.communicate()
    assert process.returncode in VERDICTS, errors
    assert outcome(folder) == undisturbed


POLE = "P>=0.9 [ G (abs(obs[0]) <= 1) ] & C>=0.9"


@pytest.mark.parametrize(
    "where",
    [("--workers", "2"), pytest.param(("--ray", "local"), marks=pytest.mark.full)],
    ids=["pool", "ray"],
)
def test_a_killed_run_of_a_gymnasium_environment_ends_with_the_same_bytes(
    tmp_path: Path, env: dict[str, str], where: tuple[str, str]
) -> None:
    if where[0] == "--ray":
        pytest.importorskip("ray")
    what = ("synthesize", "CartPole-v1", "--require", POLE, "--episodes", "200", "--population", "10")
    what += ("--learner", "snes", "--verify-every", "50", "--max-episodes", "50", "--horizon", "30", *where)
    what += ("--checkpoint-every", "0")
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    process = psyco(*what, "--out", undisturbed, env=env)
    _, errors = process.communicate()
    assert process.returncode in VERDICTS, errors

    process = psyco(*what, "--out", killed, env=env, start_new_session=True)
    while process.poll() is None and len(list(killed.glob("checkpoints/*.ckpt"))) < 2:
        time.sleep(0.001)
    try:
        assert process.poll() is None, "killed before it ends by itself"
        process.kill()
        process.wait()
        resumed = psyco("resume", killed, *where, env=env)
        _, errors = resumed.communicate()
        assert resumed.returncode in VERDICTS, errors
        assert outcome(killed) == outcome(undisturbed)
    finally:  # what the killed one had started: workers end by themselves, Ray's own processes may take their time
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_a_second_process_on_a_folder_is_refused(tmp_path: Path, env: dict[str, str], config: Path) -> None:
    from psyco._src.run.lock import is_locked, lock

    folder = tmp_path / "run"
    folder.mkdir()
    assert not is_locked(folder)
    with lock(folder):
        assert is_locked(folder)
        process = psyco("synthesize", "--config", config, "--out", folder, env=env)
        _, errors = process.communicate()
        assert process.returncode == 2
        assert "in use by another process (process " in errors
    assert not is_locked(folder)
