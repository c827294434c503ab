"""Games of two sides that move at the same time: matrix games, and stochastic games by backward induction."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.actions import MultiDiscrete
from psyco._src.envs.base import require_finite
from psyco._src.envs.multi_agent import JointDomain
from psyco._src.exact.unfold import unfold
from psyco._src.logic.ast import Formula

SADDLE_TOLERANCE = 1e-12
MATRICES_AT_ONCE = 500  # in one linear program


@lru_cache(maxsize=8)
def simultaneous_game_value(domain: JointDomain, formula: Formula, agent: int) -> float:
    """Return the largest probability of a formula that one agent can ensure against all others together.

    The others, as one side, want it to be small. In every step both sides choose at the same time, knowing state, time
    and all counters, and may randomise. By the minimax theorem it is also the smallest probability to which the others
    can hold the agent.

    Args:
        domain: a finite one of several agents.
        formula: what the agent makes true.
        agent: the place of the agent.
    """
    require_finite(domain)
    assert isinstance(domain.actions, MultiDiscrete)
    sizes = domain.actions.n
    process, value = unfold(domain, (formula,)), np.zeros(0)
    for layer in reversed(process.layers):
        at_end = layer.satisfied[:, 0].astype(np.float64)
        if len(value):
            lasts = np.flatnonzero(~layer.final)
            ahead = value[layer.successor[lasts]] @ process.draw_probabilities  # [M, joint actions]
            by_agent = np.moveaxis(ahead.reshape(-1, *sizes), 1 + agent, 1)
            at_end[lasts] = matrix_game_values(by_agent.reshape(len(lasts), sizes[agent], -1))
        value = at_end
    return float(process.start @ value)


def matrix_game_values(gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values `[M]` of zero-sum games `[M, rows, columns]`: rows maximise the gain, columns minimise it."""
    value: NDArray[np.float64] = gains.min(axis=2).max(axis=1)
    mixed = np.flatnonzero(gains.max(axis=1).min(axis=1) - value > SADDLE_TOLERANCE)
    if len(mixed):
        different, inverse = np.unique(gains[mixed].round(14), axis=0, return_inverse=True)
        parts = [
            _mixed_values(different[first : first + MATRICES_AT_ONCE])
            for first in range(0, len(different), MATRICES_AT_ONCE)
        ]
        value[mixed] = np.concatenate(parts)[inverse.ravel()]
    return value


def _mixed_values(gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values of games without a saddle point, by one linear program for all: maximise Σ v, v <= x gains."""
    from scipy.optimize import linprog  # slow to import
    from scipy.sparse import block_array, block_diag, identity, kron

    count, rows, columns = gains.shape
    each = identity(count)
    no_more = block_array([[block_diag([-game.T for game in gains]), kron(each, np.ones((columns, 1)))]])
    sums = block_array([[kron(each, np.ones((1, rows))), 0.0 * each]])
    solved = linprog(
        np.concatenate([np.zeros(count * rows), -np.ones(count)]),
        A_ub=no_more.tocsr(), b_ub=np.zeros(count * columns), A_eq=sums.tocsr(), b_eq=np.ones(count),
        bounds=[(0.0, None)] * (count * rows) + [(None, None)] * count, method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )  # fmt: skip
    if not solved.success:
        raise RunError(f"the linear program of a game was not solved: {solved.message}")
    found: NDArray[np.float64] = solved.x[count * rows :]
    return found
