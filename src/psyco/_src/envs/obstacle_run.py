"""Obstacle Run (section 4.2): reach the target on a grid without collisions with a randomly moving obstacle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.checks import check_whole
from psyco._src.envs.actions import Discrete
from psyco._src.envs.base import Scene

# A: stay, right, up, left, down.
MOVES = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1))


class RunState(NamedTuple):
    """S = {0..4}^4 x N."""

    agent: Array  # [2] int32
    obstacle: Array  # [2] int32
    collisions: Array  # [] int32, not observed


@dataclass(frozen=True)
class ObstacleRun:
    """Discrete actions; an episode ends at the target (0, 0). An untrained policy mostly violates the constraint.

    Args:
        horizon: largest number of steps n.
        grid: positions lie in {0, ..., grid-1}^2.
    """

    horizon: int = 50
    grid: int = 5

    name: ClassVar[str] = "obstacle-run"
    counters: ClassVar[tuple[str, ...]] = ("collisions",)
    requirement: ClassVar[str] = "P>=0.9 [ G (!caught | collisions <= 1) ] & C>=0.98"

    def __post_init__(self) -> None:
        check_whole(self.name, horizon=self.horizon, grid=self.grid)

    @property
    def actions(self) -> Discrete:
        """The five moves."""
        return Discrete(len(MOVES))

    @property
    def observation_size(self) -> int:
        """Length of an observation: positions of agent and obstacle, without the collision counter."""
        return 4

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest values of signals, for tests of their means."""
        edge = self.grid - 1.0
        return {
            "distance": (0.0, 2 * edge),
            "target_distance": (0.0, 2 * edge),
            "reward": (-1.0, 0.0),  # 0 in the initial state
            "return": (-float(self.horizon), 0.0),
            "collisions": (0.0, float(self.horizon)),
            "agent": (0.0, edge),
            "obstacle": (0.0, edge),
        }

    @property
    def scene(self) -> Scene:
        """Agent and obstacle on the grid."""
        return Scene(("obstacle", "agent"), (-0.5, -0.5), (self.grid - 0.5,) * 2, contact=0.5)

    def reset(self, key: Array) -> RunState:
        """Return an initial state from ρ: both positions uniform on the grid, no collisions."""
        agent, obstacle = jax.random.randint(key, (2, 2), 0, self.grid)
        return RunState(agent, obstacle, jnp.int32(0))

    def draw(self, key: Array) -> Array:
        """Return the obstacle's random moves `[horizon]`."""
        return jax.random.randint(key, (self.horizon,), 0, len(MOVES))

    def step(self, drawn: Array, state: RunState, action: Array) -> tuple[RunState, Array, Array]:
        """Sample T(s, a), clipped to the grid; every step costs 1 and the target ends the episode."""
        return self.transition(state, action, drawn)

    def initial_distribution(self) -> tuple[NDArray[np.float64], RunState]:
        """Return all pairs of positions, equally likely."""
        places = np.array(np.unravel_index(np.arange(self.grid**4), (self.grid,) * 4), np.int32).T
        states = RunState(jnp.asarray(places[:, :2]), jnp.asarray(places[:, 2:]), jnp.zeros(len(places), jnp.int32))
        return np.full(len(places), 1.0 / len(places)), states

    def draw_probabilities(self) -> NDArray[np.float64]:
        """Return the probabilities of the obstacle's moves."""
        return np.full(len(MOVES), 1.0 / len(MOVES))

    def transition(self, state: RunState, action: Array, obstacle_action: Array) -> tuple[RunState, Array, Array]:
        """Return the step for a given move of the obstacle."""
        moves = jnp.asarray(MOVES, jnp.int32)
        obstacle = jnp.clip(state.obstacle + moves[obstacle_action], 0, self.grid - 1)
        agent = jnp.clip(state.agent + moves[action], 0, self.grid - 1)
        collisions = state.collisions + jnp.all(agent == obstacle).astype(jnp.int32)
        return RunState(agent, obstacle, collisions), jnp.float32(-1.0), jnp.all(agent == 0)

    def observe(self, state: RunState) -> Array:
        """Return the positions of agent and obstacle, in that order."""
        return jnp.concatenate([state.agent, state.obstacle]).astype(jnp.float32)

    def signals(self, state: RunState) -> dict[str, Array]:
        """Return the collision flag and counter, positions, and grid distances to obstacle and target."""
        distance = jnp.sum(jnp.abs(state.agent - state.obstacle))
        return {
            "caught": distance == 0,
            "distance": distance,
            "collisions": state.collisions,
            "target_distance": jnp.sum(state.agent),
            "target": jnp.all(state.agent == 0),
            "agent": state.agent,
            "obstacle": state.obstacle,
        }
