"""Observations as networks like them, with zero mean and unit spread: by what has been seen so far while learning.

A learner keeps `Seen` in its state and trains parameters of a network that is shown standard observations. Whoever
plays episodes need not know: `fold` moves the statistics into the first layer, so that the same network, shown
observations as they are, says the same.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco._src.policies.network import Network
from psyco._src.rollout.obs_stats import ObsStats, seen_among

FAR = 10.0  # standard observations are at most so large
KNOWN = 10_000  # rows


def nothing_seen(columns: int) -> ObsStats:
    """Before the first row; `standard` then changes nothing."""
    none = jnp.zeros(columns, jnp.float32)
    return ObsStats(jnp.float32(0), none, none, jnp.ones(columns, bool), none + jnp.inf, none - jnp.inf)


def begin(network: Network) -> ObsStats:
    """What a network's own scaling knows, which is worth `KNOWN` rows; nothing where it has none."""
    if not network.scale:
        return nothing_seen(network.inputs)
    shift, scale = np.array(network.shift, np.float32), np.array(network.scale, np.float32)
    left = (shift == 0) & (scale == 1)  # switches and constants
    return ObsStats(*map(jnp.asarray, (np.float32(KNOWN), shift, scale**2, left, shift, shift)))


def look(seen: ObsStats, x: Array, weight: Array) -> ObsStats:
    """What has been seen after rows `[..., I]` that count by `weight` `[...]`, 0 or 1."""
    found = seen_among(x.reshape(1, -1, x.shape[-1]), weight.reshape(1, -1))
    return join(seen, found)


def join(seen: ObsStats, parts: ObsStats) -> ObsStats:
    """What has been seen after these parts, `[B]` of them."""
    added = jnp.sum(parts.rows)
    share = (parts.rows / jnp.maximum(added, 1.0))[:, None]
    mean = jnp.sum(share * parts.mean, axis=0)
    variance = jnp.sum(share * (parts.variance + (parts.mean - mean) ** 2), axis=0)
    # Moments of two parts together (Chan, Golub and LeVeque 1983).
    count = seen.rows + added
    part = added / jnp.maximum(count, 1.0)
    away = mean - seen.mean
    return ObsStats(
        count,
        seen.mean + part * away,
        seen.variance + part * (variance - seen.variance) + part * (1.0 - part) * away**2,
        seen.switch & jnp.all(parts.switch, axis=0),
        jnp.minimum(seen.low, jnp.min(parts.low, axis=0)),
        jnp.maximum(seen.high, jnp.max(parts.high, axis=0)),
    )


def shift_and_scale(seen: ObsStats) -> tuple[Array, Array]:
    """What to subtract and to divide by, `[I]` each.

    Switches (columns of 0 and 1, as in a one-hot code) and constants stay as they are. What hardly ever moves has a
    tiny spread, by which the rest would become huge numbers: nothing that was seen is further out than `FAR`.
    """
    std = jnp.sqrt(seen.variance)
    leave = seen.switch | (std <= 1e-6 * (1.0 + jnp.abs(seen.mean)))
    reach = jnp.maximum(seen.high - seen.mean, seen.mean - seen.low)
    return jnp.where(leave, 0.0, seen.mean), jnp.where(leave, 1.0, jnp.maximum(std, reach / FAR))


def standard(seen: ObsStats, x: Array) -> Array:
    """Rows `[..., I]` with zero mean and unit spread."""
    shift, scale = shift_and_scale(seen)
    return (x - shift) / scale


def fold(network: Network, theta: Array, seen: ObsStats) -> Array:
    """Parameters `[D]` with which the network says of observations what `theta` lets it say of standard ones.

    Its biases must be learned. Where the network has a shift and a scale of its own, they are undone.
    """
    shift, scale = shift_and_scale(seen)
    own_shift = jnp.asarray(network.shift, jnp.float32) if network.scale else jnp.zeros_like(shift)
    own_scale = jnp.asarray(network.scale, jnp.float32) if network.scale else jnp.ones_like(scale)
    parts = network.parts(theta)  # the weights of all layers, then their biases
    first = len(parts) // 2
    parts[first] = parts[first] + ((own_shift - shift) / scale) @ parts[0]
    parts[0] = parts[0] * (own_scale / scale)[:, None]
    return jnp.concatenate([part.ravel() for part in parts])


def bare(network: Network) -> Network:
    """The same network without a shift and a scale of its own: it is shown standard observations."""
    return Network(network.inputs, network.outputs, network.hidden, network.bias)
