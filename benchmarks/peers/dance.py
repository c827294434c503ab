"""Particle Dance as anybody would write it for Gymnasium: NumPy, one step at a time; `info["cost"]` as safe RL has it.

It imports nothing of PSyCo, so that libraries in an environment of their own can use the file as it is.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

ALLOWED = 1  # collisions of an episode


class Dance(gymnasium.Env[Any, Any]):
    """Follow a particle closely, and collide with it at most once; the paper's section 4.1."""

    observation_space: Any = gymnasium.spaces.Box(-2.0, 2.0, (8,), np.float32)
    action_space: Any = gymnasium.spaces.Box(-0.1, 0.1, (2,), np.float32)

    def __init__(self, steps: int = 50) -> None:
        self.steps = steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.agent, self.particle = self.np_random.uniform(-1.0, 1.0, (2, 2))
        self.velocities = np.zeros((2, 2))  # of agent and particle
        self.done = self.collisions = 0
        return self._observed(), self._told()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        push = self.np_random.uniform(-0.1, 0.1, 2)
        asked = np.clip(np.asarray(action, np.float64), -0.1, 0.1)
        self.velocities = np.clip(self.velocities + np.stack([asked, push]), -0.1, 0.1)
        self.agent = np.clip(self.agent + self.velocities[0], -2.0, 2.0)
        self.particle = np.clip(self.particle + self.velocities[1], -2.0, 2.0)
        self.done += 1
        self.collisions += self._distance() < 0.1
        return self._observed(), -self._distance(), False, self.done >= self.steps, self._told()

    def _distance(self) -> float:
        return float(np.linalg.norm(self.agent - self.particle))

    def _observed(self) -> Any:
        return np.concatenate([self.agent, self.particle, *self.velocities]).astype(np.float32)

    def _told(self) -> dict[str, Any]:
        """What requirements speak of, and the cost of the step: one for each collision that is not allowed."""
        distance = self._distance()
        cost = float(distance < 0.1 and self.collisions > ALLOWED)
        return {"distance": distance, "collisions": float(self.collisions), "cost": cost}
