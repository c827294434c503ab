"""Evolution strategies (Alg. ES) as init / ask / tell.

The paper writes ε ~ Normal(0, σ) and divides by σ once more. Here the noise ν has unit variance, θ_i = θ + σν_i, and θ
moves by α/(σN) Σ f_i ν_i, which reproduces the paper's results.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class ESState(NamedTuple):
    """The state of an evolution strategy."""

    theta: Array  # [D] current parameters
    generation: Array  # [] int32


def init(theta: Array) -> ESState:
    """Return the state that starts from parameters `[D]`."""
    return ESState(jnp.asarray(theta, jnp.float32), jnp.int32(0))


def ask(key: Array, state: ESState, *, population: int) -> Array:
    """Return unit noise `[population, D]` (Alg. ES, line 5); the key is consumed."""
    return unit_noise(key, (population, state.theta.size))


def offspring(state: ESState, noise: Array, *, sigma: float) -> Array:
    """Return perturbed parameters `[population, D]` (Alg. ES, line 6)."""
    return state.theta + sigma * noise


def tell(state: ESState, noise: Array, score: Array, *, learning_rate: float, sigma: float) -> ESState:
    """Move along score-weighted noise (Alg. ES, line 9)."""
    step = learning_rate / (sigma * len(noise)) * (score @ noise)
    return ESState(state.theta + step, state.generation + 1)


def unit_noise(key: Array, shape: tuple[int, ...]) -> Array:
    """Return standard normal numbers of 16 random bits each: 65,536 different values up to 4.3, enough to perturb.

    Random bits are a large part of the cost of learning. JAX's `normal` uses 32 bits per number, and its default
    generator, which can be split over devices, costs twice as much.
    """
    count = math.prod(shape)
    with jax.threefry_partitionable(False):
        words = jax.random.bits(key, ((count + 1) // 2,), jnp.uint32)
    bits = jnp.concatenate([words >> 16, words & 0xFFFF])[:count].reshape(shape)
    uniform = (bits.astype(jnp.float32) + 0.5) / 2**15 - 1.0  # within (-1, 1), symmetric around 0
    return np.float32(np.sqrt(2.0)) * jax.lax.erf_inv(uniform)


def normalize(x: Array) -> Array:
    """Return values with zero mean and unit standard deviation along the last axis (Eq. normalize).

    Values without spread carry no signal: they become 0.
    """
    # Relative to the first value, equal values are exactly 0; relative to their rounded mean they may not be.
    x = x - x[..., :1]
    x = x - x.mean(axis=-1, keepdims=True)
    std = jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True))
    return jnp.where(std > 0, x / jnp.where(std > 0, std, 1.0), 0.0)
