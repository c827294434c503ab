"""Particle Dance with several agents: all follow the particle, and keep away from it and from each other."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco._src.core.checks import check_positive, check_whole
from psyco._src.core.errors import DomainError
from psyco._src.envs.actions import Continuous
from psyco._src.envs.agents import MAX_AGENTS, agent_names
from psyco._src.envs.base import Scene


class DanceTeamState(NamedTuple):
    """Positions and velocities, and how often each of the P pairs of bodies has collided."""

    position: Array  # [A, 2] of the agents
    particle: Array  # [2] position
    velocity: Array  # [A, 2]
    particle_velocity: Array  # [2]
    collisions: Array  # [P] int32, not observed


@dataclass(frozen=True)
class DanceTeam:
    """Particle Dance with several agents; `psyco.make("particle-dance", agents=3)`.

    An agent observes its position and velocity, and those of the particle and of each other agent relative to its own.
    The reward of each is its negative distance from the particle.

    Args:
        agents: number of agents, at least 2, or their names.
        horizon: as in Particle Dance, as are the following.
        d_min: collision radius, of agents and particle, and of two agents.
        size: positions are clipped to [-size, size]^2.
        start: initial positions are uniform in [-start, start]^2.
        max_speed: velocities are clipped to [-max_speed, max_speed]^2.
        max_acceleration: actions and the particle's random accelerations lie in this box.
    """

    agents: tuple[str, ...] = agent_names(2)
    horizon: int = 50
    d_min: float = 0.1
    size: float = 2.0
    start: float = 1.0
    max_speed: float = 0.1
    max_acceleration: float = 0.1

    name: ClassVar[str] = "particle-dance"
    requirement: ClassVar[str] = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"

    def __post_init__(self) -> None:
        if isinstance(self.agents, list | tuple):
            if not self.agents:
                raise DomainError(f"{self.name}: agents must be a whole number of at least 1, or names; got none")
            object.__setattr__(self, "agents", tuple(self.agents))
        else:
            check_whole(self.name, agents=self.agents)
            if self.agents > MAX_AGENTS:
                raise DomainError(f"{self.name}: agents can be at most {MAX_AGENTS}, got {self.agents:,}")
            object.__setattr__(self, "agents", agent_names(self.agents))
        check_whole(self.name, horizon=self.horizon)
        check_positive(
            self.name,
            d_min=self.d_min,
            size=self.size,
            start=self.start,
            max_speed=self.max_speed,
            max_acceleration=self.max_acceleration,
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """Keyword arguments that make this domain again."""
        numbers = ("horizon", "d_min", "size", "start", "max_speed", "max_acceleration")
        count = len(self.agents)
        return {"agents": count if self.agents == agent_names(count) else list(self.agents)} | {
            name: getattr(self, name) for name in numbers
        }

    @property
    def counters(self) -> tuple[str, ...]:
        """Counters of collisions."""
        return ("collisions", *(f"{agent}.collisions" for agent in self.agents))

    @property
    def actions(self) -> Continuous:
        """Acceleration of an agent, [-0.1, 0.1]^2."""
        return Continuous((-self.max_acceleration,) * 2, (self.max_acceleration,) * 2)

    @property
    def observation_size(self) -> int:
        """Length of an agent's observation."""
        return 8 + 4 * (len(self.agents) - 1)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest values of signals, for tests of their means."""
        position, speed, count = max(self.size, self.start), self.max_speed, len(self.agents)
        diagonal, most = sqrt(8.0) * position, float(self.horizon)
        found = {
            "distance": (0.0, diagonal),
            "reward": (-count * diagonal, 0.0),
            "return": (-count * most * diagonal, 0.0),
            "collisions": (0.0, most),
            "particle": (-position, position),
            "particle_velocity": (-speed, speed),
        }
        own = {
            "distance": (0.0, diagonal),
            "nearest": (0.0, diagonal),
            "collisions": (0.0, most * count),
            "position": (-position, position),
            "velocity": (-speed, speed),
            "reward": (-diagonal, 0.0),
            "return": (-most * diagonal, 0.0),
        }
        return found | {f"{agent}.{name}": limits for agent in self.agents for name, limits in own.items()}

    @property
    def scene(self) -> Scene:
        """Agents and particle in their box."""
        bodies = ("particle", *(f"{agent}.position" for agent in self.agents))
        return Scene(bodies, (-self.size,) * 2, (self.size,) * 2, contact=self.d_min)

    @property
    def _pairs(self) -> tuple[Any, Any]:
        """Both bodies of each pair `[P]`; the particle is number 0, so its pairs come first."""
        return np.triu_indices(len(self.agents) + 1, 1)

    def reset(self, key: Array) -> DanceTeamState:
        """Return an initial state: positions uniform, at rest, no collisions."""
        count = len(self.agents)
        places = jax.random.uniform(key, (count + 1, 2), minval=-self.start, maxval=self.start)
        none = jnp.zeros(count * (count + 1) // 2, jnp.int32)
        return DanceTeamState(places[:-1], places[-1], jnp.zeros((count, 2)), jnp.zeros(2), none)

    def draw(self, key: Array) -> Array:
        """Return the particle's random accelerations `[horizon, 2]`."""
        a = self.max_acceleration
        return jax.random.uniform(key, (self.horizon, 2), minval=-a, maxval=a)

    def step(self, push: Array, state: DanceTeamState, action: Array) -> tuple[DanceTeamState, Array, bool]:
        """Return the next state, with every value clipped to its box, and the rewards `[A]`."""
        particle_velocity = jnp.clip(state.particle_velocity + push, -self.max_speed, self.max_speed)
        particle = jnp.clip(state.particle + particle_velocity, -self.size, self.size)
        velocity = jnp.clip(state.velocity + action, -self.max_speed, self.max_speed)
        position = jnp.clip(state.position + velocity, -self.size, self.size)
        distances = self._distances(position, particle)
        collisions = state.collisions + (distances < self.d_min).astype(jnp.int32)
        nxt = DanceTeamState(position, particle, velocity, particle_velocity, collisions)
        return nxt, -distances[: len(self.agents)], False

    def observe(self, state: DanceTeamState) -> Array:
        """Return own position and velocity, and position and velocity of the other bodies relative to these."""
        position, velocity = state.position, state.velocity
        columns = [position, velocity, state.particle - position, state.particle_velocity - velocity]
        for ahead in range(1, len(self.agents)):  # in the order of the agents, from the next one on
            columns += [jnp.roll(x, -ahead, axis=0) - x for x in (position, velocity)]
        return jnp.concatenate(columns, axis=1)

    def signals(self, state: DanceTeamState) -> dict[str, Array]:
        """Return the smallest distance of a pair, the most collisions of one pair, positions, and those of agents."""
        distances = self._distances(state.position, state.particle)
        found = {
            "distance": jnp.min(distances),
            "collisions": jnp.max(state.collisions),
            "particle": state.particle,
            "particle_velocity": state.particle_velocity,
        }
        for i, agent in enumerate(self.agents):
            own = [p for p, pair in enumerate(zip(*self._pairs, strict=True)) if i + 1 in pair]
            found |= {
                f"{agent}.distance": distances[i],
                f"{agent}.nearest": jnp.min(distances[np.array(own)]),
                f"{agent}.collisions": jnp.sum(state.collisions[np.array(own)]),
                f"{agent}.position": state.position[i],
                f"{agent}.velocity": state.velocity[i],
            }
        return found

    def _distances(self, position: Array, particle: Array) -> Array:
        """Return the distance of each pair `[P]`."""
        bodies = jnp.concatenate([particle[None], position])
        first, second = self._pairs
        x, y = (bodies[first] - bodies[second]).T
        # Not a sum over an axis: its last bit would depend on the place of an episode in its batch.
        return jnp.sqrt(x**2 + y**2)
