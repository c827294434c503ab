"""Particle Dance is the paper's text: a plain Python transcription of its assignments must agree step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.envs.particle_dance import DanceState, ParticleDance
from psyco._src.policies.network import network_for
from psyco._src.rollout.sampler import make_sampler


def transcription(state, action, push):
    """T(s, a) of section 4.1, one assignment after the other, with values clipped to their boxes."""
    agent, particle, v_agent, v_particle, n_c = state
    v_particle = np.clip(v_particle + push, -0.1, 0.1)
    particle = np.clip(particle + v_particle, -2, 2)
    v_agent = np.clip(v_agent + action, -0.1, 0.1)
    agent = np.clip(agent + v_agent, -2, 2)
    distance = np.linalg.norm(agent - particle)
    return (agent, particle, v_agent, v_particle, n_c + (distance < 0.1)), -distance


def test_steps_are_the_papers_assignments():
    domain = ParticleDance(horizon=60)
    state = domain.reset(jax.random.key(3))
    mine = tuple(np.asarray(x, np.float64) for x in state)
    rng = np.random.default_rng(0)
    draws = domain.draw(jax.random.key(4))
    for t in range(60):
        # Mostly towards the particle, so that collisions, walls and speed limits all occur.
        action = np.clip(mine[1] - mine[0] + rng.uniform(-0.05, 0.05, 2), -0.1, 0.1)
        push = np.asarray(draws[t], np.float64)
        state, reward, done = domain.step(draws[t], state, jnp.asarray(action, jnp.float32))
        mine, expected = transcription(mine, action, push)
        np.testing.assert_allclose(np.concatenate(state[:4]), np.concatenate(mine[:4]), atol=2e-5)
        assert float(reward) == pytest.approx(expected, abs=2e-5)
        assert int(state.collisions) == int(mine[4])
        assert not done
    assert int(state.collisions) > 0


def test_values_stay_in_their_boxes_when_pushed_against_the_wall():
    domain = ParticleDance(horizon=80)
    state = domain.reset(jax.random.key(0))
    for push in domain.draw(jax.random.key(1)):
        state, _, _ = domain.step(push, state, jnp.array([0.1, -0.1]))
    assert state.agent.tolist() == [2.0, -2.0]
    assert state.agent_velocity.tolist() == pytest.approx([0.1, -0.1])
    assert np.abs(np.asarray(state.particle)).max() <= 2.0


def test_a_count_is_the_papers_counter_but_for_a_collision_at_the_start():
    domain = ParticleDance()
    network = network_for(domain)
    bounded = "P>=0.5 [ G (distance >= 0.1 | {} <= 1) ]; "
    require = bounded.format("collisions") + bounded.format("count(distance < 0.1)") + "P>=0.5 [ distance >= 0.1 ]"
    sampler = make_sampler(domain, network, psyco.parse(require))
    # Without acceleration, pairs that start in a collision often stay in one.
    theta, keys = jnp.zeros((2000, network.size)), jax.random.split(jax.random.key(0), 2000)
    cost = np.asarray(jax.jit(sampler)(theta, keys).cost)
    apart = cost[:, 2] == 0
    np.testing.assert_array_equal(cost[apart, 0], cost[apart, 1])
    assert cost[apart, 0].any()
    # The first collision that counts too many comes one earlier.
    assert (cost[~apart, 1] - cost[~apart, 0] == (cost[~apart, 1] > 0)).all() and cost[~apart, 1].any()


def test_initial_states_are_uniform_at_rest_without_collisions():
    domain = ParticleDance()
    states = jax.vmap(domain.reset)(jax.random.split(jax.random.key(0), 20_000))
    positions = np.concatenate([states.agent, states.particle], axis=1)
    assert np.abs(positions).max() <= 1.0
    # Mean and variance of a uniform on [-1, 1]; 6 standard errors: false alarm below 1e-7.
    assert np.abs(positions.mean(axis=0)).max() < 6 * np.sqrt(1 / 3 / 20_000)
    assert np.abs(positions.var(axis=0) - 1 / 3).max() < 6 * np.sqrt(4 / 45 / 20_000)
    assert not np.any(states.agent_velocity) and not np.any(states.particle_velocity)
    assert not np.any(states.collisions)


def test_the_counter_is_not_observed():
    domain = ParticleDance()
    state = domain.reset(jax.random.key(0))
    seen = domain.observe(state)
    assert seen.shape == (domain.observation_size,) == (8,)
    assert (domain.observe(state._replace(collisions=jnp.int32(7))) == seen).all()


def test_a_touch_at_exactly_d_min_is_no_collision():
    zero = jnp.zeros(2)
    state = DanceState(zero, jnp.array([0.5, 0.0]), zero, zero, jnp.int32(0))
    still = psyco.make("particle-dance", max_acceleration=1e-30)  # nothing moves
    apart, _, _ = still.step(zero, state, zero)
    assert int(apart.collisions) == 0
    touching = psyco.make("particle-dance", max_acceleration=1e-30, d_min=0.5)
    same, _, _ = touching.step(zero, state, zero)
    assert int(same.collisions) == 0  # d >= d_min holds at equality
    closer, _, _ = psyco.make("particle-dance", max_acceleration=1e-30, d_min=0.51).step(zero, state, zero)
    assert int(closer.collisions) == 1
