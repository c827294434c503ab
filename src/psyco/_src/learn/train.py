"""One generation, two drivers: a compiled loop for compiled domains, in a host loop for the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco._src.learn.base import Generation, Learner, LearnerState, Proposal, Weighing
from psyco._src.learn.belief import double_precision, single_precision
from psyco._src.rollout.device import refuse_broken
from psyco._src.rollout.episodes import COMPILER, Episodes, Sampler, episode_keys


def bursts(
    learner: Learner,
    sampler: Sampler,
    key: Array,
    state: LearnerState,
    *,
    first: int,
    generations: int,
    most: int | None = None,
) -> Iterator[tuple[LearnerState, Generation]]:
    """Run generations first, first+1, ...; gives the new state and what the generations looked like, stacked `[G]`.

    A compiled sampler makes all of them in one go, any other one generation at a time, so that whoever listens knows
    where learning stood when an episode fails. The result depends on `key`, the generations' numbers and nothing else:
    running 2 x 50 generations is running 100, wherever and on however many devices or workers. Calls with the same
    `most`, by default the number of generations itself, share one compiled program.
    """
    if sampler.compiled:
        most = generations if most is None else most

        def run(count: int) -> tuple[LearnerState, Generation]:
            with double_precision():
                return _loop(learner, sampler, most, key, state, np.int32(first), np.int32(count))

        after, rows = run(generations)
        seen: Generation = jax.tree.map(lambda rows: rows[:generations], jax.device_get(rows))
        if (broken := seen.episodes.broken) is not None and broken.any():
            good = int(broken.any(axis=1).argmax())  # generations before the first that met NaN
            with double_precision():
                proposal, keys = _propose(learner, key, run(good)[0], np.int32(first + good))
            refuse_broken(sampler, broken[good], proposal.theta, keys, proposal.std)
        yield after, seen
        return
    for generation in range(first, first + generations):
        with double_precision():
            proposal, keys = _propose(learner, key, state, np.int32(generation))
            with single_precision():
                episodes = _play(sampler, proposal, keys)
            state, weighing = _update(learner, state, proposal, episodes)
        yield state, _stack([jax.device_get(Generation(episodes._replace(trace=None), weighing))])


def train(
    learner: Learner, sampler: Sampler, key: Array, state: LearnerState, **schedule: Any
) -> tuple[LearnerState, Generation]:
    """The same to the end: the last state, and all generations stacked `[G]`."""
    states, rows = zip(*bursts(learner, sampler, key, state, **schedule), strict=True)
    return states[-1], jax.tree.map(lambda *parts: np.concatenate(parts), *rows)


def _stack(rows: list[Generation]) -> Generation:
    return jax.tree.map(lambda *values: np.stack(values), *rows)


@jax.jit(static_argnums=(0, 1, 2), compiler_options=COMPILER)
def _loop(
    learner: Learner,
    sampler: Sampler,
    most: int,
    key: Array,
    state: LearnerState,
    first: Array,
    generations: Array,
) -> tuple[LearnerState, Generation]:
    """Up to `most` generations; rows beyond `generations` are empty."""

    def generation(state: LearnerState, keys: _Keys) -> tuple[LearnerState, Generation]:
        with single_precision():
            proposal, own = _plan(learner, keys, state)
            episodes = _play(sampler, proposal, own)
        state, weighing = learner.update(state, proposal, episodes)
        return state, Generation(episodes._replace(trace=None), weighing)

    def step(i: Array, so_far: tuple[LearnerState, Generation]) -> tuple[LearnerState, Generation]:
        state, rows = so_far
        state, row = generation(state, jax.tree.map(lambda key: key[i], keys))
        return state, jax.tree.map(lambda rows, row: rows.at[i].set(row), rows, row)

    with single_precision():
        numbers = first + jnp.arange(most, dtype=jnp.int32)
        keys = jax.vmap(lambda number: _keys(learner, key, number))(numbers)  # cheaper all at once
    one = jax.eval_shape(generation, state, jax.tree.map(lambda key: key[0], keys))[1]
    rows = jax.tree.map(lambda x: jnp.zeros((most, *x.shape), x.dtype), one)
    return jax.lax.fori_loop(0, generations, step, (state, rows))


@jax.jit(static_argnums=0)
def _propose(learner: Learner, key: Array, state: LearnerState, number: Array) -> tuple[Proposal, Array]:
    with single_precision():
        return _plan(learner, _keys(learner, key, number), state)


@jax.jit(static_argnums=0)
def _update(
    learner: Learner, state: LearnerState, proposal: Proposal, episodes: Episodes
) -> tuple[LearnerState, Weighing]:
    return learner.update(state, proposal, episodes)


class _Keys(NamedTuple):
    """The randomness of one generation."""

    learner: Array  # []
    episodes: Array  # [B]


def _keys(learner: Learner, key: Array, number: Array) -> _Keys:
    own, episodes = episode_keys(key, 2 * number, 2)  # two keys for each generation
    return _Keys(own, episode_keys(episodes, 0, learner.episodes_per_generation))


def _plan(learner: Learner, keys: _Keys, state: LearnerState) -> tuple[Proposal, Array]:
    proposal = learner.propose(keys.learner, state)
    return proposal, keys.episodes if proposal.episode is None else keys.episodes[proposal.episode]


def _play(sampler: Sampler, proposal: Proposal, keys: Array) -> Episodes:
    if proposal.std is None:
        return sampler(proposal.theta, keys)
    return sampler.explore(proposal.theta, proposal.std, keys)
