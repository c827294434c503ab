"""How likely an action was, where Gaussian noise is added to the scores of a policy.

In a box the disturbed scores are what was done, and their density is Gaussian. Where scores only rank what there is to
choose from, the choice is what was done: noise that did not change it says nothing. The chance that Gaussian noise lets
one score win has no closed form; that of logistic noise (Gumbel's, for several) with the same variance is close.
"""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
from jax import Array

from psyco._src.envs.actions import Actions, Continuous, Discrete, MultiBinary

BY_GUMBEL = math.pi / math.sqrt(6.0)  # times its scale is the standard deviation of Gumbel's distribution
BY_LOGISTIC = math.pi / math.sqrt(3.0)  # likewise of the logistic one


def done(actions: Actions, disturbed: Array) -> Array:
    """What a policy with these disturbed scores does, `[..., outputs]`: the scores, or 1 for what they choose."""
    if isinstance(actions, Continuous):
        return disturbed
    if isinstance(actions, MultiBinary):
        return (disturbed > 0).astype(jnp.float32)
    parts = [
        jax.nn.one_hot(jnp.argmax(part, axis=-1), part.shape[-1]) for part in _groups(actions, disturbed)
    ]
    return jnp.concatenate(parts, axis=-1)


def log_likelihood(actions: Actions, scores: Array, std: Array, action: Array) -> Array:
    """The logarithm `[...]` of how likely scores `[..., outputs]` with noise `[outputs]` do that; up to a constant."""
    if isinstance(actions, Continuous):
        return -0.5 * jnp.sum(((action - scores) / std) ** 2, axis=-1)
    if isinstance(actions, MultiBinary):
        return jnp.sum(jax.nn.log_sigmoid((2.0 * action - 1.0) * BY_LOGISTIC * scores / std), axis=-1)
    logs = [jax.nn.log_softmax(part, axis=-1) for part in _groups(actions, BY_GUMBEL * scores / std)]
    return jnp.sum(action * jnp.concatenate(logs, axis=-1), axis=-1)


def _groups(actions: Actions, x: Array) -> list[Array]:
    """The scores among which one wins, of each single action."""
    assert not isinstance(actions, Continuous | MultiBinary)
    sizes = (actions.n,) if isinstance(actions, Discrete) else actions.n
    return jnp.split(x, list(itertools.accumulate(sizes))[:-1], axis=-1)
