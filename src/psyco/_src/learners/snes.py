"""Safe Neural Evolutionary Strategies (Alg. SNES). Not Separable Natural Evolution Strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from psyco._src.core.errors import RunError
from psyco._src.learners import belief as beliefs
from psyco._src.learners import es
from psyco._src.learners.base import Proposal, UpdateInfo
from psyco._src.learners.belief import Belief, ExcessSums, single_precision
from psyco._src.learners.curriculum import risen
from psyco._src.learners.expectation_constraints import ExpectationBound, allowed, costs, excess
from psyco._src.learners.lambda_rules import CALIBRATIONS, Evidence
from psyco._src.learners.schedules import LearningBudget, steps_of
from psyco._src.learners.search_space import NumberRange, OptionChoice, Ranges
from psyco._src.rollout.episodes import Episodes


class SNESState(NamedTuple):
    """An evolution strategy and a belief about its offspring."""

    es: es.ESState
    belief: Belief
    steps: Array  # [] int32, taken so far


@dataclass(frozen=True)
class SNES:
    """The paper's learner.

    Args:
        p_req: required probability of each demand for one.
        c_req: required confidence of each demand, of probabilities first.
        means: the demands for means.
        population: offspring per generation, N.
        alpha: learning rate α.
        sigma: perturbation rate σ.
        calibration: the rule that turns belief into λ; the paper's is "soft".
        curriculum: the required probability rises from 0 over this part of learning; the paper's is 0, full at once.
        budget: training episodes of the whole run, which the curriculum follows.
        steps: of the whole run, where they are its budget; 0: the episodes are.
        sign: 1 to maximise the return, -1 to minimise it.
    """

    p_req: tuple[float, ...]
    c_req: tuple[float, ...]
    means: tuple[ExpectationBound, ...] = ()
    population: int = 20
    alpha: float = 0.01
    sigma: float = 0.1
    calibration: str = "soft"
    curriculum: float = 0.0
    budget: int = 60_000
    steps: int = 0
    sign: float = 1.0

    ranges: ClassVar[Ranges] = {
        "population": OptionChoice(10, 20, 40, 80),
        "alpha": NumberRange(0.001, 0.1, log=True),
        "sigma": NumberRange(0.02, 0.5, log=True),
        "curriculum": NumberRange(0.0, 0.6),
    }

    def __post_init__(self) -> None:
        if self.population < 2:
            raise RunError(f"population must be at least 2, got {self.population}")
        if not self.alpha > 0 or not self.sigma > 0:
            raise RunError(f"alpha and sigma must be positive, got {self.alpha} and {self.sigma}")
        if self.calibration not in CALIBRATIONS:
            raise RunError(f"unknown calibration {self.calibration!r}; there are: {', '.join(CALIBRATIONS)}")
        if not 0 <= self.curriculum < 1:
            raise RunError(f"curriculum must be at least 0 and below 1, got {self.curriculum}")

    @property
    def episodes_per_generation(self) -> int:
        """One episode per offspring."""
        return self.population

    @property
    def checks(self) -> int:
        """The mean of the search distribution plays no episodes of its own."""
        return 0

    def init(self, theta: Array) -> SNESState:
        """Lines 2-4."""
        return SNESState(es.init(theta), beliefs.prior(len(self.p_req), len(self.means)), jnp.int32(0))

    def propose(self, key: Array, state: SNESState) -> Proposal:
        """Lines 7-8: perturb the current parameters."""
        noise = es.ask(key, state.es, population=self.population)
        return Proposal(es.offspring(state.es, noise, sigma=self.sigma), noise)

    def update(
        self, state: SNESState, proposal: Proposal, episodes: Episodes
    ) -> tuple[SNESState, UpdateInfo]:
        """Lines 11-18: count, believe, weigh, move."""
        c_req = jnp.asarray(self.c_req, jnp.float32)
        demanded = self._demanded(state)
        with single_precision():
            beyond = excess(self.means, episodes)
        belief = beliefs.observe(state.belief, episodes.satisfied, beyond)  # lines 11-12
        most = self._allowed(belief, state)
        c_sat = beliefs.confidence(belief, demanded, most)  # line 13
        weight = self._cost_weights(belief, demanded, most)
        with single_precision():
            share = jnp.mean(episodes.satisfied, axis=0, dtype=jnp.float32)
            total = jnp.maximum(belief.satisfied + belief.violated, 1).astype(jnp.float32)
            evidence = Evidence(c_sat, c_req, demanded.astype(jnp.float32), share, belief.satisfied / total)
            if beyond is not None and belief.means is not None:
                evidence = self._with_means(evidence, most, beyond, belief.means)
            rules = CALIBRATIONS[self.calibration](evidence)
            lam = jnp.min(rules, initial=1.0)  # line 14; the weakest demand decides
            paid = costs(self.means, episodes, graded=False).T
            values = es.normalize(jnp.vstack([self.sign * episodes.ret, paid]))  # lines 15-16
            score = jnp.concatenate([lam[None], (lam - 1.0) * weight]) @ values  # lines 17-18 in one
            moved = es.tell(state.es, proposal.memo, score, alpha=self.alpha, sigma=self.sigma)
            return SNESState(moved, belief, state.steps + steps_of(episodes)), UpdateInfo(lam, c_sat)

    def deployed(self, state: SNESState) -> Array:
        """The mean of the search distribution."""
        return state.es.theta

    def _demanded(self, state: SNESState) -> Array:
        """The required probabilities `[K]` float64, as far as the curriculum has come."""
        p_req = jnp.asarray(self.p_req, jnp.float64)
        if not self.curriculum:
            return p_req
        return p_req * self._risen(state).astype(jnp.float64)

    def _allowed(self, belief: Belief, state: SNESState) -> Array | float:
        """The mean excess `[M]` that is allowed, likewise."""
        if belief.means is None:
            return 0.0
        return allowed(self.means, belief.means, self._risen(state))

    def _risen(self, state: SNESState) -> Array:
        """How far the curriculum has come."""
        budget = LearningBudget(-(-self.budget // self.population), self.steps)
        return risen(budget.done(state.es.generation, state.steps), budget.generations, self.curriculum)

    def _with_means(self, e: Evidence, most: Array | float, beyond: Array, sums: ExcessSums) -> Evidence:
        """The shares of a mean are its positions in its range, from the worst end to the best."""
        p_req = 1.0 - jnp.asarray([mean.room for mean in self.means], jnp.float32)
        return e._replace(
            p_req=jnp.concatenate([e.p_req, p_req - most]),
            share=jnp.concatenate([e.share, p_req - beyond.mean(axis=0)]),
            share_all=jnp.concatenate([e.share_all, p_req - sums.total / sums.episodes]),
        )

    def _cost_weights(self, belief: Belief, p_req: Array, most: Array | float) -> Array:
        """`[K]`, summing to 1: each cost weighs as far as its demand is expected to fall short.

        With one demand this is 1, as in the paper.
        """
        if len(self.c_req) < 2:
            return jnp.ones(len(self.c_req), jnp.float32)
        gap = beliefs.shortfall(belief, p_req, most) + jnp.float32(1e-9)
        return gap / gap.sum()
