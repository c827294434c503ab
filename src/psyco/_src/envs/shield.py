"""A shield: in each state of a known model, only choices after which the requirement can still be met well enough.

For each state and step, backward induction gives the largest probability with which a formula can still be satisfied
after each choice. The shield allows the choices that reach a level, and where none does, the best ones. It is an
action mask, so everything that respects masks respects it: exploration, the learned policy, its certificate.

The level is about each choice, not about an episode: many choices that each keep the level can together lose more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import DomainError, RequirementError
from psyco._src.envs.actions import Discrete, first_offered
from psyco._src.envs.agents import agents_of
from psyco._src.envs.base import CompiledDomain, Domain, FiniteDomain, State, is_finite_domain
from psyco._src.envs.base import parameters as parameters_of
from psyco._src.envs.model_file import KnownTransitions, ModelFile
from psyco._src.envs.shield_table import ShieldTable
from psyco._src.envs.variants import DerivedDomain
from psyco._src.logic.ast import (
    END,
    Constraint,
    Formula,
    Label,
    Not,
    Requirement,
    Signal,
    walk,
)
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.parser import parse
from psyco._src.logic.reach_formula import ReachFormula, reach_formula

MAX_SHIELD_STATES = 100_000  # of a domain that is enumerated
MAX_TABLE_SIZE = 2**24  # states times steps with different masks
MAX_ACTIONS = 32  # bits of a word
TOLERANCE = 1e-9  # of probabilities


class Choices(NamedTuple):
    """A model with S states: the choices of each, and where they lead."""

    first: NDArray[np.int64]  # [S+1] of the choices of each state; a state that was not explored has none
    action: NDArray[np.int64]  # [M] of each choice
    yes: NDArray[np.bool_]  # [S]
    no: NDArray[np.bool_]  # [S]
    ends: NDArray[np.bool_]  # [S] an episode ends there, whatever led there
    ahead: Any  # (values [S], values of ended episodes [S]) -> [M] expected values after each choice
    index: Any  # state of the domain -> its number, or -1
    observations: NDArray[np.float32]  # [S, size]
    counters: dict[str, NDArray[Any]]  # [S] signals that tell states apart, beside observations


class ShieldTables(NamedTuple):
    """What the shield allows."""

    decided: NDArray[np.bool_]  # [S]
    words: NDArray[np.uint32]  # [U, S] allowed actions, a bit each
    rows: NDArray[np.int32]  # [T] row of each step
    best: NDArray[np.float64]  # [S] largest probability at the start


class ShieldedState(NamedTuple):
    """A state of the base, the number of steps so far, and whether the formula was open in the states before."""

    inner: State
    shield_step: Array  # [] int32
    shield_open: Array  # [] bool


@dataclass(frozen=True)
class Shielded(DerivedDomain):
    """A domain in which a shield masks actions; `with_shield` makes it.

    Args:
        base: a finite domain, or a model with a horizon.
        level: of the shield.
        stated: the requirement that it protects, as text.
    """

    base: CompiledDomain
    level: float
    stated: str

    has_mask = True

    @property
    def observation_size(self) -> int:
        """Length of an observation, with the mask of the shield."""
        return self._own_size + self.actions.outputs

    @property
    def _own_size(self) -> int:
        return self.base.observation_size - self.actions.outputs * self._is_masked

    @property
    def _is_masked(self) -> bool:
        return bool(getattr(self.base, "has_mask", False))

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the base, and of the shield."""
        return parameters_of(self.base) | {"shield": self.shield}

    @property
    def shield(self) -> dict[str, Any]:
        """Level and requirement, as a policy file names them."""
        return {"level": self.level, "requirement": self.stated}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest values of signals."""
        return dict(getattr(self.base, "ranges", {}))

    @property
    def one_hot(self) -> tuple[int, ...]:
        """Sizes of the one-hot codes in an observation; empty if it has none."""
        return tuple(getattr(self.base, "one_hot", ()))

    @property
    def known_transitions(self) -> KnownTransitions | None:
        """The transitions of a model, for a learner of tables."""
        return getattr(self.base, "known_transitions", None)

    def known_model(self, requirement: Requirement) -> KnownTransitions | None:
        """Return transitions alone: which choices are allowed depends on the step, so a table counts those taken."""
        return self.known_transitions

    @cached_property
    def formula(self) -> ReachFormula:
        """The protected formula."""
        return protected(parse(self.stated))

    @cached_property
    def choices(self) -> Choices:
        """The model of the base."""
        with jax.ensure_compile_time_eval():  # the first use may be inside of compiled code
            if isinstance(self.base, ModelFile):
                return _model_choices(self.base, self.formula)
            assert is_finite_domain(self.base)
            return _finite_choices(self.base, self.formula, self._steps)

    @property
    def _steps(self) -> int:
        return min(self.horizon, self.horizon if self.formula.bound is None else self.formula.bound)

    @cached_property
    def tables(self) -> ShieldTables:
        """What the shield allows in each state and step."""
        return _solve(self.choices, self.formula.at_end, self.level, self._steps, self.name)

    @cached_property
    def _arrays(self) -> tuple[Array, Array, Array]:
        with jax.ensure_compile_time_eval():
            tables = self.tables
            return jnp.asarray(tables.decided), jnp.asarray(tables.words), jnp.asarray(tables.rows)

    @cached_property
    def shield_table(self) -> ShieldTable | None:
        """The table that a policy file carries; None if observations and counters do not tell its states apart."""
        choices, tables = self.choices, self.tables
        keys = np.concatenate([choices.observations, *(x[:, None] for x in choices.counters.values())], axis=1)
        table = ShieldTable(
            self.actions.outputs, self.level, tuple(choices.counters), self._is_masked, keys.astype(np.float32),
            tables.decided, tables.words, tables.rows,
        )  # fmt: skip
        return table if table.is_unambiguous else None

    # ---- a compiled domain ----------------------------------------------------------------------------------------

    def reset(self, key: Array) -> ShieldedState:
        """Return an initial state, in which nothing is decided."""
        return ShieldedState(self.base.reset(key), jnp.int32(0), jnp.bool_(True))

    @property
    def draw(self) -> Any:
        """The draws of all steps."""
        return self.base.draw  # type: ignore[attr-defined]  # optional

    def step(self, drawn: Any, state: ShieldedState, action: Array) -> tuple[ShieldedState, Array, Array | bool]:
        """Take an action that the shield allows; instead of another, the first that it allows."""
        own = state.inner
        allowed = first_offered(action, self.mask(state))
        inner, reward, done = self.base.step(drawn, own, allowed)
        is_open = state.shield_open & ~self._arrays[0][self.choices.index(own)]
        return ShieldedState(inner, state.shield_step + 1, is_open), reward, done

    def observe(self, state: ShieldedState) -> Array:
        """Return the observation of the base, with the mask of the shield."""
        return self._with_mask(state, self.mask(state))

    def observe_free(self, state: ShieldedState) -> Array:
        """Return the observation with the mask of the base: all that a policy without a shield could choose."""
        return self._with_mask(state, self._free(state))

    def signals(self, state: ShieldedState) -> Mapping[str, Array]:
        """Return the signals of the base."""
        return self.base.signals(state.inner)

    def mask(self, state: ShieldedState) -> Array:
        """Return the actions `[n]` that the shield allows; those of the base once the requirement is decided."""
        decided, words, rows = self._arrays
        number = self.choices.index(state.inner)
        word = words[rows[jnp.minimum(state.shield_step, len(rows) - 1)], number]
        bits = (word >> jnp.arange(self.actions.outputs, dtype=jnp.uint32)) & 1
        acts = state.shield_open & (state.shield_step < len(rows)) & ~(decided[number] & (number >= 0))
        # A state that the model lacks has no action, which is an error of the episode.
        return jnp.where(acts, bits.astype(jnp.float32) * (number >= 0), self._free(state))

    def _free(self, state: ShieldedState) -> Array:
        size = self.actions.outputs
        return self.base.observe(state.inner)[-size:] if self._is_masked else jnp.ones(size, jnp.float32)

    def _with_mask(self, state: ShieldedState, mask: Array) -> Array:
        return jnp.concatenate([self.base.observe(state.inner)[: self._own_size], mask])


def with_shield(domain: Domain, requirement: Requirement, level: float | None) -> Domain:
    """Return the domain with a shield for the requirement; the same domain without a level, or if it has one."""
    if level is None or isinstance(domain, Shielded):
        return domain
    if not 0.0 < level <= 1.0:
        raise DomainError(f"the level of a shield is a probability above 0, at most 1; got {level!r}")
    if agents := agents_of(domain):
        raise DomainError(
            f"{domain.name} has the agents {', '.join(agents)}; a shield is computed from a model of one agent"
        )
    known = isinstance(domain, ModelFile) or (is_finite_domain(domain) and not isinstance(domain, DerivedDomain))
    if not known or not isinstance(domain, CompiledDomain):
        raise DomainError(
            f"a shield is computed from a model, and {domain.name} is none: PRISM and JANI files are, and finite "
            "domains such as obstacle-run (psyco.FiniteDomain)"
        )
    if isinstance(domain, ModelFile) and domain.open_ended:
        raise DomainError(f"the shield of {domain.name} needs the largest number of steps of an episode: --horizon N")
    if not isinstance(domain.actions, Discrete) or domain.actions.n > MAX_ACTIONS:
        raise DomainError(f"a shield chooses among at most {MAX_ACTIONS} actions; {domain.name} has {domain.actions}")
    (constraint,) = _one_constraint(requirement)
    _check_signals(domain, constraint.formula)
    made = Shielded(domain, float(level), str(constraint))
    _ = made.tables
    return made


def protected(requirement: Requirement) -> ReachFormula:
    """Return the formula that a shield for this requirement protects; raise RequirementError if there is none."""
    (constraint,) = _one_constraint(requirement)
    found = reach_formula(Not(constraint.formula) if constraint.comparison in ("<=", "<") else constraint.formula)
    if found is None:
        raise _refusal(f"{constraint.formula} is none, or has another operator or bound")
    return found


def _one_constraint(requirement: Requirement) -> tuple[Constraint, ...]:
    found = requirement.probability_constraints
    if len(found) != 1 or found[0].comparison == "in":
        raise _refusal(
            f"this requirement has {len(found)}" if len(found) != 1 else "this one bounds it from both sides"
        )
    return found


def _refusal(why: str) -> RequirementError:
    advice = "several G become one: G (a & b)"
    return RequirementError(
        f"a shield protects one bound on P of F, G, U, W or R over states, and {why}", advice=advice
    )


def _check_signals(domain: CompiledDomain, formula: Formula) -> None:
    """Raise RequirementError if a formula is about more than the current state of the model."""
    if isinstance(domain, ModelFile):
        if not domain.is_about_states(formula):
            raise _refusal(f"{formula} is about more than variables and labels of {domain.name}")
        return
    known = jax.eval_shape(
        lambda key: dict(domain.signals(domain.reset(key))), jax.eval_shape(lambda: jax.random.key(0))
    )
    for part in walk(formula):
        if (isinstance(part, Signal | Label) and part.name not in known) or type(part).__name__ == "Aggregate":
            raise _refusal(f"{part} is no signal of a state of {domain.name}")
        if part == END:
            raise _refusal("the end of an episode is no part of a state")


# ---- the model ------------------------------------------------------------------------------------------------------


def _holds(formula: Formula | None, signals: Mapping[str, NDArray[Any]], count: int) -> NDArray[np.bool_]:
    """Return in which states `[S]` a state formula holds; None holds nowhere."""
    if formula is None:
        return np.zeros(count, bool)
    monitor = compile_monitor([formula])
    paths = {name: signals[name][:, None] for name in monitor.signals}
    return np.asarray(monitor(paths, end=np.zeros((count, 1), bool))[0])[:, 0]


def _model_choices(domain: ModelFile, formula: ReachFormula) -> Choices:
    from scipy.sparse import csr_array

    tables = domain.tables
    yes, no = (_holds(each, tables.signals, tables.states) for each in (formula.yes, formula.no))
    count = len(tables.branches) - 1
    matrix = csr_array((tables.probability, tables.successor, tables.branches), (count, tables.states))
    action = np.arange(count) - np.repeat(tables.choices[:-1], np.diff(tables.choices))

    def ahead(values: NDArray[np.float64], ended: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(matrix @ np.where(domain.ends, ended, values))

    return Choices(
        tables.choices, action, yes, no, domain.ends, ahead, lambda state: state.number, domain.observations, {}
    )


class _Rows:
    """States as rows of integers, numbered in the order in which they are found."""

    def __init__(self, initial: State) -> None:
        leaves, self.structure = jax.tree.flatten(jax.device_get(initial))
        self.shapes = [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
        self.numbers: dict[bytes, int] = {}
        self.rows: list[NDArray[np.int64]] = []

    def number(self, states: State) -> NDArray[np.int64]:
        """Return the numbers `[N]` of states; new ones are added."""
        flat = [np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(states)]
        rows = np.concatenate(flat, axis=1).astype(np.int64)
        unique, inverse = np.unique(rows, axis=0, return_inverse=True)
        found = np.empty(len(unique), np.int64)
        for i, row in enumerate(unique):
            found[i] = self.numbers.setdefault(row.tobytes(), len(self.rows))
            if found[i] == len(self.rows):
                self.rows.append(row)
        return found[inverse.ravel()]

    def states(self, first: int = 0) -> State:
        """Return the states from a number on, every leaf `[N, ...]`."""
        rows, leaves, at = np.stack(self.rows[first:]), [], 0
        for shape, dtype in self.shapes:
            size = int(np.prod(shape))
            leaves.append(jnp.asarray(rows[:, at : at + size].reshape(len(rows), *shape).astype(dtype)))
            at += size
        return jax.tree.unflatten(self.structure, leaves)


def _finite_choices(domain: FiniteDomain, formula: ReachFormula, steps: int) -> Choices:
    """Return the model of a finite domain: all states that an episode reaches before the formula is decided."""
    rows = _Rows(domain.initial_distribution()[1])
    rows.number(domain.initial_distribution()[1])
    actions, p = domain.actions.outputs, domain.draw_probabilities()
    explored: list[NDArray[np.int64]] = []
    successors: list[NDArray[np.int64]] = []
    over: list[NDArray[np.bool_]] = []
    seen = 0
    for _ in range(steps):
        if seen == len(rows.rows):
            break
        states = rows.states(seen)
        known = {name: np.asarray(values) for name, values in jax.vmap(domain.signals)(states).items()}
        decided = np.logical_or(*(_holds(each, known, len(rows.rows) - seen) for each in (formula.yes, formula.no)))
        open_ones = np.flatnonzero(~decided)
        explored.append(seen + open_ones)
        seen = len(rows.rows)
        if not len(open_ones):
            continue
        picked = jax.tree.map(lambda leaf, rows=open_ones: leaf[rows], states)
        following, _, done = jax.device_get(_transitions(domain, picked))
        flat = jax.tree.map(lambda leaf, n=done.size: leaf.reshape(n, *leaf.shape[3:]), following)
        successors.append(rows.number(flat).reshape(done.shape))
        over.append(done)
        if len(rows.rows) > MAX_SHIELD_STATES:
            raise DomainError(f"{domain.name} has more than {MAX_SHIELD_STATES:,} states: too many for a shield")
    states, count = rows.states(), len(rows.rows)
    known = {name: np.asarray(values) for name, values in jax.vmap(domain.signals)(states).items()}
    observations = np.asarray(jax.vmap(domain.observe)(states), np.float32)
    if not successors:
        raise DomainError(f"the first state of {domain.name} decides the formula: a shield has nothing to protect")
    successor, done, who = np.concatenate(successors), np.concatenate(over), np.concatenate(explored)
    offered = np.ones((count, actions), bool)
    if getattr(domain, "has_mask", False):
        offered = observations[:, -actions:] > 0.5
    chosen = np.zeros((count, actions), bool)
    chosen[who] = offered[who]
    place = np.full(count, -1)
    place[who] = np.arange(len(who))
    state_of, action = np.nonzero(chosen)
    to, ended_after = successor[place[state_of], action], done[place[state_of], action]  # [M, C]

    def ahead(values: NDArray[np.float64], ended: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.where(ended_after, ended[to], values[to]) @ p)

    first = np.concatenate([[0], np.cumsum(chosen.sum(axis=1))])
    yes, no = (_holds(each, known, count) for each in (formula.yes, formula.no))
    counters = {name: known[name] for name in domain.counters}
    return Choices(
        first, action, yes, no, np.zeros(count, bool), ahead, _numbering(rows, domain.name), observations, counters
    )


@jax.jit(static_argnums=0)
def _transitions(domain: FiniteDomain, states: Any) -> Any:
    """Return next states, rewards and terminations `[S, A, C]`."""
    draws = jnp.arange(len(domain.draw_probabilities()))
    over_draws = jax.vmap(domain.transition, (None, None, 0))
    over_actions = jax.vmap(over_draws, (None, 0, None))
    return jax.vmap(over_actions, (0, None, None))(states, jnp.arange(domain.actions.outputs), draws)


def _numbering(rows: _Rows, name: str) -> Any:
    """Return the compiled function from a state to its number."""
    table = np.stack(rows.rows)
    low, span = table.min(axis=0), table.max(axis=0) - table.min(axis=0) + 1
    strides = np.concatenate([np.cumprod(span[::-1])[::-1][1:], [1]])
    if float(np.prod(span.astype(float))) >= 2**31:
        raise DomainError(f"the states of {name} have too many values in all for a shield")
    codes = (table - low) @ strides
    order = np.argsort(codes)
    ordered, numbers = jnp.asarray(codes[order], jnp.int32), jnp.asarray(order, jnp.int32)
    least, most = jnp.asarray(low, jnp.int32), jnp.asarray(low + span - 1, jnp.int32)
    steps = jnp.asarray(strides, jnp.int32)

    def number(state: State) -> Array:
        flat = jnp.concatenate([jnp.ravel(leaf).astype(jnp.int32) for leaf in jax.tree.leaves(state)])
        code = jnp.sum((jnp.clip(flat, least, most) - least) * steps)
        place = jnp.minimum(jnp.searchsorted(ordered, code), len(ordered) - 1)
        inside = jnp.all((flat >= least) & (flat <= most)) & (ordered[place] == code)
        return jnp.where(inside, numbers[place], -1)

    return number


# ---- backward induction ---------------------------------------------------------------------------------------------


def _solve(choices: Choices, at_end: bool, level: float, steps: int, name: str) -> ShieldTables:
    """Return the allowed actions of each state and step."""
    decided = choices.yes | choices.no
    ended = np.where(choices.yes, 1.0, np.where(choices.no, 0.0, float(at_end)))
    has_choice = np.diff(choices.first) > 0
    acting = np.flatnonzero(has_choice)
    starts = choices.first[acting]
    state_of = np.repeat(np.arange(len(decided)), np.diff(choices.first))
    bits = np.uint32(1) << choices.action.astype(np.uint32)
    words: list[NDArray[np.uint32]] = []
    rows = np.zeros(steps, np.int32)
    values = ended
    for step in reversed(range(steps)):
        q = choices.ahead(values, ended)
        best = np.zeros(len(decided))
        best[acting] = np.maximum.reduceat(q, starts)
        allowed = q >= np.minimum(level, best[state_of]) - TOLERANCE
        word = np.zeros(len(decided), np.uint32)
        word[acting] = np.bitwise_or.reduceat(np.where(allowed, bits, np.uint32(0)), starts)
        if not words or not np.array_equal(word, words[-1]):
            words.append(word)
        if len(words) * len(decided) > MAX_TABLE_SIZE:
            raise DomainError(f"the shield of {name} has too many states and steps; give a smaller --horizon")
        rows[step] = len(words) - 1
        values = np.where(decided | choices.ends | ~has_choice, ended, best)
    return ShieldTables(decided, np.stack(words), rows, values)
