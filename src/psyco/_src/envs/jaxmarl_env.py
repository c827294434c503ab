"""MPE environments of JaxMARL as compiled domains of several agents: `jaxmarl:MPE_simple_spread_v3`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco._src.core.checks import check_parameters, check_whole
from psyco._src.core.errors import DomainError, check_has
from psyco._src.envs.actions import Actions, Continuous, Discrete
from psyco._src.envs.base import Scene
from psyco._src.logic.quantifiers import groups_by_name

# Of the world of every MPE environment, which takes them beside its own parameters, and any misspelt one in silence.
WORLD = ("dt", "damping", "contact_force", "contact_margin")
FRAME = 2.0  # agents start in [-1, 1]^2 and may leave it; JaxMARL draws this frame too


@dataclasses.dataclass(frozen=True)
class JaxmarlDomain:
    """An MPE environment of JaxMARL with its parameters; `jaxmarl_domain` makes it."""

    env: str
    horizon: int
    changes: tuple[tuple[str, Any], ...] = ()  # non-default parameters of the environment

    @property
    def name(self) -> str:
        """`jaxmarl:` and the environment's name."""
        return f"jaxmarl:{self.env}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Keyword arguments that make this domain again."""
        return dict(self.changes) | {"horizon": self.horizon}

    @property
    def sources(self) -> tuple[type]:
        """Class whose code determines an episode."""
        return (type(self._env),)

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents."""
        return tuple(self._env.agents)

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Agents that have the same name but for its number."""
        return groups_by_name(self.agents)

    @property
    def actions(self) -> dict[str, Actions]:
        """Discrete or continuous action space of each group."""
        return {group: _actions(self._env.action_space(first)) for group, (first, *_) in self.groups.items()}

    @property
    def observation_size(self) -> dict[str, int]:
        """Length of an observation, of each group."""
        # Not those of the environment's declaration: that of simple_tag is about its default number of agents.
        key = jax.eval_shape(lambda: jax.random.key(0))
        seen = jax.eval_shape(lambda key: self._env.reset(key)[0], key)
        return {group: int(seen[first].size) for group, (first, *_) in self.groups.items()}

    @property
    def scene(self) -> Scene:
        """Landmarks and agents in the frame that JaxMARL draws."""
        bodies = (*self._landmarks, *(f"{agent}.position" for agent in self.agents))
        return Scene(bodies, (-FRAME, -FRAME), (FRAME, FRAME))

    def reset(self, key: Array) -> Any:
        """Return an initial state."""
        return self._env.reset(key)[1]

    def step(self, key: Array, state: Any, action: Mapping[str, Array]) -> tuple[Any, Array, Array]:
        """Return next state, the reward of each agent and termination."""
        # `step_env`, because `step` resets automatically and hides the end of an episode.
        own = {agent: action[group][i] for group, members in self.groups.items() for i, agent in enumerate(members)}
        _, after, reward, done, _ = self._env.step_env(key, state, own)
        rewards = jnp.stack([jnp.asarray(reward[agent], jnp.float32) for agent in self.agents])
        return after, rewards, done["__all__"]

    def observe(self, state: Any) -> dict[str, Array]:
        """Return the observations of each group `[A, size]`."""
        seen = self._env.get_obs(state)
        return {group: jnp.stack([seen[agent] for agent in members]) for group, members in self.groups.items()}

    def signals(self, state: Any) -> dict[str, Array]:
        """Return the places of landmarks, and of each agent position, velocity and whether it touches another one."""
        count = len(self.agents)
        found = dict(zip(self._landmarks, state.p_pos[count:], strict=True))
        for i, agent in enumerate(self.agents):
            found |= {f"{agent}.position": state.p_pos[i], f"{agent}.velocity": state.p_vel[i]}
            if np.asarray(self._env.collide)[:count].any():  # else bodies pass through each other
                touching = [self._env.is_collision(i, other, state) for other in range(count)]
                found[f"{agent}.collided"] = jnp.any(jnp.stack(touching))
        return found

    @property
    def _landmarks(self) -> tuple[str, ...]:
        return tuple(f"landmark_{i}" for i in range(self._env.num_landmarks))

    @property
    def _env(self) -> Any:
        return _make(self.env, (*self.changes, ("max_steps", self.horizon)))


def jaxmarl_domain(env: str, /, *, horizon: int | None = None, **parameters: Any) -> JaxmarlDomain:
    """Return the MPE environment of JaxMARL of that name; its `max_steps` is the default horizon."""
    default = _make(env)
    if "max_steps" in parameters:
        raise DomainError(f"jaxmarl:{env}: max_steps is the horizon here; give horizon instead")
    own = {name: each.default for name, each in signature(type(default)).parameters.items() if name != "kwargs"}
    check_parameters(f"jaxmarl:{env}", parameters, own | {name: float(getattr(default, name)) for name in WORLD})
    if horizon is not None:
        check_whole(f"jaxmarl:{env}", horizon=horizon)
    domain = JaxmarlDomain(env, horizon or int(default.max_steps), tuple(sorted(parameters.items())))
    if not domain.agents:
        raise DomainError(f"{domain.name} has no agents with these parameters: {parameters}")
    return domain


@cache
def _make(name: str, arguments: tuple[tuple[str, Any], ...] = ()) -> Any:
    from psyco._src.envs.registry import import_code

    if find_spec("jaxmarl") is None:
        raise DomainError('environments of jaxmarl need it installed: pip install "psyco[jaxmarl]"')
    jaxmarl = import_code("jaxmarl", f"jaxmarl:{name}")  # it prints, and replaces the standard streams
    # The prey of facmac moves by itself, and is listed as an agent all the same.
    known = [each for each in jaxmarl.registered_envs if each.startswith("MPE_") and "facmac" not in each]
    check_has("jaxmarl", "MPE environment", [name], known, error=DomainError)
    with jax.ensure_compile_time_eval():  # it keeps arrays, and must not keep those of a function that is being traced
        return jaxmarl.make(name, **dict(arguments))


def _actions(space: Any) -> Actions:
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    low, high = (tuple(np.broadcast_to(np.asarray(x, float), space.shape).tolist()) for x in (space.low, space.high))
    return Continuous(low, high)
