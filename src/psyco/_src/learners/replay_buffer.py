"""Experience: the steps of episodes in a ring of fixed size, from which off-policy learners draw again and again.

A row is a state and what was done in it. The row after it is the state that followed, so no observation is kept twice;
the last state of an episode has a row of its own, in which nothing was done.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class StateRows(NamedTuple):
    """N states, one per row."""

    obs: Array  # [N, inputs]
    known: Array  # [N, Q + 1] counters, and the time as a part of the horizon
    action: Array  # [N, A] as critics see it
    reward: Array  # [N]
    cost: Array  # [N, K]
    taken: Array  # [N] 1: a step was taken here, 0: the episode was over
    going: Array  # [N] 1: after the step the episode went on,
    open: Array  # [N] or it could have, had time not run out


class ReplayBuffer(NamedTuple):
    """The last rows of all that was seen."""

    rows: StateRows  # [capacity, ...]
    head: Array  # [] int32, where the next row goes
    filled: Array  # [] int32, how many there are


class TransitionBatch(NamedTuple):
    """N steps: where they began, and the state that each led to."""

    rows: StateRows
    obs: Array  # [N, inputs]
    known: Array  # [N, Q + 1]


def empty(capacity: int, inputs: int, known: int, actions: int, costs: int) -> ReplayBuffer:
    """Room for so many rows."""

    def zeros(*shape: int) -> Array:
        return jnp.zeros((capacity, *shape), jnp.float32)

    rows = StateRows(
        zeros(inputs), zeros(known), zeros(actions), zeros(), zeros(costs), zeros(), zeros(), zeros()
    )
    return ReplayBuffer(rows, jnp.int32(0), jnp.int32(0))


def row_bytes(inputs: int, known: int, actions: int, costs: int) -> int:
    """What a row takes."""
    return 4 * (inputs + known + actions + costs + 4)


def put(replay: ReplayBuffer, rows: StateRows, keep: Array) -> ReplayBuffer:
    """Add those of N rows with `keep` `[N]`, in their order; the oldest give way."""
    capacity = len(replay.rows.reward)
    number = jnp.cumsum(keep) - 1
    total = number[-1] + 1
    # Of more rows than there is room for, the last count. What is not kept goes nowhere.
    place = jnp.where(keep & (number >= total - capacity), (replay.head + number) % capacity, capacity)
    stored = jax.tree.map(lambda to, new: to.at[place].set(new, mode="drop"), replay.rows, rows)
    return ReplayBuffer(
        stored, (replay.head + total) % capacity, jnp.minimum(replay.filled + total, capacity)
    )


def draw(key: Array, replay: ReplayBuffer, count: int) -> TransitionBatch:
    """Steps by chance, each as likely as any other; those with `taken` 0 are none."""
    capacity = len(replay.rows.reward)
    # Counted from the newest row, which is the last state of an episode: what follows a row is never an older one.
    back = jax.random.randint(key, (count,), 2, jnp.maximum(replay.filled, 2) + 1)
    here, after = (replay.head - back) % capacity, (replay.head - back + 1) % capacity
    return TransitionBatch(
        jax.tree.map(lambda column: column[here], replay.rows),
        replay.rows.obs[after],
        replay.rows.known[after],
    )
