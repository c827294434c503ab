"""Unfold a finite domain over time, with the state of the formulas' automaton: the graph for exact answers.

A node of layer t is a situation after t steps: a state of the domain, the progress of the formulas, and the totals of
their aggregates. Only reachable nodes are made. Counters and counts are cut off where no formula can distinguish larger
values, and dropped when all formulas are decided. Where a counter is used in anything but a comparison with a number,
all its values within the horizon are kept. Gains of quantities are stored with the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import DomainError, PsycoError, RequirementError, RunError, format_exception
from psyco._src.envs.actions import Discrete, first_offered
from psyco._src.envs.base import Domain, FiniteDomain, require_finite, signal_table
from psyco._src.envs.multi_agent import JointDomain, NumberedActions
from psyco._src.exact.model_consistency import check_consistency
from psyco._src.logic.array_eval import PathPrefix, SignalArrays
from psyco._src.logic.ast import (
    Aggregate,
    Compare,
    Formula,
    Instant,
    Label,
    Node,
    Quantity,
    Reaching,
    Signal,
    Temporal,
    Total,
    children,
    walk,
)
from psyco._src.logic.exact_constants import evaluated_aggregates, exact_comparison
from psyco._src.logic.progression import Automaton
from psyco._src.logic.scalar_eval import constant_value
from psyco._src.logic.validate import check_bounds, check_precision, check_signals
from psyco._src.policies.external import DeterminismProbe, HostPolicy, PolicyLike, as_policy
from psyco._src.policies.network import has_mask
from psyco._src.policies.serialization import Policy

Act = Callable[[NDArray[np.float32]], NDArray[Any]]  # observations [S, size] -> actions [S]
MAX_STATES = 2_000_000  # reachable states of a domain
CARRIED_SIGNALS = ("reward", "return", "action")  # stored in a node only if a formula names them


class Layer(NamedTuple):
    """The M nodes after a number of steps."""

    state: NDArray[np.int64]  # [M] index into the table of states
    letters: NDArray[np.bool_]  # [M, A] truth values of the atoms, for tools that evaluate formulas; else [M, 0]
    final: NDArray[np.bool_]  # [M] the episode is over
    satisfied: NDArray[np.bool_]  # [M, K] which formulas hold; meaningful where final
    successor: NDArray[np.int64]  # [M, actions, C] index into the next layer; -1 where final
    reward: NDArray[np.float64]  # [M, actions, C]
    gain: NDArray[np.float64]  # [M, actions, C, Q] gains of the quantities in a step


@dataclass(frozen=True)
class Unfolding:
    """The graph: with a policy a Markov chain (one action), without one a Markov decision process."""

    start: NDArray[np.float64]  # [M of the first layer] probabilities
    draw_probabilities: NDArray[np.float64]  # [C] probabilities of the random draws
    layers: tuple[Layer, ...]
    atoms: tuple[Formula, ...]  # of the letters
    formulas: int  # K; further columns of `satisfied`: whether quantities with F have reached their target
    initial_gains: NDArray[np.float64]  # [Q] mean gains of the quantities in the initial states

    @property
    def nodes(self) -> int:
        """Number of nodes in all layers."""
        return sum(len(layer.state) for layer in self.layers)

    @property
    def actions(self) -> int:
        """Number of actions in each node."""
        return self.layers[0].successor.shape[1]


def unfold(
    domain: Domain,
    formulas: Sequence[Formula],
    act: Act | None = None,
    *,
    quantities: Sequence[Quantity] = (),
) -> Unfolding:
    """Return the graph of a domain over its horizon.

    Args:
        domain: a finite one.
        formulas: whose truth the nodes track.
        act: the policy's actions; without it, all actions are expanded.
        quantities: whose gains are computed; for a rate those of the total.
    """
    domain = require_finite(domain)
    for subject in (*formulas, *quantities):
        _check_joint_actions(subject, domain)
        check_signals(subject, signal_table(domain), domain.name)
        check_bounds(subject, domain.horizon, domain.name)
        check_precision(subject, signal_table(domain))
    check_consistency(domain)  # type: ignore[arg-type]  # hashable, as for jit
    reaching = [Temporal("F", (each.over.body,)) for each in quantities if isinstance(each.over, Reaching)]
    automaton = Automaton([*formulas, *reaching])
    expressions: list[Node] = [*automaton.formulas, *(each.x for each in quantities)]
    table = _explore(domain, expressions, act)
    names = {node.name for tree in expressions for node in walk(tree) if isinstance(node, Signal)}
    carried = tuple(name for name in CARRIED_SIGNALS if name in names)
    running = evaluated_aggregates(expressions)
    builder = _LayerBuilder(domain, automaton, table, carried, running, tuple(quantities))
    first = _Candidates(
        table.start_state,
        np.zeros((len(table.start_state), len(carried))),
        np.zeros((len(table.start_state), len(running))),
        np.zeros(len(table.start_state), bool),
        np.full(len(table.start_state), automaton.start),
    )
    if "action" in carried:  # the first state shows the first action
        first.carried[:, carried.index("action")] = builder.first_actions(act)[first.state]
    nodes, inverse, gains = builder.merge(first, 0)
    initial_gains = table.start @ gains
    start = np.zeros(len(nodes.state))
    np.add.at(start, inverse, table.start)
    layers: list[Layer] = []
    for step in range(1, domain.horizon + 1):
        ahead, rewards = builder.expand(nodes)
        following, inverse, gains = builder.merge(ahead, step)
        layers.append(builder.layer(nodes, inverse, rewards, gains))
        nodes = following
        if not len(nodes.state):
            break
    if len(nodes.state):
        layers.append(builder.layer(nodes, np.zeros(0, np.int64), np.zeros(0), np.zeros(0)))
    return Unfolding(start, table.draw_probabilities, tuple(layers), automaton.atoms, len(formulas), initial_gains)


def _check_joint_actions(subject: Formula | Quantity, domain: Domain) -> None:
    """Raise RequirementError if a subject names an action of several agents: here, joint actions are numbers."""
    if not isinstance(domain, NumberedActions):
        return
    for node in walk(subject.x if isinstance(subject, Quantity) else subject):
        if isinstance(node, Signal) and node.name.rpartition(".")[2] == "action":
            advice = "name what the actions lead to, or sample: psyco verify"
            raise RequirementError("exact answers know no signals of joint actions", node.location, advice)


def policy_actions(policy: PolicyLike, domain: Domain) -> Act:
    """Return the function from observations to a policy's actions, by the code that runs it in rollouts."""
    if isinstance(domain, NumberedActions):
        domain = domain.joint
    if isinstance(domain, JointDomain) and (numbered := domain.numbered):
        act = _own_actions(policy, domain)
        return lambda observations: numbered.number(act(observations))
    return _own_actions(policy, domain)


