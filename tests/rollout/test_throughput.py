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
    np.testing.assert_allclose(found[:4], (1000.0, 10.0, 126, 1000.0), rtol=1e-6)


def test_slow_episodes_are_played_twice_and_very_slow_ones_once(monkeypatch: Any) -> None:
    sampler = Clocked(monkeypatch, making=2.0, each=1.5)
    np.testing.assert_allclose(measured(sampler, workers=2)[:3], (20 / 3.0, 10.0, 4), rtol=1e-6)
    assert sampler.calls == [2, 2]
    sampler = Clocked(monkeypatch, making=2.0, each=40.0)
    assert measured(sampler).rate == 10 / 42.0
    assert sampler.calls == [1]


class Uneven(Clocked):
    """Episode i of a batch has 10 (i + 1) steps. A turn of all running episodes takes 1 ms, and each step 0.1 ms."""

    def __call__(self, theta: Any, keys: Any) -> Episodes:
        length = 10 * np.arange(1, len(keys) + 1, dtype=np.int32)
        self.now += 1e-3 * int(length.max()) + 1e-4 * int(length.sum())
        return Episodes(None, None, None, length)  # type: ignore[arg-type]


def test_the_speed_lies_between_those_of_uneven_and_of_even_episodes(monkeypatch: Any) -> None:
    """32 even episodes make 32 steps in 4.2 ms; the measured uneven ones make 5,280 steps in 320 turns."""
    found = measured(Uneven(monkeypatch, 0.0, 0.0))
    uneven, even = 5280 / (0.32 + 0.528), 32 / 4.2e-3
    np.testing.assert_allclose((found.random_rate, found.rate), (uneven, (uneven * even) ** 0.5), rtol=1e-6)
    np.testing.assert_allclose(found.alone, 1 / 1.1e-3, rtol=1e-6)
