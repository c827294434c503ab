"""The Lagrangian controller: λ, the weight of the return against costs, from episodes of the deployed policy.

Constraint k has its own λ_k in [0, 1]: 1 is all return, 0 all cost, and the smallest λ_k decides. There are two ways to
them: the rules (`CALIBRATIONS`) compute them anew from the belief, as in the paper; the controller (`LambdaController`)
moves them in each generation by these terms:

- integral: λ_k, or the multiplier μ_k = 1 / λ_k - 1 of the costs, moves by `gain` times the surplus over the target, so
  it settles where the target is met. The integral of μ_k is the usual one of Lagrangian methods, as in PID Lagrangians
  (Stooke et al. 2020). λ_k then falls ever more slowly and is never 0, so that a policy that satisfies a constraint by
  doing nothing still learns from the return;
- proportional: the policy update of actor-critics adds `proportional_gain` times the current shortfall to μ_k;
- floor: λ_k stays at `MIN_LAMBDA_WITHOUT_SIGNAL` while all episodes fail a constraint with equal cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from psyco._src.core.errors import RunError
from psyco._src.core.options import NumberRange, option
from psyco._src.learners import belief as beliefs
from psyco._src.learners.base import (
    LearnerOptions,
    LearningBudget,
    LearningTask,
    count_steps,
    count_violations,
    curriculum_fraction,
)
from psyco._src.learners.belief import Belief, rms, single_precision
from psyco._src.learners.expectation_constraints import add_recent, empty_recent, excess, learning_costs, target_excess
from psyco._src.rollout.episodes import Episodes

if TYPE_CHECKING:
    from psyco._src.learners.actor_critic import ActorCritic


# Rules from belief to λ, the weight of return against cost: 0 is all cost, 1 is all return.
#
# Each rule maps the evidence about K constraints to λ_k `[K]`; the learner uses the smallest.


class Evidence(NamedTuple):
    """The evidence about each constraint."""

    c_sat: Array  # [K] posterior confidence
    c_req: Array  # [K] required confidence
    p_req: Array  # [K] required probability
    share: Array  # [K] satisfied share of this generation
    share_all: Array  # [K] satisfied share of all episodes so far


def soft(e: Evidence) -> Array:
    """Weigh the return by the surplus of confidence: the paper's rule (Eq. λ)."""
    return _surplus(e.c_sat, e.c_req)


def hard(e: Evidence) -> Array:
    """Use the return alone while the confidence suffices, the cost alone otherwise."""
    return jnp.where(e.c_sat >= e.c_req, 1.0, 0.0)


def direct(e: Evidence) -> Array:
    """Use the confidence itself as λ; the required confidence is ignored."""
    return e.c_sat


def naive(e: Evidence) -> Array:
    """Use the maximum-likelihood estimate of this generation (Eq. MLE), which ignores uncertainty."""
    return _surplus(e.share, e.p_req)


def naive_all(e: Evidence) -> Array:
    """Use the maximum-likelihood estimate of all episodes so far."""
    return _surplus(e.share_all, e.p_req)


def none(e: Evidence) -> Array:
    """Use the return alone: plain ES, whose constraints are only monitored."""
    return jnp.ones_like(e.c_sat)


CALIBRATIONS: dict[str, Callable[[Evidence], Array]] = {
    "soft": soft,
    "hard": hard,
    "direct": direct,
    "naive": naive,
    "naive-all": naive_all,
    "none": none,
}


def _surplus(value: Array, required: Array) -> Array:
    """Return how far a value exceeds its requirement, as a fraction of the distance to 1; at least 0."""
    room = 1.0 - required
    return jnp.where(room > 0, jnp.maximum(0.0, value - required) / jnp.where(room > 0, room, 1.0), 0.0)


CONTROLS = ("integral", "multiplier", "soft")
MULTIPLIER_GAIN = 10.0  # of μ, in units of that of λ: both then take λ from 1 to 0.1 in about the same time
MAX_MULTIPLIER = 99.0  # λ is at least 0.01
MIN_LAMBDA_WITHOUT_SIGNAL = 0.5
SIGNAL_PATIENCE = 20  # episodes with equal cost, after which a constraint gives no learning signal
EXPLORATION_RISK = 2.0  # violating share of training episodes, in units of the share that the requirement permits
SHARE_WINDOW = 5  # generations over which the satisfied share of checks is averaged
FAR_FROM_MET = 0.5  # of the target share, below which a constraint is far from met


