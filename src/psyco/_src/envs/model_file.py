"""PRISM and JANI models as compiled domains: Storm builds them, and tables of their states, choices and branches step.

Action i is choice i of those that a state offers, in the order of the model. Where states offer different numbers of
choices, observations end with an action mask, so that no policy can choose what a state does not offer.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.checks import check_count
from psyco._src.core.errors import DomainError, RequirementError, suggest
from psyco._src.core.files import read_bytes
from psyco._src.core.wording import plural
from psyco._src.envs.actions import Discrete
from psyco._src.envs.model_jani import read_program
from psyco._src.envs.model_program import MAX_INTEGER, ModelProgram
from psyco._src.envs.model_tables import MAX_HALF_LIFE, RESERVED, ModelTables
from psyco._src.envs.program_file import ProgramFile
from psyco._src.logic.ast import (
    END,
    Connective,
    Expectation,
    Formula,
    Instant,
    Label,
    Not,
    Quantity,
    Reaching,
    Requirement,
    Signal,
    SignalInfo,
    Temporal,
    Total,
    is_state_formula,
    roots,
    walk,
)
from psyco._src.logic.parser import parse_formula
from psyco._src.logic.reach_formula import reach_formula
from psyco._src.logic.validate import check_signals, subjects

MAX_STATES = 2_000_000
MAX_SECONDS = 600
MAX_BYTES = 8 << 30  # of memory while a model is built
HALVINGS = 50  # an episode beyond the cap has a probability of at most 2**-HALVINGS
MAX_PADDED = 2**25  # branches of a table, with those that only fill it up
SUM_TOLERANCE = 1e-6  # of probabilities


class ModelState(NamedTuple):
    """A state of the model."""

    number: Array  # [] int32
    gained: Array  # [R] float32: rewards of the step that led here


@dataclass(frozen=True)
class Decided:
    """When the episodes of a requirement end: all of its J parts are decided, or nothing can change any more."""

    states: NDArray[np.int32]  # [S] bit j: part j is decided in this state
    every: int  # all J bits
    after: int  # steps after which every bounded part is decided; 0: there is none
    bounded: int  # bits that the bound decides
    cap: int  # longest episode
    whole: bool  # whether every episode is played to its end, so that its return is known


@dataclass(frozen=True, eq=False)
class ModelFile:
    """The domain of a model file, as `psyco.make("model.prism", N=3)` makes it.

    Args:
        name: the file.
        tables: the built model.
        constants: its constants.
        given_horizon: most steps of an episode; None: episodes end where they are absorbed, or decided.
        reward: the reward structure that is the reward; None: there is none.
        observe_as: "variables", scaled to their ranges, or "index", the number of the state.
        start: a state formula that selects one of several initial states.
        until: a state formula; episodes end where it holds.
        max_states: largest number of states.
        decided: when an episode without horizon ends, from `for_requirement`.
        bound_to: the requirement for which that was computed.
    """

    name: str
    tables: ModelTables = field(repr=False)
    constants: Mapping[str, Any]
    given_horizon: int | None = None
    reward: str | None = None
    observe_as: str = "variables"
    start: str | None = None
    until: str | None = None
    max_states: int = MAX_STATES
    decided: Decided | None = field(default=None, repr=False)
    bound_to: str = ""

    def __post_init__(self) -> None:
        for name, values in self.tables.variables.items() if self.given_horizon is not None else ():
            if values.dtype.kind == "i" and np.abs(values).max() > MAX_INTEGER:
                raise DomainError(
                    f"the variable {name} of {self.name} has values above 2^24, which compiled episodes cannot tell "
                    "apart: leave out the horizon, or give the variable a smaller range"
                )

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        given = json.dumps(dict(self.constants), sort_keys=True)
        return (
            self.tables.digest,
            given,
            self.horizon,
            self.reward,
            self.observe_as,
            self.start,
            self.until,
            self.bound_to,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelFile) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments that make this domain again; the digest makes sure that the file is the same."""
        own = {
            "horizon": self.given_horizon,
            "reward": self.reward or ("none" if self.tables.rewards else None),
            "observe": None if self.observe_as == "variables" else self.observe_as,
            "start": self.start,
            "until": self.until,
            "max_states": None if self.max_states == MAX_STATES else self.max_states,
            "sha256": self.tables.digest,
        }
        return {**self.constants, **{name: value for name, value in own.items() if value is not None}}

    @property
    def is_chain(self) -> bool:
        """Whether there is nothing to choose: a Markov chain."""
        return self.actions.n == 1

    @property
    def open_ended(self) -> bool:
        """Whether episodes have no horizon: they end where they are absorbed or decided."""
        return self.given_horizon is None

    @cached_property
    def horizon(self) -> int:
        """Most steps of an episode; without a horizon the cap, beyond which an episode is an error."""
        if self.given_horizon is not None:
            return self.given_horizon
        if self.decided is not None:
            return self.decided.cap
        half_life = self.tables.half_life(self.ends)
        return HALVINGS * (MAX_HALF_LIFE if half_life is None else half_life)

    @cached_property
    def actions(self) -> Discrete:
        """As many actions as the state with most choices offers."""
        return Discrete(int(np.diff(self.tables.choices).max()))

    @cached_property
    def ends(self) -> NDArray[np.bool_]:
        """The states `[S]` in which an episode ends."""
        if self.until is None:
            return self.tables.absorbing
        formula = _state_formula(self.name, self.tables.signals, "until", self.until)
        return self.tables.absorbing | self.tables.holds(formula)

    @cached_property
    def initial_state(self) -> int:
        """The index of the initial state."""
        return _initial(self.name, self.tables, self.start)

    @cached_property
    def observed(self) -> dict[str, tuple[float, float]]:
        """The variables that are observed, with their smallest and largest values."""
        found = {name: (float(v.min()), float(v.max())) for name, v in self.tables.variables.items()}
        return {name: (low, high) for name, (low, high) in found.items() if low < high}

    @cached_property
    def has_mask(self) -> bool:
        """Whether observations end with an action mask: states that an episode can leave offer different numbers."""
        offered = np.diff(self.tables.choices)[~self.tables.absorbing]
        return bool(offered.size and offered.min() < self.actions.n)

    @cached_property
    def observation_size(self) -> int:
        """Length of an observation, with its action mask."""
        own = 1 if self.observe_as == "index" else max(1, len(self.observed))
        return own + self.actions.n * self.has_mask

    @property
    def one_hot(self) -> tuple[int, ...]:
        """The number of states, if an observation is the index of one."""
        return (self.tables.states,) if self.observe_as == "index" else ()

    @cached_property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest values of signals."""
        found = {
            name: (float(values.min()), float(values.max()))
            for name, values in self.tables.signals.items()
            if values.dtype != bool
        }
        for name, values in self.tables.rewards.items():
            found[name] = (min(0.0, float(values.min())), max(0.0, float(values.max())))
        found["reward"] = found[self.reward] if self.reward else (0.0, 0.0)
        return found

    # ---- a compiled domain ----------------------------------------------------------------------------------------

    def reset(self, key: Array) -> ModelState:
        """Return the initial state."""
        return ModelState(jnp.int32(self.initial_state), jnp.zeros(len(self.tables.rewards), jnp.float32))

    def draw(self, key: Array) -> Array:
        """Return random bits of all steps, `[horizon, W]`."""
        return jax.random.bits(key, (self.horizon, self.tables.alias.words), jnp.uint32)

    def step(self, drawn: Array, state: ModelState, action: Array) -> tuple[ModelState, Array, Array]:
        """Take a choice of this state; the episode ends where nothing can change any more."""
        tables = self.arrays
        choice, index = move(tables, state.number, action, drawn)
        gained = tables.rewards[choice]
        reward = gained[list(self.tables.rewards).index(self.reward)] if self.reward else jnp.float32(0)
        return ModelState(index, gained), reward, tables.ends[index]

    def observe(self, state: ModelState) -> Array:
        """Return the variables, scaled to their ranges, or the index of the state, and the action mask."""
        if self.observe_as == "index" and not self.has_mask:
            return state.number[None].astype(jnp.float32)
        return jnp.asarray(self.observations)[state.number]

    def signals(self, state: ModelState) -> dict[str, Array]:
        """Return variables, labels, and the rewards of the step that led here."""
        found = {name: jnp.asarray(values)[state.number] for name, values in self._signal_arrays.items()}
        return found | {name: state.gained[i] for i, name in enumerate(self.tables.rewards)}

    @cached_property
    def observations(self) -> NDArray[np.float32]:
        """The observation of each state, `[S, observation_size]`."""
        if self.observe_as == "index":
            own = np.arange(self.tables.states, dtype=np.float32)[:, None]
        else:
            found = [(self.tables.variables[name] - low) / (high - low) for name, (low, high) in self.observed.items()]
            own = np.stack(found or [np.zeros(self.tables.states)], axis=1).astype(np.float32)
        if not self.has_mask:
            return own
        offered = np.arange(self.actions.n) < np.diff(self.tables.choices)[:, None]
        return np.concatenate([own, offered.astype(np.float32)], axis=1)

    @cached_property
    def _signal_arrays(self) -> dict[str, NDArray[Any]]:
        narrow = {"f": np.float32, "i": np.int32, "b": np.bool_}
        return {name: values.astype(narrow[values.dtype.kind]) for name, values in self.tables.signals.items()}

    @cached_property
    def arrays(self) -> StepTables:
        """The tables of a step."""
        tables, alias = self.tables, self.tables.alias
        rewards = np.stack([*tables.rewards.values(), np.zeros(len(tables.branches) - 1)], axis=1)[:, :-1]
        found: tuple[NDArray[Any], ...] = (
            *(x.astype(np.int32) for x in (tables.choices[:-1], np.diff(tables.choices))),
            *(alias.base, alias.shift, alias.threshold, tables.successor[alias.first], tables.successor[alias.second]),
            rewards.astype(np.float32),
            self.ends,
        )
        with jax.ensure_compile_time_eval():  # the first use may be inside of compiled code
            return StepTables(*(jnp.asarray(pad_rows(each)) for each in found))

    @cached_property
    def known_transitions(self) -> KnownTransitions | None:
        """The transitions of all states and actions, for a learner of tables; None if observations are variables."""
        if self.observe_as != "index":
            return None
        tables, counts = self.tables, np.diff(self.tables.branches)
        width = int(counts.max())
        if (size := len(counts) * width) > MAX_PADDED:
            raise DomainError(f"{self.name} has choices with {width:,} branches: too many for a table, {size:,} in all")
        columns = np.arange(width)
        exists = columns < counts[:, None]
        place = np.where(exists, tables.branches[:-1, None] + columns, 0)
        successor = tables.successor[place]
        probability = np.where(exists & ~self.ends[successor], tables.probability[place], 0.0)
        offered = np.diff(tables.choices)[:, None]
        action = np.where(np.arange(self.actions.n) < offered, np.arange(self.actions.n), 0)
        choice = tables.choices[:-1, None] + action
        small = (choice.astype(np.int32), action.astype(np.int32), successor, probability.astype(np.float32))
        return KnownTransitions(*small)

    def known_model(self, requirement: Requirement) -> KnownTransitions | None:
        """Return the known transitions with the mean reward and cost of each choice.

        The cost of a constraint on a probability is the probability to violate it by this choice, or minus that to
        satisfy it, whichever decides. Both are known where an episode ends as soon as it is decided.
        """
        if self.known_transitions is None:
            return None
        tables = self.tables
        own = np.zeros(len(tables.branches) - 1) if self.reward is None else tables.rewards[self.reward]
        costs = [self._deciding(bound.formula) for bound in requirement.probability_bounds]
        counted = [np.full(len(own), np.nan) for each in requirement.constraints if isinstance(each, Expectation)]
        columns = [own, *costs, *counted]
        return replace(self.known_transitions, gains=np.stack(columns, axis=1).astype(np.float32))

    def _deciding(self, formula: Formula) -> NDArray[np.float64]:
        """Return the cost of each choice for a formula `[M]`; NaN: it is not a function of the choice."""
        tables, none, found = self.tables, np.zeros(self.tables.states, bool), reach_formula(formula)
        unknown = np.full(len(tables.branches) - 1, np.nan)
        if found is None or not self.is_about_states(formula):
            return unknown
        if found.bound is not None and found.bound < self.horizon:  # after it nothing counts
            return unknown
        yes, no = (none if part is None else tables.holds(part) for part in (found.yes, found.no))
        if ((yes | no) & ~self.ends).any():
            return unknown
        deciding, sign = (no, 1.0) if found.at_end else (yes, -1.0)
        return sign * np.add.reduceat(tables.probability * deciding[tables.successor], tables.branches[:-1])

    # ---- requirements ---------------------------------------------------------------------------------------------

    def for_requirement(self, requirement: Requirement) -> ModelFile:
        """Return the domain whose episodes, if they have no horizon, end as soon as the requirement is decided."""
        if self.bound_to == str(requirement):
            return self
        self._refuse_instants(requirement)
        if not self.open_ended:
            return self
        check_signals(requirement, self.signal_types(), self.name)
        ends, parts, after, bounded = self.ends, [], 0, 0
        for j, (states, bound) in enumerate(self._parts(requirement)):
            parts.append(states | ends)
            if bound is not None:
                after, bounded = max(after, bound), bounded | 1 << j
        half_lives = [self.tables.half_life(p) for j, p in enumerate(parts) if not bounded >> j & 1]
        if None in half_lives or not parts:
            raise DomainError(
                f"an episode of {self.name} may not end before this requirement is decided, or takes too long: in "
                f"{MAX_HALF_LIFE:,} steps, half of them did not. Give a horizon (--horizon N), or bounds such as F<=100"
            )
        cap = max(after, HALVINGS * sum(each or 0 for each in half_lives))
        bits = sum((p.astype(np.int32) << j for j, p in enumerate(parts)), start=np.zeros(self.tables.states, np.int32))
        whole = any(not (p & ~ends).any() for j, p in enumerate(parts) if not bounded >> j & 1)
        decided = Decided(bits, (1 << len(parts)) - 1, after, bounded, max(cap, 1), whole)
        return replace(self, decided=decided, bound_to=str(requirement))

    def for_learning(self, requirement: Requirement, *, table: bool = False) -> ModelFile:
        """Return the domain with a horizon: if none is given, the largest bound of a requirement without others.

        A table observes the number of the state.
        """
        if table and self.observe_as != "index":
            return replace(self, observe_as="index").for_learning(requirement)
        self._refuse_instants(requirement)
        if not self.open_ended:
            return self
        bounds = [bound for _, bound in self._parts(requirement)]
        if all(bound is not None for bound in bounds):
            return replace(self, given_horizon=max(1, *(bound or 0 for bound in bounds)))
        if self.is_chain:
            raise DomainError(
                f"{self.name} is a Markov chain, in which there is nothing to learn: psyco verify and psyco exact need "
                "no policy"
            )
        try:
            half_life: int | None = max(1, self.for_requirement(requirement).horizon // HALVINGS)
        except DomainError:
            half_life = None
        number = f"--horizon {8 * half_life}, by which any policy has ended 99% of the episodes" if half_life else ""
        raise DomainError(
            f"learning on {self.name} needs a horizon, the largest number of steps of an episode: "
            f"{number or '--horizon N'}. psyco exact and psyco verify then also judge the policy without one, with "
            "--set horizon=None"
        )

    @property
    def return_notes(self) -> tuple[str, ...]:
        """What there is to know about the returns of episodes."""
        if self.reward is None or self.decided is None or self.decided.whole:
            return ()
        return ("episodes end as soon as the requirement is decided, and the return is the sum up to there",)

    def signal_types(self) -> dict[str, Any]:
        """Return the signals that formulas may name."""
        from psyco._src.envs.base import signal_table

        return signal_table(self)

    def _refuse_instants(self, requirement: Requirement) -> None:
        """Raise RequirementError for a reward at an instant: here it is that of the step before, in PRISM of the next.

        Each is natural in its own language, so that the same text would have two values.
        """
        for subject in subjects(requirement):
            if isinstance(subject, Quantity) and isinstance(subject.over, Instant):
                for part in walk(subject.body):
                    if isinstance(part, Signal | Label) and part.name in {"reward", *self.tables.rewards}:
                        raise RequirementError(
                            f"{subject.text('=?')} asks for the reward {part.name} at one instant",
                            part.location,
                            "I=k takes variables and labels of a model; R [ C<=k ] has sums of rewards",
                        )

    def _parts(self, requirement: Requirement) -> Iterator[tuple[NDArray[np.bool_], int | None]]:
        """Yield where each part of the requirement is decided, and its bound."""
        for subject in subjects(requirement):
            if any(not self.is_about_states(root) for root in roots(subject) if not isinstance(subject, Quantity)):
                yield self.ends, None
            elif isinstance(subject, Quantity):
                yield self._quantity_part(subject)
            else:
                for leaf in _temporal_leaves(subject):
                    yield self._temporal_part(leaf)
        if not requirement.constraints and not requirement.questions:
            yield self.ends, None

    def is_about_states(self, node: Any) -> bool:
        """Return whether only variables and labels occur, and no aggregates."""
        named = [part for part in walk(node) if isinstance(part, Signal | Label)]
        own = all(part.name in self.tables.signals for part in named)
        return own and not any(type(part).__name__ == "Aggregate" for part in walk(node))

    def _quantity_part(self, quantity: Quantity) -> tuple[NDArray[np.bool_], int | None]:
        match quantity.over:
            case Total(int(steps)) | Instant(steps):
                return self.ends, steps
            case Reaching(body):
                if not self.is_about_states(body):
                    raise DomainError(
                        f"without a horizon, the formula of {quantity.text('=?')} has variables and labels of "
                        f"{self.name} only; give a horizon (--horizon N)"
                    )
                target = self.tables.holds(body)
                reached = self.tables.reachable(self.initial_state, target | self.ends)
                if (reached & self.tables.never(~self.ends, target)).any():
                    by = "" if self.is_chain else " under some policy"
                    raise DomainError(
                        f"the expected value {quantity.text('=?')} is infinite{by}: {body} is missed with positive "
                        "probability. With a horizon (--horizon N), the sum up to the end of an episode counts"
                    )
                return target, None
        return self.ends, None

    def _temporal_part(self, formula: Formula) -> tuple[NDArray[np.bool_], int | None]:
        if not isinstance(formula, Temporal):
            return np.ones(self.tables.states, bool), None
        if not all(map(is_state_formula, formula.operands)):
            return self.ends, None
        operands = [self.tables.holds(operand) for operand in formula.operands]
        always = np.ones(self.tables.states, bool)
        match formula.operator, operands:
            case "F", [body]:
                through, target, end = always, body, body
            case "G", [body]:
                through, target, end = always, ~body, ~body
            case "U", [left, right]:
                through, target, end = left, right, right
            case "R", [left, right]:
                through, target, end = ~left, ~right, ~right
            case "W", [left, right]:
                through, target, end = left & ~right, ~left & ~right, right | ~left
            case _:  # X
                return self.ends, 1
        if formula.bound is not None and formula.bound.lower:
            return self.ends, formula.bound.upper
        return end | self.tables.never(through, target), formula.bound.upper if formula.bound else None


@dataclass(frozen=True, eq=False)
class KnownTransitions:
    """The transitions of a model: S states, M choices with at most W branches each."""

    choice: NDArray[np.int32]  # [S, A] of each action
    action: NDArray[np.int32]  # [S, A] first action with the same choice
    successor: NDArray[np.int32]  # [M, W]
    probability: NDArray[np.float32]  # [M, W]; 0 for missing branches, and for those that end an episode
    # [M, 1 + K] mean reward and cost of each choice, for the K constraints of a requirement; NaN where they are not a
    # function of the choice. None: none are.
    gains: NDArray[np.float32] | None = None

    def ahead(self, values: Array) -> Array:
        """Return the expected values `[S, A, ...]` after each action, for values of states `[S, ...]`."""
        weights = jnp.asarray(self.probability).reshape(*self.probability.shape, *(1,) * (values.ndim - 1))
        return jnp.sum(weights * values[self.successor], axis=1)[self.choice]


class StepTables(NamedTuple):
    """The arrays of a step."""

    first_choice: Any  # [S] int32
    offered: Any  # [S] int32
    base: Any  # [M] int32 first entry of the alias table of a choice
    shift: Any  # [M] uint32 shift of random bits to an entry
    threshold: Any  # [N] uint32
    first: Any  # [N] int32 successor below the threshold
    second: Any  # [N] int32 successor above it
    rewards: Any  # [M, R] float32
    ends: Any  # [S] bool


def move(tables: StepTables, index: Array, action: Array, drawn: Array) -> tuple[Array, Array]:
    """Return the choice for an action and the next state, for random bits `[W]`."""
    offered = tables.offered[index]
    choice = tables.first_choice[index] + jnp.where(action < offered, action, 0)
    shift = tables.shift[choice]
    entry = tables.base[choice] + jax.lax.shift_right_logical(drawn[0], shift).astype(jnp.int32)
    rest = jax.lax.shift_left(drawn[0], jnp.uint32(32) - shift) if len(drawn) == 1 else drawn[1]
    return choice, jnp.where(rest < tables.threshold[entry], tables.first[entry], tables.second[entry])


def pad_rows(values: NDArray[Any]) -> NDArray[Any]:
    """Return a table with rows of zeros up to a power of two: models of similar sizes share compiled code."""
    size = max(1024, 1 << (len(values) - 1).bit_length())
    return np.concatenate([values, np.zeros((size - len(values), *values.shape[1:]), values.dtype)])


def _temporal_leaves(formula: Formula) -> Iterator[Formula]:
    """Yield the temporal formulas that a Boolean combination consists of."""
    match formula:
        case Not(body):
            yield from _temporal_leaves(body)
        case Connective(_, operands) if not is_state_formula(formula):
            for operand in operands:
                yield from _temporal_leaves(operand)
        case _:
            yield formula


def model_domain(name: str, **parameters: Any) -> ModelFile | ProgramFile:
    """Return the domain of a model file; parameters are its constants, and those of `ModelFile`."""
    horizon, reward = parameters.pop("horizon", None), parameters.pop("reward", None)
    observe, start = parameters.pop("observe", None) or "variables", parameters.pop("start", None)
    until = parameters.pop("until", None)
    max_states, digest = parameters.pop("max_states", None), parameters.pop("sha256", None)
    max_states = MAX_STATES if max_states is None else check_count("max_states", max_states)
    if horizon is not None:
        horizon = check_count("horizon", horizon)
    if observe not in ("variables", "index"):
        raise DomainError(f"observe is 'variables' or 'index', got {observe!r}")
    for constant, value in parameters.items():
        if not isinstance(value, bool | int | float):
            raise DomainError(f"the constant {constant} of {name} is a number, true or false; got {value!r}")
    data = read_bytes(name, "model")
    found = hashlib.sha256(data).hexdigest()
    if digest is not None and digest != found:
        raise DomainError(f"{name} has changed: its SHA-256 is {found[:16]}..., and was {str(digest)[:16]}...")
    given = json.dumps(parameters, sort_keys=True)
    tables = _built(str(Path(name).resolve()), found, given, max_states)
    reward = _reward(name, tables.rewards, reward)
    if isinstance(tables, ModelProgram):
        return _unbuilt(ProgramFile(name, tables, parameters, horizon, reward, None, max_states), observe, start, until)
    domain = ModelFile(name, tables, parameters, horizon, reward, observe, start, until, max_states)
    _ = domain.initial_state, domain.ends
    return domain


def _reward(name: str, known: Mapping[str, Any], given: str | None) -> str | None:
    """Return the reward structure that is the reward."""
    if given is None and len(known) == 1:
        return next(iter(known))
    if given is None or given == "none":
        return None
    if given not in known:
        listed = ", ".join(known) or "none"
        raise DomainError(f"{name} has no reward structure {given!r}{suggest(given, known)}; it has: {listed}")
    return given


def _unbuilt(domain: ProgramFile, observe: str, start: str | None, until: str | None) -> ProgramFile:
    """Return the domain of a model that is too large to build, after a word about it."""
    name = domain.name
    if observe == "index":
        raise DomainError(f"{name} has more than {domain.max_states:,} states, so they have no numbers to observe")
    if start is not None:
        raise DomainError(f"{name} has more than {domain.max_states:,} states; start selects one of built models only")
    if until is not None:
        initial = domain.state_signals(np, domain.program.initial)
        domain = replace(domain, until=(until, _state_formula(name, initial, "until", until)))
    warnings.warn(
        f"{name} has more than {domain.max_states:,} states (max_states) and is not built: episodes are simulated from "
        "its commands, with a horizon; optima and tables are not to be had",
        stacklevel=2,
    )
    return domain


@lru_cache(maxsize=8)
def _built(file: str, digest: str, constants: str, max_states: int) -> ModelTables | ModelProgram:
    """Return the model, built in another process; one with more states as its program."""
    with tempfile.TemporaryDirectory() as folder:
        request = {"file": file, "constants": json.loads(constants), "max_states": max_states, "memory": MAX_BYTES}
        command = [sys.executable, "-m", "psyco._src.envs.model_build", json.dumps(request), folder]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=MAX_SECONDS, check=False, text=True, errors="replace"
            )
        except subprocess.TimeoutExpired:
            raise DomainError(f"{file} was not built by Storm within {MAX_SECONDS} seconds; make it smaller") from None
        problem = Path(folder) / "error.json"
        if problem.exists():
            words = _with_log(json.loads(problem.read_text()), done.stdout + done.stderr)
            raise DomainError(f"{file}: {_with_place(words, Path(file).read_text(errors='replace'))}")
        if not (Path(folder) / "model.json").exists():
            if "No module named 'stormpy'" in done.stderr:
                raise DomainError('models are parsed and built by Storm: pip install "psyco[storm]"')
            killed = f"signal {-done.returncode} ended it, perhaps for lack of memory"
            last = killed if done.returncode < 0 else (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise DomainError(f"{file}: Storm ended without a model: {last[:300]}")
        facts = json.loads((Path(folder) / "model.json").read_text())
        if "program" in facts:
            return read_program(file, digest, facts)
        with np.load(Path(folder) / "model.npz") as arrays:
            return _tables(file, digest, facts, dict(arrays))


def _with_log(problem: str, log: str) -> str:
    """Return a problem in the words of Storm's log where its exception has none."""
    lines = re.findall(r"^ERROR \(.*?\): (.*)$", log, re.MULTILINE)
    return lines[-1] if lines and problem == "std::exception" else problem


