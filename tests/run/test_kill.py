"""Real processes, killed with SIGKILL at random moments, and resumed until they are through."""

import random
import signal
import time
from pathlib import Path

import pytest
from tests.run.small import CONFIG, environment, outcome, psyco

CHAINS, KILLS = 6, 5  # 30 kills in all
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
    assert process.returncode == 0, errors
    return outcome(folder)


def go_on(folder: Path, config: Path) -> tuple[str | Path, ...]:
    """The command that a user would give: resume, or start again if nothing was written yet."""
    begun = (folder / "config.toml").exists()
    what = ("resume", folder) if begun else ("synthesize", "--config", config, "--out", folder)
    return (*what, "--checkpoint-every", "0")


def kill_from_outside(folder: Path, config: Path, env: dict[str, str], chance: random.Random) -> str:
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
    assert process.returncode in (0, -signal.SIGKILL), errors
    return "outside" if process.returncode else "too late"


def kill_from_inside(folder: Path, config: Path, env: dict[str, str], chance: random.Random) -> str:
    how = chance.choice(["before", "after", "half"])
    moment = str(chance.randint(1, 25))
    process = psyco(moment, how, *go_on(folder, config), env=env, program=(DYING,))
    _, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors
    return f"inside a write ({how})" if process.returncode else "too late"


@pytest.mark.slow
def test_a_run_killed_at_30_random_moments_ends_with_the_same_bytes(
    tmp_path: Path, env: dict[str, str], config: Path, undisturbed: dict[str, bytes]
) -> None:
    chance = random.Random(0)
    counts: dict[str, int] = {}
    for chain in range(CHAINS):
        folder = tmp_path / f"chain-{chain}"
        for kill in range(KILLS):
            method = kill_from_inside if kill % 2 else kill_from_outside
            ended = method(folder, config, env, chance)
            counts[ended] = counts.get(ended, 0) + 1
        process = psyco(*go_on(folder, config), env=env)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        assert outcome(folder) == undisturbed, f"chain {chain} after {counts}"
    print(f"kills: {counts}; {CHAINS} runs, all equal to the undisturbed one to the byte")
    assert sum(counts.values()) - counts.get("too late", 0) >= 25


@pytest.mark.slow
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
    assert process.returncode == 0, errors
    assert outcome(folder) == undisturbed


def test_a_second_process_on_a_folder_is_refused(tmp_path: Path, env: dict[str, str], config: Path) -> None:
    from psyco.run.lock import is_locked, lock

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
