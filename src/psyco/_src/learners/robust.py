"""Learning for a family of environments, around any other learner: more episodes where the constraints fail.

The members of a family are divided into cells of equal probability, along one parameter after the other. The state
holds the share of recent episodes in each cell that satisfied all constraints. In each generation the cells are ranked
by a draw from the belief about that share, so that cells with few episodes, or with equal shares, change their places.
Most episodes then take place in the lowest cells, the others in all cells alike.

`cvar:α` ranks the mean over the worst part α of the environments (Rockafellar and Uryasev 2000; Rajeswaran et al. 2017
for families), `worst` the lowest cell. λ follows the same episodes, so it keeps the constraints in these cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.base import Domain
from psyco._src.envs.family import values_of_members
from psyco._src.envs.variants import MEAN, is_family
from psyco._src.learners.base import LearnerAround, LearnerState, Proposal, UpdateInfo
from psyco._src.learners.belief import single_precision
from psyco._src.logic.ast import Requirement
from psyco._src.rollout.episodes import Episodes

CELLS = 16
POOL = 4096  # members that stand for the family
UNIFORM_SHARE = 0.25  # of the episodes, over all cells alike
MEMORY = 1024  # recent episodes in the shares of the cells
MEMORY_SHARE = 0.05  # of all training episodes, if these are fewer


def check_robust(robust: str, domain: Domain, requirement: Requirement) -> None:
    """Raise RunError for a domain or a requirement whose environments cannot be ranked."""
    if robust == MEAN:
        return
    if not is_family(domain):
        raise RunError(
            f"--robust {robust} needs a family, and {domain.name} is a single environment: let parameters vary, "
            "--vary max_speed=0.08..0.12"
        )
    if not requirement.probability_bounds:
        raise RunError(
            f"--robust {robust} ranks environments by how often they satisfy the constraints, and there is no "
            "constraint on a probability, P>=p [ ... ]"
        )


class RobustState(NamedTuple):
    """A learner's state, and recent outcomes by cell."""

    inner: LearnerState
    members: Array  # [CELLS, POOL / CELLS] uint32, numbers of the members in each cell
    satisfied: Array  # [CELLS] recent episodes that satisfied all constraints, which fade
    played: Array  # [CELLS] recent episodes, which fade


class _Memo(NamedTuple):
    inner: Any  # that of the inner learner
    cell: Array  # [B] of each episode


@dataclass(frozen=True)
class RobustLearner(LearnerAround):
    """The learner `inner`, whose episodes take place in chosen members of a family.

    Args:
        inner: the learner.
        domain: the family.
        tail: the part of the environments that learning is for, see `read_tail`.
        episode_budget: training episodes of the whole run, or their expected number.
    """

    domain: Domain
    tail: float
    episode_budget: int

    def init(self, theta: Array) -> RobustState:
        """Start from parameters `[D]`, with cells of which nothing is known."""
        with jax.ensure_compile_time_eval():
            members = jnp.asarray(divide(self.domain), jnp.uint32)
        none = jnp.zeros(CELLS, jnp.float32)
        return RobustState(self.inner.init(theta), members, none, none)

    def propose(self, key: Array, state: RobustState) -> Proposal:
        """Return the proposal of `inner`, with a member of the family for each of its episodes."""
        own, ranking, cells, members = jax.random.split(key, 4)
        proposal = self.inner.propose(own, state.inner)
        weight = self.weights(jax.random.normal(ranking, (CELLS,)), state)
        cell = jax.random.categorical(cells, jnp.log(weight), shape=(self.episodes_per_generation,))
        place = jax.random.randint(members, cell.shape, 0, state.members.shape[1])
        rows = cell if proposal.episode is None else cell[proposal.episode]
        return proposal._replace(memo=_Memo(proposal.memo, rows), member=state.members[cell, place])

    def weights(self, noise: Array, state: RobustState) -> Array:
        """Return the probability of each cell, `[CELLS]`, in a generation with this standard normal noise."""
        mean = (state.satisfied + 1.0) / (state.played + 2.0)  # of the belief, Beta(1 + s, 1 + v)
        drawn = mean + jnp.sqrt(mean * (1.0 - mean) / (state.played + 3.0)) * noise
        rank = jnp.argsort(jnp.argsort(drawn))
        width = max(1.0, self.tail * CELLS)
        return UNIFORM_SHARE / CELLS + (1.0 - UNIFORM_SHARE) * jnp.clip(width - rank, 0.0, 1.0) / width

    def update(self, state: RobustState, proposal: Proposal, episodes: Episodes) -> tuple[RobustState, UpdateInfo]:
        """Update `inner`, then the outcomes by cell."""
        memo: _Memo = proposal.memo
        inner, info = self.inner.update(state.inner, proposal._replace(memo=memo.inner, member=None), episodes)
        with single_precision():
            held = jnp.all(jnp.asarray(episodes.satisfied), axis=1).astype(jnp.float32)
            satisfied = (self._keep * state.satisfied).at[memo.cell].add(held)
            played = (self._keep * state.played).at[memo.cell].add(1.0)
        return RobustState(inner, state.members, satisfied, played), info

    @property
    def _keep(self) -> float:
        """The part of the outcomes that a generation leaves."""
        memory = max(4.0 * CELLS, min(MEMORY, MEMORY_SHARE * self.episode_budget))
        return max(0.0, 1.0 - self.episodes_per_generation / memory)


def divide(domain: Domain) -> NDArray[np.int64]:
    """Return the numbers of members `[CELLS, POOL / CELLS]` in cells: halved at the median of one parameter in turn."""
    numbers = 1 + np.arange(POOL)
    values = values_of_members(domain, numbers)  # [POOL, m]
    _, first = np.unique(values, axis=1, return_index=True)
    values = values[:, np.sort(first)]  # without parameters that take the same number as another
    cells = np.arange(POOL)[None]
    for split in range(CELLS.bit_length() - 1):
        order = np.argsort(values[cells, split % values.shape[1]], axis=1, kind="stable")
        cells = np.take_along_axis(cells, order, axis=1).reshape(2 * len(cells), -1)
    return numbers[cells]
