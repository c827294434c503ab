"""Exploring episodes: without noise they are the episodes of the sampler, and their trace adds up to what they are."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats

import psyco
from psyco._src.policies.network import network_for
from psyco._src.rollout.episodes import Episodes, episode_keys
from psyco._src.rollout.gym_sampler import GymSampler
from psyco._src.rollout.sampler import make_sampler
from tests.environments import Walk

pytestmark = pytest.mark.slow  # compiles many rollouts

REQUIREMENTS = {
    "particle-dance": "P>=0.5 [ G distance >= 0.5 ]; P>=0.5 [ F<=20 distance <= 0.3 ]",
    "obstacle-run": 'P>=0.5 [ G distance > 2 ]; P>=0.5 [ F "target" ]',
    "walk": "P>=0.5 [ G abs(obs[0]) <= 1 ]; P>=0.5 [ F info.cost = 1 ]",
}
COUNT = 24


def samplers(name: str, **options: Any) -> tuple[Any, np.ndarray, Any]:
    """A sampler, parameters `[B, D]` and keys `[B]`."""
    domain = psyco.make(Walk, horizon=30) if name == "walk" else psyco.make(name)
    network = network_for(domain, bias="learned")
    theta = jax.vmap(network.init)(jax.random.split(jax.random.key(1), COUNT))
    sampler = make_sampler(domain, network, psyco.parse(REQUIREMENTS[name]), **options)
    return sampler, np.asarray(theta), episode_keys(jax.random.key(2), 0, COUNT)


def played(sampler: Any, theta: np.ndarray, keys: Any, std: float | None) -> Episodes:
    def run(theta: Any, keys: Any) -> Episodes:
        if std is None:
            return sampler(theta, keys)
        return sampler.explore(theta, np.full((len(theta), sampler_outputs(sampler)), std, np.float32), keys)

    return jax.device_get((jax.jit(run) if sampler.compiled else run)(theta, keys))


def sampler_outputs(sampler: Any) -> int:
    return (sampler.job if isinstance(sampler, GymSampler) else sampler).network.outputs


def rows(episodes: Episodes, part: Any) -> Episodes:
    return jax.tree.map(lambda x: x[part], episodes)


def assert_same(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("particle-dance", marks=pytest.mark.full),
        pytest.param("obstacle-run", marks=pytest.mark.more),
        "walk",
    ],
)
def test_without_noise_exploring_episodes_are_those_of_the_deployed_policy(name: str) -> None:
    """To the last bit, if both are optimized by the compiler, which `make test` leaves out."""
    everything = samplers(name)
    still = played(*everything, std=0.0)
    assert_same(still._replace(trace=None), played(*everything, std=None))
    assert (still.trace.noise == 0).all()


@pytest.mark.parametrize("name", REQUIREMENTS)
@pytest.mark.more
def test_a_trace_adds_up_to_its_episode(name: str) -> None:
    episodes = played(*samplers(name, severity=name == "walk"), std=0.7)
    trace = episodes.trace
    assert trace is not None
    np.testing.assert_array_equal(trace.alive.sum(axis=1), episodes.length)
    np.testing.assert_allclose(trace.reward.sum(axis=1), episodes.returns, rtol=1e-4)
    # Of the repetitions of an episode's last state, which cost the formula, those of `G` count once in its trace.
    rest = trace.alive.shape[1] - episodes.length
    at_end = np.take_along_axis(trace.cost, episodes.length[:, None, None] - 1, axis=1)[:, 0]
    whole = trace.cost.sum(axis=1) + rest[:, None] * at_end * [1, 0]
    several = episodes.length > 1  # a single step also has the cost of the first state
    assert several.sum() > COUNT / 2
    np.testing.assert_allclose(whole[several], episodes.cost[several], rtol=1e-4)
    assert (np.diff(trace.alive, axis=1) <= 0).all()
    assert (trace.terminated[episodes.length < trace.alive.shape[1]] == 1).all()
    assert trace.terminated.any() == (name != "particle-dance")  # where the dance goes on until time runs out
    over = trace.alive == 0
    for column in (trace.reward, trace.cost, trace.noise):
        assert (column[over] == 0).all()
    assert np.std(trace.noise[~over]) == pytest.approx(0.7, rel=0.1)
    # Costs of states arise within episodes, others at their last step.
    assert np.count_nonzero(trace.cost[..., 0]) > COUNT / 4
    last = np.arange(trace.alive.shape[1]) == episodes.length[:, None] - 1
    assert not trace.cost[~last][..., 1].any()
    assert trace.cost[last][..., 1].any()


def test_observations_are_those_before_each_step() -> None:
    """The walk counts its steps, in the observation; rewards are 1 per step."""
    trace = played(*samplers("walk"), std=0.7).trace
    taken = trace.alive == 1
    np.testing.assert_array_equal(trace.obs[..., 1][taken], np.tile(np.arange(30), (COUNT, 1))[taken])
    np.testing.assert_array_equal(trace.reward, trace.alive)


def test_a_trace_says_how_an_episode_ended_and_what_the_policy_would_see_next() -> None:
    """The walk counts its steps in the observation, and ends by itself where it has gone too far."""
    episodes = played(*samplers("walk"), std=3.0)
    trace = episodes.trace
    np.testing.assert_array_equal(trace.final_obs[:, 1], episodes.length)
    np.testing.assert_array_equal(trace.terminated, episodes.length < 30)
    assert 0 < trace.terminated.sum() < COUNT


ENDS = """
    P>=0.5 [ (F info.cost = 2) & G abs(obs[0]) < 3 ];
    P>=0.5 [ G[25,28] abs(obs[0]) < 3 ];
    P>=0.5 [ F ("end" & return >= 40) ];
