"""Worker processes: the same bytes with any number of them, whatever happens to them."""

import dataclasses
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable

import jax
import numpy as np
import pytest

import psyco
from psyco._src.envs.gym_env import gym_domain
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.parser import parse_formula
from psyco._src.policies.network import network_for
from psyco._src.rollout.execution import Execution
from psyco._src.rollout.gym_sampler import GymSampler, Job, in_process_backend
from psyco._src.rollout.obs_normalization import RANDOM_EPISODES, with_obs_normalization
from psyco._src.rollout.process_pool import ProcessPool, shared_pool
from tests.environments import Walk, slow_walk
from tests.making import flat

pytestmark = pytest.mark.slow  # needs other processes

REQUIREMENT = "P>=0.5 [ G (abs(obs[0]) <= 2.5) ] & C>=0.9"
SETTINGS = {
    "learner": "safe-es", "episodes": 120, "verify_every": 60, "verify_episodes": 40, "selection_episodes": 20,
    "max_episodes": 60,
}  # fmt: skip


def synthesized(environment: Callable[..., object] = Walk, **options: object) -> bytes:
    domain = psyco.make(environment, horizon=25)
    return psyco.synthesize(domain, REQUIREMENT, **flat(**SETTINGS, **options)).policy.to_bytes()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def alone() -> bytes:
    """What one process makes of it."""
    return synthesized()


@pytest.mark.more
def test_the_number_of_workers_does_not_show(alone: bytes) -> None:
    assert synthesized(workers=2) == alone
    assert synthesized(workers=3) == alone


@pytest.mark.more
def test_a_function_from_a_script_reaches_the_workers() -> None:
    """Lambdas and local classes have no name that a worker could import."""

    class Local(Walk):
        pass

    def run(workers: int) -> object:
        domain = psyco.make(lambda: Local(), horizon=25, signals={"twice": lambda obs, info: 2 * obs[0]})
        certificate = psyco.verify(
            lambda obs: int(obs[0] < 0),
            domain,
            "P>=0.5 [ G (twice <= 5) ]",
            max_episodes=80,
            issued="now",
            execution=psyco.Execution(workers=workers),
        )
        return certificate.findings

    assert run(1) == run(2)


@pytest.mark.more
def test_killing_a_worker_in_the_middle_of_a_run_changes_no_byte() -> None:
    undisturbed = synthesized(slow_walk, workers=2)
    pool = shared_pool(2, None)
    killed: set[int] = set()
    over = threading.Event()

    def kill() -> None:
        while len(killed) < 2 and not over.wait(0.3):
            alive = [pid for pid in pool.pids if pid not in killed]
            if len(alive) == 2:  # whoever died has been replaced
                os.kill(alive[0], signal.SIGKILL)
                killed.add(alive[0])

    killer = threading.Thread(target=kill)
    killer.start()
    disturbed = synthesized(slow_walk, workers=2)
    over.set()
    killer.join()
    assert len(killed) == 2
    assert disturbed == undisturbed


def sampler(fault: str, pool: ProcessPool, **options: object) -> tuple[GymSampler, GymSampler, np.ndarray]:
    network = network_for(gym_domain(Walk, horizon=10))
    monitor = compile_monitor([parse_formula("G (obs[0] <= 2)")])
    faulty = GymSampler(Job(gym_domain(Walk, fault=fault, at=2, horizon=10, **options), network, monitor), pool, 2)
    sound = GymSampler(Job(gym_domain(Walk, horizon=10), network, monitor), in_process_backend())
    return faulty, sound, np.random.default_rng(0).normal(size=(6, network.size)).astype(np.float32)


