"""Candidates are kept beside learning, which does not notice."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from psyco._src.learners.base import Proposal, UpdateInfo
from psyco._src.learners.candidate_buffer import CandidateBuffer
from psyco._src.learners.loop import train
from psyco._src.rollout.episodes import Episodes


@dataclass(frozen=True)
class Counter:
    """A learner whose parameters say how often it was updated."""

    episodes_per_generation: int = 2

    def init(self, theta):
        return theta

    def propose(self, key, state):
        return Proposal(jnp.stack([state, state]), None)

    def update(self, state, proposal, episodes):
        return state + 1, UpdateInfo(jnp.float32(1.0), jnp.ones(0))

    def deployed(self, state):
        return state


class Nothing:
    compiled = True

    def __call__(self, theta, keys):
        none = jnp.zeros((len(keys), 0))
        return Episodes(theta[:, 0], none, none.astype(bool), jnp.ones(len(keys), jnp.int32))


def run(learner, generations, *, state=None, first=0):
    state = learner.init(jnp.zeros(2)) if state is None else state
    return train(learner, Nothing(), jax.random.key(0), state, first=first, generations=generations)[0]


def test_it_learns_what_the_learner_learns_and_keeps_what_was_deployed_late_newest_first() -> None:
    learner = CandidateBuffer(Counter(), 4, 100)
    assert learner.spacing == 5
    state = run(learner, 100)
    assert state.inner.tolist() == [100, 100]
    found = learner.kept(state)
    assert [generation for generation, _ in found] == [100, 95, 90, 85]
    assert [theta.tolist() for _, theta in found] == [[g, g] for g in (100, 95, 90, 85)]


def test_an_early_end_offers_the_current_parameters_and_what_there_is() -> None:
    learner = CandidateBuffer(Counter(), 3, 100)
    found = learner.kept(run(learner, 8))
    assert learner.spacing == 6
    assert [(g, theta[0]) for g, theta in found] == [(8, 8), (4, 4)]  # 4 is 16 spacings before the end


def test_one_candidate_is_the_last() -> None:
    learner = CandidateBuffer(Counter(), 1, 10)
    assert [g for g, _ in learner.kept(run(learner, 10))] == [10]


def test_stopping_and_going_on_changes_nothing() -> None:
    learner = CandidateBuffer(Counter(), 3, 30)
    whole, half = run(learner, 30), run(learner, 13)
    again = run(learner, 17, state=jax.device_get(half), first=13)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
