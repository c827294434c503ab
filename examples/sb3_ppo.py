"""An actor-critic of Stable-Baselines3 under a requirement: `pip install "psyco[sb3]"`."""

from stable_baselines3 import PPO

import psyco
from psyco.sb3 import Bridge

bridge = Bridge(psyco.make("CartPole-v1", horizon=200), "P>=0.8 [ G (abs(obs[0]) <= 1) ] & C>=0.95", check_every=2000)
model = PPO("MlpPolicy", bridge.env(), n_steps=1024, learning_rate=1e-3, seed=0, device="cpu")
model.learn(40_000, callback=bridge.callback())
print(bridge.certify(model, "cartpole-ppo.zip", max_episodes=2000))
