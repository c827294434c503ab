"""A value-based algorithm of Stable-Baselines3 under a requirement: `pip install "psyco[sb3]"`, about two minutes."""

from stable_baselines3 import DQN

import psyco
from psyco.sb3 import Bridge

bridge = Bridge(
    psyco.make("CartPole-v1", horizon=200), "P>=0.8 [ G (abs(obs[0]) <= 1) ] & C>=0.95", every=2000
)
model = DQN(
    "MlpPolicy", bridge.env(), learning_rate=2.3e-3, batch_size=64, buffer_size=100_000, learning_starts=1000,
    target_update_interval=10, train_freq=256, gradient_steps=128,
    exploration_fraction=0.16, exploration_final_eps=0.04,
    policy_kwargs={"net_arch": [256, 256]}, seed=0, device="cpu",
)  # fmt: skip
model.learn(50_000, callback=bridge.callback())
print(bridge.certify(model, "cartpole-dqn.zip", max_episodes=2000))
