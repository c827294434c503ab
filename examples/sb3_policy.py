"""Somebody else's policy: train one with Stable-Baselines3 in a few seconds, and verify it like our own."""

import tempfile
from pathlib import Path

import torch
from stable_baselines3 import PPO

import psyco

torch.set_num_threads(1)  # networks this small only wait for other threads
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.zip"
    PPO("MlpPolicy", "CartPole-v1", n_steps=256, seed=0, device="cpu").learn(6_000).save(path)
    domain = psyco.make("CartPole-v1", horizon=100)
    model = f"sb3:{path}"  # it holds pickled objects, which can run code: such a file has to be trusted by name
    certificate = psyco.verify(model, domain, "P>=0.7 [ G (abs(obs[0]) <= 1.5) ] & C>=0.95", trust=[model])
print(certificate)
