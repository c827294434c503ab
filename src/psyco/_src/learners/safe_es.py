"""Safe evolution strategy: the belief is about the policy that will be deployed, and λ steers it to the requirement.

What it does otherwise than Alg. SNES, each for a reason that the ablation in `docs/learners.md` shows:

- each generation plays a few episodes of the mean of the search distribution. They alone feed the belief and λ, for
  offspring are perturbed and violate more often than the policy that is handed over;
- the belief forgets, so that it follows a policy that moves;
- λ is the integral of how far the satisfied share exceeds its target, so it settles where the target is met;
- the demand rises over the first part of learning. A policy that first learns to be safe learns to stay away, and
  does not find back; one that first learns its task then learns to do it safely;
- offspring come in mirrored pairs that play the same episode, and Adam with a decaying rate follows their differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from psyco._src.core.errors import RunError
from psyco._src.learners import es
from psyco._src.learners.base import Proposal, UpdateInfo
from psyco._src.learners.belief import Belief, single_precision
from psyco._src.learners.expectation_constraints import ExpectationBound, costs
from psyco._src.learners.lagrangian import LagrangianLearner, blend, default_gain, heard, sizes
from psyco._src.learners.schedules import cosine, nothing_spent, steps_of
from psyco._src.learners.search_space import STEERED, NumberRange, OptionChoice, Ranges
from psyco._src.rollout.episodes import Episodes

OPTIMIZERS = ("adam", "sgd")
SHAPINGS = ("pair", "population")


class SafeESState(NamedTuple):
    """The mean of the search distribution, and what is believed about it."""

    theta: Array  # [D]
    optimizer: Any  # of optax
    belief: Belief  # counts that fade, float32
    lam: Array  # [K] weight of return as each demand would have it
    generation: Array  # [] int32
    steps: Array  # [] int32, taken so far


@dataclass(frozen=True)
class SafeES(LagrangianLearner):
    """The learner to use unless there is a reason for another.

    Args:
        p_req: required probability of each demand for one.
        c_req: required confidence of each demand, of probabilities first.
        means: the demands for means.
        budget: training episodes of the whole run; rate and demand follow schedules over them.
        steps: of the whole run, where they are its budget; 0: the episodes are.
        population: offspring per generation, in mirrored pairs; 0: what gives about 2700 generations, from 20 to 200.
        checks: episodes of the mean policy in each generation, which feed belief and λ; 0: a tenth of the population.
        alpha: learning rate at the beginning; it falls to 0 along a cosine.
        sigma: perturbation rate σ.
        optimizer: "adam", or "sgd" with momentum.
        shaping: what is normalized. "pair": the differences within pairs, which the episode's luck does not enter;
            "population": return and cost of all offspring, as in the paper.
        mirrored: whether offspring come in pairs that play the same episode; without, each is on its own.
        margin: aim above the requirement, by this part of what is left up to 1, so that it can be certified.
        curriculum: the demand rises from nothing to its full size over this part of learning; 0: full at once.
        control: how λ is found. "integral", or "soft": the paper's rule on the belief about the mean policy.
        gain: how fast the integral moves per generation; 0: by 0.01, and faster where there are few generations.
        memory: how many generations the belief remembers.
        sign: 1 to maximise the return, -1 to minimise it.
    """

    p_req: tuple[float, ...]
    c_req: tuple[float, ...]
    means: tuple[ExpectationBound, ...] = ()
    budget: int = 60_000
    steps: int = 0
    population: int = 0
    checks: int = 0
    alpha: float = 0.03
    sigma: float = 0.1
    optimizer: str = "adam"
    shaping: str = "pair"
    mirrored: bool = True
    margin: float = 0.3
    curriculum: float = 0.5
    control: str = "integral"
    gain: float = 0.0
    memory: float = 100.0
    sign: float = 1.0

    ranges: ClassVar[Ranges] = {
        "population": OptionChoice(10, 20, 40, 80, 160),
        "alpha": NumberRange(0.003, 0.3, log=True),
        "sigma": NumberRange(0.02, 0.5, log=True),
        "shaping": OptionChoice(*SHAPINGS),
        **STEERED,
    }

    def __post_init__(self) -> None:
        # Resolved at once, so that a run's configuration shows the numbers and a longer run keeps them.
        population, checks = sizes(self.budget, self.population, self.checks)
        object.__setattr__(self, "population", population)
        object.__setattr__(self, "checks", checks)
        if self.population < 2 or (self.mirrored and self.population % 2):
            raise RunError(
                f"population must be at least 2, and even where offspring come in pairs, got {self.population}"
            )
        object.__setattr__(self, "gain", self.gain or default_gain(self.generations))
        for name in ("alpha", "sigma"):
            if not getattr(self, name) > 0:
                raise RunError(f"{name} must be positive, got {getattr(self, name)}")
        _ = self.steering  # checks the options that are its own
        for name, known in (("optimizer", OPTIMIZERS), ("shaping", SHAPINGS)):
            if getattr(self, name) not in known:
                raise RunError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.shaping == "pair" and not self.mirrored:
            raise RunError(
                "without mirrored pairs there are no differences to shape: use shaping='population'"
            )

    def init(self, theta: Array) -> SafeESState:
        """All weight on return, nothing believed yet."""
        theta = jnp.asarray(theta, jnp.float32)
        return SafeESState(theta, self._transform().init(theta), *self.steering.init(), *nothing_spent())

    def propose(self, key: Array, state: SafeESState) -> Proposal:
        """Offspring, then the mean policy itself."""
        drawn = self.population // 2 if self.mirrored else self.population
        # Rows of one array with a sign each: joining offspring, their mirror images and the mean is much slower.
        row = np.arange(self.episodes_per_generation) % drawn
        sign = np.ones(self.episodes_per_generation, np.float32)
        sign[drawn : self.population] = -1.0
        sign[self.population :] = 0.0
        noise = sign[:, None] * es.unit_noise(key, (drawn, state.theta.size))[row]
        episode = np.where(sign == 0.0, np.arange(self.episodes_per_generation), row)
        return Proposal(
            state.theta + self.sigma * noise, noise[: self.population], jnp.asarray(episode, jnp.int32)
        )

    def update(
        self, state: SafeESState, proposal: Proposal, episodes: Episodes
    ) -> tuple[SafeESState, UpdateInfo]:
        """Believe what the mean policy showed, weigh return against cost, move by what the offspring showed."""
        belief, c_sat, each = self.steer(state, episodes)
        with single_precision():
            gain = self._shaped(self.sign * episodes.ret[: self.population])
            paid = costs(self.means, episodes)[: self.population]
            shaped = jax.vmap(self._shaped, in_axes=1)(paid)
            each = heard(each, paid)
            lam, score = blend(each, gain, shaped)
            ascent = score @ proposal.memo / (self.sigma * self.population)
            step, optimizer = self._transform().update(-ascent, state.optimizer)
            rate = -self.alpha * cosine(self.done(state), self.generations)
            theta = state.theta + rate * step
            spent = state.generation + 1, state.steps + steps_of(episodes)
            return SafeESState(theta, optimizer, belief, each, *spent), UpdateInfo(lam, c_sat)

    def deployed(self, state: SafeESState) -> Array:
        """The mean of the search distribution."""
        return state.theta

    def _shaped(self, x: Array) -> Array:
        """What each offspring's value `[population]` says about its direction."""
        if self.shaping == "population":
            return es.normalize(x)
        pairs = self.population // 2
        difference = x[:pairs] - x[pairs:]
        size = jnp.sqrt(jnp.mean(difference**2))
        half = jnp.where(size > 0, difference / jnp.where(size > 0, size, 1.0), 0.0)
        return jnp.concatenate([half, -half])

    def _transform(self) -> optax.GradientTransformation:
        """The direction of a step; its size is a rate that follows the part of learning that is done."""
        return optax.scale_by_adam() if self.optimizer == "adam" else optax.trace(0.9)
