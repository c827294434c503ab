"""What is learned: two environments, each with what must hold, and a cost per step for who knows no formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium

from benchmarks.peers.dance import Dance

SPEED, FAST_STEPS = 0.5, 10


class Unavailable(Exception):
    """A peer that is not installed; it says what to do."""


@dataclass(frozen=True)
class Task:
    """The same environment and horizon for everybody."""

    domain: str  # as `psyco.make` takes it
    horizon: int
    require: str
    steps: int  # of learning, unless somebody asks for others
    make: Callable[[], Any]  # with `info["cost"]`
    weights: tuple[float, ...]  # of the cost, where the penalty is fixed: one has to guess
    limit: float  # on the expected cost of an episode, for those who have one: that of the share which may violate
    learner: str  # of ours, that has as much time as the others
    compiled: str = ""  # the same as a compiled domain of ours


class Fast(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Being faster than the limit costs 1 a step."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, info | {"cost": float(info["x_velocity"] > SPEED)}


def _cheetah() -> Any:
    return Fast(gymnasium.make("HalfCheetah-v5", max_episode_steps=100))


TASKS = {
    "dance": Task(
        "benchmarks.peers.dance:Dance",
        50,
        "P>=0.85 [ G (info.distance >= 0.1 | info.collisions <= 1) ] & C>=0.98",
        200_000,
        Dance,
        (1.0, 10.0),
        limit=0.15,
        learner="safe-es",
        compiled="particle-dance",
    ),
    "velocity": Task(
        "HalfCheetah-v5",
        100,
        f"P>=0.85 [ G (count(info.x_velocity > {SPEED}) <= {FAST_STEPS}) ] & C>=0.95",
        200_000,
        _cheetah,
        (1.0, 10.0),
        limit=float(FAST_STEPS),
        learner="ppo",
    ),
}