def _own_actions(policy: PolicyLike, domain: Domain) -> Act:
    policy = as_policy(policy)
    policy.check(domain)
    if not isinstance(policy, Policy):
        return _external_actions(policy, domain)
    if policy.network.recurrent:
        raise RunError(
            "this policy has a memory; exact answers need one that acts on the current observation alone. psyco.verify "
            "can sample its episodes"
        )
    act = jax.vmap(partial(policy.network.act, domain.actions, jnp.asarray(policy.theta)))
    return lambda observations: np.asarray(act(jnp.asarray(observations)))


def _external_actions(policy: HostPolicy, domain: Domain) -> Act:
    if policy.stateful:
        raise RunError(
            f"the policy {policy.source} is stateful; exact answers need a policy that acts on the current observation "
            "alone. psyco.verify can sample its episodes"
        )

    def actions(observations: NDArray[np.float32]) -> NDArray[Any]:
        count = len(observations)
        vector_policy = DeterminismProbe(policy).vectorize(domain, np.zeros((count, 0), np.float32), [0] * count)
        try:
            return np.asarray(vector_policy(observations, list(observations)))
        except PsycoError:
            raise
        except Exception as error:  # code of the policy may raise anything
            raise RunError(f"the policy failed: {format_exception(error)}") from error

    return actions


