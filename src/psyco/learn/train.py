"""One generation, two drivers: under `lax.scan` for compiled domains, in a host loop for the others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco.errors import EpisodeError
from psyco.learn.base import Generation, Learner, LearnerState, Proposal
from psyco.learn.belief import double_precision, single_precision
from psyco.rollout.episodes import Episodes, Sampler, Stream, episode_keys, stream_key


def train(
    learner: Learner, sampler: Sampler, key: Array, state: LearnerState, *, first: int, generations: int
) -> tuple[LearnerState, Generation]:
    """Run generations first, first+1, ...; returns the new state and what each looked like, stacked `[G]`.

    The result depends on `key`, the generations' numbers and nothing else: running 2 x 50 generations is
    running 100, wherever and on however many devices or workers.
    """
    with double_precision():
        if sampler.compiled:
            return _scan(learner, sampler, generations, key, state, np.int32(first))
        rows: list[Generation] = []
        for generation in range(first, first + generations):
            proposal, keys = _propose(learner, key, state, np.int32(generation))
            try:
                with single_precision():
                    episodes = _play(sampler, proposal, keys)
            except EpisodeError as error:
                error.learned = (state, _stack(rows)) if rows else None
                raise
            state, row = _update(learner, state, proposal, episodes)
            rows.append(jax.device_get(row))
        return state, _stack(rows)


def _stack(rows: list[Generation]) -> Generation:
    return jax.tree.map(lambda *values: np.stack(values), *rows)


@jax.jit(static_argnums=(0, 1, 2))
def _scan(
    learner: Learner, sampler: Sampler, generations: int, key: Array, state: LearnerState, first: Array
) -> tuple[LearnerState, Generation]:
    def generation(state: LearnerState, number: Array) -> tuple[LearnerState, Generation]:
        with single_precision():
            proposal, keys = _plan(learner, key, state, number)
            episodes = _play(sampler, proposal, keys)
        return learner.update(state, proposal, episodes)

    return jax.lax.scan(generation, state, first + jnp.arange(generations, dtype=jnp.int32))


@jax.jit(static_argnums=0)
def _propose(learner: Learner, key: Array, state: LearnerState, number: Array) -> tuple[Proposal, Array]:
    with single_precision():
        return _plan(learner, key, state, number)


@jax.jit(static_argnums=0)
def _update(
    learner: Learner, state: LearnerState, proposal: Proposal, episodes: Episodes
) -> tuple[LearnerState, Generation]:
    return learner.update(state, proposal, episodes)


def _play(sampler: Sampler, proposal: Proposal, keys: Array) -> Episodes:
    if proposal.std is None:
        return sampler(proposal.theta, keys)
    return sampler.explore(proposal.theta, proposal.std, keys)


def _plan(learner: Learner, key: Array, state: LearnerState, number: Array) -> tuple[Proposal, Array]:
    noise_key, sample_key = jax.random.split(stream_key(key, Stream.TRAIN, number))
    proposal = learner.propose(noise_key, state)
    keys = episode_keys(sample_key, 0, learner.episodes_per_generation)
    return proposal, keys if proposal.episode is None else keys[proposal.episode]
