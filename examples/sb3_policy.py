"""Somebody else's policy: train one with Stable-Baselines3, and verify it like our own."""

import tempfile
from pathlib import Path

from stable_baselines3 import PPO

import psyco

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.zip"
    PPO("MlpPolicy", "CartPole-v1", n_steps=256, seed=0, device="cpu").learn(10_000).save(path)
    certificate = psyco.verify(
        f"sb3:{path}", psyco.make("CartPole-v1"), "P>=0.8 [ G (abs(obs[0]) <= 2.4) ] & C>=0.95"
    )
print(certificate)
