"""Independent learning: each agent has a learner, a belief, λ and an update of its own, all at the same time.

All agents act in the same episodes. For each of them the others are a part of its environment that changes while it
learns, so nothing that it has observed stays true: its belief has to forget (`belief_window`).

An agent's learner sees the agent's own return, or that of the team where agents have none; the constraints about this
agent, and those that are about no single one; and of a trace its own observations, also in its critics. It does not see
what the others do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from psyco._src.envs.agents import agents_of
from psyco._src.envs.base import Domain, signal_table
from psyco._src.learners.base import Learner, LearnerState, Proposal, UpdateInfo
from psyco._src.learners.belief import single_precision
from psyco._src.learners.expectation_constraints import ExpectationBound
from psyco._src.learners.lagrangian import LagrangianLearner
from psyco._src.logic.ast import Expectation, Formula, Label, Quantity, Requirement, Signal, Total, roots, walk
from psyco._src.logic.batch_monitor import BatchMonitor, compile_monitor
from psyco._src.policies.joint_network import JointNetwork
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Episodes, Trace

OF_NOBODY = ("step", "end")  # signals that do not make a constraint one about all agents


class AgentTask(NamedTuple):
    """The part of a joint task that is an agent's.

    Args:
        constraints: numbers of its constraints among the K of the task.
        own_return: column of its return among the measured values of training episodes; None: that of the team.
    """

    constraints: tuple[int, ...]
    own_return: int | None


def agent_tasks(
    requirement: Requirement, expectations: Sequence[ExpectationBound], domain: Domain
) -> tuple[AgentTask, ...]:
    """Return the task of each agent: constraints that name signals of one agent alone are that agent's."""
    bounded = [each.subject for each in requirement.constraints if isinstance(each, Expectation)]
    about: list[Formula | Quantity] = [bound.formula for bound in requirement.probability_bounds]
    about += [bounded[each.column] for each in expectations]
    owners = [_owner(subject, agents_of(domain)) for subject in about]
    measured = len(requirement.measured)
    rewarded = bool(agent_rewards(domain))
    return tuple(
        AgentTask(
            tuple(k for k, owner in enumerate(owners) if owner in (None, agent)), measured + i if rewarded else None
        )
        for i, agent in enumerate(agents_of(domain))
    )


def _owner(subject: Formula | Quantity, agents: Sequence[str]) -> str | None:
    """Return the agent that a formula or quantity is about; None: several, or the team."""
    nodes = (node for root in roots(subject) for node in walk(root) if isinstance(node, Signal | Label))
    heads = {node.name.partition(".")[0] for node in nodes if node.name not in OF_NOBODY}
    return heads.pop() if len(heads) == 1 and heads <= set(agents) else None


def agent_rewards(domain: Domain) -> list[Quantity]:
    """Return the return of each agent as a quantity; none where agents have no rewards of their own."""
    names = [f"{agent}.reward" for agent in agents_of(domain)]
    known = signal_table(domain)
    return [Quantity(Signal(name), Total()) for name in names] if all(name in known for name in names) else []


def with_agent_returns(monitor: BatchMonitor, domain: Domain) -> BatchMonitor:
    """Return a monitor that also measures the return of each agent, after all other values."""
    further = agent_rewards(domain)
    whole = compile_monitor(monitor.formulas, severity=monitor.severity, measured=[*monitor.measured, *further])
    return dataclasses.replace(whole, ranges=(*monitor.ranges, *whole.ranges[len(monitor.ranges) :]))


class IndependentState(NamedTuple):
    """The states of the agents' learners."""

    agents: tuple[LearnerState, ...]


