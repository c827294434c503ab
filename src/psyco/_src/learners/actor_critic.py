"""The shared part of the actor-critics `ppo` and `sac`: options, the policy network, and episodes with noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco._src.core.errors import RunError
from psyco._src.core.options import NumberRange, option
from psyco._src.envs.actions import Actions
from psyco._src.learners.base import Proposal
from psyco._src.learners.lagrangian import LagrangianLearner
from psyco._src.policies.network import Network

# Critics: small networks that predict the discounted return and costs. They belong to the learner, not the policy.
#
# Those of `ppo` predict the value of a state, those of `sac` the value of a state and an action. The layers of the
# latter are normalized, which keeps predictions moderate far from the data.


Critics = dict[str, Array]


def make_critics(count: int, inputs: int, hidden: int, outputs: tuple[int, ...] = (), *, gain: float) -> Critics:
    """Return the weights of `count` networks with two hidden layers; they predict 0 at first.

    The weights are random with variance `gain` / inputs, and the same in every run.
    """
    rng = np.random.default_rng(0)
    first = rng.normal(size=(count, inputs, hidden)) * np.sqrt(gain / inputs)
    second = rng.normal(size=(count, hidden, hidden)) * np.sqrt(gain / hidden)
    return {
        "w1": jnp.asarray(first, jnp.float32),
        "b1": jnp.zeros((count, hidden), jnp.float32),
        "w2": jnp.asarray(second, jnp.float32),
        "b2": jnp.zeros((count, hidden), jnp.float32),
        "w3": jnp.zeros((count, hidden, *outputs), jnp.float32),
        "b3": jnp.zeros((count, *outputs), jnp.float32),
    }


def state_values(critics: Critics, x: Array) -> Array:
    """Return the predictions `[..., C]` of C critics with tanh layers for inputs `[..., I]`."""

    def one(critic: Critics) -> Array:
        hidden = jnp.tanh(jnp.tanh(x @ critic["w1"] + critic["b1"]) @ critic["w2"] + critic["b2"])
        return hidden @ critic["w3"] + critic["b3"]

    return jax.vmap(one, out_axes=-1)(critics)


def action_values(critics: Critics, x: list[Array]) -> Array:
    """Return the predictions `[C, N, outputs]` of C critics with normalized relu layers, each for its `[N, inputs]`."""

    def one(critic: Critics, x: Array) -> Array:
        hidden = jax.nn.relu(_layer_norm(x @ critic["w1"] + critic["b1"]))
        hidden = jax.nn.relu(_layer_norm(hidden @ critic["w2"] + critic["b2"]))
        return hidden @ critic["w3"] + critic["b3"]

    # One by one: on a CPU, XLA runs a batch of small products a third slower.
    parts = [jax.tree.map(lambda weights, i=i: weights[i], critics) for i in range(len(x))]
    return jnp.stack([one(part, each) for part, each in zip(parts, x, strict=True)])


def discounted_sums(x: Array, discount: float) -> Array:
    """Return Σ_l discount^l x_{t+l} for each step t of columns `[B, n, C]`."""

    def back(later: Array, now: Array) -> tuple[Array, Array]:
        later = now + discount * later
        return later, later

    by_time = jnp.moveaxis(x, 1, 0)
    _, sums = jax.lax.scan(back, jnp.zeros_like(by_time[0]), by_time, reverse=True)
    return jnp.moveaxis(sums, 0, 1)


def _layer_norm(x: Array) -> Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)


@dataclass(frozen=True, kw_only=True)
class ActorCritic(LagrangianLearner):
    """The base of actor-critics: they explore by Gaussian noise on the scores of the policy network."""

    recovery_gain: float = option(
        0.0,
        "How much faster λ rises while all episodes satisfy a constraint, as a multiple of gain. If positive, λ also "
        "does not fall while costs fall and less than half of the target share is reached.",
        minimum=0.0,
    )
    proportional_gain: float = option(
        0.0,
        "Proportional gain on the current constraint shortfall: it lowers the λ of the policy update at once.",
        minimum=0.0,
    )

    is_actor_critic: ClassVar[bool] = True

    @classmethod
    def gymnasium_options(cls, actions: Actions, horizon: int, return_constrained: bool) -> dict[str, Any]:
        """Return the default options on a Gymnasium environment.

        A policy with a larger margin needs fewer episodes for its certificate; in few generations a λ that has fallen
        must rise again quickly; and behaviour that was learned without the constraint must be unlearned.
        """
        return {"margin": 0.5, "recovery_gain": 0.5, "proportional_gain": 0.5, "curriculum": 0.25}

    @property
    def network(self) -> Network:
        """The policy's network."""
        if self.problem.network is None:
            raise self._lacks("network", "the policy's network")
        return self.problem.network

    @property
    def actions(self) -> Actions:
        """The action space."""
        if self.problem.actions is None:
            raise self._lacks("actions", "the action space")
        return self.problem.actions

    @property
    def horizon(self) -> int:
        """The maximum number of steps of an episode."""
        if self.problem.horizon is None:
            raise self._lacks("horizon", "the maximum number of steps of an episode")
        return self.problem.horizon

    def _lacks(self, argument: str, meaning: str) -> RunError:
        return RunError(f"{type(self).__name__} needs {meaning}: make_learner(..., {argument}={argument})")

    def _episodes(self, key: Array, theta: Array, std: Array) -> Proposal:
        """Return exploring episodes with noise `std` `[outputs]`, then the checks without noise."""
        explores = jnp.arange(self.episodes_per_generation) < self.population
        return Proposal(
            jnp.broadcast_to(theta, (len(explores), theta.size)),
            key,
            std=jnp.where(explores[:, None], std, 0.0),
        )


def discount_option() -> Any:
    """Return the declaration of a discount; `default_discount` is its automatic value."""
    return option(
        None,
        "Discount of later rewards and costs. Default: 0.95 for horizons up to 50, rising to 0.99 from 250 on.",
        kind=float,
        above=0.0,
        maximum=1.0,
        search=NumberRange(0.9, 0.995),
    )


def default_discount(horizon: int) -> float:
    """Return a discount for which an episode is about 2.5 times as long as the discounted future."""
    return min(max(1.0 - 2.5 / horizon, 0.95), 0.99)
