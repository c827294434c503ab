"""The Markov chain of a policy straight from `transition`, for a second opinion: nothing of `unfold` is used.

Every state within the horizon is made with all its counters, and formulas are evaluated one state at a time
(`scalar_eval`). Then states of one step with equal labels and equal successors are merged, from the last step back to
the first. This bisimulation changes no probability and no expected value, whatever the formulas are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import DomainError, RequirementError
from psyco._src.envs.base import Domain, FiniteDomain, require_finite, signal_table
from psyco._src.exact.model_consistency import check_consistency
from psyco._src.exact.unfold import Act, Layer, Unfolding, policy_actions
from psyco._src.logic.ast import Formula, Instant, Quantity
from psyco._src.logic.progression import state_formulas
from psyco._src.logic.scalar_eval import StepEvaluator
from psyco._src.logic.validate import check_bounds, check_precision, check_signals
from psyco._src.policies.external import PolicyLike

MAX_CHAIN_STATES = 5_000_000  # before states are merged


def plain_chain(
    policy: PolicyLike, domain: Domain, formulas: Sequence[Formula], quantities: Sequence[Quantity]
) -> Unfolding:
    """Return the chain of a policy over the horizon, whose states show the truth of the formulas' atoms.

    Every step gains for a quantity over several steps: the caller applies bounds and targets.
    """
    domain = require_finite(domain)
    for subject in (*formulas, *quantities):
        check_signals(subject, signal_table(domain), domain.name)
        check_bounds(subject, domain.horizon, domain.name)
        check_precision(subject, signal_table(domain))
    check_consistency(domain)  # type: ignore[arg-type]  # hashable, as for jit
    atoms = state_formulas(formulas)
    explorer = _Explorer(domain, policy_actions(policy, domain), atoms, quantities)
    start, initial = domain.initial_distribution()
    ids = explorer.states.ids(jax.device_get(initial))
    explorer.states.prepare()
    entries = [explorer.first(state) for state in ids]
    steps = [explorer.enter(entries, 0)]
    made = len(steps[0].nodes)
    while not all(node.final for node in steps[-1].nodes):
        entries = [entry for node in steps[-1].nodes for entry in explorer.leave(node)]
        explorer.states.prepare()
        steps.append(explorer.enter(entries, len(steps)))
        made += len(steps[-1].nodes)
        if made > MAX_CHAIN_STATES:
            raise DomainError(f"{domain.name} has more than {MAX_CHAIN_STATES:,} states over time: too many for Storm")
    probabilities = np.asarray(domain.draw_probabilities(), np.float64)
    layers, entry_class = _merged(steps, len(probabilities), len(quantities))
    initial_gains = np.array([steps[0].nodes[i].gains for i in steps[0].entered]).reshape(len(start), len(quantities))
    merged_start = np.zeros(len(layers[0].state))
    np.add.at(merged_start, entry_class, start)
    return Unfolding(merged_start, probabilities, layers, atoms, 0, start @ initial_gains)


class _Entry(NamedTuple):
    """Coming into a state of the domain."""

    state: int
    reward: float
    total_reward: float
    action: int
    totals: tuple[Any, ...]  # of the aggregates, before this state
    done: bool


class _Node(NamedTuple):
    """A state after a number of steps."""

    state: int
    total_reward: float
    totals: tuple[Any, ...]  # of the aggregates, after this state
    final: bool
    letters: tuple[bool, ...]
    gains: tuple[float, ...]


class _Step(NamedTuple):
    nodes: list[_Node]
    entered: list[int]  # of each entry, the index of its node
    rewards: list[float]  # of each entry


class _Explorer:
    """Makes the nodes of one step after the other."""

    def __init__(
        self, domain: FiniteDomain, act: Act, atoms: Sequence[Formula], quantities: Sequence[Quantity]
    ) -> None:
        self.domain, self.quantities = domain, quantities
        self.evaluator = StepEvaluator([*atoms, *(quantity.x for quantity in quantities)])
        self.states = _States(domain, act, self.evaluator.names)
        self.predicates = [self.evaluator.predicate(atom) for atom in atoms]
        self.rewards = [self.evaluator.reward(quantity.x) for quantity in quantities]
        self.evaluator.start()
        self.before = tuple(self.evaluator.totals)

    def first(self, state: int) -> _Entry:
        """Return the entry of an initial state, which shows the first action."""
        return _Entry(state, 0.0, 0.0, self.states.action[state], self.before, done=False)

    def leave(self, node: _Node) -> list[_Entry]:
        """Return the entries that one step leads to, one per draw; none from a final state."""
        if node.final:
            return []
        action = self.states.action[node.state]
        return [
            _Entry(state, reward, node.total_reward + reward, action, node.totals, done)
            for state, reward, done in self.states.moves[node.state]
        ]

    def enter(self, entries: Sequence[_Entry], step: int) -> _Step:
        """Return the distinct nodes of the entries."""
        named = self.evaluator.names
        numbers: dict[Any, int] = {}
        nodes: list[_Node] = []
        entered: list[int] = []
        for entry in entries:
            shown = {"reward": entry.reward, "return": entry.total_reward, "action": entry.action}
            shown = {name: value for name, value in shown.items() if name in named}
            key = entry.state, tuple(shown.values()), entry.totals, entry.done
            if key not in numbers:
                numbers[key] = len(nodes)
                nodes.append(self.node(entry, shown, step))
            entered.append(numbers[key])
        return _Step(nodes, entered, [entry.reward for entry in entries])

    def node(self, entry: _Entry, shown: dict[str, Any], step: int) -> _Node:
        final = entry.done or step == self.domain.horizon
        self.evaluator.totals = list(entry.totals)
        values = self.evaluator.read({**self.states.signals[entry.state], **shown})
        values = self.evaluator.extend(values, step, final)  # type: ignore[assignment]
        gains = [self.gain(i, values, step, final) for i in range(len(self.quantities))]
        total_reward = entry.total_reward if "return" in self.evaluator.names else 0.0
        letters = tuple(bool(holds(values)) for holds in self.predicates)
        return _Node(entry.state, total_reward, tuple(self.evaluator.totals), final, letters, tuple(gains))

    def gain(self, i: int, values: Sequence[Any], step: int, final: bool) -> float:
        quantity, counts = self.quantities[i], step > 0
        if isinstance(quantity.over, Instant):  # the last state of an episode repeats
            counts = step == quantity.over.step or (final and step < quantity.over.step)
        gain = self.rewards[i](values) if counts else 0.0
        if not math.isfinite(gain):
            raise RequirementError(f"{quantity.x} is not a finite number in every state where it is evaluated")
        return gain


class _States:
    """The states of the domain that were seen, numbered, with the policy's step from each."""

    def __init__(self, domain: FiniteDomain, act: Act, names: frozenset[str]) -> None:
        self.domain, self.act, self.names = domain, act, names
        self.numbers: dict[bytes, int] = {}
        self.rows: list[NDArray[np.int64]] = []
        self.signals: list[dict[str, Any]] = []
        self.action: list[int] = []
        self.moves: list[list[tuple[int, float, bool]]] = []  # per draw: next state, reward, whether it terminates

    def ids(self, states: Any) -> list[int]:
        """Return the number of each state; new ones are added."""
        leaves, self.structure = jax.tree.flatten(states)
        self.shapes = [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
        rows = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1).astype(np.int64)
        return [self.number(row) for row in rows]

    def number(self, row: NDArray[np.int64]) -> int:
        known = self.numbers.setdefault(row.tobytes(), len(self.rows))
        if known == len(self.rows):
            self.rows.append(row)
        return known

    def prepare(self) -> None:
        """Compute signals, action and step of all new states."""
        new = self.rows[len(self.moves) :]
        if not new:
            return
        # Padded to a power of 2, so that few shapes are compiled.
        padded = np.stack([*new, *[new[0]] * ((1 << (len(new) - 1).bit_length()) - len(new))])
        states = self.unpack(padded)
        observations, signals = jax.device_get(_show(self.domain, states))
        actions = np.asarray(self.act(np.asarray(observations)))
        following, reward, done = jax.device_get(_move(self.domain, states, jnp.asarray(actions)))
        signals = {"obs": observations, **signals}
        flat = jax.tree.map(lambda leaf: leaf[: len(new)].reshape(-1, *leaf.shape[2:]), following)
        ids = iter(self.ids(flat))
        for i in range(len(new)):
            self.signals.append({name: signals[name][i] for name in self.names & signals.keys()})
            self.action.append(int(actions[i]))
            pairs = zip(reward[i].tolist(), done[i].tolist(), strict=True)
            self.moves.append([(next(ids), value, over) for value, over in pairs])

    def unpack(self, rows: NDArray[np.int64]) -> Any:
        ends = np.cumsum([math.prod(shape) for shape, _ in self.shapes])
        parts = zip(np.split(rows, ends[:-1], axis=1), self.shapes, strict=True)
        leaves = [jnp.asarray(part.reshape(len(rows), *shape).astype(dtype)) for part, (shape, dtype) in parts]
        return jax.tree.unflatten(self.structure, leaves)


