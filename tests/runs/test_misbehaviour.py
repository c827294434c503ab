"""Environments that misbehave, wherever they are stepped: a run says so, and goes on once they are mended."""

import errno
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock

import pytest

import psyco
from psyco._src.rollout import process_pool, worker_pool
from tests.environments import Moody, Walk, to_the_left
from tests.making import flat
from tests.runs import small

pytestmark = pytest.mark.slow  # needs other processes

HERE = "tests.environments"
REQUIREMENT = "P>=0.5 [ G (abs(obs[0]) <= 2.5) ] & C>=0.9"
# Five segments of two generations; one episode in 97 may go wrong.
SETTINGS = {
    "learner": "snes", "options": {"population": 20}, "episodes": 200, "verify_every": 40,
    "verify_episodes": 20, "selection_episodes": 10, "max_episodes": 40, "normalization": "none",
}  # fmt: skip
OPTIONS = (
    "--learner", "snes", "--option", "population=20", "--episodes", "200", "--option", "verify_every=40",
    "--option", "verify_episodes=20", "--selection-episodes", "10", "--max-episodes", "40",
    "--option", "normalization=none", "--horizon", "20", "--require", REQUIREMENT,
)  # fmt: skip
VERDICTS = (0, 1, 3)
FEW_FILES = """
import resource
from psyco._src.cli import main
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
main()
"""


@pytest.fixture(scope="module")
def mood(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What goes wrong now; nothing, at first."""
    path = tmp_path_factory.mktemp("mood") / "mood.txt"
    path.write_text("")
    return path


@pytest.fixture(scope="module")
def domain(mood: Path) -> psyco.Domain:
    return psyco.make(Moody, mood=str(mood), horizon=20)


@pytest.fixture(scope="module", autouse=True)
def _same_time() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        yield


@pytest.fixture(scope="module")
def undisturbed(domain: psyco.Domain, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    psyco.start(domain, REQUIREMENT, folder, **flat(**SETTINGS))
    return small.outcome(folder)


@pytest.fixture
def suffer(
    domain: psyco.Domain, mood: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> Callable[..., psyco.EpisodeError]:
    """Run into a fault, mend it, go on to the same bytes; gives what was said of the fault."""

    def run(fault: str, **execution: object) -> psyco.EpisodeError:
        folder = tmp_path / fault
        mood.write_text(fault)
        try:
            with pytest.raises(psyco.EpisodeError) as caught:
                psyco.start(domain, REQUIREMENT, folder, **flat(**SETTINGS, **execution))  # type: ignore[arg-type]
        finally:
            mood.write_text("")
        assert (folder / "policy.safetensors").exists(), "what was learned is kept"
        psyco.resume(folder, **flat(domain=domain, **execution))  # type: ignore[arg-type]
        assert small.outcome(folder) == undisturbed
        assert caught.value.environment == f"{HERE}:Moody"
        assert caught.value.seed % 97 == 0
        return caught.value

    return run


@pytest.mark.more
def test_in_this_process(suffer: Callable[..., psyco.EpisodeError]) -> None:
    for fault in ("raise", "silent", "nan", "other space", "object", "exit", "crash", "memory"):
        assert suffer(fault).step == 3


@pytest.mark.more
def test_in_worker_processes(suffer: Callable[..., psyco.EpisodeError], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "MAX_CRASHES", 1)  # by default every crash takes three workers
    assert "killed by SIGKILL" in str(suffer("kill", workers=2))


@pytest.mark.more
def test_in_worker_processes_whatever_goes_wrong(
    suffer: Callable[..., psyco.EpisodeError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "MAX_CRASHES", 1)
    for fault in ("exit", "object"):
        assert suffer(fault, workers=2).step == 3
    assert "killed by SIGSEGV" in str(suffer("segfault", workers=2))
    hanging = suffer("hang in reset", workers=2, step_timeout=2.0)
    assert "step timeout of 2 s" in str(hanging) and hanging.step == 0


@pytest.mark.extra("ray")
@pytest.mark.more
def test_on_ray(suffer: Callable[..., psyco.EpisodeError]) -> None:
    import ray

    from psyco._src.rollout import ray_backend

    ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    try:
        assert suffer("exit", ray="local").step == 3
        assert "killed by SIGKILL" in str(suffer("kill", ray="local"))  # Ray itself would try it again without end
        assert "step timeout of 2 s" in str(suffer("hang", ray="local", step_timeout=2.0))
    finally:
        ray.shutdown()
        ray_backend.connect_ray.cache_clear()


def test_what_cannot_be_sent_or_started_is_said(domain: psyco.Domain, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = psyco.make(Walk, horizon=20, marker=Lock())
    with pytest.raises(psyco.DomainError, match=r"Walk cannot be sent to other processes: TypeError: .*name a class"):
        psyco.verify(to_the_left, guarded, REQUIREMENT, execution=psyco.Execution(workers=2))

    def refuse() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(worker_pool._spawn, "Pipe", refuse)
    with pytest.raises(psyco.RunError, match=r"cannot start a worker process: Too many open files; ask for fewer"):
        psyco.verify(to_the_left, domain, REQUIREMENT, execution=psyco.Execution(workers=5))


class Headless(Walk):
    """It works here, and not in another process."""

    def __init__(self, home: int) -> None:
        super().__init__()
        if os.getpid() != home:
            raise ConnectionError("cannot connect to display :0")


@pytest.mark.more
def test_an_environment_that_needs_a_display_says_so() -> None:
    domain = psyco.make(Headless, home=os.getpid(), horizon=20)
    with pytest.raises(psyco.DomainError, match=r"cannot make .*Headless: ConnectionError: cannot connect to display"):
        psyco.verify(to_the_left, domain, REQUIREMENT, execution=psyco.Execution(workers=2))


# ---- whole programs ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def env() -> dict[str, str]:
    return small.environment()


def is_running(pid: int) -> bool:
    """Neither gone nor a zombie that nobody has asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> set[int]:
    """All that descend from a process."""
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return set(found).union(*map(children, found))


def ended(pids: set[int], seconds: float) -> bool:
    """Wait until none of them runs any more."""
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(is_running, pids))


