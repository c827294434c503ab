"""How λ is found from what the policy shows that would be deployed; shared by all learners but the paper's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from psyco._src.core.errors import RunError
from psyco._src.learners import belief as beliefs
from psyco._src.learners.belief import Belief, single_precision, spread
from psyco._src.learners.curriculum import risen
from psyco._src.learners.expectation_constraints import ExpectationBound, allowed, costs, excess
from psyco._src.learners.lambda_rules import Evidence, soft
from psyco._src.learners.schedules import LearningBudget, steps_of
from psyco._src.rollout.episodes import Episodes

CONTROLS = ("integral", "soft")
FLOOR = 0.5  # of λ, while a demand tells no episode from another
CLEAR = 5.0  # violations that a demand would have allowed for: without any it is met, and more than that
RECENT = 10  # generations over which costs are compared
NOW = 5  # generations over which it is seen how well demands are met
LESS = 0.05  # of what they were: by so much costs must have come down to count as falling
FAR = 0.5  # of the demanded share, below which a demand is far from being met
MANY = 20  # episodes that cost the same, after which a demand is silent


class ConstraintHistory(NamedTuple):
    """How the demands have fared of late."""

    streak: Array  # [P] episodes in a row that have met each
    paid: Array  # [K] what episodes cost, over recent generations
    alike: Array  # [K] episodes in a row that have all failed each to the same extent
    share: Array  # [K] of the checks that have met each, over the last few generations
    early: Array  # [] bool, whether an episode has ever ended before the horizon


@dataclass(frozen=True)
class Lagrangian:
    """A belief that fades, and λ as the integral of how far each demand exceeds its target.

    A probability does so by its satisfied share, and a mean by what is left up to what is allowed, as a part of two
    spreads: no narrower range has such a spread, and the range of a share is 1. So gain and margin mean the same for
    both, also for rare costs and wide ranges.

    Args:
        p_req: required probability of each demand for one.
        c_req: required confidence of each demand, of probabilities first.
        generations: how many there will be, or are expected.
        margin: aim above the requirement, by this part of what is left up to 1; of means, see `allowed`.
        curriculum: the demand rises from nothing to its full size over this part of learning.
        gain: how fast the integral moves per generation.
        memory: how many generations the belief remembers.
        control: how λ is found. "integral", or "soft": the paper's rule on this belief.
        means: the demands for means.
    """

    p_req: tuple[float, ...]
    c_req: tuple[float, ...]
    generations: int
    margin: float
    curriculum: float
    gain: float
    memory: float
    control: str = "integral"
    means: tuple[ExpectationBound, ...] = ()

    def __post_init__(self) -> None:
        if not self.gain > 0:
            raise RunError(f"gain must be positive, got {self.gain}")
        if not self.memory >= 1:
            raise RunError(f"memory must be at least 1 generation, got {self.memory}")
        for name in ("margin", "curriculum"):
            if not 0 <= getattr(self, name) < 1:
                raise RunError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")
        if self.control not in CONTROLS:
            raise RunError(f"control must be one of {', '.join(CONTROLS)}, got {self.control!r}")

    def init(self) -> tuple[Belief, Array]:
        """Nothing believed yet, and all weight on return: λ of each demand `[K]`."""
        belief = beliefs.prior(len(self.p_req), len(self.means), jnp.float32)
        return belief, jnp.ones(len(self.c_req), jnp.float32)

    def steer(self, belief: Belief, lam: Array, done: Array, checks: Episodes) -> tuple[Belief, Array, Array]:
        """From episodes of the policy: the new belief, c_sat `[K]` and λ of each demand `[K]`.

        `done` is how many of the generations are, which may be a number in between.
        """
        with single_precision():
            beyond = excess(self.means, checks)
            faded = beliefs.fade(belief, keep=1.0 - 1.0 / self.memory)
            belief = beliefs.observe(faded, checks.satisfied, beyond)
            goal, most = self.demand(done), self.allowed(belief, done)
        c_sat = beliefs.confidence(belief, jnp.asarray(self.p_req, jnp.float64))
        if self.control == "soft":
            c_sat_now = beliefs.confidence(belief, goal.astype(jnp.float64), most)
        with single_precision():
            share = jnp.mean(checks.satisfied, axis=0, dtype=jnp.float32)
            if self.control == "soft":
                c_req = jnp.asarray(self.c_req, jnp.float32)
                return belief, c_sat, soft(Evidence(c_sat_now, c_req, goal, share, share))
            ahead = share - goal
            if beyond is not None and belief.means is not None:
                left = (most - beyond.mean(axis=0)) / (2.0 * spread(belief.means))
                ahead = jnp.concatenate([ahead, left])
            return belief, c_sat, jnp.clip(lam + self.gain * ahead, 0.0, 1.0)

    def demand(self, done: Array) -> Array:
        """The share `[P]` to reach now: what is required and the margin, once the curriculum is over."""
        p_req = jnp.asarray(self.p_req, jnp.float32)
        goal = p_req + self.margin * (1.0 - p_req)
        return goal * risen(done, self.generations, self.curriculum)

    def allowed(self, belief: Belief, done: Array) -> Array | float:
        """The mean excess `[M]` to reach now, likewise; 0 if there is no demand for a mean."""
        if belief.means is None:
            return 0.0
        part = risen(done, self.generations, self.curriculum)
        return allowed(self.means, belief.means, part, self.margin)


class LagrangianLearner:
    """What the learners share that steer by episodes of their deployed policy; the fields are theirs."""

    p_req: tuple[float, ...]
    c_req: tuple[float, ...]
    budget: int
    steps: int
    population: int
    checks: int
    horizon: int
    margin: float
    curriculum: float
    gain: float
    memory: float
    control: str = "integral"
    relief: float = 0.0
    press: float = 0.0
    least: float = 0.0
    means: tuple[ExpectationBound, ...] = ()

    @property
    def episodes_per_generation(self) -> int:
        """Those that try something, and the checks."""
        return self.population + self.checks

    @property
    def generations(self) -> int:
        """How many the budget allows, or is expected to."""
        return -(-self.budget // self.episodes_per_generation)

    def done(self, state: Any) -> Array:
        """How many of the generations are done; where the budget is in steps, by their part, in between."""
        return LearningBudget(self.generations, self.steps).done(state.generation, state.steps)

    def part(self, state: Any) -> Array:
        """The part of learning that is done, 0 to 1; every schedule follows it."""
        return LearningBudget(self.generations, self.steps).part(state.generation, state.steps)

    @cached_property
    def steering(self) -> Lagrangian:
        """How belief and λ follow the checks."""
        for name in ("relief", "press"):
            if not getattr(self, name) >= 0:
                raise RunError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.least < 1:
            raise RunError(f"least must be at least 0 and below 1, got {self.least}")
        return Lagrangian(
            self.p_req, self.c_req, self.generations, self.margin, self.curriculum, self.gain, self.memory,
            self.control, self.means,
        )  # fmt: skip

    def steer(self, state: Any, episodes: Episodes) -> tuple[Belief, Array, Array]:
        """The new belief, c_sat `[K]` and λ of each demand `[K]`, from the checks among a generation's episodes."""
        checks = jax.tree.map(lambda column: column[self.population :], episodes._replace(trace=None))
        belief, c_sat, each = self.steering.steer(state.belief, state.lam, self.done(state), checks)
        if self.steps:  # generations differ in length, and λ moves by what was learned from
            with single_precision():
                share = steps_of(episodes) * (self.generations / self.steps)
                each = state.lam + jnp.minimum(share, 1.0) * (each - state.lam)
        return belief, c_sat, each

    def begin(self) -> ConstraintHistory:
        """Before the first generation."""
        count, none = len(self.p_req), jnp.zeros(len(self.c_req), jnp.float32)
        return ConstraintHistory(jnp.zeros(count, jnp.float32), none, none, none + 1.0, jnp.array(False))

    def lacking(self, course: ConstraintHistory, done: Array) -> Array:
        """The part `[P]` of each demanded share that recent checks did not reach, from 0 to 1."""
        goal = self.steering.demand(done)
        return jnp.maximum(1.0 - course.share[: len(self.p_req)] / jnp.maximum(goal, 1e-6), 0.0)

    def relieve(self, state: Any, episodes: Episodes, each: Array) -> tuple[ConstraintHistory, Array, Array]:
        """How the demands fare after another generation, λ of each `[K]`, and λ as it is felt in learning `[K]`.

        What is asked for is close to 1, and an episode meets it or not, so the integral falls fast, goes on falling
        while a policy is on its way to meet the demand, and rises slowly: little would be left for the return. So it

        - does not fall while costs do and the demand is far from being met, in less than half as many of the recent
          checks as it should be;
        - rises by `relief` while no episode, exploring ones included, violates it, for so long that five violations
          would have been allowed.

        Neither happens where nearly as many episodes as asked for meet a demand, so λ rests where it would else.

        An integral takes its time, in which a policy may go far beyond a bound and must then find back. So learning
        feels at once what is missing: a λ that is lower by `press` times the part of the demand that is not met.

        Neither falls below `least` where episodes may end before their time: with nothing but cost to learn from, the
        best one would be one that ends at once.
        """
        with single_precision():
            paid = costs(self.means, episodes).astype(jnp.float32)  # [B, K]
            met = jnp.concatenate(
                [jnp.asarray(episodes.satisfied), paid[:, len(self.p_req) :] <= 0.0], axis=1
            )
            now = jnp.mean(paid, axis=0)
            before = jnp.where(state.generation == 0, now, state.course.paid)
            goal = self.steering.demand(self.done(state))
            wanted = jnp.concatenate([goal, jnp.ones(len(self.means), jnp.float32)])
            shown = jnp.mean(met[self.population :], axis=0, dtype=jnp.float32)
            recent = state.course.share + (shown - state.course.share) / NOW
            far = recent < FAR * wanted
            falling = far & (before - now > LESS * jnp.abs(before))
            each = jnp.where(falling & (self.relief > 0), jnp.maximum(each, state.lam), each)

            all_met = jnp.all(met, axis=0)[: len(self.p_req)]
            streak = jnp.where(all_met, state.course.streak + self.episodes_per_generation, 0.0)
            allowed_for = streak * (1.0 - goal)
            share = steps_of(episodes) * (self.generations / self.steps) if self.steps else 1.0
            rise = self.gain * self.relief * jnp.minimum(share, 1.0) * (allowed_for >= CLEAR)
            each = jnp.clip(each.at[: len(self.p_req)].add(rise), 0.0, 1.0)

            missing = self.press * jnp.maximum(goal - recent[: len(self.p_req)], 0.0)
            felt = jnp.maximum(each.at[: len(self.p_req)].add(-missing), 0.0)

            # A demand that tells no episode from another must not silence the return, whatever is missing to it.
            alike = jnp.where(silent(paid), state.course.alike + self.episodes_per_generation, 0.0)
            early = state.course.early | jnp.any(jnp.asarray(episodes.length) < self.horizon)
            floor = jnp.maximum(jnp.where(alike >= MANY, FLOOR, 0.0), jnp.where(early, self.least, 0.0))
            each, felt = jnp.maximum(each, floor), jnp.maximum(felt, floor)
            return (
                ConstraintHistory(streak, before + (now - before) / RECENT, alike, recent, early),
                each,
                felt,
            )


