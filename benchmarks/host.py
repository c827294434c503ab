"""What host rollouts cost on top of the environments, and what a second worker gives.

python -m benchmarks.host
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from psyco._src.domain.gym_env import GymDomain, gym_domain
from psyco._src.policy.network import Network, network_for
from psyco._src.rollout.host import Chunk, HostSampler, Job, Runner, in_process
from psyco._src.rollout.pool import in_processes
from psyco._src.spec.monitor import compile_monitor
from psyco._src.spec.parse import parse_formula

SIDE_BY_SIDE = 64
REPEAT = 7


class Busy(gymnasium.Env[Any, Any]):
    """An environment whose steps take 200 µs of a core, and whose episodes take 200 steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        until = time.process_time_ns() + 200_000
        while time.process_time_ns() < until:
            pass
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), 0.0, False, False, {}


def overhead(domain: GymDomain, formula: str, steps: int) -> tuple[float, float, float]:
    """Microseconds per step of one environment: PSyCo's rollout, a bare loop, Gymnasium's own vector of environments.

    All play the same episodes: the same seeds, and the actions that PSyCo's policies chose.
    """
    network = network_for(domain)
    theta = np.random.default_rng(0).normal(0.0, 0.01, (SIDE_BY_SIDE, network.size)).astype(np.float32)
    theta += balancing(network)
    seeds = list(range(SIDE_BY_SIDE))
    runner, job = Runner(), Job(domain, network, compile_monitor([parse_formula(formula)]))
    played = runner.play(job, Chunk(theta, seeds), frozenset({"action"}))
    actions = [list(map(domain_action(domain), row)) for row in np.moveaxis(played.signals["action"], 0, 1)]
    lengths = played.length.tolist()
    total = sum(lengths)
    envs = [domain.make_env() for _ in seeds]
    vector = SyncVectorEnv([domain.make_env] * SIDE_BY_SIDE)

    def psyco() -> None:
        runner(job, Chunk(theta, seeds))

    def bare() -> None:
        for env, seed in zip(envs, seeds, strict=True):
            env.reset(seed=seed)
        alive = list(range(SIDE_BY_SIDE))
        t = 0
        while alive:
            t += 1
            row = actions[t]
            for i in alive:
                envs[i].step(row[i])
            alive = [i for i in alive if lengths[i] > t]

    def gymnasiums() -> None:
        # It resets by itself, so it steps every environment until the last episode has ended: count those steps.
        vector.reset(seed=seeds)
        for t in range(1, max(lengths) + 1):
            vector.step(np.array(actions[t]))

    counts = total, total, max(lengths) * SIDE_BY_SIDE
    # The machine may be busy with other things: count this process's own time, and take the quietest run of each.
    times = [[_seconds(f, time.process_time) for f in (psyco, bare, gymnasiums)] for _ in range(steps)]
    best = [min(column) for column in zip(*times, strict=True)]
    return tuple(1e6 * seconds / count for seconds, count in zip(best, counts, strict=True))  # type: ignore[return-value]


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
    one, many = HostSampler(job, in_process()), HostSampler(job, in_processes(processes, None), processes)
    seeds = list(range(20))
    many.run(theta, seeds)  # start the workers
    ratios = [
        _seconds(lambda: one.run(theta, seeds)) / _seconds(lambda: many.run(theta, seeds)) for _ in range(3)
    ]
    return median(ratios)


def _seconds(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    began = clock()
    function()
    return clock() - began


def main() -> None:
    """Print the tables."""
    print(f"µs per step, {SIDE_BY_SIDE} environments side by side (policy and monitor included in PSyCo's)")
    print(f"{'environment':28}{'PSyCo':>8}{'bare loop':>11}{'ratio':>7}{'SyncVectorEnv':>15}{'ratio':>7}")
    for name, formula in {
        "CartPole-v1": "G (abs(obs[0]) <= 1)",
        "Pendulum-v1": "G (abs(obs[2]) <= 8)",
        "MountainCarContinuous-v0": "F (obs[0] >= 0.45)",
        "Acrobot-v1": "F terminated",
    }.items():
        ours, bare, theirs = overhead(gym_domain(name), formula, REPEAT)
        print(f"{name:28}{ours:8.2f}{bare:11.2f}{ours / bare:7.2f}{theirs:15.2f}{ours / theirs:7.2f}")
    print(f"\ntwo workers, steps of 200 µs: {speed_up(2):.2f} times as fast as one process")


if __name__ == "__main__":
    main()
