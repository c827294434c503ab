"""The yardstick: SNES on Particle Dance as a careful user would write it in plain NumPy.

One environment, one policy, one step at a time; weights are unpacked once per episode and nothing is recomputed.
"""

from __future__ import annotations

import numpy as np
from scipy.special import betainc


class ParticleDance:
    """The paper's assignments, one line each."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def reset(self) -> np.ndarray:
        self.agent, self.particle = self.rng.uniform(-1.0, 1.0, (2, 2))
        self.agent_velocity, self.particle_velocity = np.zeros(2), np.zeros(2)
        return self.observe()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float]:
        """The next observation and the distance."""
        push = self.rng.uniform(-0.1, 0.1, 2)
        self.particle_velocity = np.clip(self.particle_velocity + push, -0.1, 0.1)
        self.particle = np.clip(self.particle + self.particle_velocity, -2.0, 2.0)
        self.agent_velocity = np.clip(self.agent_velocity + action, -0.1, 0.1)
        self.agent = np.clip(self.agent + self.agent_velocity, -2.0, 2.0)
        return self.observe(), float(np.linalg.norm(self.agent - self.particle))

    def observe(self) -> np.ndarray:
        return np.concatenate([self.agent, self.particle, self.agent_velocity, self.particle_velocity])


def episode(theta: np.ndarray, env: ParticleDance, *, horizon: int = 50, n_max: int = 1) -> tuple[float, int]:
    """Return and cost of one episode."""
    w1, w2 = theta[:256].reshape(8, 32), theta[256:].reshape(32, 2)
    observation = env.reset()
    ret, collisions, cost = 0.0, 0, 0
    for _ in range(horizon):
        hidden = np.maximum(observation @ w1 + 1.0, 0.0)
        observation, distance = env.step(0.1 * np.tanh(hidden @ w2 + 1.0))
        ret -= distance
        if distance < 0.1:
            collisions += 1
            cost += collisions > n_max
    return ret, cost


def train(
    generations: int, *, population: int = 20, alpha: float = 0.01, sigma: float = 0.1, seed: int = 0
) -> np.ndarray:
    """Alg. SNES for p_req = .85, c_req = .98; returns the parameters."""
    rng = np.random.default_rng(seed)
    env = ParticleDance(rng)
    theta = rng.uniform(-0.3, 0.3, 320)
    satisfied = violated = 0
    for _ in range(generations):
        noise = rng.normal(size=(population, 320))
        results = np.array([episode(theta + sigma * row, env) for row in noise])
        hits = int(np.count_nonzero(results[:, 1] == 0))
        satisfied, violated = satisfied + hits, violated + population - hits
        lam = max(0.0, betainc(violated + 1, satisfied + 1, 0.15) - 0.98) / 0.02
        score = lam * _normalize(results[:, 0]) - (1 - lam) * _normalize(results[:, 1])
        theta = theta + alpha / (sigma * population) * score @ noise
    return theta


def _normalize(x: np.ndarray) -> np.ndarray:
    std = x.std()
    return (x - x.mean()) / std if std > 0 else np.zeros_like(x)
