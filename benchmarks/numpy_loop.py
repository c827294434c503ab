"""The yardstick: SNES on Particle Dance as a careful user would write it in plain NumPy.

One environment, one policy, one step at a time; weights are unpacked once per episode and nothing is recomputed.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betainc


def episode(
    theta: np.ndarray, rng: np.random.Generator, *, horizon: int = 50, n_max: int = 1
) -> tuple[float, int]:
    """Return and cost of one episode."""
    w1, w2 = theta[:256].reshape(8, 32), theta[256:].reshape(32, 2)
    state = np.zeros(8)  # agent, particle, and their velocities
    state[:4] = rng.uniform(-1.0, 1.0, 4)
    velocities, positions = state[4:], state[:4]
    pushes = rng.uniform(-0.1, 0.1, (horizon, 2))
    ret, collisions, cost = 0.0, 0, 0
    for push in pushes:
        action = np.tanh(np.maximum(state @ w1 + 1.0, 0.0) @ w2 + 1.0) * 0.1
        velocities[:2] += action
        velocities[2:] += push
        np.clip(velocities, -0.1, 0.1, out=velocities)
        positions += velocities
        np.clip(positions, -2.0, 2.0, out=positions)
        distance = math.hypot(positions[0] - positions[2], positions[1] - positions[3])
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
    theta = rng.uniform(-0.3, 0.3, 320)
    satisfied = violated = 0
    for _ in range(generations):
        noise = rng.normal(size=(population, 320))
        results = np.array([episode(theta + sigma * row, rng) for row in noise])
        hits = int(np.count_nonzero(results[:, 1] == 0))
        satisfied, violated = satisfied + hits, violated + population - hits
        lam = max(0.0, betainc(violated + 1, satisfied + 1, 0.15) - 0.98) / 0.02
        score = lam * _normalize(results[:, 0]) - (1 - lam) * _normalize(results[:, 1])
        theta = theta + alpha / (sigma * population) * score @ noise
    return theta


def _normalize(x: np.ndarray) -> np.ndarray:
    std = x.std()
    return (x - x.mean()) / std if std > 0 else np.zeros_like(x)
