"""Models that are too large to build, as compiled domains: every step evaluates the commands of the program.

Signals, actions and rewards are those of `model_file.py`. Unlike there, the states are not known: so a horizon is
needed, observations are scaled to declared ranges, and optima and tables are not to be had.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco._src.core.errors import DomainError, RequirementError
from psyco._src.envs.actions import Discrete
from psyco._src.envs.model_program import RARE, SUM_TOLERANCE, ModelProgram, evaluate
from psyco._src.logic.ast import (
    Connective,
    Formula,
    Instant,
    Label,
    Not,
    Quantity,
    Requirement,
    Signal,
    SignalInfo,
    Temporal,
    Total,
    is_state_formula,
    walk,
)
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.validate import subjects

DRAW_BITS = 24  # of a random number: all that float32 has, except near 0


class ProgramState(NamedTuple):
    """A state of the program."""

    values: Array  # [V] int32
    gained: Array  # [R] float32: rewards of the step that led here
    error: Array  # [] float32: 0, and NaN after a step that the model does not allow


@dataclass(frozen=True, eq=False)
class ProgramFile:
    """The domain of a model file with more than `max_states` states.

    Args:
        name: the file.
        program: its commands.
        constants: its constants.
        given_horizon: most steps of an episode.
        reward: the reward structure that is the reward; None: there is none.
        until: a state formula, and its text; episodes end where it holds.
        max_states: number of states up to which models are built.
    """

    name: str
    program: ModelProgram = field(repr=False)
    constants: Mapping[str, Any]
    given_horizon: int | None = None
    reward: str | None = None
    until: tuple[str, Formula] | None = None
    max_states: int = 0

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        given = json.dumps(dict(self.constants), sort_keys=True)
        until = self.until and self.until[0]
        return self.program.digest, given, self.given_horizon, self.reward, until, self.program.actions

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProgramFile) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments that make this domain again; the digest makes sure that the file is the same."""
        own = {
            "horizon": self.given_horizon,
            "reward": self.reward or ("none" if self.program.rewards else None),
            "until": self.until and self.until[0],
            "max_states": self.max_states,
            "sha256": self.program.digest,
        }
        return {**self.constants, **{name: value for name, value in own.items() if value is not None}}

    @property
    def is_chain(self) -> bool:
        """Whether there is nothing to choose: a Markov chain."""
        return self.program.kind == "DTMC"

    @property
    def horizon(self) -> int:
        """Most steps of an episode."""
        return 1 if self.given_horizon is None else self.given_horizon

    @property
    def actions(self) -> Discrete:
        """As many actions as the explored state with most choices offers."""
        return Discrete(1 if self.is_chain else self.program.actions)

    @cached_property
    def observed(self) -> dict[str, tuple[float, float]]:
        """The variables that are observed, with their declared ranges."""
        return {v.name: (float(v.low), float(v.high)) for v in self.program.variables if v.low < v.high}

    @cached_property
    def observation_size(self) -> int:
        """Length of an observation."""
        return max(1, len(self.observed))

    @cached_property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest values of variables; those of rewards are not known."""
        names = {value: name for name, value in self.program.named.items() if isinstance(value, str)}
        found = {names[v.name]: (float(v.low), float(v.high)) for v in self.program.variables if not v.boolean}
        return found if self.reward else {**found, "reward": (0.0, 0.0)}

    # ---- a compiled domain ----------------------------------------------------------------------------------------

    def reset(self, key: Array) -> ProgramState:
        """Return the initial state."""
        return ProgramState(
            jnp.asarray(self.program.initial), jnp.zeros(len(self.program.rewards), jnp.float32), jnp.float32(0)
        )

    def draw(self, key: Array) -> Array:
        """Return random numbers in [0, 1) of all steps: one for a choice, and one for each module, `[horizon, 1+P]`."""
        shape = (self.horizon, 1 + self.program.participants.shape[1])
        bits = jax.random.bits(key, shape, jnp.uint32)
        coarse = (bits >> (32 - DRAW_BITS)).astype(jnp.float32) * jnp.float32(2.0**-DRAW_BITS)
        return jnp.where(bits < 2**DRAW_BITS, bits.astype(jnp.float32) * jnp.float32(2.0**-32), coarse)

    def step(self, drawn: Array, state: ProgramState, action: Array) -> tuple[ProgramState, Array, Array]:
        """Take a choice of this state; in a chain with several enabled commands all are equally likely."""
        program, values = self.program, state.values
        guards, counts = program.enabled(jnp, values)
        offered = jnp.maximum(counts.prod(-1).sum(), 1)
        choice = jnp.minimum((drawn[0] * offered).astype(jnp.int32), offered - 1) if self.is_chain else action % offered
        commands = program.select(jnp, guards, counts, choice)  # [P]
        branches = jnp.asarray(program.branches_of)[commands]  # [P, W]
        likely = program.probabilities(jnp, values).astype(jnp.float32)[branches]
        total = likely.sum(-1)
        last = (branches < len(program.branches)).sum(-1) - 1
        if program.has_rare_branches:  # they come first: beside 0, and not beside 1, numbers have room for them
            rare = ((likely > 0) & (likely < RARE)).any(-1)[:, None]
            order = jnp.where(rare, jnp.argsort(likely, -1), jnp.arange(likely.shape[-1]))
            likely, branches = (jnp.take_along_axis(each, order, -1) for each in (likely, branches))
            last = jnp.where(rare[:, 0], likely.shape[-1] - 1, last)
        number = jnp.minimum((jnp.cumsum(likely, -1) <= drawn[1:, None] * total[:, None]).sum(-1), jnp.maximum(last, 0))
        taken = jnp.take_along_axis(branches, number[:, None], -1)[:, 0]
        after = program.next_values(jnp, values, taken)
        takes_part = commands < len(program.commands)
        proper = (likely >= 0).all(-1) & (jnp.abs(total - 1) <= SUM_TOLERANCE)
        right = program.in_range(jnp, after) & (proper | ~takes_part).all()
        gained = program.gains(jnp, values, taken).astype(jnp.float32)
        reward = gained[list(program.rewards).index(self.reward)] if self.reward else jnp.float32(0)
        error = jnp.where(right, jnp.float32(0), jnp.float32(jnp.nan))
        return ProgramState(after, gained, error), reward, self.ends(jnp, after)

    def observe(self, state: ProgramState) -> Array:
        """Return the variables, scaled to their declared ranges."""
        return jnp.asarray(self.observations(jnp, state.values)) + state.error

    def signals(self, state: ProgramState) -> dict[str, Array]:
        """Return variables, labels, and the rewards of the step that led here."""
        found: dict[str, Array] = dict(self.state_signals(jnp, state.values))
        return found | {name: state.gained[i] for i, name in enumerate(self.program.rewards)}

    # ---- many states, or compiled ---------------------------------------------------------------------------------

    def observations(self, xp: Any, values: Any) -> Any:
        """Return observations `[..., observation_size]` of values `[..., V]`."""
        low, high = (np.array([getattr(v, end) for v in self.program.variables]) for end in ("low", "high"))
        wide = np.flatnonzero(low < high)
        if not len(wide):
            return xp.zeros((*values.shape[:-1], 1), np.float32)
        width = (high - low)[wide].astype(np.float32)
        return (values[..., wide] - low[wide]).astype(np.float32) / width

    def state_signals(self, xp: Any, values: Any) -> dict[str, Any]:
        """Return variables and labels `[...]` of values `[..., V]`."""
        environment = self.program.environment(xp, values)
        found = {name: evaluate(xp, value, environment) for name, value in self.program.named.items()}
        if "deadlock" not in found:
            found["deadlock"] = self.program.enabled(xp, values)[1].prod(-1).sum(-1) == 0
        return {name: xp.broadcast_to(xp.asarray(value), values.shape[:-1]) for name, value in found.items()}

    def ends(self, xp: Any, values: Any) -> Any:
        """Return in which states `[...]` an episode ends."""
        ended = self.program.absorbing(xp, values)
        if self.until is None:
            return ended
        monitor = compile_monitor([self.until[1]])
        signals = {name: value[..., None] for name, value in self.state_signals(xp, values).items()}
        satisfied, _ = monitor({name: signals[name] for name in monitor.signals}, end=np.zeros(1, bool))
        return ended | satisfied[..., 0]

    # ---- requirements ---------------------------------------------------------------------------------------------

    @property
    def open_ended(self) -> bool:
        """Whether no horizon was given."""
        return self.given_horizon is None

    def for_requirement(self, requirement: Requirement) -> ProgramFile:
        """Return the domain with a horizon: if none is given, the largest bound of a requirement without others."""
        _refuse_instants(requirement, {"reward", *self.program.rewards})
        if not self.open_ended:
            return self
        bounds = [bound for subject in subjects(requirement) for bound in _bounds(subject)]
        if not bounds or None in bounds:
            raise DomainError(
                f"{self.name} has more than {self.max_states:,} states and is not built, so it is not known when an "
                "episode is decided: give a horizon (--horizon N), or bounds such as F<=100. psyco exact answers "
                "without a horizon if the policy reaches few states"
            )
        return replace(self, given_horizon=max(1, *(bound or 0 for bound in bounds)))

    def for_learning(self, requirement: Requirement, *, table: bool = False) -> ProgramFile:
        """Return the domain with a horizon; raise DomainError for a table."""
        if table:
            raise DomainError(
                f"{self.name} has more than {self.max_states:,} states and is not built; a table needs all of them. "
                "Use --learner safe-es or ppo"
            )
        return self.for_requirement(requirement)

    def signal_types(self) -> dict[str, SignalInfo]:
        """Return the signals that formulas may name."""
        from psyco._src.envs.base import signal_table

        return signal_table(self)


def _bounds(subject: Formula | Quantity) -> list[int | None]:
    """Return the bounds of the parts of a formula or quantity; None: there is none."""
    match subject:
        case Quantity(over=Total(steps) | Instant(steps)):
            return [steps]
        case Not(body):
            return _bounds(body)
        case Connective(_, operands) if not is_state_formula(subject):
            return [bound for operand in operands for bound in _bounds(operand)]
        case Temporal(operator, operands, bound) if all(map(is_state_formula, operands)):
            return [1 if operator == "X" else bound.upper if bound else None]
    return [None if isinstance(subject, Quantity) or not is_state_formula(subject) else 0]


def _refuse_instants(requirement: Requirement, rewards: set[str]) -> None:
    """Raise RequirementError for a reward at an instant: here it is that of the step before, in PRISM of the next."""
    for subject in subjects(requirement):
        if isinstance(subject, Quantity) and isinstance(subject.over, Instant):
            for part in walk(subject.body):
                if isinstance(part, Signal | Label) and part.name in rewards:
                    raise RequirementError(
                        f"{subject.text('=?')} asks for the reward {part.name} at one instant",
                        part.location,
                        "I=k takes variables and labels of a model; R [ C<=k ] has sums of rewards",
                    )
