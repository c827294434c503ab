"""Samplers run whatever follows the protocol of actors, with memory or without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

import psyco
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.policies.external import as_policy
from psyco._src.rollout.gym_sampler import GymSampler, Job, in_process_backend
from psyco._src.rollout.sampler import make_sampler
from tests.environments import Walk, to_the_left


@dataclass
class Counting:
    """A vector policy with memory: after `patience[i]` steps, policy i goes to the right for good."""

    patience: np.ndarray  # [B]
    fallback_steps: None = None

    def __call__(self, flat: np.ndarray, raw: Any, noise: Any = None, signals: Any = ()) -> list[int]:
        self.patience = self.patience - 1
        return (self.patience < 0).astype(int).tolist()

    def take(self, rows: np.ndarray) -> Counting:
        return Counting(self.patience[rows])


class Patient:
    signals: frozenset[str] = frozenset()

    def vectorize(self, domain: Any, theta: np.ndarray, seeds: Any) -> Counting:
        return Counting(theta[:, 0])


def test_a_crew_keeps_the_memory_of_each_episode_apart() -> None:
    domain = psyco.make(Walk, horizon=30)
    sampler = GymSampler(Job(domain, Patient(), compile_monitor([])), in_process_backend())  # type: ignore[arg-type]
    theta, seeds = np.arange(12, dtype=np.float32)[:, None], list(range(1, 13))
    together = sampler.run(theta, seeds)
    assert len(set(together.length.tolist())) > 3  # some end before others
    for row in range(12):
        alone = sampler.run(theta[row : row + 1], seeds[row : row + 1])
        assert alone.length == together.length[row]
    assert (sampler.run(theta + 5, seeds).length != together.length).any()


@pytest.mark.parametrize("domain", [psyco.make(Walk, horizon=5), psyco.make("obstacle-run")])
def test_an_external_policy_cannot_explore(domain: psyco.Domain) -> None:
    sampler = make_sampler(domain, as_policy(to_the_left).network, psyco.parse("P>=0.5 [ G (step <= 3) ]"))
    keys = jax.random.split(jax.random.key(0), 2)
    std = np.ones((2, domain.actions.outputs), np.float32)
    with pytest.raises(psyco.RunError, match=r"external.* cannot explore"):
        sampler.explore(np.zeros((2, 0), np.float32), std, keys)