@jax.jit(static_argnums=0)
def _show(domain: FiniteDomain, states: Any) -> tuple[Array, dict[str, Array]]:
    return jax.vmap(lambda state: (domain.observe(state), dict(domain.signals(state))))(states)


@jax.jit(static_argnums=0)
def _move(domain: FiniteDomain, states: Any, actions: Array) -> Any:
    """Return next states, rewards and terminations `[S, C]`."""
    draws = jnp.arange(len(domain.draw_probabilities()))
    over_draws = jax.vmap(domain.transition, (None, None, 0))
    return jax.vmap(over_draws, (0, 0, None))(states, actions, draws)


def _merged(steps: Sequence[_Step], draws: int, quantities: int) -> tuple[tuple[Layer, ...], NDArray[np.int64]]:
    """Merge the nodes of each step with equal labels and successors; return also the class of each initial state."""
    layers: list[Layer] = []
    targets: list[int] = []  # of the moves out of the current step, in order of node and draw: class in the next step
    rewards: list[float] = []
    gains_ahead = np.zeros((0, quantities))  # of the classes of the next step
    for step in reversed(steps):
        classes: dict[Any, int] = {}
        representative: list[int] = []
        class_of, leads, at = [], [], 0
        for i, node in enumerate(step.nodes):
            count = 0 if node.final else draws
            lead = tuple(targets[at : at + count]), tuple(rewards[at : at + count])
            at += count
            key = node.letters, node.final, node.gains, lead
            if key not in classes:
                classes[key] = len(classes)
                representative.append(i)
                leads.append(lead)
            class_of.append(classes[key])
        chosen = [step.nodes[i] for i in representative]
        shape = (len(chosen), 1, draws)
        successor, reward, gain = np.full(shape, -1), np.zeros(shape), np.zeros((*shape, quantities))
        for i, (to, worth) in enumerate(leads):
            if to:
                successor[i, 0], reward[i, 0], gain[i, 0] = to, worth, gains_ahead[list(to)]
        layers.append(
            Layer(
                np.array([node.state for node in chosen]),
                np.array([node.letters for node in chosen], bool).reshape(len(chosen), -1),
                np.array([node.final for node in chosen]),
                np.zeros((len(chosen), 0), bool),
                successor,
                reward,
                gain,
            )
        )
        gains_ahead = np.array([node.gains for node in chosen]).reshape(len(chosen), quantities)
        targets, rewards = [class_of[i] for i in step.entered], step.rewards
    return tuple(reversed(layers)), np.array(targets)
