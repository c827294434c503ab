"""Brax environments as compiled domains: `brax:ant`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from psyco._src.core.checks import check_whole
from psyco._src.core.errors import DomainError, suggest
from psyco._src.envs.actions import Continuous
from psyco._src.envs.base import BUILT_IN_SIGNALS


@dataclasses.dataclass(frozen=True)
class BraxDomain:
    """A Brax environment, whose metrics are the signals; `brax_domain` makes it."""

    env: str
    horizon: int
    changes: tuple[tuple[str, Any], ...] = ()  # keyword arguments of the environment

    @property
    def name(self) -> str:
        """`brax:` and the environment's name."""
        return f"brax:{self.env}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Keyword arguments that make this domain again."""
        return dict(self.changes) | {"horizon": self.horizon}

    @property
    def sources(self) -> tuple[type]:
        """Class whose code determines an episode."""
        return (type(self._env()),)

    @property
    def actions(self) -> Continuous:
        """Continuous actions in [-1, 1], as in all of Brax."""
        size = self._env().action_size
        return Continuous((-1.0,) * size, (1.0,) * size)

    @property
    def observation_size(self) -> int:
        """Length of an observation."""
        return int(jax.eval_shape(self.reset, jax.eval_shape(lambda: jax.random.key(0))).obs.size)

    def reset(self, key: Array) -> Any:
        """Return an initial state, without the wrappers of Brax that reset automatically."""
        return self._env().reset(key)

    def step(self, key: Array, state: Any, action: Array) -> tuple[Any, Array, Array]:
        """Return next state, reward and termination; a step of Brax has no randomness."""
        after = self._env().step(state, action)
        after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, state)
        return after, after.reward, after.done > 0

    def observe(self, state: Any) -> Array:
        """Return the observation as float32."""
        return state.obs.astype(jnp.float32)

    def signals(self, state: Any) -> Mapping[str, Array]:
        """Return the environment's metrics, and whether the episode terminated."""
        taken = {"obs", "action", *BUILT_IN_SIGNALS}
        return {name: x for name, x in state.metrics.items() if name not in taken} | {"terminated": state.done > 0}

    def _env(self) -> Any:
        return _make(self.env, self.changes)


def brax_domain(env: str, /, *, horizon: int = 1000, **arguments: Any) -> BraxDomain:
    """Return the Brax environment of that name; 1000 steps is the usual horizon of Brax."""
    check_whole(f"brax:{env}", horizon=horizon)
    changes = tuple(sorted(arguments.items()))
    _make(env, changes)
    return BraxDomain(env, horizon, changes)


@cache
def _make(name: str, arguments: tuple[tuple[str, Any], ...]) -> Any:
    try:
        from brax import envs
    except ImportError:
        raise DomainError('environments of brax need it installed: pip install "psyco[brax]"') from None
    try:
        return envs.get_environment(name, **dict(arguments))
    except KeyError:
        known = list(envs._envs)
        raise DomainError(
            f"brax has no environment {name!r}{suggest(name, known)}; it has: {', '.join(known)}"
        ) from None
    except TypeError as error:
        raise DomainError(f"brax:{name} does not take {dict(arguments)}: {error}") from None
