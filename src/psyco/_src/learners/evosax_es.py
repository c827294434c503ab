"""Strategies of evosax (CMA-ES, separable NES, PGPE, ...) with the belief and the λ of safe-es."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from psyco._src.core.errors import RunError
from psyco._src.core.options import OptionChoice, option
from psyco._src.learners import es
from psyco._src.learners.base import Proposal, UpdateInfo, count_steps, zero_counters
from psyco._src.learners.belief import Belief, single_precision
from psyco._src.learners.safe_es import POPULATION_SEARCH, SIGMA_SEARCH, LagrangianSearch
from psyco._src.rollout.episodes import Episodes

# Strategies with a mean that can be deployed and an initial spread; the names are evosax's.
STRATEGIES = ("CMA_ES", "Sep_CMA_ES", "SNES", "PGPE")


class EvosaxState(NamedTuple):
    """The state of a strategy, the belief about its mean, and λ."""

    strategy: Any  # of evosax
    belief: Belief
    lam: Array  # [K] λ_k
    generation: Array  # [] int32
    steps: Array  # [] int32, taken so far


@dataclass(frozen=True, kw_only=True)
class EvosaxES(LagrangianSearch):
    """A strategy of evosax, with the belief and the λ of `SafeES`."""

    strategy: str = option(
        "PGPE",
        "CMA_ES, Sep_CMA_ES, SNES (separable natural evolution strategies) or PGPE.",
        choices=STRATEGIES,
        search=OptionChoice("Sep_CMA_ES", "SNES", "PGPE"),  # full CMA-ES is slow for networks
    )
    population: int = option(
        None,
        "Offspring per generation, for PGPE in pairs. Default: from 20 to 200, for about 2700 generations.",
        kind=int,
        minimum=2,
        search=POPULATION_SEARCH,
    )
    sigma: float = option(0.1, "Initial spread of the search.", above=0.0, search=SIGMA_SEARCH)

    def _check_options(self) -> None:
        try:
            import evosax.algorithms  # noqa: F401
        except ImportError:
            raise RunError('this learner needs evosax: pip install "psyco[evosax]"') from None
        self._check_pairs(self.strategy == "PGPE")

    def init(self, theta: Array) -> EvosaxState:
        """Start around parameters `[D]`."""
        theta = jnp.asarray(theta, jnp.float32)
        strategy, params = self._strategy(theta.size)
        # The key only seeds values that the first `ask` replaces.
        start = strategy.init(jax.random.key(0), theta, params)
        return EvosaxState(start, *self.controller.init(), *zero_counters())

    def propose(self, key: Array, state: EvosaxState) -> Proposal:
        """Return offspring, then the mean itself; each row has its own episode seed."""
        ask_key, tell_key = jax.random.split(key)
        mean = state.strategy.mean
        strategy, params = self._strategy(mean.size)
        offspring, asked = strategy.ask(ask_key, state.strategy, params)
        mean = jnp.broadcast_to(mean, (self.checks, mean.size))
        return Proposal(jnp.concatenate([offspring, mean]), (asked, tell_key))

    def update(self, state: EvosaxState, proposal: Proposal, episodes: Episodes) -> tuple[EvosaxState, UpdateInfo]:
        """Update belief and λ by the checks, and give the strategy the negative scores: evosax minimises."""
        belief, c_sat, lam_k = self.update_lambda(state, episodes)
        with single_precision():
            lam_k, lam, score = self.scores(belief, lam_k, episodes, es.normalize)
            asked, key = proposal.memo
            strategy, params = self._strategy(proposal.theta.shape[1])
            moved, _ = strategy.tell(key, proposal.theta[: self.population], -score, asked, params)
            counters = state.generation + 1, state.steps + count_steps(episodes)
            return EvosaxState(moved, belief, lam_k, *counters), UpdateInfo(lam, c_sat)

    def deployed(self, state: EvosaxState) -> Array:
        """Return the mean of the search distribution."""
        return jnp.asarray(state.strategy.mean)

    def _strategy(self, size: int) -> tuple[Any, Any]:
        import evosax.algorithms

        strategy = getattr(evosax.algorithms, self.strategy)(self.population, jnp.zeros(size, jnp.float32))
        return strategy, strategy.default_params.replace(std_init=jnp.float32(self.sigma))
