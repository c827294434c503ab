"""What host rollouts cost on top of the environments, and what a second worker gives.

python -m benchmarks.host
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing import get_context
from statistics import median
from typing import Any, NamedTuple

import cloudpickle
import gymnasium
import numpy as np
from numpy.typing import NDArray

from benchmarks.clock import side_by_side
from psyco._src.envs.gym_env import GymDomain, gym_domain
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.parser import parse_formula
from psyco._src.policies.network import Network, network_for
from psyco._src.rollout.gym_sampler import Chunk, EpisodeRunner, GymSampler, Job, in_process_backend
from psyco._src.rollout.process_pool import shared_pool

REPEAT = 7
# environment -> formula, episodes side by side, horizon
TASKS = {
    "CartPole-v1": ("G (abs(obs[0]) <= 1)", 64, 500),
    "Pendulum-v1": ("G (abs(obs[2]) <= 8)", 64, 200),
    "LunarLander-v3": ('F ("end" & return >= 200)', 32, 200),
    "HalfCheetah-v5": ("G (count(info.x_velocity > 3.2096) <= 25)", 16, 200),
    "Ant-v5": ("G (count(info.x_velocity > 2.6222) <= 25)", 16, 200),
}


class Busy(gymnasium.Env[Any, Any]):
    """An environment whose steps take 200 µs of a core, and whose episodes take 200 steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        until = time.process_time_ns() + 200_000
        while time.process_time_ns() < until:
            pass
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), 0.0, False, False, {}


class Recorded(NamedTuple):
    """Episodes that can be played again without a policy."""

    domain: GymDomain
    seeds: list[int]  # [B]
    actions: list[list[Any]]  # [n+1][B], as `step` takes them; the first of them is shown in the first state
    lengths: list[int]  # [B]

    def part(self, some: slice) -> Recorded:
        return Recorded(self.domain, self.seeds[some], [row[some] for row in self.actions], self.lengths[some])


class Bare:
    """Plays recorded episodes in a bare loop."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        self.envs = [recorded.domain.make_env() for _ in recorded.seeds]

    def __call__(self) -> None:
        _, seeds, actions, lengths = self.recorded
        for env, seed in zip(self.envs, seeds, strict=True):
            env.reset(seed=seed)
        alive, t = list(range(len(seeds))), 0
        while alive:
            t += 1
            row = actions[t]
            for i in alive:
                self.envs[i].step(row[i])
            alive = [i for i in alive if lengths[i] > t]


def task(name: str, rows: int) -> tuple[Job, NDArray[np.float32], list[int], Recorded]:
    """Policies and seeds of so many episodes, and the same episodes recorded."""
    formula, _, horizon = TASKS[name]
    domain = gym_domain(name, horizon=horizon)
    network = network_for(domain)
    theta = np.random.default_rng(0).normal(0.0, 0.01, (rows, network.size)).astype(np.float32)
    theta += balancing(network)
    seeds = list(range(rows))
    job = Job(domain, network, compile_monitor([parse_formula(formula)]))
    played = EpisodeRunner().rollout(job, Chunk(theta, seeds), frozenset({"action"}))
    actions = [list(map(domain_action(domain), row)) for row in np.moveaxis(played.signals["action"], 0, 1)]
    return job, theta, seeds, Recorded(domain, seeds, actions, played.length.tolist())


def alone(name: str, rows: int, repeat: int = REPEAT) -> tuple[float, float]:
    """Microseconds per step in one process: PSyCo's rollout and a bare loop over the same episodes."""
    job, theta, seeds, recorded = task(name, rows)
    runner, bare = EpisodeRunner(), Bare(recorded)
    # The machine may be busy with other things: count this process's own time, and take the quietest run of each.
    best = side_by_side({"psyco": lambda: runner(job, Chunk(theta, seeds)), "bare": bare}, rounds=repeat)
    steps = sum(recorded.lengths)
    return 1e6 * best["psyco"] / steps, 1e6 * best["bare"] / steps


