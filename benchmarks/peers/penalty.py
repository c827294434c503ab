"""Stable-Baselines3's PPO with a fixed penalty: reward - weight x cost, and otherwise as it comes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium

from benchmarks.peers.tasks import Task, Unavailable


class Penalty(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Pays for what it costs."""

    def __init__(self, env: Any, weight: float) -> None:
        super().__init__(env)
        self.weight = weight

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward) - self.weight * info["cost"], terminated, truncated, info


def train(task: Task, weight: float, steps: int, seed: int, path: Path) -> float:
    """Learn, and keep the model in a file; returns the seconds that learning took."""
    try:
        from stable_baselines3 import PPO
    except ImportError:
        raise Unavailable('this peer is Stable-Baselines3: pip install "psyco[sb3]"') from None
    import torch

    torch.set_num_threads(1)
    model = PPO("MlpPolicy", Penalty(task.make(), weight), seed=seed, device="cpu")
    began = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - began
    model.save(path)
    return seconds
