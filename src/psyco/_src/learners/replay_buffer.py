"""The replay buffer: a ring of fixed size with the states of episodes, from which off-policy learners sample.

A row is a state and the action taken in it. The next row is the state that followed, so no observation is stored twice;
the last state of an episode has a row without an action.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class StateRows(NamedTuple):
    """N states, one per row."""

    obs: Array  # [N, inputs]
    context: Array  # [N, Q + 1] counters, and the time as a fraction of the horizon
    action: Array  # [N, A] as an input of critics
    reward: Array  # [N]
    cost: Array  # [N, K]
    taken: Array  # [N] 1: a step was taken here, 0: the last state of an episode
    not_ended: Array  # [N] 1: the episode continued after the step
    not_terminated: Array  # [N] 1: it continued, or ended only because of the time limit


class ReplayBuffer(NamedTuple):
    """The most recent rows."""

    rows: StateRows  # [capacity, ...]
    head: Array  # [] int32, position of the next row
    filled: Array  # [] int32, number of rows


class Transitions(NamedTuple):
    """N steps: the states in which they were taken, and the states that followed."""

    rows: StateRows
    next_obs: Array  # [N, inputs]
    next_context: Array  # [N, Q + 1]


def empty_buffer(capacity: int, inputs: int, context: int, actions: int, costs: int) -> ReplayBuffer:
    """Return a buffer for `capacity` rows of these sizes."""

    def zeros(*shape: int) -> Array:
        return jnp.zeros((capacity, *shape), jnp.float32)

    rows = StateRows(zeros(inputs), zeros(context), zeros(actions), zeros(), zeros(costs), zeros(), zeros(), zeros())
    return ReplayBuffer(rows, jnp.int32(0), jnp.int32(0))


def row_bytes(inputs: int, context: int, actions: int, costs: int) -> int:
    """Return the number of bytes of a row."""
    return 4 * (inputs + context + actions + costs + 4)


def put(replay: ReplayBuffer, rows: StateRows, keep: Array) -> ReplayBuffer:
    """Add those of N rows with `keep` `[N]`, in their order; they replace the oldest."""
    capacity = len(replay.rows.reward)
    number = jnp.cumsum(keep) - 1
    total = number[-1] + 1
    # Of more rows than the capacity the last are kept. The position `capacity` is dropped.
    place = jnp.where(keep & (number >= total - capacity), (replay.head + number) % capacity, capacity)
    stored = jax.tree.map(lambda to, new: to.at[place].set(new, mode="drop"), replay.rows, rows)
    return ReplayBuffer(stored, (replay.head + total) % capacity, jnp.minimum(replay.filled + total, capacity))


def sample(key: Array, replay: ReplayBuffer, count: int) -> Transitions:
    """Return steps drawn uniformly with replacement; rows with `taken` 0 must be ignored."""
    capacity = len(replay.rows.reward)
    # Counted back from the newest row, the last state of an episode: the row after a drawn one is never an older one.
    back = jax.random.randint(key, (count,), 2, jnp.maximum(replay.filled, 2) + 1)
    here, after = (replay.head - back) % capacity, (replay.head - back + 1) % capacity
    return Transitions(
        jax.tree.map(lambda column: column[here], replay.rows),
        replay.rows.obs[after],
        replay.rows.context[after],
    )
