"""Action spaces in which scores rank what there is to choose from, as chances: soft where a policy only takes the best.

Choices are written as switches, one per score: 1 for what was chosen. Of a discrete action exactly one is on, of
several one in each group, and of a vector of switches any.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from psyco._src.envs.actions import Actions, Discrete, MultiBinary, MultiDiscrete


def chosen(actions: Actions, scores: Array) -> Array:
    """The choice that a policy with these scores `[..., outputs]` makes: `[..., outputs]` of 0 and 1."""
    if isinstance(actions, MultiBinary):
        return (scores > 0).astype(jnp.float32)
    return _by_group(actions, scores, lambda part: jax.nn.one_hot(jnp.argmax(part, axis=-1), part.shape[-1]))


def chances(actions: Actions, scores: Array) -> Array:
    """How likely each switch is on, `[..., outputs]`, if scores are log-odds."""
    if isinstance(actions, MultiBinary):
        return jax.nn.sigmoid(scores)
    return _by_group(actions, scores, jax.nn.softmax)


def entropy(actions: Actions, scores: Array) -> Array:
    """How much is left to chance, in nats `[...]`."""
    if isinstance(actions, MultiBinary):
        each = jax.nn.sigmoid(scores) * jax.nn.softplus(-scores) + jax.nn.sigmoid(-scores) * jax.nn.softplus(
            scores
        )
    else:
        logs = _by_group(actions, scores, jax.nn.log_softmax)
        each = -jnp.exp(logs) * logs
    return jnp.sum(each, axis=-1)


def largest_entropy(actions: Actions) -> float:
    """If all is left to chance."""
    if isinstance(actions, MultiBinary):
        return actions.n * math.log(2)
    return sum(map(math.log, _groups(actions)))


def _by_group(actions: Actions, scores: Array, of: Callable[[Array], Array]) -> Array:
    ends = list(itertools.accumulate(_groups(actions)))
    return jnp.concatenate([of(part) for part in jnp.split(scores, ends[:-1], axis=-1)], axis=-1)


def _groups(actions: Actions) -> tuple[int, ...]:
    assert isinstance(actions, Discrete | MultiDiscrete)
    return (actions.n,) if isinstance(actions, Discrete) else actions.n
