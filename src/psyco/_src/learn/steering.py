"""How λ is found from what the policy shows that would be deployed; shared by all learners but the paper's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
from jax import Array

from psyco._src.errors import RunError
from psyco._src.learn import belief as beliefs
from psyco._src.learn.belief import Belief, single_precision
from psyco._src.learn.calibration import Evidence, soft
from psyco._src.learn.curriculum import risen

CONTROLS = ("integral", "soft")


@dataclass(frozen=True)
class Steering:
    """A belief that fades, and λ as the integral of how far the satisfied share exceeds its target.

    Args:
        p_req: required probability of each demand.
        c_req: required confidence of each demand.
        generations: how many there will be.
        margin: aim above the requirement, by this part of what is left up to 1.
        curriculum: the demand rises from nothing to its full size over this part of learning.
        gain: how fast the integral moves per generation.
        memory: how many generations the belief remembers.
        control: how λ is found. "integral", or "soft": the paper's rule on this belief.
    """

    p_req: tuple[float, ...]
    c_req: tuple[float, ...]
    generations: int
    margin: float
    curriculum: float
    gain: float
    memory: float
    control: str = "integral"

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
        nothing = jnp.zeros(len(self.p_req), jnp.float32)
        return Belief(nothing, nothing), nothing + 1.0

    def steer(
        self, belief: Belief, lam: Array, generation: Array, shown: Array
    ) -> tuple[Belief, Array, Array]:
        """From what the policy showed, `[checks, K]`: the new belief, c_sat `[K]` and λ of each demand `[K]`."""
        with single_precision():
            goal = self.demand(generation)  # [K]
            belief = _fade(belief, shown, keep=1.0 - 1.0 / self.memory)
        c_sat = beliefs.confidence(belief, jnp.asarray(self.p_req, jnp.float64))
        c_goal = beliefs.confidence(belief, goal.astype(jnp.float64)) if self.control == "soft" else c_sat
        with single_precision():
            share = jnp.mean(shown, axis=0, dtype=jnp.float32)
            if self.control == "soft":
                c_req = jnp.asarray(self.c_req, jnp.float32)
                return belief, c_sat, soft(Evidence(c_goal, c_req, goal, share, share))
            return belief, c_sat, jnp.clip(lam + self.gain * (share - goal), 0.0, 1.0)

    def demand(self, generation: Array) -> Array:
        """The share `[K]` to reach now: what is required and the margin, once the curriculum is over."""
        p_req = jnp.asarray(self.p_req, jnp.float32)
        goal = p_req + self.margin * (1.0 - p_req)
        return goal * risen(generation, self.generations, self.curriculum)


class Steered:
    """What the learners share that steer by episodes of their deployed policy; the fields are theirs."""

    p_req: tuple[float, ...]
    c_req: tuple[float, ...]
    budget: int
    population: int
    checks: int
    margin: float
    curriculum: float
    gain: float
    memory: float
    control: str = "integral"

    @property
    def episodes_per_generation(self) -> int:
        """Those that try something, and the checks."""
        return self.population + self.checks

    @property
    def generations(self) -> int:
        """How many the budget allows."""
        return -(-self.budget // self.episodes_per_generation)

    @cached_property
    def steering(self) -> Steering:
        """How belief and λ follow the checks."""
        return Steering(
            self.p_req, self.c_req, self.generations, self.margin, self.curriculum, self.gain, self.memory, self.control
        )  # fmt: skip


def shares(each: Array) -> tuple[Array, Array]:
    """λ and the weights `[K]` of the costs, from λ of each demand `[K]`."""
    lam = jnp.min(each, initial=1.0)  # the weakest demand decides
    # The costs share what is left by how much each demand asks for it.
    return lam, (1.0 - each) / jnp.maximum(jnp.sum(1.0 - each), 1e-9)


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


def _fade(belief: Belief, satisfied: Array, *, keep: float) -> Belief:
    """Old counts fade by `keep`, new ones `[B, K]` are added."""
    hits = jnp.sum(satisfied, axis=0, dtype=jnp.float32)
    return Belief(keep * belief.satisfied + hits, keep * belief.violated + len(satisfied) - hits)