def _with_place(problem: str, text: str) -> str:
    """Return a problem about an unknown variable with its line and column, which Storm leaves out."""
    named = re.search(r"Unknown variable '(\w+)'", problem)
    place = named and re.search(rf"\b{named[1]}\b", re.sub("//.*", lambda each: " " * len(each[0]), text))
    if not place:
        return problem
    before = text[: place.start()]
    return f"line {before.count(chr(10)) + 1}, column {place.start() - before.rfind(chr(10))}: {problem}"


def _tables(file: str, digest: str, facts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> ModelTables:
    def named(prefix: str) -> dict[str, NDArray[Any]]:
        return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}

    initial = np.zeros(len(arrays["choices"]) - 1, bool)
    initial[arrays["initial"]] = True
    arrays["label:init"] = initial
    choices, branches, probability = arrays["choices"], arrays["branches"], arrays["probability"]
    rewards = named("reward:choices:")
    for name, values in named("reward:states:").items():
        each = values[np.repeat(np.arange(len(choices) - 1), np.diff(choices))]
        rewards[name] = rewards[name] + each if name in rewards else each
    if taken := sorted(RESERVED & {*rewards}):
        raise DomainError(f"{file}: its reward structure {taken[0]!r} has the name of a built-in signal; rename it")
    with np.errstate(invalid="ignore"):
        total = np.add.reduceat(probability, branches[:-1])
    tables = ModelTables(
        digest, facts["kind"], arrays["initial"], choices, branches, arrays["successor"],
        probability / np.repeat(total, np.diff(branches)), named("variable:"), named("label:"), rewards,
        tuple((name, text) for name, text in facts["properties"]),
    )  # fmt: skip
    if (wrong := np.flatnonzero(~((probability >= 0) & (probability <= 1 + SUM_TOLERANCE)))).size:
        state = describe_state(tables, int(tables.state_of_choice[tables.choice_of_branch[wrong[0]]]))
        raise DomainError(f"{file}: a probability is {probability[wrong[0]]:g}, not between 0 and 1, in {state}")
    if (wrong := np.flatnonzero(np.abs(total - 1) > SUM_TOLERANCE)).size:
        state = describe_state(tables, int(tables.state_of_choice[wrong[0]]))
        raise DomainError(f"{file}: the probabilities of a choice sum to {total[wrong[0]]:g}, not to 1, in {state}")
    if len(tables.initial) == 1 and tables.labels.get("deadlock", np.zeros(tables.states, bool))[tables.initial[0]]:
        raise DomainError(f"{file}: its initial state is a deadlock: no command is enabled, so no step is possible")
    return tables