def in_two(name: str, rows: int, repeat: int = REPEAT) -> tuple[float, float]:
    """Microseconds on the clock per step: two worker processes with so many rows each, and a bare loop in two alike."""
    job, theta, seeds, recorded = task(name, 2 * rows)
    ours = GymSampler(job, shared_pool(2, None), 2)
    halves = [recorded.part(slice(0, rows)), recorded.part(slice(rows, None))]
    context = get_context("spawn")
    pipes = []
    for half in halves:
        mine, theirs = context.Pipe()
        context.Process(target=_play_when_told, args=(theirs, cloudpickle.dumps(half)), daemon=True).start()
        pipes.append(mine)

    def bare() -> None:
        for pipe in pipes:
            pipe.send("play")
        for pipe in pipes:
            pipe.recv()

    bare()
    ours.run(theta, seeds)  # start the workers
    times = [(_seconds(lambda: ours.run(theta, seeds)), _seconds(bare)) for _ in range(repeat)]
    steps = sum(recorded.lengths)
    best = [1e6 * min(column) / steps for column in zip(*times, strict=True)]
    for pipe in pipes:
        pipe.send("end")
    return best[0], best[1]


def _play_when_told(pipe: Any, recorded: bytes) -> None:
    bare = Bare(cloudpickle.loads(recorded))
    while pipe.recv() == "play":
        bare()
        pipe.send("played")


def balancing(network: Network) -> NDArray[np.float32]:
    """Parameters `[D]` of a linear controller that keeps a pole upright: long episodes in CartPole."""
    w1, w2 = (np.zeros(shape, np.float32) for shape in network.shapes)
    if network.inputs == 4:
        w1[:, 0] = (0.05, 0.1, 1.0, 0.3)
        w1[:, 1] = -w1[:, 0]
        w2[:, 0], w2[:, 1] = (-1.0, 1.0), (1.0, -1.0)
    return np.concatenate([w1.ravel(), w2.ravel()])


def domain_action(domain: GymDomain) -> Callable[[Any], Any]:
    """From the recorded signal to what `step` takes."""
    if domain.actions.size is None:
        return int
    return lambda action: np.asarray(action, np.float32)


def speed_up(processes: int) -> float:
    """How many times faster that many workers play the episodes of `Busy` than one process does."""
    domain = gym_domain(Busy, horizon=200)
    network = network_for(domain)
    job = Job(domain, network, compile_monitor([]))
    theta = np.zeros((20, network.size), np.float32)
    one, many = (
        GymSampler(job, in_process_backend()),
        GymSampler(job, shared_pool(processes, None), processes),
    )
    seeds = list(range(20))
    many.run(theta, seeds)  # start the workers
    ratios = [_seconds(lambda: one.run(theta, seeds)) / _seconds(lambda: many.run(theta, seeds)) for _ in range(3)]
    return median(ratios)


def _seconds(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    began = clock()
    function()
    return clock() - began


def main() -> None:
    """Print the tables."""
    print("µs per step; policy and monitor are included in PSyCo's, a bare loop has none")
    print(f"{'environment':18}{'rows':>5}{'PSyCo':>9}{'bare loop':>11}{'ratio':>7}")
    for name, (_, most, _) in TASKS.items():
        for rows in sorted({1, 4, most}):
            ours, bare = alone(name, rows)
            print(f"{name:18}{rows:5}{ours:9.2f}{bare:11.2f}{ours / bare:7.2f}", flush=True)
    print("\ntwo workers, µs on the clock per step")
    for name, (_, most, _) in TASKS.items():
        ours, bare = in_two(name, most)
        print(f"{name:18}{most:5}{ours:9.2f}{bare:11.2f}{ours / bare:7.2f}", flush=True)
    print(f"\ntwo workers, steps of 200 µs: {speed_up(2):.2f} times as fast as one process")


if __name__ == "__main__":
    main()
