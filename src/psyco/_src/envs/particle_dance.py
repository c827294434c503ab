"""Particle Dance (section 4.1): follow a randomly moving particle closely, at a safe distance."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from psyco._src.core.checks import check_positive, check_whole
from psyco._src.envs.actions import Continuous
from psyco._src.envs.base import UNLESS_DEFAULT, Scene


class DanceState(NamedTuple):
    """S = [-2, 2]^4 x [-0.1, 0.1]^4 x N."""

    agent: Array  # [2] position
    particle: Array  # [2] position
    agent_velocity: Array  # [2]
    particle_velocity: Array  # [2]
    collisions: Array  # [] int32, not observed


@dataclass(frozen=True)
class ParticleDance:
    """Continuous actions and a fixed episode length. An untrained policy mostly satisfies the constraint.

    Args:
        horizon: episode length n.
        d_min: collision radius.
        size: positions are clipped to [-size, size]^2.
        start: initial positions are uniform in [-start, start]^2.
        max_speed: velocities are clipped to [-max_speed, max_speed]^2.
        max_acceleration: actions and the particle's random accelerations lie in this box.
        velocities: whether velocities are observed; without them a policy needs a memory.
    """

    horizon: int = 50
    d_min: float = 0.1
    size: float = 2.0
    start: float = 1.0
    max_speed: float = 0.1
    max_acceleration: float = 0.1
    velocities: bool = field(default=True, metadata=UNLESS_DEFAULT)

    name: ClassVar[str] = "particle-dance"
    counters: ClassVar[tuple[str, ...]] = ("collisions",)
    requirement: ClassVar[str] = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"

    def __post_init__(self) -> None:
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
    def actions(self) -> Continuous:
        """Acceleration, A = [-0.1, 0.1]^2."""
        return Continuous((-self.max_acceleration,) * 2, (self.max_acceleration,) * 2)

    @property
    def observation_size(self) -> int:
        """Length of an observation: positions, and velocities if they are observed, without the collision counter."""
        return 8 if self.velocities else 4

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest values of signals, for tests of their means."""
        position, speed = max(self.size, self.start), self.max_speed
        diagonal = sqrt(8.0) * position
        return {
            "distance": (0.0, diagonal),
            "reward": (-diagonal, 0.0),
            "return": (-self.horizon * diagonal, 0.0),
            "collisions": (0.0, float(self.horizon)),
            "agent": (-position, position),
            "particle": (-position, position),
            "agent_velocity": (-speed, speed),
            "particle_velocity": (-speed, speed),
        }

    @property
    def scene(self) -> Scene:
        """Agent and particle in their box."""
        return Scene(("particle", "agent"), (-self.size,) * 2, (self.size,) * 2, contact=self.d_min)

    def reset(self, key: Array) -> DanceState:
        """Return an initial state from ρ: positions uniform, at rest, no collisions."""
        agent, particle = jax.random.uniform(key, (2, 2), minval=-self.start, maxval=self.start)
        rest = jnp.zeros(2)
        return DanceState(agent, particle, rest, rest, jnp.int32(0))

    def draw(self, key: Array) -> Array:
        """Return the particle's random accelerations `[horizon, 2]`."""
        a = self.max_acceleration
        return jax.random.uniform(key, (self.horizon, 2), minval=-a, maxval=a)

    def step(self, push: Array, state: DanceState, action: Array) -> tuple[DanceState, Array, bool]:
        """Sample T(s, a), with every value clipped to its box; the reward is the negative distance."""
        particle_velocity = jnp.clip(state.particle_velocity + push, -self.max_speed, self.max_speed)
        particle = jnp.clip(state.particle + particle_velocity, -self.size, self.size)
        agent_velocity = jnp.clip(state.agent_velocity + action, -self.max_speed, self.max_speed)
        agent = jnp.clip(state.agent + agent_velocity, -self.size, self.size)
        distance = _distance(agent, particle)
        collisions = state.collisions + (distance < self.d_min).astype(jnp.int32)
        nxt = DanceState(agent, particle, agent_velocity, particle_velocity, collisions)
        return nxt, -distance, False

    def observe(self, state: DanceState) -> Array:
        """Return positions, then velocities if they are observed, agent first."""
        seen = [state.agent, state.particle, state.agent_velocity, state.particle_velocity]
        return jnp.concatenate(seen if self.velocities else seen[:2])

    def signals(self, state: DanceState) -> dict[str, Array]:
        """Return the distance, the collision counter, positions and velocities."""
        return {
            "distance": _distance(state.agent, state.particle),
            "collisions": state.collisions,
            "agent": state.agent,
            "particle": state.particle,
            "agent_velocity": state.agent_velocity,
            "particle_velocity": state.particle_velocity,
        }


def _distance(x: Array, y: Array) -> Array:
    return jnp.sqrt(jnp.sum((x - y) ** 2))