def describe_state(tables: ModelTables, state: int) -> str:
    """Return the variables of a state in words."""
    return "the state " + ", ".join(f"{name}={values[state]}" for name, values in tables.variables.items())


def _state_formula(name: str, signals: Mapping[str, NDArray[Any]], parameter: str, text: str) -> Formula:
    """Return the formula of a parameter, after a check that it is about the variables and labels of the model."""
    formula = parse_formula(text)
    known = {
        signal: SignalInfo(None, values.dtype == bool, values.dtype.kind == "i") for signal, values in signals.items()
    }
    check_signals(formula, known, name)
    if not is_state_formula(formula) or any(type(part).__name__ == "Aggregate" for part in walk(formula)):
        raise DomainError(f"{parameter} of {name} is a formula about one state, got {text!r}")
    if any(part == END for part in walk(formula)):
        raise DomainError(f"{parameter} of {name} cannot ask for the end of an episode, got {text!r}")
    return formula


def _initial(name: str, tables: ModelTables, start: str | None) -> int:
    """Return the initial state; of several, the one that a formula selects."""
    found: Sequence[int] = tables.initial.tolist()
    if start is not None:
        holds = tables.holds(_state_formula(name, tables.signals, "start", start))
        found = [state for state in found if holds[state]]
    if len(found) != 1:
        if not found and start is None:
            raise DomainError(
                f"{name} has no initial state: an initial value lies outside of the range of its variable, or the "
                "formula of the initial states holds nowhere"
            )
        variables = [v for v, values in tables.variables.items() if len(np.unique(values[tables.initial])) > 1]
        example = " & ".join(f"{v}={tables.variables[v][tables.initial[-1]]}" for v in variables)
        advice = f"choose one by a formula, as in --set start='{example}'" if example else "leave start out"
        many = plural(len(found), "initial state") if found else "no initial state"
        raise DomainError(f"{name} has {many}{f' with {start}' if start else ''}; {advice}")
    return found[0]
