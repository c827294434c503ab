"""The protocols of domains: any domain, one compiled by JAX, and a finite one that can be enumerated.

A compiled domain is a frozen dataclass, so that two domains with the same parameters are equal and compile once:

    @dataclass(frozen=True)
    class Corridor:
        length: int = 10
        horizon: int = 50
        name: ClassVar[str] = "corridor"
        ...

`examples/corridor.py` is a complete example.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol, TypeGuard, runtime_checkable

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import DomainError, PsycoError, format_exception, suggest
from psyco._src.envs.actions import Actions, Discrete
from psyco._src.envs.agents import agent_spaces_of, agents_of, groups_of
from psyco._src.logic.ast import Requirement, SignalInfo
from psyco._src.logic.quantifiers import Team, write_out

State = Any  # pytree of arrays


@dataclasses.dataclass(frozen=True)
class Scene:
    """How `psyco render` and the page of a run draw a domain, seen from above.

    A domain without a property `scene` is drawn as curves of its signals:

        @property
        def scene(self) -> Scene:
            return Scene(("obstacle", "agent"), (0.0, 0.0), (self.width, self.height), contact=0.5)

    Args:
        bodies: names of signals that are positions `[2]`, the agent last: the page marks violations there, or at all
            signals of agents, such as `agent_0.position`. The six colours repeat after six bodies.
        low: lower left corner of the frame, x and y.
        high: upper right corner of the frame, x and y.
        contact: distance below which two bodies are marked as touching; 0 marks nothing.
    """

    bodies: tuple[str, ...]
    low: tuple[float, float]
    high: tuple[float, float]
    contact: float = 0.0

    def __post_init__(self) -> None:
        if not self.bodies:
            raise DomainError("a scene needs a body: the name of a signal that is a position [2]")
        if not (self.low[0] < self.high[0] and self.low[1] < self.high[1]):
            raise DomainError(f"a scene from {self.low} to {self.high} is empty; low must lie below high")


class Domain(Protocol):
    """An environment with a horizon, as learning and verification see it before it runs."""

    @property
    def name(self) -> str:
        """Name for `psyco.make`."""

    @property
    def horizon(self) -> int:
        """Largest number of steps of an episode."""

    @property
    def actions(self) -> Actions:
        """Action space."""

    @property
    def observation_size(self) -> int:
        """Length of an observation vector."""


@runtime_checkable
class CompiledDomain(Domain, Protocol):
    """A simulator of pure functions, which JAX compiles.

    Optional members:

    - `draw(key)` returns the randomness of all steps of an episode at once, which is faster: arrays whose first axis is
      the horizon. `step` then receives its entry of these instead of a key.
    - `ranges` maps signals (`distance`, `obs[2]`, `reward`) to their smallest and largest value. A constraint on the
      mean of such a signal needs no `within [lo,hi]`.
    - `counters` names signals that never decrease during an episode. A monitor then reports how far they may still
      rise.
    - `for_requirement(requirement)` returns the domain whose episodes end as soon as a requirement is decided.
    - `has_mask`: True says that an observation ends with an action mask: the last n numbers are 1 for the `Discrete(n)`
      actions that the state offers, at least one, and 0 for the others. No policy then chooses another action.
    - `scene`, a `Scene`, says how to draw a state.
    - `requirement` is an example, as text, which `psyco domains --json` shows.
    """

    def reset(self, key: Array) -> State:
        """Return a random initial state."""

    def step(self, key: Array, state: State, action: Array) -> tuple[State, Array, Array | bool]:
        """Return the next state, the reward `[]` and whether the episode terminates `[]` bool.

        A plain `False` for the latter declares that all episodes last to the horizon, which is faster.
        """

    def observe(self, state: State) -> Array:
        """Return the observation `[observation_size]`."""

    def signals(self, state: State) -> Mapping[str, Array]:
        """Return the signals that formulas may name: numbers and Booleans `[]`, or vectors `[k]`."""


COMPILED_MEMBERS = ("name", "horizon", "actions", "observation_size", "reset", "step", "observe", "signals")


@runtime_checkable
class FiniteDomain(CompiledDomain, Protocol):
    """A domain that also enumerates its initial states and random draws, so that exact answers can be computed.

    States are NamedTuples of integers or Booleans. Before an exact answer, the enumeration is compared with `reset` and
    `step`.
    """

    @property
    def counters(self) -> tuple[str, ...]:
        """Fields of the state that only count upwards and influence nothing else; each is also a signal.

        The solver cuts them off above the largest number that a formula compares them with.
        """

    def initial_distribution(self) -> tuple[NDArray[np.float64], State]:
        """Return probabilities `[S]` and initial states, every leaf `[S, ...]`."""

    def draw_probabilities(self) -> NDArray[np.float64]:
        """Return the probabilities `[C]` of the random draws of a step."""

    def transition(self, state: State, action: Array, draw: Array) -> tuple[State, Array, Array]:
        """Return next state, reward and termination for random draw number `draw`."""


def is_finite_domain(domain: Domain) -> TypeGuard[FiniteDomain]:
    """Return whether a domain can be enumerated; one that is derived from another only if that one can be."""
    base = getattr(domain, "base", None)
    listed = isinstance(domain, FiniteDomain) and isinstance(domain.actions, Discrete)
    return listed and (not isinstance(base, CompiledDomain) or is_finite_domain(base))


def require_finite(domain: Domain) -> FiniteDomain:
    """Return the domain if it can be enumerated; else raise DomainError."""
    domain = getattr(domain, "numbered", None) or domain  # of several agents
    if is_finite_domain(domain):
        _check_finite_state(domain)
        return domain
    if agents := agents_of(domain):
        raise DomainError(
            f"{domain.name} has no exact answers: it has the agents {', '.join(agents)}, whose actions are not all "
            "discrete, or which do not share one reward, or it does not enumerate its states and random draws "
            "(see psyco.FiniteDomain); obstacle-run does"
        )
    if hasattr(domain, "observe_free"):
        raise DomainError(
            f"{domain.name} has a shield, and exact answers are for policies without one; verify samples it"
        )
    members = ("initial_distribution", "draw_probabilities", "transition", "counters")
    missing = [name for name in members if not hasattr(domain, name)]
    if not isinstance(domain.actions, Discrete):
        why = "its actions are not discrete"
    elif len(missing) < len(members) and missing:
        why = f"it lacks {' and '.join(missing)}{' (an empty tuple if nothing counts)' * ('counters' in missing)}"
    else:
        why = "it does not enumerate its states and random draws"
    raise DomainError(f"{domain.name} has no exact answers: {why} (see psyco.FiniteDomain); obstacle-run does")


def _check_finite_state(domain: FiniteDomain) -> None:
    fields = getattr(_initial_state(domain), "_fields", None)
    if fields is None:
        raise DomainError(
            f"{domain.name} has no exact answers: its state is not a NamedTuple; give the state fields with names, "
            "integers or Booleans, also if it has only one"
        )
    for name in domain.counters:
        if name not in fields:
            raise DomainError(
                f"counters of {domain.name} has {name!r}, which is not a field of its state{suggest(name, fields)}; "
                f"fields are: {', '.join(fields)}"
            )


# Signals of every domain; the rollout computes them.
BUILT_IN_SIGNALS = {
    "step": SignalInfo(None, False),
    "reward": SignalInfo(None, False),
    "return": SignalInfo(None, False),
}


def signal_table(domain: Domain) -> dict[str, SignalInfo]:
    """Return the signals that formulas may name; a compiled domain is traced for that, not run."""
    if not isinstance(domain, CompiledDomain):
        if not hasattr(domain, "table"):  # of a GymDomain
            missing = [name for name in COMPILED_MEMBERS if not hasattr(domain, name)]
            raise DomainError(f"{domain!r:.100} is not a domain: it lacks {', '.join(missing)} (psyco.CompiledDomain)")
        return dict(domain.table)
    return dict(_compiled_table(domain))  # type: ignore[arg-type]  # hashable, as for jit


@cache
def _compiled_table(domain: CompiledDomain) -> dict[str, SignalInfo]:
    state = _initial_state(domain)
    shapes = _shapes(domain, "signals", lambda s: dict(domain.signals(s)), state)
    observation = _shapes(domain, "observe", domain.observe, state)
    if getattr(observation, "shape", None) != (domain.observation_size,):
        raise DomainError(
            f"observe of {domain.name} gives {_shape_text(observation)}; give a vector of length "
            f"{domain.observation_size}, as observation_size says"
        )
    if getattr(domain, "has_mask", False) and not (
        isinstance(domain.actions, Discrete) and domain.actions.n < domain.observation_size
    ):
        raise DomainError(
            f"{domain.name} has a mask, and {domain.observation_size} observations for {domain.actions}; a mask is for "
            "Discrete(n) actions, and the last n numbers of an observation that has others before them"
        )
    table = {}
    for name, shape in shapes.items():
        if len(shape.shape) > 1:
            raise DomainError(f"signal {name!r} of {domain.name} has shape {shape.shape}; give numbers or vectors")
        whole = jax.numpy.issubdtype(shape.dtype, jax.numpy.integer)
        table[name] = SignalInfo(shape.shape[0] if shape.shape else None, shape.dtype == bool, whole)
    table["obs"] = SignalInfo(domain.observation_size, False)
    table["action"] = SignalInfo(domain.actions.size, False)
    for space in agent_spaces_of(domain):
        table[f"{space.name}.obs"] = SignalInfo(space.size, False)
        table[f"{space.name}.action"] = SignalInfo(space.actions.size, False)
    return table | BUILT_IN_SIGNALS


def _initial_state(domain: CompiledDomain) -> Any:
    """Return shapes and types of the state."""
    return _shapes(domain, "reset", domain.reset, jax.eval_shape(lambda: jax.random.key(0)))


def _shapes(domain: CompiledDomain, name: str, member: Callable[[Any], Any], argument: Any) -> Any:
    """Return shapes and types of what a member function of a domain returns, without running it."""
    try:
        return jax.eval_shape(member, argument)
    except PsycoError:
        raise
    except Exception as error:  # from user code
        raise DomainError(f"{name} of {domain.name} fails: {format_exception(error)}") from error


def check_step(domain: CompiledDomain, before: State, outcome: Any) -> None:
    """Raise DomainError unless a step keeps the form of the state. While it is traced: compiled, it costs nothing."""
    where = f"step of {domain.name} gives"
    if not isinstance(outcome, tuple) or len(outcome) != 3:
        raise DomainError(f"{where} {_shape_text(outcome)}; give the next state, the reward and whether it terminates")
    after, reward, done = outcome
    for name, value in (("the reward", reward), ("the termination", done)):
        if jax.numpy.shape(value):
            raise DomainError(f"{where} {name} as {_shape_text(value)}; give a single value")
    forms = [str(jax.tree.structure(state)).removeprefix("PyTreeDef") for state in (before, after)]
    if forms[0] != forms[1]:
        raise DomainError(f"{where} a state {forms[1]} after {forms[0]}; keep its structure")
    for (path, x), y in zip(jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True):
        if _shape_text(x) != _shape_text(y) and not getattr(x, "weak_type", False):  # which JAX converts
            raise DomainError(
                f"{where} {_shape_text(y)} as the state{jax.tree_util.keystr(path)}, which was {_shape_text(x)}; "
                "keep shapes and types, as in jnp.int32(x), or give reset those of step"
            )


def _shape_text(value: Any) -> str:
    """Return shape and type of an array, as in `float32 [3]`; of anything else its type."""
    value = jax.numpy.asarray(value) if isinstance(value, bool | int | float) else value
    return f"{value.dtype} {list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__


def for_requirement(domain: Domain, requirement: Requirement) -> Domain:
    """Return the domain for episodes that a requirement judges: those of a model may end once it is decided."""
    bind = getattr(domain, "for_requirement", None)
    return domain if bind is None else bind(requirement)


def team_of(domain: Domain) -> Team:
    """Return the agents of a domain and their groups; none where there is one agent."""
    agents = agents_of(domain)
    return Team(agents, groups_of(domain)) if agents else Team()


def written_for(requirement: Requirement, domain: Domain) -> Requirement:
    """Return a requirement without each, any and for each: written out for the agents of a domain."""
    team = team_of(domain)
    return write_out(requirement, team, domain.name, signal_table(domain) if team.agents else None)


def counters_of(domain: Domain) -> tuple[str, ...]:
    """Return the signals that never decrease during an episode, if the domain names any."""
    return tuple(getattr(domain, "counters", ()))


def scene_of(domain: Domain) -> Scene | None:
    """Return the scene of a domain, after a check of its signals; None if it has none."""
    scene = getattr(domain, "scene", None)
    if not isinstance(scene, Scene):
        return None
    table = signal_table(domain)
    for body in scene.bodies:
        if body not in table or table[body].size != 2:
            raise DomainError(
                f"the scene of {domain.name} has a body {body!r}, which is not a signal with two entries; "
                f"such signals are: {', '.join(name for name, info in table.items() if info.size == 2) or 'none'}"
            )
    return scene


# Metadata of a field that `parameters` leaves out at its default: one that was added after policies were written.
UNLESS_DEFAULT = {"described": "unless default"}


def parameters(domain: Domain) -> dict[str, Any]:
    """Return the keyword arguments that make this domain again."""
    if hasattr(domain, "parameters"):
        return dict(domain.parameters)
    if not dataclasses.is_dataclass(domain):
        raise DomainError(f"{type(domain).__name__} must be a frozen dataclass, so that its parameters are known")
    values = {f.name: getattr(domain, f.name) for f in dataclasses.fields(domain) if f.init}
    unchanged = {f.name for f in dataclasses.fields(domain) if UNLESS_DEFAULT.items() <= f.metadata.items()}
    return {
        name: value for name, value in values.items() if name not in unchanged or value != getattr(type(domain), name)
    }
