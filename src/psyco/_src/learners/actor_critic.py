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
from psyco._src.learners.expectation_constraints import learning_costs
from psyco._src.learners.lagrangian import CONTROLS, LagrangianLearner, split_weights
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Episodes

LONGEST_HOLD = 20  # steps, on Gymnasium environments
HELD_SHARES = (0.05, 0.5)  # least and largest share of exploring episodes with held noise
HELD_STREAM = 2**32 - 1  # of a generation's key: the number of these episodes

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

    control: str = option(
        "integral",
        "What the controller integrates: integral (λ), multiplier (1/λ - 1, of the costs), or soft (the paper's rule).",
        choices=CONTROLS,
    )
    proportional_gain: float = option(
        0.0,
        "Proportional gain on the current constraint shortfall: it raises the multiplier of the policy update at once.",
        minimum=0.0,
    )
    hold: int = option(
        1,
        "Steps for which some exploring episodes hold each draw of noise; how many do follows their success. 1: none.",
        minimum=1,
    )

    is_actor_critic: ClassVar[bool] = True

    @classmethod
    def gymnasium_options(cls, actions: Actions, horizon: int, return_constrained: bool) -> dict[str, Any]:
        """Return the default options on a Gymnasium environment.

        A policy with a larger margin needs fewer episodes for its certificate; in few generations λ falls in large
        steps, and must not fall to 0; and behaviour that was learned without the constraint must be unlearned.
        """
        hold = max(1, min(LONGEST_HOLD, horizon // 10))
        return {"margin": 0.5, "control": "multiplier", "proportional_gain": 2.0, "curriculum": 0.25, "hold": hold}

    @property
    def network(self) -> Network:
        """The policy's network."""
        if self.known_task.network is None:
            raise self._lacks("network", "the policy's network")
        return self.known_task.network

    @property
    def actions(self) -> Actions:
        """The action space."""
        if self.known_task.actions is None:
            raise self._lacks("actions", "the action space")
        return self.known_task.actions

    @property
    def horizon(self) -> int:
        """The maximum number of steps of an episode."""
        if self.known_task.horizon is None:
            raise self._lacks("horizon", "the maximum number of steps of an episode")
        return self.known_task.horizon

    def _lacks(self, argument: str, meaning: str) -> RunError:
        return RunError(f"{type(self).__name__} needs {meaning}: make_learner(..., {argument}={argument})")

    def _episodes(self, key: Array, theta: Array, std: Array, held: Array, least: float = 0.0) -> Proposal:
        """Return exploring episodes with noise `std` `[outputs]`, then the checks without noise.

        The noise is held in a share `held` of the exploring episodes, the first ones, with at least `least`.
        """
        row = jnp.arange(self.episodes_per_generation)
        explores = row < self.population
        hold = None
        if self.hold > 1:
            rounding = jax.random.uniform(jax.random.fold_in(key, HELD_STREAM))
            hold = jnp.where(row < jnp.floor(held * self.population + rounding), self.hold, 1)
            std = jnp.where(hold[:, None] > 1, jnp.maximum(std, least), std)
        return Proposal(
            jnp.broadcast_to(theta, (len(explores), theta.size)),
            key,
            std=jnp.where(explores[:, None], std, 0.0),
            hold=hold,
        )

    # Held noise reaches far, which finds rewards that white noise does not find, and spoils behaviour that is good
    # already. So it is tried, and used as long as it leads to better episodes than everything else.

    def initial_held(self) -> Array:
        """Return the share of exploring episodes with held noise at first: one in each generation."""
        return jnp.clip(jnp.float32(1.0 / self.population), *HELD_SHARES)

    def updated_held(
        self, held: Array, proposal: Proposal, episodes: Episodes, lam: Array, recent: Any
    ) -> tuple[Array, Array]:
        """Return this share after a generation, doubled if episodes with held noise were best, and whether they were.

        They are compared with the other exploring episodes and with the checks, by the mean of
        λ return - (1 - λ) cost. If they are worse, the share is halved; if all are equal, it stays.
        """
        if proposal.hold is None:
            return held, jnp.bool_(False)
        smallest, weight = split_weights(lam)
        gain = _per_deviation(self.known_task.sign * jnp.asarray(episodes.returns))
        cost = _per_deviation(learning_costs(self.known_task.expectations, episodes, recent).astype(jnp.float32))
        score = smallest * gain - (1.0 - smallest) * (cost @ weight)
        row = jnp.arange(len(score))
        kind = jnp.where(row >= self.population, 2, jnp.where(proposal.hold > 1, 0, 1))

        def mean(number: int) -> Array:
            some = kind == number
            return jnp.where(jnp.any(some), jnp.sum(score * some) / jnp.maximum(jnp.sum(some), 1), -jnp.inf)

        ahead = mean(0) - jnp.maximum(mean(1), mean(2))
        factor = jnp.where(ahead > 0, 2.0, jnp.where((ahead < 0) & jnp.any(kind == 0), 0.5, 1.0))
        return jnp.clip(held * factor, *HELD_SHARES), factor > 1.0


def _per_deviation(x: Array) -> Array:
    """Return columns `[B, ...]` in units of their standard deviation; constant columns are 0."""
    deviation = jnp.std(x, axis=0)
    return jnp.where(deviation > 0, x / jnp.where(deviation > 0, deviation, 1.0), 0.0)


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
