"""Obstacle Run with an opponent: the obstacle is an agent too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.checks import check_whole
from psyco._src.core.errors import DomainError
from psyco._src.envs.actions import Discrete
from psyco._src.envs.base import Scene
from psyco._src.envs.obstacle_run import MOVES, ObstacleRun, RunState


@dataclass(frozen=True)
class ObstacleGame:
    """Obstacle Run with two agents; `psyco.make("obstacle-run", opponent=True)`.

    The runner observes what the only agent of Obstacle Run does, and the opponent its own position and then that of the
    runner. Both move at once. The reward is that of Obstacle Run.

    Args:
        horizon: largest number of steps n.
        grid: positions lie in {0, ..., grid-1}^2.
        opponent: True.
    """

    horizon: int = 50
    grid: int = 5
    opponent: bool = True

    name: ClassVar[str] = "obstacle-run"
    agents: ClassVar[tuple[str, ...]] = ("runner", "opponent")
    counters: ClassVar[tuple[str, ...]] = ("collisions",)
    requirement: ClassVar[str] = "P>=0.9 [ G (!caught | collisions <= 1) ] & C>=0.98"

    def __post_init__(self) -> None:
        if self.opponent is not True:
            raise DomainError(f"{self.name}: opponent must be true or false, got {self.opponent!r}")
        check_whole(self.name, horizon=self.horizon, grid=self.grid)

    @property
    def parameters(self) -> dict[str, Any]:
        """Keyword arguments that make this domain again."""
        return {"horizon": self.horizon, "grid": self.grid, "opponent": True}

    @property
    def _run(self) -> ObstacleRun:
        return ObstacleRun(self.horizon, self.grid)

    @property
    def actions(self) -> Discrete:
        """The five moves."""
        return Discrete(len(MOVES))

    @property
    def observation_size(self) -> int:
        """Length of an observation: the own position, and that of the other agent."""
        return 4

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest values of signals, for tests of their means."""
        found = self._run.ranges
        return found | {"runner.position": found.pop("agent"), "opponent.position": found.pop("obstacle")}

    @property
    def scene(self) -> Scene:
        """Both agents on the grid."""
        bodies = "opponent.position", "runner.position"
        return Scene(bodies, (-0.5, -0.5), (self.grid - 0.5,) * 2, contact=0.5)

    def reset(self, key: Array) -> RunState:
        """Return an initial state: both positions uniform on the grid, no collisions."""
        return self._run.reset(key)

    def draw(self, key: Array) -> Array:
        """Return the only draw there is, in each step `[horizon]`: nothing is random after the start."""
        return jnp.zeros(self.horizon, jnp.int32)

    def step(self, drawn: Array, state: RunState, action: Array) -> tuple[RunState, Array, Array]:
        """Return the step after the moves of both `[2]`."""
        return self._run.transition(state, action[0], action[1])

    def initial_distribution(self) -> tuple[NDArray[np.float64], RunState]:
        """Return all pairs of positions, equally likely."""
        return self._run.initial_distribution()

    def draw_probabilities(self) -> NDArray[np.float64]:
        """Return the probability of the only draw."""
        return np.ones(1)

    def transition(self, state: RunState, action: Array, draw: Array) -> tuple[RunState, Array, Array]:
        """Return the step after the moves of both `[2]`."""
        return self.step(draw, state, action)

    def observe(self, state: RunState) -> Array:
        """Return the own position and that of the other agent, for each `[2, 4]`."""
        seen = jnp.concatenate([state.agent, state.obstacle]).astype(jnp.float32)
        return jnp.stack([seen, jnp.roll(seen, 2)])

    def signals(self, state: RunState) -> dict[str, Array]:
        """Return those of Obstacle Run, with the positions as signals of the agents."""
        found = self._run.signals(state)
        return found | {"runner.position": found.pop("agent"), "opponent.position": found.pop("obstacle")}
