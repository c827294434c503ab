"""What policies were shown along episodes, in a few numbers: learners that follow it need not keep every state."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class ObsStats(NamedTuple):
    """Of rows with I columns; `[B]` of them where there are several parts, such as episodes."""

    rows: Array  # [] float32, how many
    mean: Array  # [I] float32, as all that follow
    variance: Array  # [I]
    switch: Array  # [I] bool: nothing but 0 and 1
    low: Array  # [I] the least
    high: Array  # [I] and the largest value


def seen_among(x: Any, weight: Any) -> ObsStats:
    """What was seen in rows `[..., n, I]` that count by `weight` `[..., n]`, 0 or 1. NumPy and JAX alike."""
    xp: Any = jnp if isinstance(x, jax.Array) else np
    # Float32 is all that compiled code has; elsewhere sums take more care.
    x, counts = x.astype(xp.float32 if xp is jnp else np.float64), weight[..., None] != 0
    rows = weight.sum(axis=-1)
    share = counts / xp.maximum(rows, 1)[..., None, None]
    mean = (share * x).sum(axis=-2)
    found = ObsStats(
        rows=rows,
        mean=mean,
        variance=(share * (x - mean[..., None, :]) ** 2).sum(axis=-2),
        switch=((x == 0) | (x == 1) | ~counts).all(axis=-2),
        low=xp.where(counts, x, xp.inf).min(axis=-2),
        high=xp.where(counts, x, -xp.inf).max(axis=-2),
    )
    return ObsStats(*(each.astype(bool if each.dtype == bool else xp.float32) for each in found))
