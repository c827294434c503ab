"""The safe evolution strategy on problems small enough to know the answer."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from psyco._src.core.errors import RunError
from psyco._src.learners.base import Proposal
from psyco._src.learners.belief import double_precision
from psyco._src.learners.learner_registry import make_learner
from psyco._src.learners.loop import train
from psyco._src.learners.safe_es import SafeES
from psyco._src.logic.parser import parse
from psyco._src.rollout.episodes import Episodes
from tests.learners.bind import bind

ONE = {"p_req": (0.85,), "c_req": (0.98,)}


def updated(learner: SafeES, state, *, satisfied, ret=None, cost=None):
    """Return state and info after one update with given episodes; `satisfied` is bool `[B, K]`."""
    satisfied = jnp.asarray(satisfied)
    count, constraints = satisfied.shape
    episodes = Episodes(
        jnp.zeros(count, jnp.float32) if ret is None else jnp.asarray(ret, jnp.float32),
        (~satisfied).astype(jnp.float32) if cost is None else jnp.asarray(cost, jnp.float32),
        satisfied,
        jnp.full(count, 3, jnp.int32),
    )
    assert constraints == len(learner.known_task.p_req)
    with double_precision():
        return learner.update(state, learner.propose(jax.random.key(0), state), episodes)


class Line:
    """A sampler without a domain: the return r lies in (-1, 1), and the satisfaction probability is (1 - r) / 2."""

    compiled = True

    def __call__(self, theta, keys):
        ret = jax.nn.soft_sign(theta.mean(axis=1))
        far = jax.vmap(jax.random.uniform)(keys) - (1.0 - ret) / 2.0
        satisfied, cost = far < 0, jnp.maximum(far, 0.0)[:, None]
        return Episodes(ret, cost, satisfied[:, None], jnp.ones(len(keys), jnp.int32))


def test_pairs_mirror_each_other_and_play_the_same_episode_and_checks_play_their_own() -> None:
    learner = bind(SafeES, **ONE, population=6, checks=3)
    state = learner.init(jnp.arange(4.0))
    proposal = learner.propose(jax.random.key(1), state)
    assert proposal.theta.shape == (learner.episodes_per_generation, 4) == (9, 4)
    np.testing.assert_allclose(proposal.theta[:3] + proposal.theta[3:6], np.tile(2 * np.arange(4.0), (3, 1)), rtol=1e-6)
    np.testing.assert_array_equal(proposal.theta[6:], np.tile(np.arange(4.0), (3, 1)))
    assert proposal.episode.tolist() == [0, 1, 2, 0, 1, 2, 6, 7, 8]


def test_rows_of_one_episode_meet_the_same_chance() -> None:
    seen = []

    class Spy(Line):
        compiled = False

        def __call__(self, theta, keys):
            seen.append(np.asarray(jax.random.key_data(keys)))
            return jax.device_get(super().__call__(theta, keys))

    learner = bind(SafeES, **ONE, population=4, checks=1)
    train(learner, Spy(), jax.random.key(0), learner.init(jnp.zeros(3)), first=0, generations=1)
    assert (seen[0][:2] == seen[0][2:4]).all()
    assert len({row.tobytes() for row in seen[0]}) == 3


@pytest.mark.slow
def test_belief_is_that_of_the_mean_policy_alone_and_fades() -> None:
    learner = bind(SafeES, **ONE, population=4, checks=2, belief_window=10.0)
    state, s, v = learner.init(jnp.zeros(3)), 0.0, 0.0
    for hits in (2, 1, 2, 2, 0):
        shown = [[True]] * hits + [[False]] * (2 - hits)
        state, row = updated(learner, state, satisfied=[[False]] * 4 + shown)
        s, v = 0.9 * s + hits, 0.9 * v + 2 - hits
        assert float(row.c_sat[0]) == pytest.approx(stats.beta.sf(0.85, s + 1, v + 1), abs=1e-6)


def test_lambda_is_the_integral_of_the_surplus_over_the_target() -> None:
    learner = bind(SafeES, **ONE, population=4, checks=2, gain=0.1, margin=0.2, curriculum=0.0)
    state, lam, goal = learner.init(jnp.zeros(3)), 1.0, 0.85 + 0.2 * 0.15
    for hits in (2, 0, 0, 1, 2, 2, 0):
        shown = [[True]] * hits + [[False]] * (2 - hits)
        state, row = updated(learner, state, satisfied=[[True]] * 4 + shown)
        lam = min(1.0, max(0.0, lam + 0.1 * (hits / 2 - goal)))
        assert float(row.lam) == pytest.approx(lam, abs=1e-6)


def test_the_target_rises_from_0_to_full_with_the_curriculum() -> None:
    learner = bind(SafeES, **ONE, episode_budget=1000, population=8, checks=2, margin=0.0, curriculum=0.5)
    assert learner.generations == 100
    targets = [float(learner.controller.target_share(jnp.int32(g))[0]) for g in (0, 25, 50, 99)]
    assert targets == pytest.approx([0.0, 0.425, 0.85, 0.85])


@pytest.mark.slow
def test_the_weakest_constraint_decides_and_its_cost_weighs_most() -> None:
    learner = bind(SafeES, p_req=(0.5, 0.9), c_req=(0.9, 0.9), population=4, checks=2, gain=0.5, curriculum=0.0)
    state = learner.init(jnp.zeros(2))
    violating = [[True, False]] * 6
    paid = np.array([[0.0, 1.0], [0.0, 2.0]] * 3)  # λ falls only for what distinguishes episodes
    for _ in range(3):
        state, row = updated(learner, state, satisfied=violating, cost=paid)
    assert float(state.lam[0]) == 1.0
    assert float(row.lam) == float(state.lam[1]) == 0.0
    noise = jax.random.normal(jax.random.key(0), (2, 2))
    # The cost of the second constraint falls along the first pair's noise: the mean must move that way, whatever the
    # cost of the first constraint.
    cost = np.array([[9.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    moved, _ = updated(learner, state, satisfied=violating, cost=cost)
    assert float((moved.theta - state.theta) @ noise[0]) > 0


def test_return_is_maximised_as_far_as_the_requirement_lets_it() -> None:
    """The target is 0.88, so the best return is 1 - 2 * 0.88 = -0.76; the search starts at -0.33.

    Over seeds the mean of the last quarter stays within 0.03 of it.
    """
    learner = make_learner(
        SafeES(population=40, checks=40, margin=0.2, curriculum=0.0),
        parse("P>=0.85 [ F goal ] & C>=0.9"),
        episode_budget=80_000,
    )
    _, rows = train(
        learner,
        Line(),
        jax.random.key(3),
        learner.init(jnp.full(5, -0.5)),
        first=0,
        generations=learner.generations,
    )
    late = np.asarray(rows.episodes.returns).mean(axis=1)[-learner.generations // 4 :]
    assert late.mean() == pytest.approx(-0.76, abs=0.1)


def test_minimising_is_maximising_the_negative() -> None:
    runs = {}
    for goal in ("Rmin=? [ C ];", "Rmax=? [ C ];"):
        learner = make_learner(SafeES(population=20, checks=2), parse(goal), episode_budget=440)
        assert learner.known_task.p_req == ()
        state, _ = train(
            learner, _unconstrained, jax.random.key(0), learner.init(jnp.zeros(3)), first=0, generations=20
        )
        runs[goal] = np.asarray(learner.deployed(state)).mean()
    assert runs["Rmin=? [ C ];"] < -0.1 < 0.1 < runs["Rmax=? [ C ];"]


@partial(lambda sampler: setattr(sampler, "compiled", True) or sampler)
def _unconstrained(theta, keys):
    none = jnp.zeros((len(keys), 0))
    return Episodes(theta.mean(axis=1), none, none.astype(bool), jnp.ones(len(keys), jnp.int32))


def test_population_follows_the_budget_unless_it_is_given() -> None:
    sizes = {b: bind(SafeES, **ONE, episode_budget=b).episodes_per_generation for b in (1000, 60_000, 600_000, 10**9)}
    assert sizes == {1000: 22, 60_000: 22, 600_000: 220, 10**9: 220}
    assert bind(SafeES, **ONE, episode_budget=10**9, population=4, checks=1).episodes_per_generation == 5


def test_the_gain_is_larger_with_few_generations() -> None:
    gains = {b: bind(SafeES, **ONE, episode_budget=b).gain for b in (1100, 2200, 60_000)}
    assert gains == pytest.approx({1100: 0.2, 2200: 0.1, 60_000: 0.01})
    assert bind(SafeES, **ONE, episode_budget=1100, gain=0.03).gain == 0.03


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"population": 5}, "even"),
        ({"population": 0}, "at least 2"),
        ({"checks": 0}, "checks must be a whole number of at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be a number above 0"),
        ({"belief_window": 0.5}, "belief_window"),
        ({"curriculum": 1.0}, "curriculum"),
        ({"optimizer": "adamant"}, "adam, sgd"),
        ({"control": "hard"}, "integral, multiplier, soft"),
        ({"mirrored": False}, "shaping='population'"),
    ],
)
def test_bad_options_are_named(options: dict, words: str) -> None:
    with pytest.raises(RunError, match=words):
        SafeES(**options)


def test_an_odd_population_is_fine_without_mirrors() -> None:
    learner = bind(SafeES, **ONE, population=5, checks=1, mirrored=False, shaping="population")
    proposal: Proposal = learner.propose(jax.random.key(0), learner.init(jnp.zeros(2)))
    assert proposal.episode.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("options", [{"optimizer": "sgd"}, {"mirrored": False, "shaping": "population"}])
def test_each_part_can_be_exchanged(options: dict) -> None:
    learner = bind(SafeES, episode_budget=2200, population=20, checks=2, **options)
    _, rows = train(learner, _unconstrained, jax.random.key(0), learner.init(jnp.zeros(3)), first=0, generations=20)
    assert (
        np.asarray(rows.episodes.returns).mean(axis=1)[-5:].mean()
        > np.asarray(rows.episodes.returns).mean(axis=1)[:5].mean() + 0.05
    )


def test_soft_control_is_the_papers_rule_on_the_belief_about_the_mean_policy() -> None:
    learner = bind(SafeES, **ONE, population=4, checks=60, control="soft", margin=0.0, curriculum=0.0)
    _, row = updated(learner, learner.init(jnp.zeros(3)), satisfied=[[False]] * 4 + [[True]] * 58 + [[False]] * 2)
    c_sat = stats.beta.sf(0.85, 59, 3)
    assert c_sat > 0.98
    assert float(row.lam) == pytest.approx((c_sat - 0.98) / 0.02, abs=1e-3)
