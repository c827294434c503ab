"""Domains with several agents, as one agent sees them: a joint observation, a joint action, a team's reward.

`joint_domain` makes a `JointDomain` of a `MultiAgentDomain`. Samplers, learners and tests see an ordinary domain, and a
`JointNetwork` keeps the agents apart: each acts on its own observation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.checks import check_whole
from psyco._src.core.errors import DomainError, PsycoError, format_exception, suggest
from psyco._src.envs.actions import Actions, Discrete, MultiDiscrete
from psyco._src.envs.agents import (
    AgentSpace,
    action_width,
    agents_of,
    check_agents,
    groups_of,
    joint_actions,
    slices,
)
from psyco._src.envs.base import CompiledDomain, Domain, FiniteDomain, State, is_finite_domain
from psyco._src.envs.base import parameters as parameters_of
from psyco._src.envs.variants import DerivedDomain

MAX_JOINT_ACTIONS = 10_000


@runtime_checkable
class MultiAgentDomain(Protocol):
    """A compiled domain of several agents, named `agents`; `joint_domain` makes a `CompiledDomain` of it.

    Agents may differ in their spaces by groups: then `actions` and `observation_size` are mappings from the name of a
    group, and so are observations and actions.

    Optional members are those of a `CompiledDomain`, and

    - `groups` maps names of groups to their agents, by default `agent` to all of them. Every agent is in one group.
    """

    name: str
    horizon: int
    agents: tuple[str, ...]
    actions: Any  # Actions of each agent, or a mapping from groups to them
    observation_size: Any  # int of each agent, or a mapping from groups to them

    def reset(self, key: Array) -> State:
        """Return a random initial state."""

    def step(self, key: Array, state: State, action: Any) -> tuple[State, Array, Array | bool]:
        """Return the next state, the reward and whether the episode terminates `[]` bool.

        Args:
            key: randomness, or the entry of `draw`.
            state: the state.
            action: of all agents, `[A]` or `[A, size]`.

        The reward is that of the team `[]`, or one for each agent `[A]`; then that of the team is their sum.
        """

    def observe(self, state: State) -> Any:
        """Return the observations `[A, observation_size]`."""

    def signals(self, state: State) -> Mapping[str, Array]:
        """Return the signals that formulas may name, `agent_0.distance` for one of an agent."""


class RewardedState(NamedTuple):
    """State of a domain that rewards each agent."""

    inner: State
    agent_reward: Array  # [A] of the step that led here
    agent_return: Array  # [A] so far


def joint_domain(domain: Domain) -> Domain:
    """Return a domain whose agents act as one, if it names agents; else the domain itself."""
    if not agents_of(domain) or isinstance(domain, DerivedDomain) or not hasattr(domain, "observe"):
        return domain
    return JointDomain(domain)  # type: ignore[arg-type]  # it has the members of both protocols


@dataclass(frozen=True)
class JointDomain(DerivedDomain):
    """A domain whose agents act as one: observations `[size]` and actions of all, one after the other."""

    base: CompiledDomain

    def __post_init__(self) -> None:
        check_agents(self.name, self.agents, self.groups)
        _ = self.observation_size  # and `actions` below: errors in them shall not wait
        if getattr(self.base, "has_mask", False):
            raise DomainError(f"{self.name} has several agents and action masks; agents must offer all actions")
        _ = self.actions

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents, in the order of observations and actions."""
        return agents_of(self.base)

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Names of groups and their agents."""
        return groups_of(self.base)

    @cached_property
    def agent_spaces(self) -> tuple[AgentSpace, ...]:
        """The agents with their spaces."""
        group = {agent: name for name, members in self.groups.items() for agent in members}
        return tuple(
            AgentSpace(
                agent, group[agent], self._size(group[agent]), self._of_group("actions", group[agent])
            )
            for agent in self.agents
        )  # fmt: skip

    def _size(self, group: str) -> int:
        size: int = self._of_group("observation_size", group)
        check_whole(self.name, observation_size=size)
        return size

    def _of_group(self, member: str, group: str) -> Any:
        value: Any = getattr(self.base, member)
        if not isinstance(value, Mapping):
            return value
        if group not in value:
            raise DomainError(f"{member} of {self.name} lacks the group {group}{suggest(group, value)}")
        return value[group]

    @property
    def by_group(self) -> bool:
        """Whether observations and actions are mappings from groups."""
        return isinstance(self.base.actions, Mapping) or isinstance(self.base.observation_size, Mapping)

    @cached_property
    def actions(self) -> Actions:
        """The joint action space."""
        return joint_actions(self.name, self.agent_spaces)

    @cached_property
    def observation_size(self) -> int:
        """Length of a joint observation."""
        return sum(each.size for each in self.agent_spaces)

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the base."""
        return parameters_of(self.base)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest values of signals."""
        return dict(getattr(self.base, "ranges", {}))

    @property
    def requirement(self) -> str | None:
        """An example of a requirement, as text; None: the base gives none."""
        return getattr(self.base, "requirement", None)

    @cached_property
    def rewards_agents(self) -> bool:
        """Whether a step gives one reward for each agent."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        state = _traced(self, "reset", self.base.reset, key)
        _, reward, _ = _traced(self, "step", self._first_step, key, state)
        if (shape := jnp.shape(reward)) not in ((), (len(self.agents),)):
            raise DomainError(
                f"step of {self.name} gives a reward of shape {list(shape)}; give one number, or one for each of its "
                f"{len(self.agents)} agents"
            )
        return bool(shape)

    def _first_step(self, key: Array, state: State) -> tuple[State, Array, Array | bool]:
        draws = self.base.draw(key) if hasattr(self.base, "draw") else jax.random.split(key, self.horizon)
        actions = self.actions
        action = actions.decode(jnp.zeros(actions.outputs, jnp.float32))
        return self.base.step(jax.tree.map(lambda x: x[0], draws), state, self._split(action))

    @cached_property
    def views(self) -> dict[str, tuple[str, slice | int]]:
        """Signals of agents that are parts of the joint observation or action: name -> signal, and place in it."""
        found: dict[str, tuple[str, slice | int]] = {}
        parts = zip(self.agent_spaces, *self._places, strict=True)
        for space, observed, chosen in parts:
            found[f"{space.name}.obs"] = "obs", observed
            found[f"{space.name}.action"] = "action", chosen.start if space.actions.size is None else chosen
        return found

    @cached_property
    def _places(self) -> tuple[list[slice], list[slice]]:
        """The places of the agents in a joint observation, and in a joint action."""
        return (
            slices([each.size for each in self.agent_spaces]),
            slices([action_width(each.actions) for each in self.agent_spaces]),
        )

    def observed_by(self, agent: int) -> slice:
        """Return the place of an agent's observation in a joint one."""
        return self._places[0][agent]

    def chosen_by(self, agent: int) -> slice:
        """Return the place of an agent's action in a joint one."""
        return self._places[1][agent]

    @property
    def draw(self) -> Callable[[Array], Any]:
        """The draws of all steps."""
        if not hasattr(self.base, "draw"):
            raise AttributeError("draw")
        found: Callable[[Array], Any] = self.base.draw
        return found

    def reset(self, key: Array) -> State:
        """Return a random initial state."""
        state = self.base.reset(key)
        none = jnp.zeros(len(self.agents), jnp.float32)
        return RewardedState(state, none, none) if self.rewards_agents else state

    def step(self, key: Any, state: State, action: Array) -> tuple[State, Array, Array | bool]:
        """Return the next state, the reward of the team and whether the episode terminates."""
        if not self.rewards_agents:
            return self.base.step(key, state, self._split(action))
        inner, reward, done = self.base.step(key, state.inner, self._split(action))
        reward = jnp.asarray(reward, jnp.float32)
        return RewardedState(inner, reward, state.agent_return + reward), jnp.sum(reward), done

    def _split(self, action: Array) -> Any:
        """Return a joint action as the base takes it: `[A]` or `[A, size]`, or such an array for each group."""
        parts = {}
        for space, place in zip(self.agent_spaces, self._places[1], strict=True):
            own = action[place]
            parts[space.name] = own[0] if space.actions.size is None else own
        if not self.by_group:
            return jnp.stack(list(parts.values()))
        return {group: jnp.stack([parts[agent] for agent in agents]) for group, agents in self.groups.items()}

    def observe(self, state: State) -> Array:
        """Return the joint observation `[observation_size]`."""
        seen = self.base.observe(state.inner if self.rewards_agents else state)
        groups = self.groups
        if not self.by_group:
            wanted = len(self.agents), self.agent_spaces[0].size
            if jnp.shape(seen) != wanted:
                raise DomainError(
                    f"observe of {self.name} gives an array of shape {list(jnp.shape(seen))}; give {list(wanted)}, an "
                    "observation for each agent"
                )
            return jnp.ravel(seen)
        rows = {agent: seen[group][i] for group, agents in groups.items() for i, agent in enumerate(agents)}
        return jnp.concatenate([jnp.ravel(rows[agent]) for agent in self.agents])

    def signals(self, state: State) -> Mapping[str, Array]:
        """Return the signals of the base, and reward and return of each agent where it has its own."""
        found = dict(self.base.signals(state.inner if self.rewards_agents else state))
        own = {}
        for i, agent in enumerate(self.agents if self.rewards_agents else ()):
            own[f"{agent}.reward"] = state.agent_reward[i]
            own[f"{agent}.return"] = state.agent_return[i]
        if taken := sorted(found.keys() & {*own, *self.views}):
            raise DomainError(f"signals of {self.name} has {taken[0]!r}, which is there already; give it another name")
        return found | own

    def signals_and_observations(self, state: State) -> Mapping[str, Array]:
        """Return the signals, and the observation of each agent, `agent_0.obs`."""
        seen = self.observe(state)
        own = {name: seen[place] for name, (whole, place) in self.views.items() if whole == "obs"}
        return {**self.signals(state), **own}

    # ---- of a finite domain ----

    @property
    def numbered(self) -> NumberedActions | None:
        """The same domain with numbers as joint actions, where these are finitely many; else None."""
        if not isinstance(self.actions, MultiDiscrete) or self.rewards_agents or not is_finite_domain(self.base):
            return None
        if (count := math.prod(self.actions.n)) > MAX_JOINT_ACTIONS:
            raise DomainError(f"{self.name} has {count:,} joint actions, too many to enumerate")
        return NumberedActions(self)

    @property
    def _finite(self) -> FiniteDomain:
        assert is_finite_domain(self.base)
        return self.base

    def initial_distribution(self) -> tuple[NDArray[np.float64], State]:
        """Return the initial states of the base and their probabilities."""
        return self._finite.initial_distribution()

    def draw_probabilities(self) -> NDArray[np.float64]:
        """Return the probabilities of the random draws of a step."""
        return self._finite.draw_probabilities()

    def transition(self, state: State, action: Array, draw: Array) -> tuple[State, Array, Array]:
        """Return the step for random draw number `draw`."""
        return self._finite.transition(state, self._split(action), draw)


