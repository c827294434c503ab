"""The safe evolution strategy: the belief is about the deployed policy, and a Lagrangian controller finds λ.

It differs from Alg. SNES in five points; the ablation in `docs/benchmarks/learners.md` shows the effect of each:

- each generation plays a few episodes of the mean of the search distribution. They alone feed the belief and λ, because
  perturbed offspring violate more often than the deployed policy;
- the belief forgets, so that it follows a policy that changes;
- λ is the integral of the surplus of the satisfied share over its target, so it settles where the target is met;
- constraints tighten over the first part of learning. A policy that first learns to be safe learns to stay away and
  does not return; one that first learns its task then learns to do it safely;
- offspring come in mirrored pairs that play the same episode, and Adam with a decaying rate follows their differences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from psyco._src.core.errors import RunError
from psyco._src.core.options import NumberRange, OptionChoice, option
from psyco._src.learners import es
from psyco._src.learners.base import Proposal, UpdateInfo, cosine, count_steps, zero_counters
from psyco._src.learners.belief import Belief, single_precision
from psyco._src.learners.expectation_constraints import learning_costs
from psyco._src.learners.lagrangian import (
    CONTROLS,
    LagrangianLearner,
    combine_advantages,
    floor_lambda,
)
from psyco._src.rollout.episodes import Episodes

OPTIMIZERS = ("adam", "sgd")
SHAPINGS = ("pair", "population")
POPULATION_SEARCH = OptionChoice(10, 20, 40, 80, 160)
SIGMA_SEARCH = NumberRange(0.02, 0.5, log=True)


@dataclass(frozen=True, kw_only=True)
class LagrangianSearch(LagrangianLearner):
    """The base of searches over the parameters: a population explores, and its mean is deployed."""

    def _resolve_auto(self) -> None:
        # An even population that gives about 2700 generations.
        self._set_auto(population=self.limited(2 * min(max(self.known_task.episode_budget // 6000, 10), 100)))
        super()._resolve_auto()

    def _check_pairs(self, pairs: bool) -> None:
        if pairs and self.population is not None and self.population % 2:
            raise RunError(f"population must be even, since offspring come in pairs, got {self.population}")

    def scores(
        self, belief: Belief, lam_k: Array, episodes: Episodes, shape: Callable[[Array], Array]
    ) -> tuple[Array, Array, Array]:
        """Return λ_k `[K]` above its floor, λ `[]` and the scores `[population]` of the offspring.

        `shape` normalizes the returns, or the costs of one constraint, of all offspring.
        """
        gain = shape(self.known_task.sign * episodes.returns[: self.population])
        cost = learning_costs(self.known_task.expectations, episodes, belief.recent)[: self.population]
        shaped = jax.vmap(shape, in_axes=1)(cost)
        lam_k = floor_lambda(lam_k, cost)
        return lam_k, *combine_advantages(lam_k, gain, shaped)


class SafeESState(NamedTuple):
    """The mean of the search distribution, the belief about it, and λ."""

    theta: Array  # [D]
    optimizer: Any  # state of optax
    belief: Belief  # counts that fade, float32
    lam: Array  # [K] λ_k
    generation: Array  # [] int32
    steps: Array  # [] int32, taken so far


@dataclass(frozen=True, kw_only=True)
class SafeES(LagrangianSearch):
    """Safe evolution strategy, the default learner on compiled domains."""

    population: int = option(
        None,
        "Offspring per generation, in mirrored pairs. Default: from 20 to 200, for about 2700 generations.",
        kind=int,
        minimum=2,
        search=POPULATION_SEARCH,
    )
    learning_rate: float = option(
        0.03,
        "Initial learning rate, with cosine decay.",
        above=0.0,
        search=NumberRange(0.003, 0.3, log=True),
    )
    sigma: float = option(0.1, "Perturbation rate σ.", above=0.0, search=SIGMA_SEARCH)
    optimizer: str = option("adam", "adam, or sgd with momentum.", choices=OPTIMIZERS)
    shaping: str = option(
        "pair",
        "Normalize pair (differences within pairs, without the episode's luck) or population (as in the paper).",
        choices=SHAPINGS,
        search=OptionChoice(*SHAPINGS),
    )
    mirrored: bool = option(True, "Offspring come in mirrored pairs that play the same episode.")
    control: str = option(
        "integral", "Rule of λ: integral, or soft (the paper's rule on the belief).", choices=CONTROLS
    )

    learns_independently: ClassVar[bool] = True

    def _check_options(self) -> None:
        if self.shaping == "pair" and not self.mirrored:
            raise RunError("shaping='pair' needs mirrored pairs: use shaping='population'")
        self._check_pairs(self.mirrored)

    def init(self, theta: Array) -> SafeESState:
        """Start with λ = 1 and the prior belief."""
        theta = jnp.asarray(theta, jnp.float32)
        return SafeESState(theta, self._transform().init(theta), *self.controller.init(), *zero_counters())

    def propose(self, key: Array, state: SafeESState) -> Proposal:
        """Return offspring, then the mean policy itself."""
        drawn = self.population // 2 if self.mirrored else self.population
        # Rows of one array with a sign each: joining offspring, their mirror images and the mean is much slower.
        row = np.arange(self.episodes_per_generation) % drawn
        sign = np.ones(self.episodes_per_generation, np.float32)
        sign[drawn : self.population] = -1.0
        sign[self.population :] = 0.0
        noise = sign[:, None] * es.unit_noise(key, (drawn, state.theta.size))[row]
        episode = np.where(sign == 0.0, np.arange(self.episodes_per_generation), row)
        return Proposal(state.theta + self.sigma * noise, noise[: self.population], jnp.asarray(episode, jnp.int32))

    def update(self, state: SafeESState, proposal: Proposal, episodes: Episodes) -> tuple[SafeESState, UpdateInfo]:
        """Update belief and λ by the checks, then move the mean along the scores of the offspring."""
        belief, c_sat, lam_k = self.update_lambda(state, episodes)
        with single_precision():
            lam_k, lam, score = self.scores(belief, lam_k, episodes, self._shape)
            ascent = score @ proposal.memo / (self.sigma * self.population)
            step, optimizer = self._transform().update(-ascent, state.optimizer)
            rate = -self.learning_rate * cosine(self.generations_done(state), self.generations)
            theta = state.theta + rate * step
            counters = state.generation + 1, state.steps + count_steps(episodes)
            return SafeESState(theta, optimizer, belief, lam_k, *counters), UpdateInfo(lam, c_sat)

    def deployed(self, state: SafeESState) -> Array:
        """Return the mean of the search distribution."""
        return state.theta

    def _shape(self, x: Array) -> Array:
        """Return the normalized contribution of each offspring's value `[population]`."""
        if self.shaping == "population":
            return es.normalize(x)
        pairs = self.population // 2
        difference = x[:pairs] - x[pairs:]
        size = jnp.sqrt(jnp.mean(difference**2))
        half = jnp.where(size > 0, difference / jnp.where(size > 0, size, 1.0), 0.0)
        return jnp.concatenate([half, -half])

    def _transform(self) -> optax.GradientTransformation:
        """Return the transformation that gives the direction of a step; its length is the decaying rate."""
        return optax.scale_by_adam() if self.optimizer == "adam" else optax.trace(0.9)
