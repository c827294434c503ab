"""Environments that deviate from Gymnasium: six values from `step`, global random numbers, repeated prints."""

import os
import random
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import psyco
from psyco._src.envs.gym_env import GymDomain, gym_domain
from psyco._src.envs.sandbox import deduplicate_output
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.parser import parse_formula
from psyco._src.policies.network import network_for
from psyco._src.rollout.gym_sampler import Chunk, EpisodeRunner, Job


class Plain(gymnasium.Env):
    """Nothing happens, with chance `draw`."""

    observation_space = spaces.Box(-10.0, 10.0, (2,))
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def draw(self) -> float:
        return float(self.np_random.uniform())

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([self.draw(), 0.0], np.float32), {}

    def step(self, action):
        return np.array([self.draw(), 1.0], np.float32), 1.0, False, False, {}


class SixValues(Plain):
    """The interface of Safety-Gymnasium."""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, float(action[0] > 0), terminated, truncated, info


class SharedNumPy(Plain):
    def draw(self) -> float:
        return float(np.random.uniform())  # noqa: NPY002


class SharedPython(Plain):
    def draw(self) -> float:
        return random.random()


gymnasium.register("PsycoSixValues-v0", SixValues, max_episode_steps=7)


def play(domain: GymDomain, seeds: list[int], wanted: str = "obs"):
    network = network_for(domain)
    theta = np.random.default_rng(0).normal(0, 1, (len(seeds), network.size)).astype(np.float32)
    runner = EpisodeRunner()
    played = runner.rollout(Job(domain, network, compile_monitor([])), Chunk(theta, seeds), frozenset({wanted}))
    runner.close()
    return played


@pytest.mark.parametrize("source", [SixValues, "PsycoSixValues-v0"])
def test_a_sixth_value_becomes_info_cost(source) -> None:
    domain = gym_domain(source, horizon=5)
    assert "info.cost" in domain.table
    for limit in (True, False):
        env = domain.make_env(limit=limit)
        env.reset(seed=0)
        outcomes = [env.step(np.array([0.5 - i], np.float32)) for i in range(5)]
        assert [outcome[-1]["cost"] for outcome in outcomes] == [1.0, 0.0, 0.0, 0.0, 0.0]
        assert [outcome[3] for outcome in outcomes] == [False] * 4 + [limit]


def test_six_values_keep_the_time_limit_that_they_were_registered_with() -> None:
    assert gym_domain("PsycoSixValues-v0").horizon == 7


def test_a_constraint_on_info_cost_is_evaluated() -> None:
    domain = gym_domain("PsycoSixValues-v0")
    network = network_for(domain)
    job = Job(domain, network, compile_monitor([parse_formula("G (info.cost <= 0)")]))
    theta = np.zeros((2, network.size), np.float32)  # with bias 1 every action is tanh(1)
    episodes = EpisodeRunner()(job, Chunk(theta, [1, 2]))
    assert not episodes.satisfied.any() and episodes.cost.ravel().tolist() == [7.0, 7.0]


def test_too_few_values_are_still_an_error() -> None:
    class Four(Plain):
        def step(self, action):
            return super().step(action)[:4]

    with pytest.raises(psyco.DomainError, match="tried out"):
        gym_domain(Four, horizon=5)


@pytest.mark.parametrize("kind", [SharedNumPy, SharedPython])
def test_shared_random_numbers_become_a_function_of_the_seed(kind: type) -> None:
    domain = gym_domain(kind, horizon=5)
    together = play(domain, [3, 4, 5]).signals["obs"]
    random.seed(99)
    np.random.seed(99)  # noqa: NPY002
    alone = play(domain, [4]).signals["obs"]
    np.testing.assert_array_equal(together[1], alone[0])
    assert len(np.unique(together[..., 0])) == 18, "every state of every episode has drawn a number of its own"
    # What the rest of the process draws is left alone.
    assert random.random() == random.Random(99).random()
    assert np.random.uniform() == np.random.RandomState(99).uniform()  # noqa: NPY002


def test_environments_with_numbers_of_their_own_are_left_as_they_are() -> None:
    assert gym_domain(Plain, horizon=5).compat_wrappers == ()


def test_no_time_limit_asks_for_a_horizon_and_says_how() -> None:
    with pytest.raises(psyco.DomainError, match=r"--horizon 200 .* horizon=200"):
        gym_domain(Plain)


def test_pictures_are_flattened_up_to_a_size_and_refused_beyond_with_advice() -> None:
    class Camera(Plain):
        def __init__(self, side: int) -> None:
            self.observation_space = spaces.Box(0, 255, (side, side, 3), np.uint8)

        def reset(self, *, seed=None, options=None):
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), 1.0, False, False, {}

    assert network_for(gym_domain(Camera, side=36, horizon=5)).inputs == 36 * 36 * 3
    large = gym_domain(Camera, side=84, horizon=5)  # external policies may act there
    with pytest.raises(psyco.DomainError, match=r"21,168 numbers.*Use ppo and encoder='auto'"):
        network_for(large)


NOISY = """
import os, sys
import numpy as np, gymnasium
from gymnasium import spaces
class Noisy(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2)
    def __init__(self):
        print("python says hello"); print("python warns", file=sys.stderr)
        os.system("echo a child says hello"); os.write(2, b"C warns\\n")
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}
    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}
"""


@pytest.mark.more
def test_what_environments_print_when_they_are_made_is_shown_once(tmp_path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    command = [
        sys.executable,
        "-m",
        "psyco",
        "synthesize",
        "noisy:Noisy",
        "--horizon",
        "3",
        "--episodes",
        "8",
    ]
    command += [
        "--require",
        "P>=0.1 [ G true ]",
        "--max-episodes",
        "200",
        "--workers",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for line in ("python says hello", "python warns", "a child says hello", "C warns"):
        assert done.stderr.count(line) == 1 and line not in done.stdout


def test_a_line_is_shown_once_and_a_new_one_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    for line in (b"first\n", b"first\n", b"second\n"):
        with deduplicate_output():
            os.write(1, line)
            print("by Python")
    out, err = capfd.readouterr()
    assert out == "" and err.split("\n")[:-1] == ["first", "by Python", "second"]


def test_an_error_while_printing_leaves_the_streams_as_they_were(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with deduplicate_output():
            os.write(2, b"before the error\n")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    os.write(1, b"result\n")
    assert capfd.readouterr() == ("result\n", "before the error\n")