@pytest.mark.more
@pytest.mark.parametrize("workers", [1, 2])
def test_a_rude_environment_changes_nothing(
    workers: int, tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints where results go, changes the folder, ignores signals, starts processes, fails to close; all with no
    more than 64 open files."""
    monkeypatch.chdir(tmp_path)
    book = tmp_path / "elsewhere" / "book.txt"
    book.parent.mkdir()
    what = ("synthesize", f"{HERE}:Rude", "--set", f"book={book}", *OPTIONS, "--workers", workers)
    process = small.psyco(*map(str, what), "--out", "run", "--json", env=env, program=("-c", FEW_FILES))
    out, errors = process.communicate()
    assert process.returncode in VERDICTS, errors
    assert json.loads(out)["verdict"], "nothing but the certificate is on standard output"
    assert (tmp_path / "run" / "policy.safetensors").exists()
    assert "hello from the simulator" in errors and "hello from its C code" in errors and "the window is gone" in errors
    started = set(map(int, book.read_text().split()))
    if workers == 1:  # then only the environment itself could end them
        for pid in started:
            os.kill(pid, signal.SIGKILL)
    else:
        assert ended(started, 5), "what an environment starts ends with its worker"


@pytest.mark.more
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_in_a_step_that_hangs_leaves_no_process(
    number: signal.Signals, mood: Path, undisturbed: dict[str, bytes], tmp_path: Path, env: dict[str, str]
) -> None:
    """A container is stopped by SIGTERM: exit status 143, a hint, no process left, and the same bytes in the end."""
    folder, name = tmp_path / "run", f"{HERE}:Moody"
    what = ("synthesize", name, "--set", f"mood={mood}", *OPTIONS, "--workers", "2", "--out", folder)
    try:
        process = small.psyco(*what, "--checkpoint-every", "0", env=env)
        while process.poll() is None and not list(folder.glob("checkpoints/*.ckpt")):
            time.sleep(0.005)
        mood.write_text("hang")  # not before: the episodes that measure the speed would hang, too
        time.sleep(2.0)
        workers = children(process.pid)
        assert len(workers) >= 2
        process.send_signal(number)
        _, errors = process.communicate()
    finally:
        mood.write_text("")
    assert "Traceback" not in errors
    assert ended(workers, process_pool.CLOSING_SECONDS + 5)
    if number == signal.SIGKILL:
        return
    assert process.returncode == 143, errors
    assert f"interrupted; continue with: psyco resume {folder} --workers 2 --trust {name}" in errors
    process = small.psyco("resume", folder, "--trust", name, env=env)
    _, errors = process.communicate()
    assert process.returncode in VERDICTS, errors
    assert small.outcome(folder) == undisturbed
