"""Running normalization: the statistics, the episodes that are played, and the deployed policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.envs.gym_env import GymDomain
from psyco._src.learners.base import Proposal, UpdateInfo
from psyco._src.learners.learner_registry import make_learner
from psyco._src.learners.loop import train
from psyco._src.learners.running_stats import NormalizedLearner, empty_stats, merge_stats, shift_and_scale
from psyco._src.policies.network import network_for
from psyco._src.rollout.episodes import episode_keys, episode_seeds, summarize_observations
from psyco._src.rollout.gym_sampler import Chunk, EpisodeRunner
from psyco._src.rollout.sampler import make_sampler
from tests.environments import Walk
from tests.making import learned, prepared

REQUIREMENT = psyco.parse("P>=0.5 [ G (abs(obs[0]) <= 2) ]")


class Still:
    """A learner that never changes and keeps the arguments of its updates."""

    episodes_per_generation = 3

    def __init__(self) -> None:
        self.updates: list[tuple[Proposal, object]] = []

    def init(self, theta):
        return theta

    def propose(self, key, state):
        return Proposal(jnp.stack([state, -state, 2 * state]), None)

    def update(self, state, proposal, episodes):
        self.updates.append((proposal, episodes))
        return state, UpdateInfo(jnp.float32(1.0), jnp.ones(1))

    def deployed(self, state):
        return state


def walking(horizon: int = 15) -> GymDomain:
    domain = psyco.make(Walk, horizon=horizon)
    assert isinstance(domain, GymDomain)
    return domain


def test_what_was_seen_is_the_same_in_numpy_and_compiled_and_by_definition() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(7.0, 3.0, (4, 9, 3)).astype(np.float32)
    x[..., 2] = rng.random((4, 9)) < 0.5
    weight = (np.arange(9) < np.array([9, 1, 4, 7])[:, None]).astype(np.float32)
    ours, compiled = (
        summarize_observations(x, weight),
        jax.jit(summarize_observations)(jnp.asarray(x), jnp.asarray(weight)),
    )
    for b, n in enumerate([9, 1, 4, 7]):
        rows = x[b, :n].astype(np.float64)
        wanted = (n, rows.mean(0), rows.var(0), [False, False, True], rows.min(0), rows.max(0))
        for value, again, true in zip(ours, compiled, wanted, strict=True):
            np.testing.assert_allclose(value[b], true, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(again[b], true, rtol=1e-4, atol=1e-5)


def test_statistics_are_those_of_all_episodes_and_what_is_played_sees_standard_observations() -> None:
    domain = walking()
    network = network_for(domain, hidden=8, bias="learned")
    inner = Still()
    learner = NormalizedLearner(inner, network)
    sampler = make_sampler(domain, network, REQUIREMENT, with_obs_stats=True)
    theta, rows, runner = network.init(jax.random.key(0)), [], EpisodeRunner()
    state = learner.init(theta)
    for generation in range(2):
        proposal = learner.propose(jax.random.key(1), state)
        keys = episode_keys(jax.random.key(generation), 0, 3)
        chunk = Chunk(np.asarray(proposal.theta), episode_seeds(keys))
        paths = runner.rollout(sampler.job, chunk, frozenset({"obs"}))
        rows += [path[:n] for path, n in zip(paths.signals["obs"], paths.length, strict=True)]
        state, _ = learner.update(state, proposal, sampler(proposal.theta, keys))
    runner.close()
    every = np.concatenate(rows).astype(np.float64)
    np.testing.assert_allclose(state.obs_stats.rows, len(every))
    np.testing.assert_allclose(state.obs_stats.mean, every.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.obs_stats.variance, every.var(0), rtol=1e-3)
    np.testing.assert_array_equal(state.obs_stats.high, every.max(0))
    for proposal, _ in inner.updates:
        np.testing.assert_array_equal(proposal.theta, jnp.stack([theta, -theta, 2 * theta]))
    # The deployed network gives for raw observations the scores of the learner's own for normalized ones.
    shift, scale = (np.asarray(x) for x in shift_and_scale(state.obs_stats))
    x = every[:20].astype(np.float32)
    said = jax.vmap(network.scores, (None, 0))(theta, (x - shift) / scale)
    deployed = network.numpy_scores(np.asarray(learner.deployed(state))[None])(x)
    np.testing.assert_allclose(deployed, said, rtol=1e-4, atol=1e-5)


def test_traces_have_normalized_observations() -> None:
    domain = walking()
    network = network_for(domain, hidden=8, bias="learned")
    inner = Still()
    learner = NormalizedLearner(inner, network)
    sampler = make_sampler(domain, network, REQUIREMENT, with_obs_stats=True)
    state = learner.init(network.init(jax.random.key(0)))
    for _ in range(2):
        proposal = learner.propose(jax.random.key(1), state)
        std = jnp.ones((3, 2), jnp.float32)
        before, episodes = (
            state.obs_stats,
            sampler.explore(proposal.theta, std, episode_keys(jax.random.key(0), 0, 3)),
        )
        assert episodes.obs_stats is None  # the trace contains all observations
        state, _ = learner.update(state, proposal, episodes)
    shift, scale = shift_and_scale(before)
    shown = inner.updates[-1][1].trace
    np.testing.assert_allclose(shown.obs, (episodes.trace.obs - shift) / scale, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(shown.final_obs, (episodes.trace.final_obs - shift) / scale, rtol=1e-5, atol=1e-6)


def test_what_hardly_ever_moves_does_not_become_huge() -> None:
    x = np.zeros((1, 5000, 2), np.float32)
    x[0, 17, 0], x[0, :, 1] = 0.5, np.linspace(-1, 1, 5000)  # once in 5000 states
    shift, scale = shift_and_scale(merge_stats(empty_stats(2), summarize_observations(x, np.ones((1, 5000)))))
    assert abs((0.5 - shift[0]) / scale[0]) == pytest.approx(10.0, rel=1e-3)
    assert scale[1] == pytest.approx(x[0, :, 1].std(), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["safe-es", pytest.param("ppo", marks=pytest.mark.more)])
@pytest.mark.more
def test_learning_in_two_parts_is_learning_in_one(learner: str) -> None:
    problem = prepared(
        walking(),
        REQUIREMENT.text,
        learner=learner,
        episodes=88,
        verify_every=44,
        hidden=4,
        normalization="running",
    )
    assert problem.normalization == "running" and not problem.network.scale
    whole = learned(problem)
    at = whole.reached[0]
    again = learned(problem, at)
    assert 0 < at.generation < whole.at.generation
    jax.tree.map(np.testing.assert_array_equal, again.at.state, whole.at.state)


@pytest.mark.more
def test_compiled_domains_can_have_it_too() -> None:
    domain = psyco.make("particle-dance", horizon=5)
    network = network_for(domain, hidden=4, bias="learned")
    requirement = psyco.parse("P>=0.5 [ G distance >= 0.1 ]")
    learner = NormalizedLearner(make_learner("safe-es", requirement, episode_budget=66), network)
    sampler = make_sampler(domain, network, requirement, with_obs_stats=True)
    state = learner.init(network.init(jax.random.key(0)))
    state, rows = train(learner, sampler, jax.random.key(0), state, first=0, generations=3)
    assert rows.episodes.obs_stats is None and state.obs_stats.rows == 3 * 22 * 5
    assert 0.1 < float(state.obs_stats.variance[0]) < 0.6  # positions within a square of side 2


def test_biases_of_one_have_no_room_for_it() -> None:
    with pytest.raises(psyco.RunError, match="use bias='learned', or normalization='sampled'"):
        prepared(walking(), REQUIREMENT.text, learner="snes", normalization="running")
    resolved = [
        prepared(walking(), REQUIREMENT.text, learner=name).normalization for name in ("snes", "safe-es", "ppo")
    ]
    assert resolved == ["sampled", "sampled", "running"]
