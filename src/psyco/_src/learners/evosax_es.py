"""Strategies of evosax (CMA-ES, separable NES, PGPE, ...) in the place of our own search, steered as in safe-es."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from psyco._src.core.errors import RunError, suggest
from psyco._src.learners import es
from psyco._src.learners.base import Proposal, UpdateInfo
from psyco._src.learners.belief import Belief, single_precision
from psyco._src.learners.expectation_constraints import ExpectationBound, costs
from psyco._src.learners.lagrangian import LagrangianLearner, blend, default_gain, heard, sizes
from psyco._src.learners.schedules import nothing_spent, steps_of
from psyco._src.learners.search_space import STEERED, NumberRange, OptionChoice, Ranges
from psyco._src.rollout.episodes import Episodes

# Those with a mean that can be deployed and a spread that can be set; evosax's own names.
STRATEGIES = ("CMA_ES", "Sep_CMA_ES", "SNES", "PGPE")


class EvosaxState(NamedTuple):
    """A strategy's state, and what is believed about its mean."""

    strategy: Any  # of evosax
    belief: Belief
    lam: Array  # [K]
    generation: Array  # [] int32
    steps: Array  # [] int32, taken so far


@dataclass(frozen=True)
class EvosaxES(LagrangianLearner):
    """A strategy of evosax. The options that it shares with `SafeES` mean the same.

    Args:
        p_req: required probability of each demand for one.
        c_req: required confidence of each demand, of probabilities first.
        means: the demands for means.
        budget: training episodes of the whole run.
        steps: of the whole run, where they are its budget; 0: the episodes are.
        strategy: "CMA_ES", "Sep_CMA_ES", "SNES" (separable natural evolution strategies) or "PGPE".
        population: offspring per generation, for PGPE in pairs; 0: as `SafeES` chooses.
        checks: episodes of the mean policy in each generation; 0: as `SafeES` chooses.
        sigma: initial spread of the search.
        margin: aim above the requirement, by this part of what is left up to 1.
        curriculum: the demand rises from nothing to its full size over this part of learning.
        gain: how fast λ moves per generation; 0: as `SafeES` chooses.
        memory: how many generations the belief remembers.
        sign: 1 to maximise the return, -1 to minimise it.
    """

    p_req: tuple[float, ...]
    c_req: tuple[float, ...]
    means: tuple[ExpectationBound, ...] = ()
    budget: int = 60_000
    steps: int = 0
    strategy: str = "PGPE"
    population: int = 0
    checks: int = 0
    sigma: float = 0.1
    margin: float = 0.3
    curriculum: float = 0.5
    gain: float = 0.0
    memory: float = 100.0
    sign: float = 1.0

    ranges: ClassVar[Ranges] = {
        "strategy": OptionChoice("Sep_CMA_ES", "SNES", "PGPE"),  # full CMA-ES takes long on networks
        "population": OptionChoice(10, 20, 40, 80, 160),
        "sigma": NumberRange(0.02, 0.5, log=True),
        **STEERED,
    }

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise RunError(
                f"unknown strategy {self.strategy!r}{suggest(self.strategy, list(STRATEGIES))}; "
                f"there are: {', '.join(STRATEGIES)}"
            )
        try:
            import evosax.algorithms  # noqa: F401
        except ImportError:
            raise RunError('this learner needs evosax: pip install "psyco[evosax]"') from None
        population, checks = sizes(self.budget, self.population, self.checks)
        object.__setattr__(self, "population", population)
        object.__setattr__(self, "checks", checks)
        if self.population < 2 or (self.strategy == "PGPE" and self.population % 2):
            raise RunError(
                f"population must be at least 2, and even where offspring come in pairs, got {self.population}"
            )
        if not self.sigma > 0:
            raise RunError(f"sigma must be positive, got {self.sigma}")
        object.__setattr__(self, "gain", self.gain or default_gain(self.generations))
        _ = self.steering  # checks the options that are its own

    def init(self, theta: Array) -> EvosaxState:
        """Start around parameters `[D]`."""
        theta = jnp.asarray(theta, jnp.float32)
        strategy, params = self._strategy(theta.size)
        # The key only seeds what the first `ask` replaces.
        start = strategy.init(jax.random.key(0), theta, params)
        return EvosaxState(start, *self.steering.init(), *nothing_spent())

    def propose(self, key: Array, state: EvosaxState) -> Proposal:
        """Offspring, then the mean itself; every row plays an episode of its own."""
        ask_key, tell_key = jax.random.split(key)
        mean = state.strategy.mean
        strategy, params = self._strategy(mean.size)
        offspring, asked = strategy.ask(ask_key, state.strategy, params)
        mean = jnp.broadcast_to(mean, (self.checks, mean.size))
        return Proposal(jnp.concatenate([offspring, mean]), (asked, tell_key))

    def update(
        self, state: EvosaxState, proposal: Proposal, episodes: Episodes
    ) -> tuple[EvosaxState, UpdateInfo]:
        """Steer as safe-es does, and tell the strategy the scores; evosax minimises."""
        belief, c_sat, each = self.steer(state, episodes)
        with single_precision():
            gain = es.normalize(self.sign * episodes.ret[: self.population])
            paid = costs(self.means, episodes)[: self.population]
            shaped = jax.vmap(es.normalize, in_axes=1)(paid)
            each = heard(each, paid)
            lam, score = blend(each, gain, shaped)
            asked, key = proposal.memo
            strategy, params = self._strategy(proposal.theta.shape[1])
            told, _ = strategy.tell(key, proposal.theta[: self.population], -score, asked, params)
            spent = state.generation + 1, state.steps + steps_of(episodes)
            return EvosaxState(told, belief, each, *spent), UpdateInfo(lam, c_sat)

    def deployed(self, state: EvosaxState) -> Array:
        """The mean of the search distribution."""
        return jnp.asarray(state.strategy.mean)

    def _strategy(self, size: int) -> tuple[Any, Any]:
        import evosax.algorithms

        strategy = getattr(evosax.algorithms, self.strategy)(self.population, jnp.zeros(size, jnp.float32))
        return strategy, strategy.default_params.replace(std_init=jnp.float32(self.sigma))
