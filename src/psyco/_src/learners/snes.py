"""Safe Neural Evolutionary Strategies (Alg. SNES). Not Separable Natural Evolution Strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from psyco._src.core.options import NumberRange, OptionChoice, option
from psyco._src.learners import belief as beliefs
from psyco._src.learners import es
from psyco._src.learners.base import (
    LearnerOptions,
    LearningBudget,
    Proposal,
    UpdateInfo,
    count_steps,
    curriculum_fraction,
)
from psyco._src.learners.belief import Belief, ExcessSums, single_precision
from psyco._src.learners.expectation_constraints import add_recent, empty_recent, excess, learning_costs, target_excess
from psyco._src.learners.lagrangian import CALIBRATIONS, Evidence
from psyco._src.policies.network import Bias
from psyco._src.rollout.episodes import Episodes


class SNESState(NamedTuple):
    """An evolution strategy and a belief about its offspring."""

    es: es.ESState
    belief: Belief
    steps: Array  # [] int32, taken so far


@dataclass(frozen=True, kw_only=True)
class SNES(LearnerOptions):
    """The paper's learner (Alg. SNES)."""

    population: int = option(20, "Offspring per generation, N.", minimum=2, search=OptionChoice(10, 20, 40, 80))
    learning_rate: float = option(0.01, "Learning rate α.", above=0.0, search=NumberRange(0.001, 0.1, log=True))
    sigma: float = option(0.1, "Perturbation rate σ.", above=0.0, search=NumberRange(0.02, 0.5, log=True))
    calibration: str = option(
        "soft",
        f"Rule from belief to λ, the paper's is soft: {', '.join(CALIBRATIONS)}.",
        choices=tuple(CALIBRATIONS),
    )
    curriculum: float = option(
        0.0,
        "The required probability rises from 0 over this part of learning; 0, as in the paper: full at once.",
        minimum=0.0,
        below=1.0,
        search=NumberRange(0.0, 0.6),
    )

    default_bias: ClassVar[Bias] = "one"
    check_method: ClassVar[str] = "bayes"  # Alg. BV

    @property
    def episodes_per_generation(self) -> int:
        """One episode per offspring."""
        return self.population

    @property
    def checks(self) -> int:
        """0: the mean of the search distribution plays no episodes."""
        return 0

    def init(self, theta: Array) -> SNESState:
        """Start from parameters `[D]` (lines 2-4)."""
        prior = beliefs.prior(len(self.known_task.p_req), len(self.known_task.expectations))
        prior = prior._replace(recent=empty_recent(self.known_task.expectations))
        return SNESState(es.init(theta), prior, jnp.int32(0))

    def propose(self, key: Array, state: SNESState) -> Proposal:
        """Perturb the current parameters (lines 7-8)."""
        noise = es.ask(key, state.es, population=self.population)
        return Proposal(es.offspring(state.es, noise, sigma=self.sigma), noise)

    def update(self, state: SNESState, proposal: Proposal, episodes: Episodes) -> tuple[SNESState, UpdateInfo]:
        """Update belief, λ and parameters (lines 11-18)."""
        expectations = self.known_task.expectations
        c_req = jnp.asarray(self.known_task.c_req, jnp.float32)
        p_req = self._p_req_now(state)
        with single_precision():
            beyond = excess(expectations, episodes, state.belief.recent)
            recent = add_recent(expectations, episodes, state.belief.recent)
        belief = beliefs.observe(state.belief, episodes.satisfied, beyond)._replace(recent=recent)  # lines 11-12
        limit = self._target_excess(belief, state)
        c_sat = beliefs.confidence(belief, p_req, limit)  # line 13
        weight = self._cost_weights(belief, p_req, limit)
        with single_precision():
            share = jnp.mean(episodes.satisfied, axis=0, dtype=jnp.float32)
            total = jnp.maximum(belief.satisfied + belief.violated, 1).astype(jnp.float32)
            evidence = Evidence(c_sat, c_req, p_req.astype(jnp.float32), share, belief.satisfied / total)
            if beyond is not None and belief.excess is not None:
                evidence = self._with_expectations(evidence, limit, beyond, belief.excess)
            rules = CALIBRATIONS[self.calibration](evidence)
            lam = jnp.min(rules, initial=1.0)  # line 14; the weakest constraint decides
            cost = learning_costs(expectations, episodes, recent, shaped=False).T
            values = es.normalize(jnp.vstack([self.known_task.sign * episodes.returns, cost]))  # lines 15-16
            score = jnp.concatenate([lam[None], (lam - 1.0) * weight]) @ values  # lines 17-18 in one
            moved = es.tell(state.es, proposal.memo, score, learning_rate=self.learning_rate, sigma=self.sigma)
            return SNESState(moved, belief, state.steps + count_steps(episodes)), UpdateInfo(lam, c_sat)

    def deployed(self, state: SNESState) -> Array:
        """Return the mean of the search distribution."""
        return state.es.theta

    def _p_req_now(self, state: SNESState) -> Array:
        """Return the required probabilities `[P]` float64 at this point of the curriculum."""
        p_req = jnp.asarray(self.known_task.p_req, jnp.float64)
        if not self.curriculum:
            return p_req
        return p_req * self._curriculum_fraction(state).astype(jnp.float64)

    def _target_excess(self, belief: Belief, state: SNESState) -> Array | float:
        """Return the permitted mean excess `[M]` at this point of the curriculum."""
        if belief.excess is None:
            return 0.0
        return target_excess(self.known_task.expectations, belief.excess, self._curriculum_fraction(state))

    def _curriculum_fraction(self, state: SNESState) -> Array:
        generations = -(-self.known_task.episode_budget // self.population)
        budget = LearningBudget(generations, self.known_task.step_budget)
        done = budget.generations_done(state.es.generation, state.steps)
        return curriculum_fraction(done, generations, self.curriculum)

    def _with_expectations(self, e: Evidence, limit: Array | float, beyond: Array, sums: ExcessSums) -> Evidence:
        """Append the expectations; the share of one is its position in its range, from the worst end to the best."""
        p_req = 1.0 - jnp.asarray([each.room for each in self.known_task.expectations], jnp.float32)
        return e._replace(
            p_req=jnp.concatenate([e.p_req, p_req - limit]),
            share=jnp.concatenate([e.share, p_req - beyond.mean(axis=0)]),
            share_all=jnp.concatenate([e.share_all, p_req - sums.total / sums.episodes]),
        )

    def _cost_weights(self, belief: Belief, p_req: Array, limit: Array | float) -> Array:
        """Return weights `[K]` of the costs, proportional to the expected shortfall of each constraint; they sum to 1.

        With one constraint the weight is 1, as in the paper.
        """
        if len(self.known_task.c_req) < 2:
            return jnp.ones(len(self.known_task.c_req), jnp.float32)
        gap = beliefs.shortfall(belief, p_req, limit) + jnp.float32(1e-9)
        return gap / gap.sum()