def shares(each: Array) -> tuple[Array, Array]:
    """λ and the weights `[K]` of the costs, from λ of each demand `[K]`."""
    lam = jnp.min(each, initial=1.0)  # the weakest demand decides
    # The costs share what is left by how much each demand asks for it.
    return lam, (1.0 - each) / jnp.maximum(jnp.sum(1.0 - each), 1e-9)


def heard(each: Array, paid: Array) -> Array:
    """λ of each demand `[K]`, held up where all episodes fail it alike, by what each has paid `[N, K]`.

    Such a demand says nothing about what to do otherwise. Were λ to fall all the same, nothing would be left to learn
    from, and no episode would ever come to differ.
    """
    # Apart from all else that is made of the costs, or the compiler would round that differently.
    paid = jax.lax.optimization_barrier(paid)
    return jnp.where(silent(paid), jnp.maximum(each, FLOOR), each)


def silent(paid: Array) -> Array:
    """Whether episodes that pay `[N, K]` all fail a demand to the same extent, `[K]`."""
    return jnp.all((paid == paid[0]) & (paid > 0.0), axis=0)


def blend(each: Array, gain: Array, costs: Array) -> tuple[Array, Array]:
    """λ and the scores `[N]` of gains `[N]` against costs `[K, N]`, from λ of each demand `[K]`."""
    lam, weight = shares(each)
    return lam, lam * gain - (1.0 - lam) * (weight @ costs) if len(each) else gain


def sizes(budget: int, population: int, checks: int) -> tuple[int, int]:
    """Population and checks, where they are 0 by the budget: about 2700 generations with 20 to 200 offspring."""
    population = population or 2 * min(max(budget // 6000, 10), 100)
    checks = checks or max(2, population // 10)
    if checks < 1:
        raise RunError(f"checks must be at least 1, got {checks}: the belief needs episodes")
    return population, checks


def default_gain(generations: int) -> float:
    """λ must be able to cross its range several times, also where there are few generations."""
    return max(0.01, 10.0 / max(generations, 1))