"""


def test_a_violation_in_which_an_episode_ends_counts_like_any_other() -> None:
    """A walk ends at a distance of 3: the `G` fails in the last state, and in all of its repetitions."""
    domain = psyco.make(Walk, horizon=30)
    network = network_for(domain, bias="learned")
    sampler = make_sampler(domain, network, psyco.parse(ENDS))
    theta = np.asarray(jax.vmap(network.init)(jax.random.split(jax.random.key(1), COUNT)))
    episodes = played(sampler, theta, episode_keys(jax.random.key(2), 0, COUNT), std=3.0)
    trace = episodes.trace
    early = (episodes.length > 1) & (episodes.length < 25)
    assert early.sum() > COUNT / 4
    cost, last = trace.cost[early], episodes.length[early] - 1
    np.testing.assert_array_equal(cost.sum(axis=1)[:, :3], np.ones((early.sum(), 3)))
    for conjunct in range(3):  # F, G, and the window that opens after the end
        np.testing.assert_array_equal(cost[..., conjunct].argmax(axis=1), last)
    # A bound on the return has a distance: each reward of 1 covers 1 / 40 of the way.
    shaping = trace.shaping_cost[early]
    np.testing.assert_allclose(shaping[..., 3].sum(axis=1), -episodes.length[early] / 40, rtol=1e-5)
    np.testing.assert_array_equal(shaping[..., :3], cost[..., :3])


COUNTED = """
    P>=0.5 [ G (count(abs(obs[0]) > 0.5) <= 4) ];
    P>=0.5 [ F ("end" & return >= -20) ];
    P>=0.5 [ G most(obs[1]) < 9 ];
