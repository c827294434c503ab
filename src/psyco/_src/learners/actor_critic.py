"""The shared part of the actor-critics `ppo` and `sac`: options, the policy network, and episodes with noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from psyco._src.core.errors import RunError
from psyco._src.core.options import option
from psyco._src.envs.actions import Actions
from psyco._src.learners.base import Proposal
from psyco._src.learners.lagrangian import LagrangianLearner
from psyco._src.learners.search_space import NumberRange
from psyco._src.policies.network import Network


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
