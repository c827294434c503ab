"""The replay buffer holds the last rows, and a step is sampled with the state that followed it."""

import jax
import jax.numpy as jnp
import numpy as np

from psyco._src.learners.replay_buffer import ReplayBuffer, StateRows, empty_buffer, put, row_bytes, sample


def numbered(first: int, count: int, taken: list[float] | None = None) -> StateRows:
    """Return rows whose observation is their number; other columns do not matter."""
    number = jnp.arange(first, first + count, dtype=jnp.float32)
    nothing = jnp.zeros(count)
    done = jnp.ones(count) if taken is None else jnp.asarray(taken)
    return StateRows(
        number[:, None], -number[:, None], number[:, None], number, nothing[:, None], done, nothing, nothing
    )


def held(replay: ReplayBuffer) -> list[int]:
    """Return the numbers of the rows, from the oldest to the newest."""
    filled, head = int(replay.filled), int(replay.head)
    order = np.arange(head - filled, head) % len(replay.rows.reward)
    return np.asarray(replay.rows.reward)[order].astype(int).tolist()


def test_the_oldest_give_way_and_what_is_not_kept_leaves_no_gap() -> None:
    replay = empty_buffer(7, 1, 1, 1, 1)
    replay = put(replay, numbered(0, 5), jnp.array([True, False, True, True, False]))
    assert held(replay) == [0, 2, 3]
    replay = put(replay, numbered(10, 6), jnp.array([True] * 5 + [False]))
    assert held(replay) == [2, 3, 10, 11, 12, 13, 14]
    replay = put(replay, numbered(20, 4), jnp.zeros(4, bool))
    assert held(replay) == [2, 3, 10, 11, 12, 13, 14]
    replay = put(replay, numbered(30, 12), jnp.ones(12, bool))  # more than there is room for
    assert held(replay) == list(range(35, 42))


def test_steps_are_sampled_uniformly_with_the_state_that_followed() -> None:
    """Each of 5 steps is expected 1000 times in 5000; further off than 150 by chance below 1e-6."""
    replay = empty_buffer(7, 1, 1, 1, 1)
    replay = put(replay, numbered(0, 4, [1, 1, 1, 0]), jnp.ones(4, bool))
    replay = put(replay, numbered(4, 5, [1, 1, 1, 1, 0]), jnp.ones(5, bool))
    steps = sample(jax.random.key(0), replay, 6000)  # of rows 2 to 8; 3 is no step, 8 is never drawn
    here = np.asarray(steps.rows.obs)[:, 0]
    np.testing.assert_array_equal(steps.next_obs[:, 0], here + 1)
    np.testing.assert_array_equal(steps.next_context[:, 0], -here - 1)
    np.testing.assert_array_equal(steps.rows.taken, here != 3)
    number, count = np.unique(here, return_counts=True)
    assert number.tolist() == [2, 3, 4, 5, 6, 7]
    assert (abs(count - 1000) < 150).all()


def test_row_bytes_are_those_of_a_row() -> None:
    replay = empty_buffer(100, 5, 3, 2, 1)
    assert sum(leaf.nbytes for leaf in replay.rows) == 100 * row_bytes(5, 3, 2, 1)
