"""Action distributions of policies: their log-likelihood, probabilities and entropy, for each kind of action space.

`Continuous` actions are the noisy scores themselves. In the other action spaces scores rank the alternatives, and an
action is an indicator vector, one entry per score: 1 for a chosen alternative. A `Discrete` action has exactly one 1, a
`MultiDiscrete` one has one in each group, and a `MultiBinary` one has any number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from psyco._src.envs.actions import Actions, Continuous, Discrete, MultiBinary
from psyco._src.policies.network import NOT_OFFERED, Network

GUMBEL_STD = math.pi / math.sqrt(6.0)  # standard deviation of the Gumbel distribution of scale 1
LOGISTIC_STD = math.pi / math.sqrt(3.0)  # likewise of the logistic distribution


def action_of(actions: Actions, scores: Array) -> Array:
    """Return the action `[..., outputs]` of a policy with these scores `[..., outputs]`."""
    if isinstance(actions, Continuous):
        return scores
    if isinstance(actions, MultiBinary):
        return (scores > 0).astype(jnp.float32)
    return _by_group(actions, scores, lambda part: jax.nn.one_hot(jnp.argmax(part, axis=-1), part.shape[-1]))


def log_likelihood(actions: Actions, scores: Array, std: Array, action: Array) -> Array:
    """Return the log-likelihood `[...]` of an action under scores `[..., outputs]` with noise `[outputs]`.

    It is exact up to a constant for continuous actions. Where scores rank alternatives, the probability that Gaussian
    noise makes one win has no closed form; that of logistic or, for several, Gumbel noise of equal variance is close.
    """
    if isinstance(actions, Continuous):
        return -0.5 * jnp.sum(((action - scores) / std) ** 2, axis=-1)
    if isinstance(actions, MultiBinary):
        return jnp.sum(jax.nn.log_sigmoid((2.0 * action - 1.0) * LOGISTIC_STD * scores / std), axis=-1)
    logs = _by_group(actions, GUMBEL_STD * scores / std, jax.nn.log_softmax)
    return jnp.sum(action * logs, axis=-1)


def probabilities(actions: Actions, scores: Array) -> Array:
    """Return the probability `[..., outputs]` of each alternative, if scores are logits."""
    if isinstance(actions, MultiBinary):
        return jax.nn.sigmoid(scores)
    return _by_group(actions, scores, jax.nn.softmax)


def entropy(actions: Actions, scores: Array) -> Array:
    """Return the entropy in nats `[...]`, if scores are logits."""
    if isinstance(actions, MultiBinary):
        on = jax.nn.sigmoid(scores) * jax.nn.softplus(-scores)
        each = on + jax.nn.sigmoid(-scores) * jax.nn.softplus(scores)
    else:
        logs = _by_group(actions, scores, jax.nn.log_softmax)
        each = -jnp.exp(logs) * logs
    return jnp.sum(each, axis=-1)


def max_entropy(actions: Actions) -> float:
    """Return the entropy of the uniform distribution in nats."""
    if isinstance(actions, MultiBinary):
        return actions.n * math.log(2)
    return sum(map(math.log, _group_sizes(actions)))


def offered_scores(network: Network, scores: Array) -> Array:
    """Return scores `[..., outputs]` with 0 for the actions that a mask excludes."""
    return jnp.where(scores > NOT_OFFERED, scores, 0.0) if network.masked else scores


def _by_group(actions: Actions, scores: Array, function: Callable[[Array], Array]) -> Array:
    """Apply a function to the scores of each single choice."""
    ends = list(itertools.accumulate(_group_sizes(actions)))
    return jnp.concatenate([function(part) for part in jnp.split(scores, ends[:-1], axis=-1)], axis=-1)


def _group_sizes(actions: Actions) -> tuple[int, ...]:
    assert not isinstance(actions, Continuous | MultiBinary)
    return (actions.n,) if isinstance(actions, Discrete) else actions.n
