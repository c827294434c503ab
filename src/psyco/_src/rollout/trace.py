"""From the signals along paths to a Trace: who looks into episodes sees one record per step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from psyco._src.logic.batch_monitor import BatchMonitor
from psyco._src.rollout.episodes import Trace

OBS = frozenset({"obs"})
NEEDED = OBS | {"reward"}  # the signals that a trace needs besides those of its monitor


def graded(monitor: BatchMonitor, signals: dict[str, Any], end: Any) -> Any:
    """The grades of paths, float32 `[..., K]`; None if no formula has one."""
    spread = monitor.grade(signals, end)
    return None if spread is None else spread.sum(axis=-2).astype(np.float32)


def trace(
    monitor: BatchMonitor, signals: dict[str, Any], length: Any, disturbance: Any, end: Any, terminated: Any
) -> Trace:
    """The trace of paths with signals `[..., n+1]` (or vectors), lengths `[...]` and noise `[..., n, outputs]`.

    Those that ended by themselves, before time ran out, are `terminated` `[...]`.

    Step t leads from state t to state t+1 and takes the blame for that, as it does what that adds to a value. The first
    step also takes that for the first state, and the last one that for the repetitions of the last state up to the
    horizon. NumPy and JAX alike.
    """
    xp: Any = jnp if isinstance(length, jax.Array) else np
    steps, states = np.arange(disturbance.shape[-2]), np.arange(disturbance.shape[-2] + 1)
    length = length[..., None]
    alive, last, beyond = (steps < length)[..., None], (steps == length - 1)[..., None], states > length

    def by_step(arising: Any, first: bool = True) -> Any:
        taken = xp.where(alive, arising[..., 1:, :], 0.0)
        if first:
            taken += xp.where((steps == 0)[:, None], arising[..., :1, :], 0.0)
        taken += xp.where(last, (arising * beyond[..., None]).sum(axis=-2, keepdims=True), 0.0)
        return taken

    values, grade = monitor.accrued(signals, end), monitor.grade(signals, end)
    found = Trace(
        obs=signals["obs"][..., :-1, :],
        disturbance=xp.where(alive, disturbance, 0.0),
        reward=xp.where(alive[..., 0], signals["reward"][..., 1:], 0.0),
        blame=by_step(monitor.blame(signals, end)),
        alive=alive[..., 0],
        final=signals["obs"][..., -1, :],
        terminated=terminated,
        value=None if values is None else by_step(values),
        counters=monitor.counters(signals, end),
        # What the first state is away from a bound no step has brought about.
        grade=None if grade is None else by_step(grade, first=False),
    )
    single: Trace = jax.tree.map(lambda x: x.astype(np.float32), found)
    return single
