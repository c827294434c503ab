"""How fast a simulator is: what making it takes is no part of that."""

import time
from typing import Any

import jax
import numpy as np

from psyco._src.policies.network import Network
from psyco._src.rollout import throughput
from psyco._src.rollout.episodes import Episodes


class Clocked:
    """Episodes of 10 steps on a clock of its own; the first call of a size also makes environments and compiles."""

    compiled = False

    def __init__(self, monkeypatch: Any, making: float, each: float) -> None:
        self.now, self.making, self.each, self.calls = 0.0, making, each, []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def __call__(self, theta: Any, keys: Any) -> Episodes:
        self.now += self.making * (len(keys) not in self.calls) + self.each * len(keys)
        self.calls.append(len(keys))
        return Episodes(None, None, None, np.full(len(keys), 10, np.int32))  # type: ignore[arg-type]


def measured(sampler: Clocked, workers: int = 1) -> throughput.Throughput:
    return throughput.measure_throughput(sampler, Network(2, 1), jax.random.key(0), workers=workers)  # type: ignore[arg-type]


def test_quick_episodes_are_played_in_ever_larger_batches(monkeypatch: Any) -> None:
    sampler = Clocked(monkeypatch, making=5.0, each=0.01)
    found = measured(sampler)
    assert sampler.calls == [1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 32]
    np.testing.assert_allclose(found, (1000.0, 10.0, 126), rtol=1e-6)


def test_slow_episodes_are_played_twice_and_very_slow_ones_once(monkeypatch: Any) -> None:
    sampler = Clocked(monkeypatch, making=2.0, each=1.5)
    np.testing.assert_allclose(measured(sampler, workers=2), (20 / 3.0, 10.0, 4), rtol=1e-6)
    assert sampler.calls == [2, 2]
    sampler = Clocked(monkeypatch, making=2.0, each=40.0)
    assert measured(sampler).rate == 10 / 42.0
    assert sampler.calls == [1]
