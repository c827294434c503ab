"""Real processes, killed with SIGKILL at random moments, and resumed until they are through."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.runs.small import CONFIG, environment, outcome, psyco
from tests.soak import Soak, prepare, soak

pytestmark = pytest.mark.slow  # needs other processes

VERDICTS = (0, 1, 3)  # exit statuses of a run that has come to its end


@pytest.fixture(scope="module")
def soaked(tmp_path_factory: pytest.TempPathFactory) -> Soak:
    return prepare(tmp_path_factory.mktemp("soak"))


@pytest.fixture
def env(soaked: Soak) -> dict[str, str]:
    return soaked.env


@pytest.fixture
def config(soaked: Soak) -> Path:
    return soaked.config


@pytest.fixture
def undisturbed(soaked: Soak) -> dict[str, bytes]:
    return soaked.undisturbed


@pytest.mark.more
def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(tmp_path: Path, soaked: Soak) -> None:
    """A slice of `make soak`; test_crash.py has every moment of writing."""
    print(soak(soaked, tmp_path, kills=15))


@pytest.mark.more
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


GYM = (
    "synthesize", "CartPole-v1", "--require", "P>=0.9 [ G (abs(obs[0]) <= 1) ] & C>=0.9", "--episodes", "200",
    "--option", "population=10", "--learner", "snes", "--option", "verify_every=50", "--max-episodes", "50",
    "--horizon", "30", "--checkpoint-every", "0",
)  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, soaked: Soak) -> dict[str, bytes]:
    """What one process makes of it."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    process = psyco(*GYM, "--out", folder, env=soaked.env)
    _, errors = process.communicate()
    assert process.returncode in VERDICTS, errors
    return outcome(folder)


@pytest.mark.more
@pytest.mark.parametrize(
    "where",
    [
        pytest.param(("--workers", "2"), id="pool"),
        pytest.param(("--ray", "local"), id="ray", marks=pytest.mark.extra("ray")),
    ],
)
def test_a_killed_run_of_a_gymnasium_environment_ends_with_the_same_bytes(
    tmp_path: Path, env: dict[str, str], alone: dict[str, bytes], where: tuple[str, str]
) -> None:
    if where[0] == "--ray":
        env = env | {"RAY_ADDRESS": "127.0.0.1:1"}  # "local" is a cluster of its own, whatever else there is
    killed = tmp_path / "killed"
    process = psyco(*GYM, *where, "--out", killed, env=env, start_new_session=True)
    while process.poll() is None and len(list(killed.glob("checkpoints/*.ckpt"))) < 2:
        time.sleep(0.001)
    try:
        assert process.poll() is None, "killed before it ends by itself"
        process.kill()
        process.wait()
        resumed = psyco("resume", killed, *where, env=env)
        _, errors = resumed.communicate()
        assert resumed.returncode in VERDICTS, errors
        assert outcome(killed) == alone
    finally:  # what the killed one had started: workers end by themselves, Ray's own processes may take their time
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.more
def test_a_second_process_on_a_folder_is_refused(tmp_path: Path) -> None:
    from psyco._src.runs.lock import is_locked, lock

    folder, config = tmp_path / "run", tmp_path / "small.toml"
    folder.mkdir()
    config.write_text(CONFIG.to_toml())
    assert not is_locked(folder)
    with lock(folder):
        assert is_locked(folder)
        process = psyco("synthesize", "--config", config, "--out", folder, env=environment())
        _, errors = process.communicate()
        assert process.returncode == 2
        assert "in use by another process (process " in errors
    assert not is_locked(folder)