def reachable_observations(domain: Domain) -> NDArray[np.float32]:
    """Return the observations `[S, size]` of all states that a finite domain reaches within its horizon."""
    observations: NDArray[np.float32] = _explore(require_finite(domain), (), None).signals["obs"]
    return observations


# ---- the states of the domain ------------------------------------------------------------------------------------


class _TransitionTable(NamedTuple):
    """All S reachable states, with every step from the first E: those that an episode can leave."""

    start: NDArray[np.float64]  # [S0] probabilities
    start_state: NDArray[np.int64]  # [S0]
    draw_probabilities: NDArray[np.float64]  # [C]
    successor: NDArray[np.int64]  # [E, actions, C]
    reward: NDArray[np.float64]  # [E, actions, C]
    done: NDArray[np.bool_]  # [E, actions, C]
    action: NDArray[np.int64]  # [E, actions]
    without_counters: NDArray[np.int64]  # [S] index of the same state with all counters at 0
    signals: dict[str, NDArray[Any]]  # each [S] or [S, size]


def _explore(domain: FiniteDomain, expressions: Sequence[Node], act: Act | None) -> _TransitionTable:
    start, initial = domain.initial_distribution()
    draw_probabilities = domain.draw_probabilities()
    leaves, structure = jax.tree.flatten(jax.device_get(initial))
    shapes = [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
    limits = {name: _counter_limit(_names(name), expressions) for name in domain.counters}
    uncut = [name for name, limit in limits.items() if limit == math.inf]
    if not isinstance(domain.actions, Discrete):  # for mypy; `require_finite` has checked it
        raise DomainError(f"{domain.name} has no discrete actions")
    all_actions = np.arange(domain.actions.n)

    def rows_of(state: Any) -> NDArray[np.int64]:
        """Return states as rows of integers, with counters cut off."""
        bounded = [name for name in limits if name not in uncut]
        cut = state._replace(**{name: np.minimum(getattr(state, name), limits[name]) for name in bounded})
        flat = [np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(cut)]
        return np.concatenate(flat, axis=1).astype(np.int64)

    def states_of(rows: NDArray[np.int64]) -> Any:
        leaves, at = [], 0
        for shape, dtype in shapes:
            size = int(np.prod(shape))
            leaves.append(jnp.asarray(rows[:, at : at + size].reshape(len(rows), *shape).astype(dtype)))
            at += size
        return jax.tree.unflatten(structure, leaves)

    known: dict[bytes, int] = {}
    table: list[NDArray[np.int64]] = []

    def indices(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of every row; new rows are added."""
        unique, inverse = np.unique(rows, axis=0, return_inverse=True)
        ids = np.empty(len(unique), np.int64)
        for i, row in enumerate(unique):
            key = row.tobytes()
            if key not in known:
                known[key] = len(table)
                table.append(row)
            ids[i] = known[key]
        if len(table) > MAX_STATES:
            advice = f"; {uncut[0]} is used in arithmetic, so all its values are kept: compare it with numbers"
            raise DomainError(
                f"{domain.name} has more than {MAX_STATES:,} reachable states: too many to enumerate"
                + (advice if uncut else "")
            )
        return ids[inverse.ravel()]

    def reset_counters(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        state = jax.device_get(states_of(rows))
        return rows_of(state._replace(**{n: np.zeros_like(getattr(state, n)) for n in limits}))

    start_state = indices(rows_of(initial))
    without_counters: list[NDArray[np.int64]] = []
    blocks: list[tuple[NDArray[Any], ...]] = []
    explored = 0
    # States that more steps than the horizon lead to are not made: a counter without a limit would have no end.
    for step in range(domain.horizon + 1):
        if explored == len(table):
            break
        reached = len(table)
        without_counters.append(indices(reset_counters(np.stack(table[explored:]))))
        if len(table) > reached:  # without counters they are as many steps away
            without_counters.append(np.arange(reached, len(table)))
        if step == domain.horizon:
            break
        rows = np.stack(table[explored:])
        # Padded, so that few shapes are compiled.
        padded = np.concatenate([rows, np.repeat(rows[:1], -len(rows) % 1024, axis=0)])
        states = states_of(padded)
        if act is not None:
            actions = np.asarray(act(np.asarray(_observe(domain, states))))[:, None]
        else:
            actions = all_actions[None].repeat(len(padded), 0)
            if has_mask(domain):  # an action twice changes no optimum
                offered = np.asarray(_observe(domain, states))[:, None, -len(all_actions) :]
                actions = first_offered(actions, np.broadcast_to(offered, (*actions.shape, len(all_actions))))
        following, reward, over = jax.device_get(_transitions(domain, states, jnp.asarray(actions)))
        flat = jax.tree.map(lambda leaf: leaf.reshape(over.size, *leaf.shape[3:]), following)  # noqa: B023
        keep, explored = len(rows), len(table)
        next_rows = rows_of(flat).reshape(*over.shape, -1)[:keep]
        successors = indices(next_rows.reshape(-1, rows.shape[1])).reshape(keep, *over.shape[1:])
        blocks.append((successors, reward[:keep].astype(np.float64), over[:keep], actions[:keep]))
    successor, reward, over, actions = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
    states = states_of(np.stack(table))
    signals = {name: np.asarray(value) for name, value in _signals(domain, states).items()}
    signals["obs"] = np.asarray(_observe(domain, states))
    same = np.concatenate(without_counters)
    return _TransitionTable(start, start_state, draw_probabilities, successor, reward, over, actions, same, signals)


@jax.jit(static_argnums=0)
def _transitions(domain: FiniteDomain, states: Any, actions: Array) -> Any:
    """Return next states, rewards and terminations `[S, A, C]` from states `[S]` with actions `[S, A]`."""
    draws = jnp.arange(len(domain.draw_probabilities()))
    over_draws = jax.vmap(domain.transition, (None, None, 0))
    over_actions = jax.vmap(over_draws, (None, 0, None))
    return jax.vmap(over_actions, (0, 0, None))(states, actions, draws)


@jax.jit(static_argnums=0)
def _observe(domain: FiniteDomain, states: Any) -> Array:
    return jax.vmap(domain.observe)(states)


@jax.jit(static_argnums=0)
def _signals(domain: FiniteDomain, states: Any) -> dict[str, Array]:
    return jax.vmap(lambda state: dict(domain.signals(state)))(states)


def _counter_limit(is_counter: Callable[[Node], bool], expressions: Sequence[Node]) -> float:
    """Return where to cut a counter off: above all numbers that it is compared with; inf if every value matters."""
    largest = -1.0

    def visit(node: Node) -> None:
        nonlocal largest
        if isinstance(node, Compare):
            node = exact_comparison(node)
            for term, other in ((node.left, node.right), (node.right, node.left)):
                if is_counter(term) and (number := constant_value(other)) is not None:
                    largest = max(largest, number if math.isfinite(number) else -1.0)  # all compare alike with inf
                    return
        if is_counter(node):
            largest = math.inf
        for part in children(node):
            visit(part)

    for tree in expressions:
        visit(tree)
    return largest if largest == math.inf else math.floor(largest) + 1


def _names(counter: str) -> Callable[[Node], bool]:
    return lambda node: isinstance(node, Signal | Label) and node.name == counter


def _equals(count: Aggregate) -> Callable[[Node], bool]:
    return lambda node: node == count


# ---- layers --------------------------------------------------------------------------------------------------------


class _Candidates(NamedTuple):
    """Nodes before equal ones are merged."""

    state: NDArray[np.int64]  # [M]
    carried: NDArray[np.float64]  # [M, E]
    totals: NDArray[np.float64]  # [M, R] of the aggregates, before this state
    done: NDArray[np.bool_]  # [M]
    progress: NDArray[np.int64]  # [M] before this state


class _Nodes(NamedTuple):
    state: NDArray[np.int64]
    carried: NDArray[np.float64]
    totals: NDArray[np.float64]  # [M, R] after this state
    final: NDArray[np.bool_]
    progress: NDArray[np.int64]  # after this state
    satisfied: NDArray[np.bool_]  # [M, K]


@dataclass(frozen=True)
class _LayerBuilder:
    domain: FiniteDomain
    automaton: Automaton
    table: _TransitionTable
    carried: tuple[str, ...]
    running: tuple[Aggregate, ...]
    quantities: tuple[Quantity, ...]

    @property
    def expressions(self) -> tuple[Node, ...]:
        """Formulas and terms that may depend on a counter or a count."""
        return (*self.automaton.formulas, *(each.x for each in self.quantities))

    def first_actions(self, act: Act | None) -> NDArray[np.int64]:
        """Return the signal `action` before the first step, per state."""
        if act is None:
            raise DomainError("a formula that names `action` has no optimum: the first state shows the action to come")
        return self.table.action[:, 0]

    def merge(self, candidates: _Candidates, step: int) -> tuple[_Nodes, NDArray[np.int64], NDArray[np.float64]]:
        """Advance the automaton, then merge equal candidates.

        Returns the nodes, the index of the node of each candidate, and the gains of each candidate `[M, Q]`.
        """
        final = candidates.done | (step == self.domain.horizon)
        signals = {name: values[candidates.state] for name, values in self.table.signals.items()}
        signals["step"] = np.full(len(candidates.state), step)
        signals |= {name: candidates.carried[:, i] for i, name in enumerate(self.carried)}
        before = dict(zip(self.running, candidates.totals.T, strict=True)) if step else {}
        # Each state as a path of length one after a prefix, `[M, 1]`.
        paths = {name: values[:, None] for name, values in signals.items()}
        path = SignalArrays(np, paths, final[:, None], (len(final), 1), PathPrefix(step, before))
        letters = self.automaton.letters(path)[:, 0]
        gains = self._gains(path, candidates.progress, final, step)
        progress, satisfied = self._advance(candidates.progress, letters, final)
        state, totals = candidates.state, self._totals(path)
        decided = np.array([self.automaton.decided(p) for p in range(int(progress.max(initial=0)) + 1)])
        # A quantity may depend on counters after all formulas are decided.
        over = final | (decided[progress] & (not self.quantities))
        state = np.where(over, self.table.without_counters[state], state)
        totals = np.where(over[:, None], 0.0, totals)
        nodes = _Nodes(state, candidates.carried, totals, final, progress, satisfied)
        columns = [field if field.ndim > 1 else field[:, None] for field in nodes]
        rows = np.concatenate(columns, axis=1, dtype=np.float64)
        _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        merged: _Nodes = jax.tree.map(lambda field: field[first], nodes)
        return merged, inverse.ravel(), gains

    def _gains(
        self, path: SignalArrays, before: NDArray[np.int64], final: NDArray[np.bool_], step: int
    ) -> NDArray[np.float64]:
        """Return the gains of the quantities on entering these states, `[M, Q]`."""
        gains = np.zeros((len(final), len(self.quantities)))
        ended = len(self.automaton.formulas) - sum(isinstance(q.over, Reaching) for q in self.quantities)
        for i, quantity in enumerate(self.quantities):
            counts = np.full(len(final), step > 0)
            match quantity.over:
                case Instant(at):  # the last state of an episode repeats
                    counts = (step == at) | (final & (step < at))
                case Total(int(most)):
                    counts &= step <= most
                case Reaching():
                    counts &= ~np.array([self.automaton.holds(p, ended) for p in range(before.max(initial=0) + 1)])[
                        before
                    ]
                    ended += 1
            with np.errstate(all="ignore"):
                gains[:, i] = np.where(counts, path.reward(quantity.x)[:, 0], 0.0)
            if not np.isfinite(gains[:, i]).all():
                raise RequirementError(f"{quantity.x} is not a finite number in every state where it is evaluated")
        return gains

    def _totals(self, path: SignalArrays) -> NDArray[np.float64]:
        """Return the totals of the aggregates in these states `[M, R]`, with counts cut off."""
        totals = np.zeros((len(path.end), len(self.running)))
        for i, (each, total) in enumerate(path.prefix_after(self.running).totals.items()):
            totals[:, i] = total
            if each.function == "count":
                totals[:, i] = np.minimum(total, _counter_limit(_equals(each), self.expressions))
            elif each.function in ("sum", "mean") and (total != np.rint(total)).any():
                raise RequirementError(
                    f"{each} has the value {total[total != np.rint(total)][0]:g}; exact answers store every value, "
                    "and the number of values is unbounded for sums of fractions",
                    each.location,
                    "sum whole numbers, as in sum(2 * x) <= 50 for sum(x) <= 25",
                )
        return totals

    def _advance(
        self, progress: NDArray[np.int64], letters: NDArray[np.bool_], final: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the progress and, in final states, the verdicts `[M, K]`, computed once per distinct case."""
        formulas = len(self.automaton.formulas)
        cases, inverse = np.unique(
            np.concatenate([progress[:, None], final[:, None], letters], axis=1), axis=0, return_inverse=True
        )
        after, verdicts = np.zeros(len(cases), np.int64), np.zeros((len(cases), formulas), bool)
        for i, (before, over, *letter) in enumerate(cases.tolist()):
            word = tuple(map(bool, letter))
            if over:
                after[i], verdicts[i] = self.automaton.start, self.automaton.verdicts(before, word)
            else:
                after[i] = self.automaton.step(before, word)
        return after[inverse.ravel()], verdicts[inverse.ravel()]

    def expand(self, nodes: _Nodes) -> tuple[_Candidates, NDArray[np.float64]]:
        """Return all steps from non-final nodes in order of node, action, draw, and their rewards."""
        alive = np.flatnonzero(~nodes.final)
        state, table = nodes.state[alive], self.table
        shape = table.successor[state].shape  # [alive, actions, C]
        rewards = table.reward[state]
        carried = np.broadcast_to(nodes.carried[alive][:, None, None, :], (*shape, len(self.carried))).copy()
        for i, name in enumerate(self.carried):
            match name:
                case "reward":
                    carried[..., i] = rewards
                case "return":
                    carried[..., i] += rewards
                case "action":
                    carried[..., i] = table.action[state][:, :, None]
        candidates = _Candidates(
            table.successor[state].ravel(),
            carried.reshape(rewards.size, len(self.carried)),
            nodes.totals[alive].repeat(shape[1] * shape[2], axis=0),
            table.done[state].ravel(),
            np.broadcast_to(nodes.progress[alive][:, None, None], shape).ravel(),
        )
        return candidates, rewards

    def layer(
        self,
        nodes: _Nodes,
        successors: NDArray[np.int64],
        rewards: NDArray[np.float64],
        gains: NDArray[np.float64],
    ) -> Layer:
        """Return the layer of these nodes with their steps."""
        shape = (len(nodes.state), *self.table.successor.shape[1:])
        successor, reward = np.full(shape, -1), np.zeros(shape)
        gain = np.zeros((*shape, len(self.quantities)))
        alive = ~nodes.final
        successor[alive] = successors.reshape(-1, *shape[1:])
        reward[alive] = rewards.reshape(-1, *shape[1:])
        gain[alive] = gains.reshape(alive.sum(), *gain.shape[1:])
        letters = np.zeros((len(nodes.state), 0), bool)
        return Layer(nodes.state, letters, nodes.final, nodes.satisfied, successor, reward, gain)