@dataclass(frozen=True)
class NumberedActions(DerivedDomain):
    """A joint domain of discrete actions with numbers instead of joint actions, which the exact solver enumerates."""

    joint: JointDomain

    @property
    def base(self) -> CompiledDomain:  # type: ignore[override]
        """The domain of the agents."""
        return self.joint.base

    @property
    def _sizes(self) -> tuple[int, ...]:
        assert isinstance(self.joint.actions, MultiDiscrete)
        return self.joint.actions.n

    @property
    def actions(self) -> Discrete:
        """Numbers of joint actions."""
        return Discrete(math.prod(self._sizes))

    @property
    def observation_size(self) -> int:
        """Length of a joint observation."""
        return self.joint.observation_size

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest values of signals."""
        return self.joint.ranges

    @property
    def draw(self) -> Callable[[Array], Any]:
        """The draws of all steps."""
        return self.joint.draw

    def number(self, action: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers `[S]` of joint actions `[S, A]`."""
        return np.ravel_multi_index(tuple(np.asarray(action).T), self._sizes).astype(np.int32)

    def _action(self, number: Array) -> Array:
        return jnp.stack(jnp.unravel_index(number, self._sizes)).astype(jnp.int32)

    def reset(self, key: Array) -> State:
        """Return a random initial state."""
        return self.joint.reset(key)

    def step(self, key: Any, state: State, action: Array) -> tuple[State, Array, Array | bool]:
        """Return next state, reward and termination."""
        return self.joint.step(key, state, self._action(action))

    def observe(self, state: State) -> Array:
        """Return the joint observation."""
        return self.joint.observe(state)

    def signals(self, state: State) -> Mapping[str, Array]:
        """Return the signals of the base, and the observation of each agent."""
        return self.joint.signals_and_observations(state)

    def initial_distribution(self) -> tuple[NDArray[np.float64], State]:
        """Return the initial states and their probabilities."""
        return self.joint.initial_distribution()

    def draw_probabilities(self) -> NDArray[np.float64]:
        """Return the probabilities of the random draws of a step."""
        return self.joint.draw_probabilities()

    def transition(self, state: State, action: Array, draw: Array) -> tuple[State, Array, Array]:
        """Return the step for random draw number `draw`."""
        return self.joint.transition(state, self._action(action), draw)


def _traced(domain: JointDomain, name: str, member: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return jax.eval_shape(member, *arguments)
    except PsycoError:
        raise
    except Exception as error:  # from user code
        raise DomainError(f"{name} of {domain.name} fails: {format_exception(error)}") from error
