"""Alg. SNES, held to a transcription of the paper's pseudo code that shares no code with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import psyco
from psyco._src.learners.belief import double_precision
from psyco._src.learners.loop import train
from psyco._src.learners.snes import SNES
from psyco._src.rollout.episodes import Episodes
from tests.learners.bind import bind
from tests.making import prepared


def transcription(theta, s, v, noise, ret, cost, *, p_req, c_req, learning_rate=0.01, sigma=0.1):
    """Lines 11-18 of Alg. SNES for one constraint, with line 12 corrected."""
    n = len(ret)
    satisfied = int(np.sum(cost == 0))
    s, v = s + satisfied, v + n - satisfied
    c_sat = stats.beta.sf(p_req, s + 1, v + 1)
    lam = max(0.0, c_sat - c_req) / (1 - c_req)

    def norm(x):
        return (x - x.mean()) / x.std() if x.std() > 0 else 0 * x

    theta = theta + learning_rate * lam / (sigma * n) * norm(ret) @ noise
    theta = theta - learning_rate * (1 - lam) / (sigma * n) * norm(cost) @ noise
    return theta, s, v, c_sat, lam


def test_a_generation_is_the_papers():
    learner = bind(SNES, p_req=(0.85,), c_req=(0.98,))
    rng = np.random.default_rng(1)
    state = learner.init(jnp.asarray(rng.normal(size=7), jnp.float32))
    theta, s, v = np.asarray(state.es.theta, np.float64), 0, 0
    lambdas = set()
    for generation in range(60):
        ret = rng.normal(size=20)
        cost = rng.poisson(0.05 if generation > 20 else 0.13, size=20).astype(float)
        proposal = learner.propose(jax.random.key(generation), state)
        np.testing.assert_allclose(proposal.theta, state.es.theta + 0.1 * proposal.memo, atol=1e-6)
        episodes = Episodes(
            jnp.asarray(ret, jnp.float32), jnp.asarray(cost[:, None], jnp.float32),
            jnp.asarray(cost[:, None] == 0), jnp.full(20, 50),
        )  # fmt: skip
        with double_precision():
            state, row = learner.update(state, proposal, episodes)
        noise = np.asarray(proposal.memo, np.float64)
        theta, s, v, c_sat, lam = transcription(theta, s, v, noise, ret, cost, p_req=0.85, c_req=0.98)
        np.testing.assert_allclose(state.es.theta, theta, atol=2e-5)
        assert (int(state.belief.satisfied[0]), int(state.belief.violated[0])) == (s, v)
        assert float(row.c_sat[0]) == pytest.approx(c_sat, abs=1e-6)
        assert float(row.lam) == pytest.approx(lam, abs=1e-4)
        lambdas.add(round(lam, 1))
    assert len(lambdas) > 2  # the rule was tried between its extremes, too


def update(learner, satisfied, cost, counts):
    """One update of a learner with given outcomes `[B, K]`, starting from given counts."""
    state = learner.init(jnp.zeros(3))
    state = state._replace(belief=state.belief._replace(satisfied=jnp.array(counts[0]), violated=jnp.array(counts[1])))
    proposal = learner.propose(jax.random.key(0), state)
    size = len(satisfied)
    episodes = Episodes(jnp.arange(size) * 1.0, jnp.asarray(cost), jnp.asarray(satisfied), jnp.full(size, 5))
    with double_precision():
        return state, proposal, *learner.update(state, proposal, episodes)


def test_the_weakest_constraint_decides_and_the_furthest_weighs_most():
    learner = bind(SNES, p_req=(0.5, 0.9), c_req=(0.9, 0.9))
    rng = np.random.default_rng(0)
    cost = rng.integers(0, 2, size=(20, 2)).astype(np.float32)
    # The first constraint is as good as certain, the second far away: all weight is on the second one's cost.
    before, proposal, after, row = update(learner, cost == 0, cost, ([900, 100], [0, 900]))
    assert row.c_sat[0] > 0.999 and row.c_sat[1] < 1e-6
    assert float(row.lam) == 0.0
    second = cost[:, 1]
    direction = -((second - second.mean()) / second.std()) @ np.asarray(proposal.memo)
    step = np.asarray(after.es.theta - before.es.theta)
    np.testing.assert_allclose(step, 0.01 / (0.1 * 20) * direction, atol=1e-5)


def test_without_constraints_only_the_return_counts():
    learner = bind(SNES)
    before, proposal, after, row = update(
        learner, np.zeros((20, 0), bool), np.zeros((20, 0), np.float32), (np.zeros(0, np.int32),) * 2
    )
    ret = np.arange(20.0)
    step = 0.01 / (0.1 * 20) * ((ret - ret.mean()) / ret.std()) @ np.asarray(proposal.memo)
    np.testing.assert_allclose(after.es.theta - before.es.theta, step, atol=1e-5)
    assert float(row.lam) == 1.0


def test_minimising_turns_the_return_around():
    rows = [
        update(
            bind(SNES, sign=sign),
            np.zeros((20, 0), bool),
            np.zeros((20, 0)),
            (np.zeros(0, np.int32),) * 2,
        )
        for sign in (1.0, -1.0)
    ]
    np.testing.assert_allclose(rows[0][2].es.theta, -rows[1][2].es.theta, atol=1e-6)


class HostSampler:
    """The same episodes as a compiled sampler, but opaque to JAX: what a Gymnasium environment is."""

    compiled = False

    def __init__(self, sampler):
        self.sampler = jax.jit(sampler)

    def __call__(self, theta, keys):
        return jax.device_get(self.sampler(theta, keys))


@pytest.mark.slow
def test_two_drivers_and_any_split_into_segments_give_the_same_bytes():
    problem = prepared(psyco.make("obstacle-run"), "P>=0.9 [ G !caught ]", learner="snes")
    start = problem.learner.init(problem.network.init(jax.random.key(1)))
    key = jax.random.key(2)
    whole, rows = train(problem.learner, problem.sampler, key, start, first=0, generations=12)
    part, _ = train(problem.learner, problem.sampler, key, start, first=0, generations=6)
    part, later = train(problem.learner, problem.sampler, key, part, first=6, generations=6, capacity=10)
    host, host_rows = train(problem.learner, HostSampler(problem.sampler), key, start, first=0, generations=12)
    assert len(later.episodes.returns) == 6
    assert (whole.es.theta == part.es.theta).all() and (rows.episodes.returns[6:] == later.episodes.returns).all()
    np.testing.assert_allclose(host.es.theta, whole.es.theta, atol=1e-6)
    assert (host.belief.satisfied == whole.belief.satisfied).all()
    np.testing.assert_allclose(host_rows.info.c_sat, rows.info.c_sat, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"population": 1}, "population must be a whole number of at least 2"),
        ({"learning_rate": 0.0}, "learning_rate must be a number above 0"),
        ({"sigma": -1.0}, "sigma must be a number above 0"),
        ({"calibration": "sotf"}, "unknown calibration"),
        ({"poplation": 5}, "did you mean 'population'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(psyco.RunError, match=message):
        psyco.synthesize(psyco.make("obstacle-run"), "", settings=psyco.Settings(learner="snes", options=options))
