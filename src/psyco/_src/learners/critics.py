"""Critics of off-policy learners: networks of two normalized layers, which keeps them calm far from their data."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Critics = dict[str, Array]


def make_critics(count: int, inputs: int, hidden: int, outputs: int) -> Critics:
    """Weights of `count` networks. They are random, the same in every run, and expect 0 at first."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(count, inputs, hidden)) * np.sqrt(2 / inputs)
    second = rng.normal(size=(count, hidden, hidden)) * np.sqrt(2 / hidden)
    return {
        "w1": jnp.asarray(first, jnp.float32),
        "b1": jnp.zeros((count, hidden), jnp.float32),
        "w2": jnp.asarray(second, jnp.float32),
        "b2": jnp.zeros((count, hidden), jnp.float32),
        "w3": jnp.zeros((count, hidden, outputs), jnp.float32),
        "b3": jnp.zeros((count, outputs), jnp.float32),
    }


def expect(critics: Critics, x: list[Array]) -> Array:
    """What each of C critics expects, `[C, N, outputs]`, seeing its own `[N, inputs]`."""
    # One by one: XLA runs a batch of small products on a processor a third slower.
    parts = [jax.tree.map(lambda weights, i=i: weights[i], critics) for i in range(len(x))]
    return jnp.stack([_one(part, each) for part, each in zip(parts, x, strict=True)])


def _one(critic: Critics, x: Array) -> Array:
    hidden = jax.nn.relu(_normal(x @ critic["w1"] + critic["b1"]))
    hidden = jax.nn.relu(_normal(hidden @ critic["w2"] + critic["b2"]))
    return hidden @ critic["w3"] + critic["b3"]


def _normal(x: Array) -> Array:
    """Zero mean and unit spread over the units of a layer."""
    away = x - jnp.mean(x, axis=-1, keepdims=True)
    return away * jax.lax.rsqrt(jnp.mean(away**2, axis=-1, keepdims=True) + 1e-5)