"""


def test_counters_are_parts_of_what_the_formulas_compare_them_with() -> None:
    domain = psyco.make(Walk, horizon=30)
    network = network_for(domain, bias="learned")
    sampler = make_sampler(domain, network, psyco.parse(COUNTED))
    theta = np.asarray(jax.vmap(network.init)(jax.random.split(jax.random.key(1), COUNT)))
    trace = played(sampler, theta, episode_keys(jax.random.key(2), 0, COUNT), std=2.0).trace
    far = np.cumsum(abs(trace.obs[..., 0]) > 0.5, axis=1)
    taken = trace.alive == 1  # the state before each step
    assert trace.counters.shape == (COUNT, 31, 3)
    before = trace.counters[:, :-1][taken]
    assert before[:, 0].max() > 1
    np.testing.assert_allclose(before[:, 0], far[taken] / 4)
    np.testing.assert_allclose(before[:, 1], (np.cumsum(trace.reward, axis=1) - trace.reward)[taken] / 20)
    np.testing.assert_allclose(before[:, 2], trace.obs[..., 1][taken] / 9)
    np.testing.assert_allclose(trace.counters[:, -1, 1], trace.reward.sum(axis=1) / 20, rtol=1e-6)
    assert played(*samplers("walk"), std=0.7).trace.counters is None


@pytest.mark.parametrize(
    "name", ["walk", *(pytest.param(name, marks=pytest.mark.full) for name in ("particle-dance", "obstacle-run"))]
)
def test_noise_belongs_to_the_episode_not_to_its_batch(name: str) -> None:
    sampler, theta, keys = samplers(name)
    whole = played(sampler, theta, keys, std=0.5)
    for part in (slice(3, 4), slice(5, 16)):
        assert_same(played(sampler, theta[part], keys[part], std=0.5), rows(whole, part))
    noise = whole.trace.noise[:, 0]
    assert len(np.unique(noise.round(6))) == noise.size  # all differ


def test_noise_does_not_depend_on_the_workers() -> None:
    sampler, theta, keys = samplers("walk")
    whole = played(sampler, theta, keys, std=0.5)
    assert_same(played(dataclasses.replace(sampler, workers=5), theta, keys, std=0.5), whole)
    backwards = played(sampler, theta[::-1], keys[::-1], std=0.5)
    assert_same(rows(backwards, slice(None, None, -1)), whole)


@pytest.mark.parametrize("name", ["walk", pytest.param("obstacle-run", marks=pytest.mark.more)])
def test_held_noise_is_that_of_the_step_at_which_it_was_drawn(name: str) -> None:
    sampler, theta, keys = samplers(name)
    std, hold = np.full((COUNT, sampler_outputs(sampler)), 0.5, np.float32), np.arange(COUNT, dtype=np.int32) % 4 + 1
    explore = jax.jit(sampler.explore) if sampler.compiled else sampler.explore
    white, held = jax.device_get((explore(theta, std, keys), explore(theta, std, keys, hold)))
    drawn = np.arange(white.trace.noise.shape[1])
    for row, steps in enumerate(hold):
        both = white.trace.alive[row, drawn // steps * steps] * held.trace.alive[row] > 0
        expected = white.trace.noise[row, drawn // steps * steps]
        np.testing.assert_allclose(held.trace.noise[row][both], expected[both], rtol=1e-6)
    assert (white.trace.noise != held.trace.noise).any()
    one = hold == 1  # held for one step, it is white; two programs may differ in the last bit
    np.testing.assert_allclose(held.trace.noise[one], white.trace.noise[one], rtol=1e-5)
    if not sampler.compiled:
        spread = dataclasses.replace(sampler, workers=5)
        assert_same(jax.device_get(spread.explore(theta, std, keys, hold)), held)


def test_noise_changes_what_happens_where_it_is() -> None:
    sampler, theta, keys = samplers("particle-dance")
    std = np.zeros((COUNT, 2), np.float32)
    std[: COUNT // 2] = 1.0
    mixed = jax.device_get(jax.jit(sampler.explore)(theta, std, keys))
    still = played(sampler, theta, keys, std=None)
    moved = mixed.returns != still.returns
    assert moved[: COUNT // 2].all()
    assert not moved[COUNT // 2 :].any()


@pytest.mark.more
def test_noise_has_nothing_to_do_with_what_the_domain_draws() -> None:
    """Correlation with the particle's random pushes and first position; fails by chance with probability 4e-6."""
    domain = psyco.make("particle-dance")
    network = network_for(domain, bias="learned")
    sampler = make_sampler(domain, network, psyco.parse(REQUIREMENTS["particle-dance"]))
    theta = np.broadcast_to(network.init(jax.random.key(1)), (400, network.size))
    trace = played(sampler, theta, episode_keys(jax.random.key(3), 0, 400), std=1.0).trace
    velocity = trace.obs[:, :, 6:8]  # of the particle, before each step
    push = np.diff(velocity, axis=1)[:, :, 0].ravel()
    for axis in range(2):
        noise = trace.noise[:, :, axis]
        assert stats.pearsonr(noise[:, :-1].ravel(), push).pvalue > 1e-6
        assert stats.pearsonr(noise[:, 0], trace.obs[:, 0, 2]).pvalue > 1e-6
