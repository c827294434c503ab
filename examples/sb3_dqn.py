"""A value-based algorithm of Stable-Baselines3 under a requirement: `pip install "psyco[sb3]"`."""

from stable_baselines3 import DQN

import psyco
from psyco.sb3 import Bridge

bridge = Bridge(psyco.make("CartPole-v1", horizon=100), "P>=0.8 [ G !terminated ] & C>=0.95")
model = DQN(
    "MlpPolicy", bridge.env(), learning_rate=2.3e-3, batch_size=64, learning_starts=1000, target_update_interval=10,
    train_freq=256, gradient_steps=128, exploration_fraction=0.3, exploration_final_eps=0.04, seed=0, device="cpu",
)  # fmt: skip
model.learn(20_000, callback=bridge.callback())
print(bridge.certify(model, "cartpole-dqn.zip", max_episodes=1000))
