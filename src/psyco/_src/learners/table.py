"""Tabular model-based learning: it counts transitions, and solves the model that they make.

For observations with few alternatives (`Network.one_hot`) and `Discrete` actions. Each generation estimates
probabilities, rewards and costs of every pair of state and action by their means. It solves this model by value
iteration, for λ return - (1 - λ) cost. Q-learning has the same limit, but uses a transition once; the model uses all of
them in every generation, and needs a small fraction of the steps. With many steps the model becomes exact.

- The policy is stationary, and episodes end at the horizon. So the model is solved with several discounts, and the
  policy with the best value over one episode is deployed.
- Exploration is optimistic: in the model that explores, each pair has been tried `optimism` times more, and led to a
  state better than all others (Szita and Lőrincz 2008). Noise on the scores is as large as the standard error of a
  state's values; in some episodes it is larger, so that no two are alike.
- λ comes from the shared controller (`lagrangian`), by check episodes of the deployed policy.

A state is what the policy observes. Where the cost of a step depends on more, such as the time or a budget that is used
up, the model has its mean.

The transitions of a PRISM or JANI file are known (`KnownTransitions`), and the model is solved on its branches, so that
it may have many states. Rewards are known there, too, and the costs of formulas that end an episode as soon as they are
decided; only other costs are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco._src.core.errors import RunError
from psyco._src.core.options import NumberRange, option
from psyco._src.envs.actions import Discrete
from psyco._src.envs.model_file import KnownTransitions
from psyco._src.learners.base import Proposal, UpdateInfo, count_steps, zero_counters
from psyco._src.learners.belief import Belief, single_precision
from psyco._src.learners.expectation_constraints import learning_costs, learning_step_costs
from psyco._src.learners.lagrangian import LagrangianLearner, default_gain, floor_lambda, split_weights
from psyco._src.learners.running_stats import empty_stats, observe_rows
from psyco._src.policies.network import NOT_OFFERED, Network
from psyco._src.rollout.episodes import Episodes, ObsStats, Trace

MAX_MODEL_SIZE = 2**25  # S * A * S, float32; where transitions are known, S * A
MAX_POPULATION_SIZE = 2**24  # numbers in the tables of a generation
MAX_BRANCH_SWEEPS = 2**27  # branches times value iterations of a generation
MAX_TRACE_SIZE = 2**24  # numbers in the observations of a generation
HORIZON_SHARES = np.array([1.0, 0.4, 0.2, 0.1])  # of the horizon that a discount looks ahead
NOISE_LEVELS = np.array([0.5, 1.0, 2.0])  # of exploring episodes, in turn
MAX_SWEEPS = 1000  # of value iteration
MIN_NOISE = 0.1  # standard deviation of the smallest noise, relative to the spread of a state's values


class TransitionModel(NamedTuple):
    """Counts and sums over all steps so far."""

    # [S, A, S + 1] number; the last column is the end of the episode. Where transitions are known, [S, A, 1].
    transitions: Array
    gains: Array  # [S, A, 1 + K] sums of the reward, times the sign of the goal, and of the costs
    squares: Array  # [S, A, 1 + K] sums of their squares
    starts: Array  # [S] episodes that began in each state
    missing: Array | None = None  # [S, A] actions that masks exclude; None where there are none, or all are known


class TableState(NamedTuple):
    """The model, the tables that follow from it, and the belief."""

    model: TransitionModel
    deployed: Array  # [D]
    exploring: Array  # [D]
    values: Array  # [S, G + 1] of the states, for each discount and for exploration
    stats: ObsStats  # [1 + K] of returns and costs of episodes
    belief: Belief
    lam: Array  # [K] λ_k
    generation: Array  # [] int32
    steps: Array  # [] int32, taken so far


@dataclass(frozen=True, kw_only=True)
class Table(LagrangianLearner):
    """Model-based learning of a table, for small discrete observation and action spaces."""

    population: int = option(
        None,
        "Exploring episodes per generation. Default: from 8 to 1000, for about 100 generations.",
        kind=int,
        minimum=1,
        search=NumberRange(8, 256, log=True),
    )
    optimism: float = option(
        1.0,
        "Weight of the optimistic prior of each pair of state and action, in visits.",
        above=0.0,
        search=NumberRange(0.1, 10.0, log=True),
    )

    is_tabular: ClassVar[bool] = True
    several_agents: ClassVar[bool] = False

    def _resolve_auto(self) -> None:
        network, horizon = self._network, self._horizon
        if not isinstance(self.known_task.actions, Discrete) or not network.one_hot or network.layers:
            raise RunError("table needs Discrete actions and a network that is a table, from table_for(domain)")
        size = network.features * network.outputs * (1 if self._known else network.features)
        if size > MAX_MODEL_SIZE:
            raise RunError(
                f"table counts transitions between {network.features:,} states by {network.outputs:,} actions, and "
                f"{size:,} numbers are more than its limit of {MAX_MODEL_SIZE:,}; use another learner"
            )
        fits = MAX_TRACE_SIZE // (horizon * network.inputs)
        if self._known:
            fits = min(MAX_TRACE_SIZE // (horizon * network.outputs), MAX_POPULATION_SIZE // network.size)
        self._set_auto(population=max(1, min(max(self.known_task.episode_budget // 100, 8), 1000, fits)))
        self._set_auto(checks=max(1, self.population // 10))
        self._set_auto(gain=default_gain(self.generations))

    def init(self, theta: Array) -> TableState:
        """Start from the given table, an empty model and λ = 1."""
        states, kinds = self._network.features, 1 + len(self.known_task.c_req)
        pairs = states, self._network.outputs
        sizes = (*pairs, 1 if self._known else states + 1), (*pairs, kinds), (*pairs, kinds), (states,)
        missing = jnp.zeros(pairs, bool) if self._network.masked and not self._known else None
        model = TransitionModel(*(jnp.zeros(size, jnp.float32) for size in sizes))._replace(missing=missing)
        theta = jnp.asarray(theta, jnp.float32)
        values = jnp.zeros((states, len(HORIZON_SHARES) + 1), jnp.float32)
        return TableState(model, theta, theta, values, empty_stats(kinds), *self.controller.init(), *zero_counters())

    def propose(self, key: Array, state: TableState) -> Proposal:
        """Return exploring episodes with noise of several levels, then the checks without noise."""
        row = np.arange(self.episodes_per_generation)
        explores = row < self.population
        std = np.where(explores, NOISE_LEVELS[row % len(NOISE_LEVELS)], 0.0).astype(np.float32)
        return Proposal(
            jnp.where(explores[:, None], state.exploring, state.deployed),
            key,
            std=jnp.broadcast_to(std[:, None], (len(row), self._network.outputs)),
        )

    def update(self, state: TableState, proposal: Proposal, episodes: Episodes) -> tuple[TableState, UpdateInfo]:
        """Update belief and λ by the checks, add all steps to the model, and solve it."""
        belief, c_sat, lam_k = self.update_lambda(state, episodes)
        assert episodes.trace is not None
        with single_precision():
            cost = learning_costs(self.known_task.expectations, episodes, state.belief.recent).astype(jnp.float32)
            lam_k = floor_lambda(lam_k, cost)
            totals = jnp.concatenate([jnp.asarray(episodes.returns)[:, None], cost], axis=1)
            stats = observe_rows(state.stats, totals, jnp.ones(len(totals)))
            trace = jax.tree.map(jnp.asarray, episodes.trace)
            model = self._count(state.model, proposal.theta, trace, state.belief.recent)
            lam, weight = split_weights(lam_k)
            # Per unit of return and cost: the standard deviation of returns, the root mean square of costs.
            square = stats.variance + jnp.where(jnp.arange(len(stats.mean)) == 0, 0.0, stats.mean**2)
            scale = jnp.where(square > 1e-12, jnp.sqrt(square), 1.0)
            weights = jnp.concatenate([lam[None], (lam - 1.0) * weight]) / scale
            deployed, exploring, values = self._solve(model, weights, state.values)
            moved = TableState(
                model, _parameters(deployed), _parameters(exploring), values, stats, belief, lam_k,
                state.generation + 1, state.steps + count_steps(episodes),
            )  # fmt: skip
            return moved, UpdateInfo(lam, c_sat)

    def deployed(self, state: TableState) -> Array:
        """Return the table of the best policy in the model."""
        return state.deployed

    @property
    def _network(self) -> Network:
        if self.known_task.network is None:
            raise RunError("Table needs the policy's network: make_learner(..., network=network)")
        return self.known_task.network

    @property
    def _known(self) -> KnownTransitions | None:
        return self.known_task.transitions

    @property
    def _horizon(self) -> int:
        if self.known_task.horizon is None:
            raise RunError("Table needs the maximum number of steps of an episode: make_learner(..., horizon=horizon)")
        return self.known_task.horizon

    # ---- the model ------------------------------------------------------------------------------------------------

    def _count(self, model: TransitionModel, theta: Array, trace: Trace, recent: Array | None) -> TransitionModel:
        """Return the model with the steps of episodes that were played with parameters `[B, D]`."""
        count, steps = trace.alive.shape
        states = self._state_of(jnp.concatenate([trace.obs, trace.final_obs[:, None]], axis=1))  # [B, n + 1]
        here, after = states[:, :-1], states[:, 1:]
        table, bias = self._network.unflatten(theta)
        # As `Network.act` chooses it.
        scores = table[jnp.arange(count)[:, None], here] + bias[:, None] + trace.noise
        _, offered = self._network.split_mask(trace.obs)
        action = jnp.argmax(scores if offered is None else jnp.where(offered, scores, NOT_OFFERED), axis=-1)
        length = jnp.sum(trace.alive, axis=1, keepdims=True)
        ends = (jnp.arange(steps) == length - 1) & (trace.terminated[:, None] > 0)
        after = jnp.where(ends, self._network.features, after)
        if self._known:
            action, after = jnp.asarray(self._known.action)[here, action], jnp.zeros_like(after)
        cost = learning_step_costs(self.known_task.expectations, trace, recent)
        cost = jnp.zeros((*cost.shape[:2], len(self.known_task.c_req))).at[..., self.known_task.cost_owners].add(cost)
        if self._known:
            # A cost of the horizon, such as that of a goal that was not reached, is one of all steps: at the last one
            # alone, going round in a circle that no episode ended in would be free.
            cut = ((jnp.arange(steps) == length - 1) & ~ends)[..., None]
            share = jnp.sum(cost * cut, axis=1, keepdims=True) / jnp.maximum(length, 1)[..., None]
            cost = jnp.where(cut, 0.0, cost) + share * trace.alive[..., None]
        gains = jnp.concatenate([self.known_task.sign * trace.reward[..., None], cost], axis=-1)
        return TransitionModel(
            model.transitions.at[here, action, after].add(trace.alive),
            model.gains.at[here, action].add(gains * trace.alive[..., None]),
            model.squares.at[here, action].add(gains**2 * trace.alive[..., None]),
            model.starts.at[states[:, 0]].add(1.0),
            # The mask is a function of the state, so an action that is missing once is always missing there.
            None if model.missing is None else model.missing.at[here].max(~offered & (trace.alive[..., None] > 0)),
        )

    def _state_of(self, obs: Array) -> Array:
        """Return the index `[...]` of the combination of one-hot codes in observations `[..., inputs]`."""
        if self._network.indexed:
            return obs[..., 0].astype(jnp.int32)
        index, first = jnp.zeros(obs.shape[:-1], jnp.int32), 0
        for size in self._network.one_hot:
            index = index * size + jnp.argmax(obs[..., first : first + size], axis=-1).astype(jnp.int32)
            first += size
        return index

    def _solve(self, model: TransitionModel, weights: Array, values: Array) -> tuple[Array, Array, Array]:
        """Return the table to deploy and the one to explore with, `[S, A]` each, and the values `[S, G + 1]`.

        Gains and costs have `weights` `[1 + K]`. Values start from those of the generation before.
        """
        # A missing action counts as the first one that is offered.
        action = None if model.missing is None else _offered_actions(model.missing)
        if (action := jnp.asarray(self._known.action) if self._known else action) is not None:
            same = jnp.arange(self._network.features)[:, None], action
            model = model._replace(
                transitions=model.transitions[same], gains=model.gains[same], squares=model.squares[same]
            )
        visits = jnp.sum(model.transitions, axis=-1)  # [S, A]
        known, reached = visits > 0, jnp.any(visits > 0, axis=-1)
        share = 1.0 / jnp.maximum(visits, 1.0)
        to = model.transitions[..., :-1] * share[..., None]  # [S, A, S]
        ahead_of = self._known.ahead if self._known else to.__matmul__
        gains = model.gains * share[..., None]  # means
        if self._known and self._known.gains is not None:
            exact = self._known.gains[self._known.choice]
            exact[..., 0] *= self.known_task.sign
            gains = jnp.where(np.isnan(exact), gains, exact)
            known |= ~np.isnan(exact).any(axis=-1)
        reward = gains @ weights
        worst = jnp.min(jnp.where(known, reward, jnp.inf)) * self._sweeps
        ahead = np.maximum(np.append(HORIZON_SHARES, HORIZON_SHARES[0]) * self._horizon, 2.0)
        discount = jnp.asarray(1.0 - 1.0 / ahead, jnp.float32)  # [G + 1]
        prior = self.optimism / (visits + self.optimism)  # probability of the optimistic state

        def backup(values: Array) -> Array:  # [S, G + 1] -> [S, A, G + 1]
            q = reward[..., None] + discount * ahead_of(values)
            high = jnp.max(jnp.where(reached, values[:, 0], -jnp.inf))
            spread = high - jnp.min(jnp.where(reached, values[:, 0], jnp.inf))
            optimistic = (1.0 - prior) * q[..., -1] + prior * (high + jnp.where(spread > 0, spread, 1.0))
            return jnp.concatenate([jnp.where(known[..., None], q[..., :-1], worst), optimistic[..., None]], axis=-1)

        values = _repeated(self._sweeps, lambda v: jnp.max(backup(v), axis=1), values)
        q = backup(values)
        variance = (model.squares * share[..., None] - (model.gains * share[..., None]) ** 2) @ weights**2
        variance += ahead_of(values[:, 0] ** 2) - ahead_of(values[:, 0]) ** 2
        error = jnp.sqrt(jnp.max(jnp.maximum(variance, 0.0) * share, axis=1))  # [S] of the values of its actions
        return self._best(model, reward, to, q[..., :-1]), _noise_units(q[..., -1], error), values

    def _best(self, model: TransitionModel, reward: Array, to: Array, q: Array) -> Array:
        """Return the table `[S, A]`, of those in `q` `[S, A, G]`, whose policy has the best value over an episode."""
        action = jnp.argmax(q, axis=1)  # [S, G]
        row = jnp.arange(len(action))[:, None]
        gain = reward[row, action].T  # [G, S]
        step = None if self._known else jnp.swapaxes(to[row, action], 0, 1)  # [G, S, S]

        def back(value: Array) -> Array:
            if self._known:
                return gain + self._known.ahead(value.T)[row, action, jnp.arange(len(gain))].T
            return gain + jnp.einsum("gst,gt->gs", step, value)

        value = _repeated(self._sweeps, back, jnp.zeros_like(gain)) @ model.starts
        best = q[..., jnp.argmax(value)]
        return best - jnp.max(best, axis=1, keepdims=True)

    @property
    def _sweeps(self) -> int:
        """Value iterations: the horizon, up to a limit."""
        branches = self._known.successor.size if self._known else 1
        return min(self._horizon, MAX_SWEEPS, max(20, MAX_BRANCH_SWEEPS // branches))


def _repeated(sweeps: int, sweep: Callable[[Array], Array], values: Array) -> Array:
    """Return the values after some sweeps, or after the first that changes none of them: further ones would neither."""

    def once(now: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        count, values, _ = now
        after = sweep(values)
        return count + 1, after, jnp.any(after != values)

    start = jnp.int32(0), values, jnp.bool_(True)
    return jax.lax.while_loop(lambda now: (now[0] < sweeps) & now[2], once, start)[1]


def _parameters(table: Array) -> Array:
    """Return the parameters `[D]` of a network that is this table `[S, A]`: its biases are 0."""
    return jnp.concatenate([table.ravel(), jnp.zeros_like(table[0])])


def _offered_actions(missing: Array) -> Array:
    """Return the actions `[S, A]`; instead of those that are missing, the first one that is not."""
    return jnp.where(missing, jnp.argmin(missing, axis=1, keepdims=True), jnp.arange(missing.shape[1]))


def _noise_units(q: Array, error: Array) -> Array:
    """Return values `[S, A]` in units of the noise, which is at least the standard error `[S]` of a state's values."""
    best = jnp.max(q, axis=1, keepdims=True)
    unit = jnp.maximum(error[:, None], MIN_NOISE * (best - jnp.min(q, axis=1, keepdims=True)))
    return (q - best) / jnp.where(unit > 0, unit, 1.0)
