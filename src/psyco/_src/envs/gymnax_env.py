"""gymnax environments as compiled domains: `gymnax:CartPole-v1`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco._src.core.checks import check_parameters, check_whole
from psyco._src.core.errors import DomainError, check_has
from psyco._src.envs.actions import Actions, Continuous, Discrete
from psyco._src.envs.base import BUILT_IN_SIGNALS


class GymnaxState(NamedTuple):
    """State and observation; gymnax computes the latter in `step`, and some are random."""

    env: Any
    obs: Array  # [observation_size]
    terminated: Array  # [] bool


@dataclasses.dataclass(frozen=True)
class GymnaxDomain:
    """A gymnax environment with its parameters; `gymnax_domain` makes it."""

    env: str
    horizon: int
    changes: tuple[tuple[str, Any], ...] = ()  # non-default parameters of the environment

    @property
    def name(self) -> str:
        """`gymnax:` and the environment's name."""
        return f"gymnax:{self.env}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Keyword arguments that make this domain again."""
        return dict(self.changes) | {"horizon": self.horizon}

    @property
    def variable_parameters(self) -> dict[str, Any]:
        """Parameters that `psyco.vary` can draw."""
        _, params = self._env()
        return {f.name: getattr(params, f.name) for f in dataclasses.fields(params) if f.name != "max_steps_in_episode"}

    def with_parameters(self, **changed: Any) -> GymnaxDomain:
        """Return this environment with other parameters, which may be traced."""
        return dataclasses.replace(self, changes=tuple(sorted((dict(self.changes) | changed).items())))

    @property
    def sources(self) -> tuple[type]:
        """Class whose code determines an episode."""
        return (type(self._env()[0]),)

    @property
    def actions(self) -> Actions:
        """Discrete or continuous action space."""
        env, params = self._env()
        space = env.action_space(params)
        if hasattr(space, "n"):
            return Discrete(int(space.n))
        low, high = (np.broadcast_to(np.asarray(bound), space.shape).ravel() for bound in (space.low, space.high))
        return Continuous(tuple(map(float, low)), tuple(map(float, high)))

    @property
    def observation_size(self) -> int:
        """Length of a flattened observation."""
        return int(jax.eval_shape(self.reset, jax.eval_shape(lambda: jax.random.key(0))).obs.size)

    def reset(self, key: Array) -> GymnaxState:
        """Return an initial state."""
        env, params = self._env()
        obs, state = env.reset_env(key, params)
        return GymnaxState(jax.tree.map(jnp.asarray, state), _flat(obs), jnp.bool_(False))

    def step(self, key: Array, state: GymnaxState, action: Array) -> tuple[GymnaxState, Array, Array]:
        """Return next state, reward and termination or truncation."""
        # `step_env`, because `step` resets automatically and hides the end of an episode.
        env, params = self._env()
        if isinstance(self.actions, Continuous):
            action = action.reshape(env.action_space(params).shape)
        obs, after, reward, terminated, _ = env.step_env(key, state.env, action, params)
        after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, state.env)
        done = terminated | env.is_truncated(after, params)
        return GymnaxState(after, _flat(obs), jnp.asarray(terminated, bool)), jnp.asarray(reward), done

    def observe(self, state: GymnaxState) -> Array:
        """Return the flattened observation."""
        return state.obs

    def signals(self, state: GymnaxState) -> Mapping[str, Array]:
        """Return the numbers and vectors of the environment's state, and whether the episode terminated."""
        fields = {f.name: getattr(state.env, f.name) for f in dataclasses.fields(state.env)}
        taken = {"obs", "action", *BUILT_IN_SIGNALS}
        plain = {name: x for name, x in fields.items() if hasattr(x, "ndim") and x.ndim <= 1 and name not in taken}
        return plain | {"terminated": state.terminated}

    def _env(self) -> tuple[Any, Any]:
        env, params = _make(self.env)
        return env, params.replace(max_steps_in_episode=self.horizon, **dict(self.changes))


def gymnax_domain(env: str, /, *, horizon: int | None = None, **parameters: Any) -> GymnaxDomain:
    """Return the gymnax environment of that name; its time limit is the default horizon."""
    _, params = _make(env)
    known = {f.name: getattr(params, f.name) for f in dataclasses.fields(params)}
    del known["max_steps_in_episode"]
    if "max_steps_in_episode" in parameters:
        raise DomainError(f"gymnax:{env}: max_steps_in_episode is the horizon here; give horizon instead")
    check_parameters(f"gymnax:{env}", parameters, known)
    if horizon is not None:
        check_whole(f"gymnax:{env}", horizon=horizon)
    return GymnaxDomain(env, horizon or int(params.max_steps_in_episode), tuple(sorted(parameters.items())))


@cache
def _make(name: str) -> tuple[Any, Any]:
    try:
        import gymnax
    except ImportError:
        raise DomainError('environments of gymnax need it installed: pip install "psyco[gymnax]"') from None
    check_has("gymnax", "environment", [name], gymnax.registered_envs, error=DomainError)
    return gymnax.make(name)


def _flat(obs: Any) -> Array:
    leaves = [jnp.ravel(jnp.asarray(leaf, jnp.float32)) for leaf in jax.tree.leaves(obs)]
    return jnp.concatenate(leaves)