def test_an_environment_that_crashes_once_costs_time_only(tmp_path) -> None:
    faulty, sound, theta = sampler("crash once", shared_pool(2, None), marker=str(tmp_path / "crashed"))
    episodes = faulty.run(theta, [1, 3, 5, 7, 8, 9])
    assert (tmp_path / "crashed").exists()
    for ours, theirs in zip(episodes, sound.run(theta, [1, 3, 5, 7, 8, 9]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.more
def test_without_seeds_an_episode_that_counts_is_not_played_again_after_a_crash(tmp_path, counted: bool) -> None:
    """Episodes that crash would be left out of the test."""
    pool = shared_pool(2, None)
    faulty, _, theta = sampler("crash once", pool, marker=str(tmp_path / "crashed"), seeded=False)
    faulty = dataclasses.replace(faulty, look="a" * counted)
    if not counted:
        assert len(faulty.run(theta, [1, 3, 5, 7, 8, 9]).returns) == 6
        return
    with pytest.raises(psyco.EpisodeError, match="in an episode that counts"):
        faulty.run(theta, [1, 3, 5, 7, 8, 9])


def verify_with_fault(fault: str, tmp_path) -> psyco.Certificate:
    """Verify on two workers; the fault occurs once, in a counted episode: a network is not asked before."""
    domain = psyco.make(Walk, fault=fault, at=2, horizon=10, marker=str(tmp_path / "crashed"))
    network = network_for(domain, hidden=4)
    policy = psyco.Policy(np.zeros(network.size, np.float32), network, domain.actions, domain.name, domain.parameters)
    return psyco.verify(
        policy, domain, "P>=0.1 [ G (abs(obs[0]) <= 9) ]", max_episodes=60, execution=Execution(workers=2)
    )


def test_a_crash_that_the_seed_does_not_repeat_is_an_error(tmp_path) -> None:
    """Played again, the episode would count as if nothing had happened."""
    with pytest.raises(psyco.EpisodeError, match=r"\(exit status 7\) in an episode that counts.*report it in info"):
        verify_with_fault("crash once", tmp_path)


@pytest.mark.more
def test_a_certificate_says_how_often_a_process_was_ended(tmp_path) -> None:
    certificate = verify_with_fault("kill once", tmp_path)
    assert "A process was ended 1 time while it played counted episodes" in " ".join(certificate.notes)


@pytest.mark.more
def test_an_environment_that_always_crashes_is_an_error() -> None:
    faulty, sound, theta = sampler("crash", shared_pool(2, None))
    with pytest.raises(psyco.EpisodeError, match=r"ended its worker process 3 times \(exit status 7\)") as caught:
        faulty.run(theta, [1, 3, 5, 7, 8, 9])
    assert (caught.value.seed, caught.value.step) == (8, 2)
    # The pool works again afterwards.
    again = GymSampler(sound.job, shared_pool(2, None), 2).run(theta, [1, 3, 5, 7, 8, 9])
    np.testing.assert_array_equal(again.returns, sound.run(theta, [1, 3, 5, 7, 8, 9]).returns)


@pytest.mark.more
def test_a_hanging_environment_is_named_with_episode_and_step() -> None:
    faulty, _, theta = sampler("hang", shared_pool(1, 1.5))
    with pytest.raises(psyco.EpisodeError, match=r"step timeout of 1\.5 s") as caught:
        faulty.run(theta, [1, 3, 5, 7, 8, 9])
    assert (caught.value.seed, caught.value.step) == (8, 2)


@pytest.mark.more
def test_scaling_too_ends_what_hangs() -> None:
    domain = psyco.make(Walk, fault="hang", at=2, horizon=10)
    with pytest.raises(psyco.EpisodeError, match=r"step timeout of 1\.5 s"):
        with_obs_normalization(network_for(domain), domain, jax.random.key(0), Execution(step_timeout=1.5))


@pytest.mark.more
def test_an_error_in_a_worker_is_the_error_it_would_be_here() -> None:
    faulty, _, theta = sampler("raise", shared_pool(2, None))
    with pytest.raises(psyco.EpisodeError, match="fell over") as caught:
        faulty.run(theta, [1, 3, 5, 7, 8, 9])
    assert (caught.value.environment, caught.value.seed, caught.value.step) == (
        "tests.environments:Walk",
        8,
        2,
    )


class Counted(Walk):
    """Every environment that is made leaves a line with the number of its process."""

    def __init__(self, book: str) -> None:
        super().__init__()
        with open(book, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")


@pytest.mark.more
def test_workers_make_their_environments_once_for_learning_checks_and_selection_and_once_for_the_look(tmp_path) -> None:
    book = tmp_path / "made.txt"
    domain = psyco.make(Counted, book=str(book), horizon=10)
    # With severity learning is judged by another monitor than the certificate: the job changes, the domain does not.
    psyco.synthesize(domain, REQUIREMENT, **flat(**SETTINGS, normalization="none", severity=True, workers=2))
    made = Counter(book.read_text().split())
    made.pop(str(os.getpid()))  # the one that was looked at
    assert sum(made.values()) <= 60, "not anew for every generation, check and candidate"


@pytest.mark.more
def test_observation_statistics_come_from_workers_and_each_episode_runs_once(tmp_path) -> None:
    book = tmp_path / "made.txt"
    domain = psyco.make(Counted, book=str(book), horizon=10)
    network, key = network_for(domain), jax.random.key(1)
    made = with_obs_normalization(network, domain, key, Execution(workers=2))
    pids = Counter(book.read_text().split())
    assert pids.pop(str(os.getpid())) == 1, "the parent has made only the environment that it inspected"
    assert sum(pids.values()) == RANDOM_EPISODES
    assert made == with_obs_normalization(network, domain, key)
