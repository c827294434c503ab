"""One agent of several deviates: it acts for itself, against the policies of all others.

In a `ResponseDomain` the policies of the others are fixed and the agent acts, so that an ordinary learner learns its
best response. In a `DeviatedDomain` that response is fixed and a joint policy acts, so that an ordinary test verifies
the joint policy against it; with several responses, every episode draws one. Both are finite where their base is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import DomainError
from psyco._src.envs.actions import Actions
from psyco._src.envs.adversary import FixedPolicy, MixtureState, draw_member
from psyco._src.envs.agents import AgentSpace, check_agent
from psyco._src.envs.base import CompiledDomain, Domain, State
from psyco._src.envs.base import parameters as parameters_of
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.multi_agent import JointDomain, NumberedActions
from psyco._src.envs.variants import DerivedDomain, Deviation, adversary_parameters


@dataclass(frozen=True)
class ResponseDomain(DerivedDomain):
    """A domain in which one agent acts, and the others follow a fixed joint policy."""

    joint: JointDomain
    deviation: Deviation
    fixed: FixedPolicy  # from joint observations to joint actions; the agent's own part is replaced

    @property
    def base(self) -> CompiledDomain:  # type: ignore[override]
        """The domain of the agents."""
        return self.joint.base

    @cached_property
    def _agent(self) -> int:
        return self.joint.agents.index(self.deviation.agent)

    @property
    def space(self) -> AgentSpace:
        """The spaces of the agent that acts."""
        return self.joint.agent_spaces[self._agent]

    @property
    def actions(self) -> Actions:
        """Action space of the agent."""
        return self.space.actions

    @property
    def observation_size(self) -> int:
        """Length of an observation of the agent."""
        return self.space.size

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the base, which agent deviates for what, and the joint policy of the others."""
        return parameters_of(self.joint) | adversary_parameters(self.deviation, against=self.fixed.digest)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest values of signals."""
        return self.joint.ranges

    @property
    def draw(self) -> Callable[[Array], Any]:
        """The draws of all steps."""
        return self.joint.draw

    def reset(self, key: Array) -> State:
        """Return a random initial state."""
        return self.joint.reset(key)

    def observe(self, state: State) -> Array:
        """Return the observation of the agent."""
        return self.joint.observe(state)[self.joint.observed_by(self._agent)]

    def signals(self, state: State) -> Mapping[str, Array]:
        """Return the signals of all agents."""
        return self.joint.signals_and_observations(state)

    def step(self, drawn: Any, state: State, action: Array) -> tuple[State, Array, Array | bool]:
        """Return next state, the agent's reward if it deviates for its return and has its own, else the team's."""
        after, reward, done = self.joint.step(drawn, state, self._complete(state, action))
        if self.deviation.goal == "return" and self.joint.rewards_agents:
            reward = after.agent_reward[self._agent]
        return after, reward, done

    def _complete(self, state: State, action: Array) -> Array:
        """Return the joint action in which the others follow their policies."""
        joint = self.fixed.act(self.joint.observe(state))
        return joint.at[self.joint.chosen_by(self._agent)].set(jnp.ravel(action))

    def initial_distribution(self) -> tuple[NDArray[np.float64], State]:
        """Return the initial states and their probabilities."""
        return self.joint.initial_distribution()

    def draw_probabilities(self) -> NDArray[np.float64]:
        """Return the probabilities of the random draws of a step."""
        return self.joint.draw_probabilities()

    def transition(self, state: State, action: Array, draw: Array) -> tuple[State, Array, Array]:
        """Return the step for random draw number `draw`."""
        return self.joint.transition(state, self._complete(state, action), draw)


@dataclass(frozen=True)
class DeviatedDomain(JointDomain):
    """A domain in which a joint policy acts, but for one agent, which follows a fixed response.

    Args:
        base: the domain of the agents.
        deviation: which agent deviates, and for what.
        responses: the joint policies in which it does, of which its own part counts; of several, every episode draws
            one, the last one in half of the episodes.
    """

    deviation: Deviation
    responses: tuple[FixedPolicy, ...]

    @cached_property
    def _agent(self) -> int:
        return self.agents.index(self.deviation.agent)

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the base, which agent deviates for what, and the joint policies in which it does."""
        digests = [each.digest for each in self.responses]
        return super().parameters | adversary_parameters(self.deviation, digests)

    @property
    def numbered(self) -> NumberedActions | None:
        """The same domain with numbers as joint actions, as of any joint domain, where one response acts."""
        return super().numbered if len(self.responses) == 1 else None

    def _inner(self, state: Any) -> State:
        return state.own if len(self.responses) > 1 else state

    def reset(self, key: Array) -> State:
        """Return a random initial state, and which response acts if there are several."""
        if len(self.responses) == 1:
            return super().reset(key)
        own, other = jax.random.split(key)
        return MixtureState(super().reset(own), draw_member(other, len(self.responses)))

    def observe(self, state: State) -> Array:
        """Return the joint observation."""
        return super().observe(self._inner(state))

    def signals(self, state: State) -> Mapping[str, Array]:
        """Return the signals of the base."""
        return super().signals(self._inner(state))

    def step(self, key: Any, state: State, action: Array) -> tuple[State, Array, Array | bool]:
        """Return the next state, the reward of the team and whether the episode terminates."""
        after, reward, done = super().step(key, self._inner(state), self._replace(state, action))
        return (MixtureState(after, state.member) if len(self.responses) > 1 else after), reward, done

    def transition(self, state: State, action: Array, draw: Array) -> tuple[State, Array, Array]:
        """Return the step for random draw number `draw`."""
        return super().transition(state, self._replace(state, action), draw)

    def _replace(self, state: State, action: Array) -> Array:
        """Return the joint action in which the agent follows its response."""
        seen, place = self.observe(state), self.chosen_by(self._agent)
        chosen = jnp.stack([each.act(seen)[place] for each in self.responses])
        return action.at[place].set(chosen[state.member if len(self.responses) > 1 else 0])


def check_deviation(domain: Domain, deviation: Deviation) -> JointDomain:
    """Return the domain if the agent can deviate in it; else raise an error."""
    if isinstance(domain, DeviatedDomain):
        raise DomainError(f"an agent of {domain.name} deviates already")
    if isinstance(domain, GymDomain) and domain.agent_spaces:
        raise DomainError(
            f"{domain.name} is stepped by PettingZoo, and a best response is learned in compiled domains, whose other "
            "agents can be part of the domain; particle-dance and obstacle-run have several agents"
        )
    if not isinstance(domain, JointDomain):
        raise DomainError(
            f"{domain.name} has one agent, and an agent deviates where there are several; psyco stress "
            "--adversary learns an adversary of one"
        )
    check_agent(deviation.agent, domain.agent_spaces, domain.name)
    return domain