# ---- the integral term ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LambdaController:
    """A belief with exponential forgetting, and λ_k or μ_k as the integral of the surplus of each constraint.

    The surplus of a probability is its satisfied share above the target. That of an expectation is the distance of its
    mean excess below the target, divided by two root mean squares of the excess: the range of a share is 1, and no
    range with this root mean square is narrower. So `gain` and `margin` mean the same for both, also for rare costs and
    wide ranges.

    Args:
        task: the constraints.
        generations: the number of generations, or the expected one.
        margin: aim above the required probability, by this part of the distance to 1; see `target_excess`.
        curriculum: targets rise from nothing to full over this part of learning.
        gain: of the integral, per generation.
        belief_window: the number of generations that the belief remembers.
        control: "integral" of λ_k, "multiplier" for the integral of μ_k, or "soft": the paper's rule on this belief.
    """

    task: LearningTask
    generations: int
    margin: float
    curriculum: float
    gain: float
    belief_window: float
    control: str = "integral"

    def init(self) -> tuple[Belief, Array]:
        """Return the prior belief and λ_k = 1 for each constraint `[K]`."""
        belief = beliefs.prior(len(self.task.p_req), len(self.task.expectations), jnp.float32)
        belief = belief._replace(recent=empty_recent(self.task.expectations))
        if self.task.violation_limit:
            belief = belief._replace(violations=jnp.int32(0))
        return belief, jnp.ones(len(self.task.c_req), jnp.float32)

    def update(self, belief: Belief, lam: Array, done: Array, checks: Episodes) -> tuple[Belief, Array, Array]:
        """Return the new belief, c_sat `[K]` and λ_k `[K]` after check episodes.

        `done` is the number of generations done, which may be a fraction.
        """
        with single_precision():
            beyond = excess(self.task.expectations, checks, belief.recent)
            faded = beliefs.fade(belief, keep=1.0 - 1.0 / self.belief_window)
            belief = beliefs.observe(faded, checks.satisfied, beyond)
            belief = belief._replace(recent=add_recent(self.task.expectations, checks, belief.recent))
            target, limit = self.target_share(done), self.target_excess(belief, done)
        c_sat = beliefs.confidence(belief, jnp.asarray(self.task.p_req, jnp.float64))
        if self.control == "soft":
            c_sat_now = beliefs.confidence(belief, target.astype(jnp.float64), limit)
        with single_precision():
            share = jnp.mean(checks.satisfied, axis=0, dtype=jnp.float32)
            if self.control == "soft":
                c_req = jnp.asarray(self.task.c_req, jnp.float32)
                return belief, c_sat, soft(Evidence(c_sat_now, c_req, target, share, share))
            surplus = share - target
            if beyond is not None and belief.excess is not None:
                below = (limit - beyond.mean(axis=0)) / (2.0 * rms(belief.excess))
                surplus = jnp.concatenate([surplus, below])
            if self.control == "multiplier":
                multiplier = 1.0 / lam - 1.0 - MULTIPLIER_GAIN * self.gain * surplus
                return belief, c_sat, 1.0 / (1.0 + jnp.clip(multiplier, 0.0, MAX_MULTIPLIER))
            return belief, c_sat, jnp.clip(lam + self.gain * surplus, 0.0, 1.0)

    def target_share(self, done: Array) -> Array:
        """Return the satisfied share `[P]` to reach now: requirement and margin, scaled by the curriculum."""
        p_req = jnp.asarray(self.task.p_req, jnp.float32)
        target = p_req + self.margin * (1.0 - p_req)
        return target * curriculum_fraction(done, self.generations, self.curriculum)

    def target_excess(self, belief: Belief, done: Array) -> Array | float:
        """Return the mean excess `[M]` to reach now; 0 if there is no bound on an expectation."""
        if belief.excess is None:
            return 0.0
        fraction = curriculum_fraction(done, self.generations, self.curriculum)
        return target_excess(self.task.expectations, belief.excess, fraction, self.margin)


