"""Obstacle Run is the paper's text."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from psyco._src.envs.obstacle_run import MOVES, ObstacleRun, RunState


def test_every_transition_is_the_papers():
    domain = ObstacleRun()
    cells = np.array(list(itertools.product(range(5), repeat=2)))
    cases = [(a, o, i, j) for a in cells for o in cells for i in range(5) for j in range(5)]
    agents, obstacles = np.array([c[0] for c in cases]), np.array([c[1] for c in cases])
    acts, moves = np.array([c[2] for c in cases]), np.array([c[3] for c in cases])
    states = RunState(
        jnp.asarray(agents, jnp.int32), jnp.asarray(obstacles, jnp.int32), jnp.ones(len(cases), jnp.int32)
    )
    nxt, reward, done = jax.vmap(domain.transition)(states, jnp.asarray(acts), jnp.asarray(moves))
    directions = np.array([(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1)])
    agent = np.clip(agents + directions[acts], 0, 4)
    obstacle = np.clip(obstacles + directions[moves], 0, 4)
    assert (np.asarray(nxt.agent) == agent).all()
    assert (np.asarray(nxt.obstacle) == obstacle).all()
    assert (np.asarray(nxt.collisions) == 1 + (agent == obstacle).all(axis=1)).all()
    assert (np.asarray(done) == (agent == 0).all(axis=1)).all()
    assert (np.asarray(reward) == -1).all()


def test_the_obstacle_moves_uniformly():
    """Chi-square over the five moves; fails by chance with probability 1e-7."""
    domain = ObstacleRun(horizon=20_000)
    middle = RunState(jnp.array([1, 1]), jnp.array([2, 2]), jnp.int32(0))
    draws = domain.draw(jax.random.key(1))
    nxt, _, _ = jax.vmap(lambda drawn: domain.step(drawn, middle, jnp.int32(0)))(draws)
    moved = np.asarray(nxt.obstacle) - 2
    counts = [np.sum((moved == transition).all(axis=1)) for transition in MOVES]
    assert sum(counts) == 20_000
    assert stats.chisquare(counts).pvalue > 1e-7


def test_initial_positions_are_uniform_on_the_grid():
    """Chi-square over all 625 starts; fails by chance with probability 1e-7."""
    states = jax.vmap(ObstacleRun().reset)(jax.random.split(jax.random.key(0), 50_000))
    joint = np.concatenate([states.agent, states.obstacle], axis=1) @ [125, 25, 5, 1]
    assert stats.chisquare(np.bincount(joint, minlength=625)).pvalue > 1e-7
    assert not np.any(states.collisions)


def test_observations_leave_out_the_counter():
    domain = ObstacleRun()
    state = RunState(jnp.array([1, 2]), jnp.array([3, 4]), jnp.int32(9))
    assert domain.observe(state).tolist() == [1, 2, 3, 4]
