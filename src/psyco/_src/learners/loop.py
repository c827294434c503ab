"""One generation, two drivers: a compiled loop for compiled domains, in a host loop for the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco._src.core.errors import EpisodeError
from psyco._src.learners.base import (
    Generation,
    Learner,
    LearnerState,
    Proposal,
    Propose,
    UpdateInfo,
    ahead_of,
)
from psyco._src.learners.belief import double_precision, single_precision
from psyco._src.learners.schedules import steps_of
from psyco._src.rollout.episodes import COMPILER, Episodes, Sampler, episode_keys
from psyco._src.rollout.jax_sampler import refuse_broken


def bursts(
    learner: Learner,
    sampler: Sampler,
    key: Array,
    state: LearnerState,
    *,
    first: int,
    generations: int,
    most: int | None = None,
    steps: int | None = None,
) -> Iterator[tuple[LearnerState, Generation]]:
    """Run generations first, first+1, ...; gives the new state and what the generations looked like, stacked `[G]`.

    A compiled sampler makes all of them in one go, any other one generation at a time, so that whoever listens knows
    where learning stood when an episode fails. The result depends on `key`, the generations' numbers and nothing else:
    running 2 x 50 generations is running 100, wherever and on however many devices or workers. Calls with the same
    `most`, by default the number of generations itself, share one compiled program. With `steps` they end before that
    with the first generation in which so many have been taken.
    """
    if sampler.compiled:
        most = generations if most is None else most

        def run(count: int) -> _LoopState:
            budget = None if steps is None else np.int32(steps)
            with double_precision():
                return _loop(learner, sampler, most, key, state, np.int32(first), np.int32(count), budget)

        after = run(generations)
        done = int(after.done)
        seen: Generation = jax.tree.map(lambda rows: rows[:done], jax.device_get(after.rows))
        if (broken := seen.episodes.broken) is not None and broken.any():
            good = int(broken.any(axis=1).argmax())  # generations before the first that met NaN
            with double_precision():
                proposal, keys = _propose(learner, key, run(good).state, np.int32(first + good))
            refuse_broken(sampler, broken[good], proposal.theta, keys, proposal.std)
        yield after.state, seen
        return
    yield from _one_by_one(learner, sampler, key, state, range(first, first + generations), steps)


def _one_by_one(
    learner: Learner,
    sampler: Sampler,
    key: Array,
    state: LearnerState,
    numbers: range,
    steps: int | None,
) -> Iterator[tuple[LearnerState, Generation]]:
    """The same in a host loop. Where a learner proposes ahead, the next episodes are played during an update."""
    coming: _PlayedGeneration | None = None
    failed: EpisodeError | None = None
    for number in numbers:
        with double_precision():
            if coming is None:
                coming = _played(sampler, *_propose(learner, key, state, np.int32(number)))
            proposal, episodes = coming
            if steps is not None:
                steps -= int(steps_of(episodes))
            goes_on = number + 1 in numbers and (steps is None or steps > 0)
            ahead = None
            if goes_on and ahead_of(learner):
                ahead = jax.block_until_ready(_propose_ahead(learner, key, state, np.int32(number + 1)))
            # JAX computes this in the background, until somebody asks for what came of it.
            state, weighing = _update(learner, state, proposal, episodes)
            try:
                coming = None if ahead is None else _played(sampler, *ahead)
            except EpisodeError as error:
                failed = error
        yield state, _stack([jax.device_get(Generation(episodes._replace(trace=None, seen=None), weighing))])
        if failed is not None:  # not before everybody knows that this generation went well
            raise failed
        if not goes_on:
            return


def train(
    learner: Learner, sampler: Sampler, key: Array, state: LearnerState, **schedule: Any
) -> tuple[LearnerState, Generation]:
    """The same to the end: the last state, and all generations stacked `[G]`."""
    states, rows = zip(*bursts(learner, sampler, key, state, **schedule), strict=True)
    return states[-1], jax.tree.map(lambda *parts: np.concatenate(parts), *rows)


def _stack(rows: list[Generation]) -> Generation:
    return jax.tree.map(lambda *values: np.stack(values), *rows)


class _LoopState(NamedTuple):
    """Where the compiled loop stands."""

    done: Array  # [] int32, generations
    left: Array | None  # [] int32, steps; None: they are not counted
    state: LearnerState
    rows: Generation  # [most], those that are done


@jax.jit(static_argnums=(0, 1, 2), compiler_options=COMPILER)
def _loop(
    learner: Learner,
    sampler: Sampler,
    most: int,
    key: Array,
    state: LearnerState,
    first: Array,
    generations: Array,
    steps: Array | None,
) -> _LoopState:
    """Up to `most` generations, and no more once so many steps are taken; rows beyond `done` are empty."""

    def generation(state: LearnerState, keys: _GenerationKeys) -> tuple[LearnerState, Generation]:
        with single_precision():
            proposal, own = _plan(learner.propose, keys, state)
            episodes = _play(sampler, proposal, own)
        state, weighing = learner.update(state, proposal, episodes)
        return state, Generation(episodes._replace(trace=None, seen=None), weighing)

    def step(now: _LoopState) -> _LoopState:
        state, row = generation(now.state, jax.tree.map(lambda key: key[now.done], keys))
        rows = jax.tree.map(lambda rows, row: rows.at[now.done].set(row), now.rows, row)
        left = None if now.left is None else now.left - steps_of(row.episodes)
        return _LoopState(now.done + 1, left, state, rows)

    def goes_on(now: _LoopState) -> Array:
        return (now.done < generations) & (True if now.left is None else now.left > 0)

    with single_precision():
        numbers = first + jnp.arange(most, dtype=jnp.int32)
        keys = jax.vmap(lambda number: _keys(learner, key, number))(numbers)  # cheaper all at once
    one = jax.eval_shape(generation, state, jax.tree.map(lambda key: key[0], keys))[1]
    rows = jax.tree.map(lambda x: jnp.zeros((most, *x.shape), x.dtype), one)
    return jax.lax.while_loop(goes_on, step, _LoopState(jnp.int32(0), steps, state, rows))


@jax.jit(static_argnums=0)
def _propose(learner: Learner, key: Array, state: LearnerState, number: Array) -> tuple[Proposal, Array]:
    with single_precision():
        return _plan(learner.propose, _keys(learner, key, number), state)


@jax.jit(static_argnums=0)
def _propose_ahead(
    learner: Learner, key: Array, state: LearnerState, number: Array
) -> tuple[Proposal, Array]:
    propose = ahead_of(learner)
    assert propose is not None
    with single_precision():
        return _plan(propose, _keys(learner, key, number), state)


@jax.jit(static_argnums=0)
def _update(
    learner: Learner, state: LearnerState, proposal: Proposal, episodes: Episodes
) -> tuple[LearnerState, UpdateInfo]:
    return learner.update(state, proposal, episodes)


class _GenerationKeys(NamedTuple):
    """The randomness of one generation."""

    learner: Array  # []
    episodes: Array  # [B]


def _keys(learner: Learner, key: Array, number: Array) -> _GenerationKeys:
    own, episodes = episode_keys(key, 2 * number, 2)  # two keys for each generation
    return _GenerationKeys(own, episode_keys(episodes, 0, learner.episodes_per_generation))


def _plan(propose: Propose, keys: _GenerationKeys, state: LearnerState) -> tuple[Proposal, Array]:
    proposal = propose(keys.learner, state)
    return proposal, keys.episodes if proposal.episode is None else keys.episodes[proposal.episode]


class _PlayedGeneration(NamedTuple):
    proposal: Proposal
    episodes: Episodes


def _played(sampler: Sampler, proposal: Proposal, keys: Array) -> _PlayedGeneration:
    with single_precision():
        return _PlayedGeneration(proposal, _play(sampler, proposal, keys))


def _play(sampler: Sampler, proposal: Proposal, keys: Array) -> Episodes:
    if proposal.std is None:
        return sampler(proposal.theta, keys)
    return sampler.explore(proposal.theta, proposal.std, keys)
