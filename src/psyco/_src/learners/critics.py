"""Critics: small networks that predict the discounted return and costs. They belong to the learner, not the policy.

Those of `ppo` predict the value of a state, those of `sac` the value of a state and an action. The layers of the latter
are normalized, which keeps predictions moderate far from the data.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Critics = dict[str, Array]


def make_critics(count: int, inputs: int, hidden: int, outputs: tuple[int, ...] = (), *, gain: float) -> Critics:
    """Return the weights of `count` networks with two hidden layers; they predict 0 at first.

    The weights are random with variance `gain` / inputs, and the same in every run.
    """
    rng = np.random.default_rng(0)
    first = rng.normal(size=(count, inputs, hidden)) * np.sqrt(gain / inputs)
    second = rng.normal(size=(count, hidden, hidden)) * np.sqrt(gain / hidden)
    return {
        "w1": jnp.asarray(first, jnp.float32),
        "b1": jnp.zeros((count, hidden), jnp.float32),
        "w2": jnp.asarray(second, jnp.float32),
        "b2": jnp.zeros((count, hidden), jnp.float32),
        "w3": jnp.zeros((count, hidden, *outputs), jnp.float32),
        "b3": jnp.zeros((count, *outputs), jnp.float32),
    }


def state_values(critics: Critics, x: Array) -> Array:
    """Return the predictions `[..., C]` of C critics with tanh layers for inputs `[..., I]`."""

    def one(critic: Critics) -> Array:
        hidden = jnp.tanh(jnp.tanh(x @ critic["w1"] + critic["b1"]) @ critic["w2"] + critic["b2"])
        return hidden @ critic["w3"] + critic["b3"]

    return jax.vmap(one, out_axes=-1)(critics)


def action_values(critics: Critics, x: list[Array]) -> Array:
    """Return the predictions `[C, N, outputs]` of C critics with normalized relu layers, each for its `[N, inputs]`."""

    def one(critic: Critics, x: Array) -> Array:
        hidden = jax.nn.relu(_layer_norm(x @ critic["w1"] + critic["b1"]))
        hidden = jax.nn.relu(_layer_norm(hidden @ critic["w2"] + critic["b2"]))
        return hidden @ critic["w3"] + critic["b3"]

    # One by one: on a CPU, XLA runs a batch of small products a third slower.
    parts = [jax.tree.map(lambda weights, i=i: weights[i], critics) for i in range(len(x))]
    return jnp.stack([one(part, each) for part, each in zip(parts, x, strict=True)])


def discounted_sums(x: Array, discount: float) -> Array:
    """Return Σ_l discount^l x_{t+l} for each step t of columns `[B, n, C]`."""

    def back(later: Array, now: Array) -> tuple[Array, Array]:
        later = now + discount * later
        return later, later

    by_time = jnp.moveaxis(x, 1, 0)
    _, sums = jax.lax.scan(back, jnp.zeros_like(by_time[0]), by_time, reverse=True)
    return jnp.moveaxis(sums, 0, 1)


def _layer_norm(x: Array) -> Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