@dataclass(frozen=True, kw_only=True)
class LagrangianLearner(LearnerOptions):
    """The base of learners whose λ follows check episodes of the deployed policy.

    The state of such a learner has the fields `belief`, `lam`, `generation` and `steps`, which start with
    `*self.controller.init(), *zero_counters()`; `update` begins with `update_lambda`.
    """

    population: int = option(None, "Exploring episodes per generation.", kind=int, minimum=1)
    checks: int = option(
        None,
        "Episodes of the deployed policy per generation, for belief and λ. Default: a tenth of population.",
        kind=int,
        minimum=1,
    )
    margin: float = option(
        0.3,
        "Aim above the required probability, by this part of the distance to 1.",
        minimum=0.0,
        below=1.0,
        search=NumberRange(0.05, 0.7),
    )
    curriculum: float = option(
        0.5,
        "Constraints rise from nothing to full over this part of learning; 0: full at once.",
        minimum=0.0,
        below=1.0,
        search=NumberRange(0.0, 0.6),
    )
    gain: float = option(
        None,
        "Integral gain of λ per generation. Default: 0.01, more for few generations.",
        kind=float,
        above=0.0,
        search=NumberRange(0.005, 1.0, log=True),
    )
    belief_window: float = option(
        100.0, "Generations in the belief.", minimum=1.0, search=NumberRange(20.0, 300.0, log=True)
    )

    def _resolve_auto(self) -> None:
        if self.population is None:
            raise RunError(f"{type(self).__name__} must give population a default, in its field or in _resolve_auto")
        self._set_auto(checks=max(2, self.population // 10))
        self._set_auto(gain=default_gain(self.generations))

    @property
    def episodes_per_generation(self) -> int:
        """The exploring episodes and the checks."""
        return self.population + self.checks

    @property
    def generations(self) -> int:
        """The number of generations in the budget; with a budget of steps or violations, the expected number."""
        task = self.known_task
        episodes = task.episode_budget
        if task.violation_limit:
            rate = EXPLORATION_RISK * (1.0 - max(task.p_req))
            episodes = min(episodes, round(task.violation_limit / max(rate, 1e-3)))
        return -(-episodes // self.episodes_per_generation)

    def generations_done(self, state: Any) -> Array:
        """Return the number of generations done; with a budget of steps or violations, the equivalent of its use."""
        return self._budget.generations_done(state.generation, state.steps, state.belief.violations)

    def progress(self, state: Any) -> Array:
        """Return the fraction of learning that is done, 0 to 1; schedules follow it."""
        return self._budget.fraction(state.generation, state.steps, state.belief.violations)

    def limited(self, population: int) -> int:
        """Return a default population, at most a tenth of a limit of violations: less than a generation is unused."""
        limit = self.known_task.violation_limit
        return population if limit is None else max(4, min(population, 2 * (limit // 20)))

    @property
    def _budget(self) -> LearningBudget:
        task = self.known_task
        longest = -(-task.episode_budget // self.episodes_per_generation)
        return LearningBudget(self.generations, task.step_budget, task.violation_limit, longest)

    def step_share(self, episodes: Episodes) -> Array | float:
        """Return the steps of this generation relative to an average one, at most 1; 1 without a step budget."""
        if not self.known_task.step_budget:
            return 1.0
        return jnp.minimum(count_steps(episodes) * (self.generations / self.known_task.step_budget), 1.0)

    @cached_property
    def controller(self) -> LambdaController:
        """The belief and the integral term."""
        control = getattr(self, "control", "integral")
        return LambdaController(
            self.known_task,
            self.generations,
            self.margin,
            self.curriculum,
            self.gain,
            self.belief_window,
            control,
        )

    def update_lambda(self, state: Any, episodes: Episodes) -> tuple[Belief, Array, Array]:
        """Return the new belief, c_sat `[K]` and λ_k `[K]`, from the checks among a generation's episodes."""
        checks = jax.tree.map(lambda column: column[self.population :], episodes._replace(trace=None))
        known = state.belief._replace(violations=None)  # they do not fade
        belief, c_sat, lam = self.controller.update(known, state.lam, self.generations_done(state), checks)
        if self.known_task.violation_limit:
            with single_precision():
                belief = belief._replace(violations=state.belief.violations + count_violations(episodes))
        if self.known_task.step_budget:  # generations differ in length, and λ moves in proportion to it
            with single_precision():
                lam = state.lam + self.step_share(episodes) * (lam - state.lam)
        return belief, c_sat, lam


def default_gain(generations: int) -> float:
    """Return a gain with which λ can cross its range several times, also in few generations."""
    return max(0.01, 10.0 / max(generations, 1))


# ---- the terms of actor-critics -------------------------------------------------------------------------------


class ConstraintHistory(NamedTuple):
    """Statistics of the constraints over recent generations."""

    equal_cost_streak: Array  # [K] successive episodes that failed each constraint with equal cost
    share: Array  # [K] satisfied share of the checks


def empty_history(task: LearningTask) -> ConstraintHistory:
    """Return the history before the first generation."""
    none = jnp.zeros(len(task.c_req), jnp.float32)
    return ConstraintHistory(none, none + 1.0)


class ControlledLambda(NamedTuple):
    """λ_k after all terms."""

    history: ConstraintHistory
    lam: Array  # [K] kept for the next generation
    applied: Array  # [K] used in this policy update; the proportional term makes it smaller


def add_proportional_and_floor(learner: ActorCritic, state: Any, episodes: Episodes, lam: Array) -> ControlledLambda:
    """Apply the terms after the integral to λ_k `[K]`."""
    task, count = learner.known_task, len(learner.known_task.p_req)
    with single_precision():
        cost = learning_costs(task.expectations, episodes, state.belief.recent).astype(jnp.float32)  # [B, K]
        satisfied = jnp.concatenate([jnp.asarray(episodes.satisfied), cost[:, count:] <= 0.0], axis=1)
        target = learner.controller.target_share(learner.generations_done(state))  # [P]
        shown = jnp.mean(satisfied[learner.population :], axis=0, dtype=jnp.float32)
        share = state.history.share + (shown - state.history.share) / SHARE_WINDOW
        applied = _proportional(lam, share, target, learner.proportional_gain)
        equal_cost = jnp.where(
            gives_no_signal(cost), state.history.equal_cost_streak + learner.episodes_per_generation, 0.0
        )
        # A constraint without learning signal must not silence the return.
        floor = jnp.where(equal_cost >= SIGNAL_PATIENCE, MIN_LAMBDA_WITHOUT_SIGNAL, 0.0)
        history = ConstraintHistory(equal_cost, share)
        return ControlledLambda(history, jnp.maximum(lam, floor), jnp.maximum(applied, floor))


def _proportional(lam: Array, share: Array, target: Array, gain: float) -> Array:
    """Return λ_k `[K]` for multipliers that are larger by `gain` times the current shortfall of each share.

    The integral needs time, in which a policy may move far beyond a bound and must then return.
    """
    shortfall = gain * jnp.maximum(target - share[: len(target)], 0.0)
    return lam.at[: len(target)].divide(1.0 + shortfall * lam[: len(target)])  # 1 / (1 / λ + shortfall)


def target_shortfall(learner: ActorCritic, state: Any) -> Array:
    """Return the part `[P]` of each target share that recent checks did not reach, from 0 to 1."""
    target = learner.controller.target_share(learner.generations_done(state))
    return jnp.maximum(1.0 - state.history.share[: len(target)] / jnp.maximum(target, 1e-6), 0.0)


# ---- λ in the objective ---------------------------------------------------------------------------------------


def split_weights(lam: Array) -> tuple[Array, Array]:
    """Return λ `[]` and the weights `[K]` of the costs, which sum to 1, from λ_k `[K]`."""
    # The weakest constraint decides; the costs share the rest in proportion to 1 - λ_k.
    return jnp.min(lam, initial=1.0), (1.0 - lam) / jnp.maximum(jnp.sum(1.0 - lam), 1e-9)


def by_cost(task: LearningTask, lam: Array) -> Array:
    """Return the λ_k of the constraint that each cost of a step belongs to, `[J + M]`, from λ_k `[K]`."""
    return lam[jnp.asarray(task.cost_owners, jnp.int32)]


def combine_advantages(lam: Array, gain: Array, costs: Array) -> tuple[Array, Array]:
    """Return λ `[]` and λ gain - (1 - λ) cost `[N]`, from gains `[N]`, costs `[K, N]` and λ_k `[K]`."""
    smallest, weight = split_weights(lam)
    return smallest, smallest * gain - (1.0 - smallest) * (weight @ costs) if len(lam) else gain


def floor_lambda(lam: Array, cost: Array) -> Array:
    """Return λ_k `[K]`, raised to `MIN_LAMBDA_WITHOUT_SIGNAL` where all costs `[N, K]` of a constraint are equal.

    Such a constraint gives no direction. If λ fell, nothing would be left to learn from, and costs would never differ.
    """
    # Separated from other uses of the costs, or the compiler would round those differently.
    cost = jax.lax.optimization_barrier(cost)
    return jnp.where(gives_no_signal(cost), jnp.maximum(lam, MIN_LAMBDA_WITHOUT_SIGNAL), lam)


def gives_no_signal(cost: Array) -> Array:
    """Return whether all episodes fail a constraint `[K]` with equal cost `[N, K]`."""
    return jnp.all((cost == cost[0]) & (cost > 0.0), axis=0)