@dataclass(frozen=True)
class IndependentLearner:
    """The learners of several agents, side by side.

    Args:
        joint: a learner with the options of all of them, and the task of the agents together; no two of them share a
            policy.
        tasks: the part of it that is each agent's.
    """

    joint: LagrangianLearner
    tasks: tuple[AgentTask, ...]

    @property
    def network(self) -> JointNetwork:
        """The network of the joint policy."""
        network = self.joint.known_task.network
        assert isinstance(network, JointNetwork)
        return network

    @property
    def episodes_per_generation(self) -> int:
        """B: the episodes of one generation, in which all agents act."""
        return self.joint.episodes_per_generation

    @property
    def checks(self) -> int:
        """The number of check episodes, in which all agents act as deployed."""
        return self.joint.checks

    @cached_property
    def learners(self) -> tuple[Learner, ...]:
        """The learner of each agent."""
        return tuple(self._learner(i) for i in range(len(self.tasks)))

    def _learner(self, agent: int) -> Learner:
        task, network, mine = self.joint.known_task, self.network, self.tasks[agent].constraints
        count, place = len(task.p_req), network.input_places[agent]
        policy = network.policies[network.members[agent].policy]
        own: Network = dataclasses.replace(policy, shift=network.shift[place], scale=network.scale[place])
        return dataclasses.replace(  # type: ignore[return-value]  # a learner with options and task is one
            self.joint,
            task=dataclasses.replace(
                task,
                p_req=tuple(task.p_req[k] for k in mine if k < count),
                c_req=tuple(task.c_req[k] for k in mine),
                expectations=tuple(task.expectations[k - count] for k in mine if k >= count),
                network=own,
                actions=network.members[agent].actions,
                conjuncts=tuple(mine.index(owner) for owner in task.cost_owners if owner in mine),
            ),
        )

    def init(self, theta: Array) -> IndependentState:
        """Return the state that starts from joint parameters `[D]`."""
        theta = jnp.asarray(theta, jnp.float32)
        return IndependentState(tuple(learner.init(theta[at]) for learner, at in self._with_parameters()))

    def _with_parameters(self) -> list[tuple[Learner, slice]]:
        """Return the learner of each agent with the place of its parameters in the joint vector."""
        places = [self.network.policy_places[member.policy] for member in self.network.members]
        return list(zip(self.learners, places, strict=True))

    def propose(self, key: Array, state: IndependentState) -> Proposal:
        """Return what all agents try in this generation: each explores by itself, in common episodes."""
        keys = jax.random.split(key, len(self.learners))
        own = [learner.propose(*each) for learner, *each in zip(self.learners, keys, state.agents, strict=True)]
        first, held = own[0], [each.hold for each in own if each.hold is not None]
        return Proposal(
            jnp.concatenate([each.theta for each in own], axis=1),
            tuple(own),
            first.episode,
            std=None if first.std is None else jnp.concatenate([each.std for each in own], axis=1),  # type: ignore[misc]
            # Noise is held in an episode for all agents: where one wants it.
            hold=jnp.max(jnp.stack(held), axis=0) if held else None,
        )

    def update(
        self, state: IndependentState, proposal: Proposal, episodes: Episodes
    ) -> tuple[IndependentState, UpdateInfo]:
        """Update every agent's learner by what it sees of the episodes; λ is the smallest of all."""
        updated = [
            learner.update(own, tried._replace(hold=proposal.hold), self.seen_by(i, episodes))
            for i, (learner, own, tried) in enumerate(zip(self.learners, state.agents, proposal.memo, strict=True))
        ]
        infos = [info for _, info in updated]
        # An agent's constraints are known to its own learner alone, common ones to all alike.
        known = {k: info.c_sat[j] for task, info in zip(self.tasks, infos, strict=True)
                 for j, k in enumerate(task.constraints)}  # fmt: skip
        with single_precision():
            c_sat = jnp.stack([known[k] for k in sorted(known)]) if known else infos[0].c_sat
            lam = jnp.min(jnp.stack([info.lam for info in infos]))
        return IndependentState(tuple(each for each, _ in updated)), UpdateInfo(lam, c_sat)

    def seen_by(self, agent: int, episodes: Episodes) -> Episodes:
        """Return the episodes as an agent's learner sees them."""
        task, (mine, own_return) = self.joint.known_task, self.tasks[agent]
        rows = jnp.asarray([k for k in mine if k < len(task.p_req)], jnp.int32)
        returns, trace = episodes.returns, episodes.trace
        if own_return is not None:
            assert episodes.value is not None
            returns = jnp.asarray(episodes.value)[:, own_return].astype(jnp.float32)
        return episodes._replace(
            returns=returns,
            cost=jnp.asarray(episodes.cost)[:, rows],
            satisfied=jnp.asarray(episodes.satisfied)[:, rows],
            shaping_cost=None if episodes.shaping_cost is None else jnp.asarray(episodes.shaping_cost)[:, rows],
            trace=None if trace is None else self._trace_seen_by(agent, trace),
        )

    def _trace_seen_by(self, agent: int, trace: Trace) -> Trace:
        """Return a trace with the agent's observations, noise, rewards and costs."""
        task, (mine, own_return), network = self.joint.known_task, self.tasks[agent], self.network
        owners = task.cost_owners[: len(task.cost_owners) - len(task.expectations)]
        columns = jnp.asarray([j for j, owner in enumerate(owners) if owner in mine], jnp.int32)
        seen, scores = network.input_places[agent], network.output_places[agent]
        reward = trace.reward
        if own_return is not None:
            assert trace.value is not None
            reward = jnp.asarray(trace.value)[..., own_return]
        return trace._replace(
            obs=jnp.asarray(trace.obs)[..., seen],
            final_obs=jnp.asarray(trace.final_obs)[..., seen],
            noise=jnp.asarray(trace.noise)[..., scores],
            reward=reward,
            cost=jnp.asarray(trace.cost)[..., columns],
            shaping_cost=None if trace.shaping_cost is None else jnp.asarray(trace.shaping_cost)[..., columns],
        )

    def deployed(self, state: IndependentState) -> Array:
        """Return the joint parameters `[D]` that would be deployed if learning ended now."""
        return jnp.concatenate([each.deployed(own) for each, own in zip(self.learners, state.agents, strict=True)])
