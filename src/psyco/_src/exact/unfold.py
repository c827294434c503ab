"""A finite domain unfolded over time, together with what is left of each formula: the graph that exact answers walk.

A node of layer t is what can be the case after t steps: a state, what the path so far has left of the formulas, and
what their aggregates have come to. Unreachable ones are never made. Counters and counts stop where no formula can tell
the difference, and are forgotten when all formulas are decided. Quantities are added up along the steps.
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

from psyco._src.core.errors import DomainError, PsycoError, RequirementError, RunError, told
from psyco._src.envs.actions import Discrete
from psyco._src.envs.base import Domain, signal_table
from psyco._src.envs.finite import FiniteDomain, finite
from psyco._src.exact.model_consistency import check_law
from psyco._src.logic.array_eval import PathPrefix, SignalArrays
from psyco._src.logic.ast import (
    Aggregate,
    Compare,
    Finally,
    Formula,
    Instant,
    Node,
    Number,
    Quantity,
    Reaching,
    Signal,
    Total,
    aggregates,
    parts,
    walk,
)
from psyco._src.logic.progression import Automaton
from psyco._src.logic.validate import check_bounds, check_signals
from psyco._src.policies.determinism_check import DeterminismProbe
from psyco._src.policies.external import ExternalPolicy, PolicyLike, as_policy
from psyco._src.policies.guard import Guard
from psyco._src.policies.serialization import Policy

Act = Callable[[NDArray[np.float32]], NDArray[Any]]  # observations [S, size] -> actions [S]
LARGEST = 2_000_000  # states of a domain
CARRIED = ("reward", "return", "action")  # signals that are part of a node only if a formula names them


class Layer(NamedTuple):
    """M nodes: everything that can be the case after so many steps."""

    state: NDArray[np.int64]  # [M] index into the table of states
    letters: NDArray[np.bool_]  # [M, A] truth of the atoms
    final: NDArray[np.bool_]  # [M] the episode is over
    satisfied: NDArray[np.bool_]  # [M, K] did the formulas hold; meaningful where final
    successor: NDArray[np.int64]  # [M, actions, C] index into the next layer; -1 where final
    reward: NDArray[np.float64]  # [M, actions, C]
    gain: NDArray[np.float64]  # [M, actions, C, Q] what a step adds to the quantities


@dataclass(frozen=True)
class Unfolding:
    """The graph. With a policy it is a Markov chain (one action), without one a Markov decision process."""

    start: NDArray[np.float64]  # [M of the first layer] probabilities
    chances: NDArray[np.float64]  # [C] probabilities of the random draws
    layers: tuple[Layer, ...]
    atoms: tuple[Formula, ...]  # what the letters say
    formulas: int  # K; further columns of `satisfied` say whether quantities with F have come to their end
    initial: NDArray[np.float64]  # [Q] what the first states add to the quantities, on average

    @property
    def nodes(self) -> int:
        """How many there are in all layers."""
        return sum(len(layer.state) for layer in self.layers)

    @property
    def actions(self) -> int:
        """Choices in each node."""
        return self.layers[0].successor.shape[1]


def unfold(
    domain: Domain,
    formulas: Sequence[Formula],
    act: Act | None = None,
    *,
    quantities: Sequence[Quantity] = (),
    follow: bool = True,
) -> Unfolding:
    """The graph of a domain over its horizon.

    Args:
        domain: one that can be enumerated.
        formulas: what the nodes keep track of.
        act: the policy's actions; without it, every action is followed.
        quantities: what is added up along the way; of a rate the total.
        follow: if not, nodes only carry the atoms of the formulas, for tools that do the rest, and every step adds to a
            quantity that has more than one step.
    """
    domain = finite(domain)
    check_law(domain)  # type: ignore[arg-type]  # it is hashable, as for jit
    for subject in (*formulas, *quantities):
        check_signals(subject, signal_table(domain), domain.name)
        check_bounds(subject, domain.horizon, domain.name)
    reaching = [Finally(each.over.body) for each in quantities if isinstance(each.over, Reaching)]
    automaton = Automaton([*formulas, *reaching])
    spoken_of: list[Node] = [*automaton.formulas, *(each.x for each in quantities)]
    table = _explore(domain, spoken_of, act)
    names = {node.name for tree in spoken_of for node in walk(tree) if isinstance(node, Signal)}
    carried = tuple(name for name in CARRIED if name in names)
    running = aggregates(spoken_of)
    makers = _Layers(domain, automaton, table, carried, running, tuple(quantities), follow)
    first = _Candidates(
        table.start_state,
        np.zeros((len(table.start_state), len(carried))),
        np.zeros((len(table.start_state), len(running))),
        np.zeros(len(table.start_state), bool),
        np.full(len(table.start_state), automaton.start),
    )
    if "action" in carried:  # the first moment shows the first action
        first.carried[:, carried.index("action")] = makers.first_actions(act)[first.state]
    nodes, inverse, gains = makers.merge(first, 0)
    initial = table.start @ gains
    start = np.zeros(len(nodes.state))
    np.add.at(start, inverse, table.start)
    layers: list[Layer] = []
    for step in range(1, domain.horizon + 1):
        ahead, rewards = makers.expand(nodes)
        following, inverse, gains = makers.merge(ahead, step)
        layers.append(makers.layer(nodes, inverse, rewards, gains))
        nodes = following
        if not len(nodes.state):
            break
    if len(nodes.state):
        layers.append(makers.layer(nodes, np.zeros(0, np.int64), np.zeros(0), np.zeros(0)))
    return Unfolding(start, table.chances, tuple(layers), automaton.atoms, len(formulas), initial)


def actions_of(policy: PolicyLike, domain: Domain) -> Act:
    """What a policy does, by the same code that runs it in rollouts."""
    policy = as_policy(policy)
    policy.check(domain)
    if not isinstance(policy, Policy):
        return _asked(policy, domain)
    act = jax.vmap(partial(policy.network.act, domain.actions, jnp.asarray(policy.theta)))
    return lambda observations: np.asarray(act(jnp.asarray(observations)))


def _asked(policy: ExternalPolicy | Guard, domain: Domain) -> Act:
    if policy.remembers:
        raise RunError(
            f"the policy {policy.source} has a memory; exact answers are about policies that act on what they see now. "
            "psyco.verify can sample its episodes"
        )

    def actions(observations: NDArray[np.float32]) -> NDArray[Any]:
        count = len(observations)
        crew = DeterminismProbe(policy).crew(domain, np.zeros((count, 0), np.float32), [0] * count)
        try:
            return np.asarray(crew(observations, list(observations)))
        except PsycoError:
            raise
        except Exception as error:  # whatever a stranger's policy does
            raise RunError(f"the policy failed: {told(error)}") from error

    return actions


# ---- the states of the domain ------------------------------------------------------------------------------------


class _TransitionTable(NamedTuple):
    """All states within reach, with every step from them."""

    start: NDArray[np.float64]  # [S0] probabilities
    start_state: NDArray[np.int64]  # [S0]
    chances: NDArray[np.float64]  # [C]
    successor: NDArray[np.int64]  # [S, actions, C]
    reward: NDArray[np.float64]  # [S, actions, C]
    done: NDArray[np.bool_]  # [S, actions, C]
    action: NDArray[np.int64]  # [S, actions]
    forgotten: NDArray[np.int64]  # [S] the same state with all counters at 0
    signals: dict[str, NDArray[Any]]  # each [S] or [S, size]


def _explore(domain: FiniteDomain, spoken_of: Sequence[Node], act: Act | None) -> _TransitionTable:
    start, initial = domain.starts()
    chances = domain.chances()
    leaves, structure = jax.tree.flatten(jax.device_get(initial))
    shapes = [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
    limits = {name: _needed(Signal(name), spoken_of, domain.horizon) for name in domain.counters}
    if not isinstance(domain.actions, Discrete):  # `finite` has seen to it
        raise DomainError(f"{domain.name} has no discrete actions")
    every = np.arange(domain.actions.n)

    def rows_of(state: Any) -> NDArray[np.int64]:
        """States as rows of whole numbers, counters cut off where nobody can tell."""
        cut = state._replace(**{n: np.minimum(getattr(state, n), limit) for n, limit in limits.items()})
        flat = [np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(cut)]
        return np.concatenate(flat, axis=1).astype(np.int64)

    def states_of(rows: NDArray[np.int64]) -> Any:
        parts, at = [], 0
        for shape, dtype in shapes:
            size = int(np.prod(shape))
            parts.append(jnp.asarray(rows[:, at : at + size].reshape(len(rows), *shape).astype(dtype)))
            at += size
        return jax.tree.unflatten(structure, parts)

    known: dict[bytes, int] = {}
    table: list[NDArray[np.int64]] = []

    def numbers(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The index of every row; new ones are entered."""
        unique, inverse = np.unique(rows, axis=0, return_inverse=True)
        ids = np.empty(len(unique), np.int64)
        for i, row in enumerate(unique):
            key = row.tobytes()
            if key not in known:
                known[key] = len(table)
                table.append(row)
            ids[i] = known[key]
        if len(table) > LARGEST:
            raise DomainError(
                f"{domain.name} has more than {LARGEST:,} states within reach: too many to enumerate"
            )
        return ids[inverse.ravel()]

    def forget(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        state = jax.device_get(states_of(rows))
        return rows_of(state._replace(**{n: np.zeros_like(getattr(state, n)) for n in limits}))

    start_state = numbers(rows_of(initial))
    parts: list[tuple[NDArray[Any], ...]] = []
    done = 0
    while done < len(table):
        rows = np.stack(table[done:])
        padded = np.concatenate(
            [rows, np.repeat(rows[:1], -len(rows) % 1024, axis=0)]
        )  # few shapes to compile
        states = states_of(padded)
        actions = (
            every[None].repeat(len(padded), 0)
            if act is None
            else np.asarray(act(np.asarray(_observe(domain, states))))[:, None]
        )
        following, reward, over = jax.device_get(_moves(domain, states, jnp.asarray(actions)))
        size = len(padded) * actions.shape[1] * len(chances)
        flat = jax.tree.map(lambda leaf: leaf.reshape(size, *leaf.shape[3:]), following)  # noqa: B023
        shape = (len(padded), actions.shape[1], len(chances))
        keep = len(rows)
        done = len(table)
        parts.append(
            (
                numbers(rows_of(flat).reshape(*shape, -1)[:keep].reshape(-1, rows.shape[1])).reshape(
                    keep, *shape[1:]
                ),
                reward[:keep].astype(np.float64),
                over[:keep],
                actions[:keep],
                numbers(forget(rows)),
            )
        )
    successor, reward, over, actions, forgotten = (np.concatenate(part) for part in zip(*parts, strict=True))
    states = states_of(np.stack(table))
    signals = {name: np.asarray(value) for name, value in _signals(domain, states).items()}
    signals["obs"] = np.asarray(_observe(domain, states))
    return _TransitionTable(start, start_state, chances, successor, reward, over, actions, forgotten, signals)


@jax.jit(static_argnums=0)
def _moves(domain: FiniteDomain, states: Any, actions: Array) -> Any:
    """Every step from states `[S]` with actions `[S, A]`: next states, rewards and ends, `[S, A, C]` each."""
    chances = jnp.arange(len(domain.chances()))
    over_chances = jax.vmap(domain.move, (None, None, 0))
    over_actions = jax.vmap(over_chances, (None, 0, None))
    return jax.vmap(over_actions, (0, 0, None))(states, actions, chances)


@jax.jit(static_argnums=0)
def _observe(domain: FiniteDomain, states: Any) -> Array:
    return jax.vmap(domain.observe)(states)


@jax.jit(static_argnums=0)
def _signals(domain: FiniteDomain, states: Any) -> dict[str, Array]:
    return jax.vmap(lambda state: dict(domain.signals(state)))(states)


def _needed(counter: Signal | Aggregate, spoken_of: Sequence[Node], horizon: int) -> int:
    """The value at which a counter may stop: one more than any number it is compared with."""
    largest = -1.0

    def visit(node: Node) -> None:
        nonlocal largest
        match node:
            case Compare(_, term, Number(value)) | Compare(_, Number(value), term) if term == counter:
                largest = max(largest, value)
            case _ if node == counter:  # in arithmetic: every value may matter
                largest = math.inf
            case _:
                for part in parts(node):
                    visit(part)

    for tree in spoken_of:
        visit(tree)
    return int(min(largest, horizon)) + 1 if largest >= 0 else 0


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
    letters: NDArray[np.bool_]  # [M, A]


@dataclass(frozen=True)
class _Layers:
    domain: FiniteDomain
    automaton: Automaton
    table: _TransitionTable
    carried: tuple[str, ...]
    running: tuple[Aggregate, ...]
    quantities: tuple[Quantity, ...]
    follow: bool

    @property
    def spoken_of(self) -> tuple[Node, ...]:
        """All that may depend on a counter or a count."""
        return (*self.automaton.formulas, *(each.x for each in self.quantities))

    def first_actions(self, act: Act | None) -> NDArray[np.int64]:
        """What the signal `action` shows before the first step, per state."""
        if act is None:
            raise DomainError(
                "a formula that names `action` has no optimum: the first state shows the action to come"
            )
        return self.table.action[:, 0]

    def merge(self, found: _Candidates, step: int) -> tuple[_Nodes, NDArray[np.int64], NDArray[np.float64]]:
        """Read the states, then keep one node of each kind.

        Also returns which one each candidate became, and what each adds to the quantities `[M, Q]`.
        """
        final = found.done | (step == self.domain.horizon)
        signals = {name: values[found.state] for name, values in self.table.signals.items()}
        signals["step"] = np.full(len(found.state), step)
        signals |= {name: found.carried[:, i] for i, name in enumerate(self.carried)}
        before = dict(zip(self.running, found.totals.T, strict=True)) if step else {}
        # Each state as a path of its own with a past, `[M, 1]`.
        alone = {name: values[:, None] for name, values in signals.items()}
        path = SignalArrays(np, alone, final[:, None], (len(final), 1), PathPrefix(step, before))
        letters = self.automaton.letters(path)[:, 0]
        gains = self._gains(path, found.progress, final, step)
        progress, satisfied = self._read(found.progress, letters, final)
        state, totals = found.state, self._totals(path)
        if self.follow:
            decided = np.array([self.automaton.decided(p) for p in range(int(progress.max(initial=0)) + 1)])
            # A quantity may go on to speak of counters when all formulas are decided.
            over = final | (decided[progress] & (not self.quantities))
            state = np.where(over, self.table.forgotten[state], state)
            totals = np.where(over[:, None], 0.0, totals)
            letters = letters & False
        columns = [
            state[:, None],
            found.carried,
            totals,
            final[:, None],
            progress[:, None],
            satisfied,
            letters,
        ]
        _, first, inverse = np.unique(
            np.concatenate(columns, axis=1, dtype=np.float64), axis=0, return_index=True, return_inverse=True
        )
        nodes = _Nodes(
            state[first],
            found.carried[first],
            totals[first],
            final[first],
            progress[first],
            satisfied[first],
            letters[first],
        )
        return nodes, inverse.ravel(), gains

    def _gains(
        self, path: SignalArrays, before: NDArray[np.int64], final: NDArray[np.bool_], step: int
    ) -> NDArray[np.float64]:
        """What coming into these states adds to the quantities, `[M, Q]`."""
        gains = np.zeros((len(final), len(self.quantities)))
        ended = len(self.automaton.formulas) - sum(isinstance(q.over, Reaching) for q in self.quantities)
        for i, quantity in enumerate(self.quantities):
            counts = np.full(len(final), step > 0)
            match quantity.over:
                case Instant(at):  # the last state of an episode repeats
                    counts = (step == at) | (final & (step < at))
                case Total(int(most)) if self.follow:
                    counts &= step <= most
                case Reaching() if self.follow:
                    counts &= ~np.array(
                        [self.automaton.holds(p, ended) for p in range(before.max(initial=0) + 1)]
                    )[before]
                    ended += 1
            with np.errstate(all="ignore"):
                gains[:, i] = np.where(counts, path.worth(quantity.x)[:, 0], 0.0)
            if not np.isfinite(gains[:, i]).all():
                raise RequirementError(f"{quantity.x} is no finite number in every state that it is taken in")
        return gains

    def _totals(self, path: SignalArrays) -> NDArray[np.float64]:
        """What the aggregates come to in these states `[M, R]`, counts cut off where nobody can tell."""
        totals = np.zeros((len(path.end), len(self.running)))
        for i, (each, total) in enumerate(path.passed(self.running).totals.items()):
            totals[:, i] = total
            if each.function == "count":
                limit = _needed(each, self.spoken_of, self.domain.horizon)
                totals[:, i] = np.minimum(total, limit)
            elif each.function in ("sum", "mean") and (total != np.rint(total)).any():
                raise RequirementError(
                    f"{each} comes to {total[total != np.rint(total)][0]:g}; exact answers keep every value of it, "
                    "and nothing bounds the number of these where fractions are added up",
                    each.place,
                    "add up whole numbers, as in sum(2 * x) <= 50 for sum(x) <= 25",
                )
        return totals

    def _read(
        self, progress: NDArray[np.int64], letters: NDArray[np.bool_], final: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Progress and, in final states, verdicts `[M, K]`, once for each different case."""
        formulas = len(self.automaton.formulas)
        if not self.follow:
            return np.zeros_like(progress), np.zeros((len(progress), formulas), bool)
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
        """All steps from the nodes that are not final, in order of node, action, chance; and their rewards."""
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
        """The nodes with where their steps lead."""
        shape = (len(nodes.state), *self.table.successor.shape[1:])
        successor, reward = np.full(shape, -1), np.zeros(shape)
        gain = np.zeros((*shape, len(self.quantities)))
        alive = ~nodes.final
        successor[alive] = successors.reshape(-1, *shape[1:])
        reward[alive] = rewards.reshape(-1, *shape[1:])
        gain[alive] = gains.reshape(alive.sum(), *gain.shape[1:])
        return Layer(nodes.state, nodes.letters, nodes.final, nodes.satisfied, successor, reward, gain)
