"""Which episodes are played again, and where two paths first differ."""

import numpy as np
import pytest

from psyco._src.rollout.episodes import digest_path
from psyco._src.rollout.repeatability import MAX_REPLAYS, choose_replays, first_difference


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 54, 1000])
def test_the_first_the_last_and_violations_are_played_again(count: int) -> None:
    satisfied = np.ones((count, 2), bool)
    satisfied[count // 3 :: 7, 1] = False
    chosen, early, used = choose_replays(satisfied)
    assert chosen == sorted(set(chosen))
    assert len(chosen) + 2 * len(used) <= MAX_REPLAYS
    assert count // 3 in used and set(used) <= early
    assert {0, count - 1, count // 3} <= set(chosen)
    assert early <= set(chosen)
    assert count // 3 in early  # what a violation has taught shows with the policy as it is now
    assert count < 3 or {0} <= early
    assert count < 3 or early < set(chosen)


@pytest.mark.parametrize("workers", [2, 7, 40])
def test_episodes_of_every_process_are_played_again(workers: int) -> None:
    """Chance that a process draws when it begins shows in its own episodes only."""
    process = np.full(500, workers - 1)
    process[: workers - 1] = range(workers - 1)  # all but one have played a single episode
    satisfied = np.ones((500, 1), bool)
    satisfied[::50] = False
    chosen, _, used = choose_replays(satisfied, process.astype(np.uint64))
    assert len(chosen) + 2 * len(used) <= MAX_REPLAYS
    assert len(set(process[chosen])) >= min(workers, 7)
    assert {0, 499} <= set(chosen)


def test_every_episode_of_a_few_is_played_again() -> None:
    assert choose_replays(np.ones((16, 1), bool))[0] == list(range(16))
    assert len(choose_replays(np.ones((500, 0), bool))[0]) == MAX_REPLAYS


def path(**changes: float) -> dict[str, np.ndarray]:
    signals = {"obs": np.zeros((4, 2), np.float32), "action": np.zeros(4), "reward": np.zeros(4)}
    for name, step in changes.items():
        signals[name][int(step)] = 1.0
    return signals


def test_the_first_difference_names_signal_and_step() -> None:
    assert first_difference(path(), path()) is None
    found = first_difference(path(), path(obs=2, reward=3))
    assert found is not None
    assert (found.signal, found.step, found.values) == ("obs", 2, ([0.0, 0.0], [1.0, 1.0]))


def test_an_action_comes_before_the_state_that_it_led_to() -> None:
    found = first_difference(path(), path(obs=2, action=2))
    assert found is not None
    assert found.signal == "action"
    found = first_difference(path(), path(obs=0, action=1))  # another start
    assert found is not None
    assert found.signal == "obs"


def test_a_path_that_ends_earlier_differs() -> None:
    short = {name: values[:3] for name, values in path().items()}
    found = first_difference(path(), short)
    assert found is not None
    assert (found.signal, found.step) == ("the length", 2)


def test_digests_see_every_bit_and_no_number_type() -> None:
    whole, same = {"x": np.array([0, 1, 2])}, {"x": np.array([0.0, 1.0, 2.0], np.float32)}
    assert digest_path(whole) == digest_path(same)
    assert digest_path(whole) != digest_path({"x": np.array([0.0, 1.0, np.nextafter(2.0, 3.0)])})
    assert digest_path(whole) != digest_path({"x": np.array([0.0, 1.0])})
