"""The network of several agents: one parameter vector, and each agent acts on its own observation.

Agents that share a policy share its parameters, and its first layer also sees which of them it acts for, as a one-hot
code. That code is constant for an agent, so its weights are part of the agent's biases: an agent's own network is an
ordinary one, without the code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.actions import Actions
from psyco._src.envs.agents import AgentSpace, agent_spaces_of, check_agent, slices
from psyco._src.policies.image_network import image_network_for
from psyco._src.policies.network import Bias, Hidden, Network, Rows, network_for

if TYPE_CHECKING:
    from jax import Array

    from psyco._src.envs.base import Domain

SHARINGS = ("shared", "separate", "group")


@dataclass(frozen=True)
class TeamMember:
    """An agent of a joint network.

    Args:
        name: of the agent.
        inputs: length of its observation.
        actions: its action space.
        policy: number of the policy that it follows.
        index: its number among the agents that share this policy.
        hidden: hidden units of this policy, if not those of the joint network.
    """

    name: str
    inputs: int
    actions: Actions
    policy: int
    index: int
    hidden: int | tuple[int, ...] | None = None


@dataclass(frozen=True)
class JointNetwork(Network):
    """Networks of several agents, over one vector of parameters: those of the policies, one after the other."""

    members: tuple[TeamMember, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        sums = sum(each.inputs for each in self.members), sum(each.actions.outputs for each in self.members)
        if (self.inputs, self.outputs) != sums or self.masked or self.one_hot or self.recurrent:
            raise RunError(
                f"agents with {sums} inputs and outputs do not fit a network with {self.inputs, self.outputs}"
            )
        if len({each.name for each in self.members}) < len(self.members):
            raise RunError("a joint network has two agents of one name")
        if any(each.policy not in range(len(self.members)) for each in self.members):
            raise RunError("a joint network has an agent whose policy has no number from 0 on")
        for policy, members in enumerate(self.sharers):
            alike = {(each.inputs, each.actions, each.hidden) for each in members}
            if len(alike) != 1 or [each.index for each in members] != list(range(len(members))):
                raise RunError(f"policy {policy} of a joint network has agents that do not fit each other")

    @cached_property
    def sharers(self) -> list[list[TeamMember]]:
        """The agents that follow each policy."""
        count = 1 + max(each.policy for each in self.members)
        return [[each for each in self.members if each.policy == policy] for policy in range(count)]

    @cached_property
    def policies(self) -> list[Network]:
        """The network of each policy, which observes whom it acts for if several agents share it."""
        return [
            Network(
                first.inputs + (len(members) if len(members) > 1 else 0),
                first.actions.outputs,
                first.hidden or self.hidden,
                self.bias,
            )
            for members in self.sharers
            for first in members[:1]
        ]

    @cached_property
    def own(self) -> list[Network]:
        """The network of each agent, for its own observation alone."""
        return [
            Network(
                each.inputs,
                each.actions.outputs,
                each.hidden or self.hidden,
                "learned",
                self.shift[place],
                self.scale[place],
            )
            for each, place in zip(self.members, self.input_places, strict=True)
        ]

    @cached_property
    def input_places(self) -> list[slice]:
        """The place of each agent's observation in a joint one."""
        return slices([each.inputs for each in self.members])

    @cached_property
    def output_places(self) -> list[slice]:
        """The place of each agent's scores among all."""
        return slices([each.actions.outputs for each in self.members])

    @cached_property
    def policy_places(self) -> list[slice]:
        """The place of each policy's parameters in the vector."""
        return slices([each.size for each in self.policies])

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the parameters of all policies."""
        return tuple(shape for network in self.policies for shape in network.shapes)

    def init(self, key: Array) -> Array:
        """Return random parameters `[D]`, those of each policy as those of its network."""
        import jax
        import jax.numpy as jnp

        keys = jax.random.split(key, len(self.policies))
        return jnp.concatenate([network.init(own) for network, own in zip(self.policies, keys, strict=True)])

    def own_layers(self, theta: Any) -> list[list[Any]]:
        """Return the layers of each agent's own network, weights and then biases, for parameters `[..., D]`."""
        found = []
        for member in self.members:
            network, place = self.policies[member.policy], self.policy_places[member.policy]
            layers, count = network.unflatten(theta[..., place]), len(network.layers) + 1
            weights, biases = layers[:count], layers[count:]
            if not biases:
                biases = [
                    np.ones((*theta.shape[:-1], width), np.float32) for width in (*network.layers, network.outputs)
                ]
            if len(self.sharers[member.policy]) > 1:
                whose = weights[0][..., member.inputs + member.index, :]
                biases = [biases[0] + whose, *biases[1:]]
                weights = [weights[0][..., : member.inputs, :], *weights[1:]]
            found.append([*weights, *biases])
        return found

    def own_parameters(self, theta: NDArray[np.float32], agent: int) -> NDArray[np.float32]:
        """Return the parameters of an agent's own network for joint ones `[D]`."""
        return np.concatenate([np.ravel(layer) for layer in self.own_layers(theta)[agent]]).astype(np.float32)

    def unflatten(self, theta: Any) -> list[Any]:
        """Return the layers of all agents' own networks, one after the other."""
        return [layer for layers in self.own_layers(theta) for layer in layers]

    def scores_and_memory(self, layers: list[Array], x: Array, memory: Any) -> tuple[Array, Any]:
        """Return the scores of all agents `[outputs]`, each from its own part of the observation `[inputs]`.

        Several agents have no memory: `memory` is returned unchanged.
        """
        import jax.numpy as jnp

        own_layers = slices([len(network.shapes) for network in self.own])
        scores = [
            network.scores_from_layers(layers[own], x[place])
            for network, own, place in zip(self.own, own_layers, self.input_places, strict=True)
        ]
        return jnp.concatenate(scores), memory

    def numpy_scores(self, theta: Rows) -> Callable[..., Rows]:
        """Return `scores` in NumPy, `[B, inputs] -> [B, outputs]`, for parameters `[B, D]` or `[1, D]`."""
        functions = [
            network.numpy_scores(
                # Without rows, -1 would be ambiguous.
                np.concatenate([layer.reshape(len(theta), math.prod(layer.shape[1:])) for layer in layers], axis=1)
            )
            for network, layers in zip(self.own, self.own_layers(theta), strict=True)
        ]

        def scores(x: Rows) -> Rows:
            return np.concatenate(
                [function(x[:, place]) for function, place in zip(functions, self.input_places, strict=True)], axis=1
            )

        return scores

    def weights_and_biases(self, theta: Any) -> list[tuple[Any, Any]]:
        """Raise RunError: several agents have no common layers."""
        raise RunError(several_agents([each.name for each in self.members]))


def replace_agent(
    network: JointNetwork, theta: Rows, agent: int, own: Network, own_theta: Rows
) -> tuple[JointNetwork, Rows]:
    """Return the joint network in which one agent follows a policy of its own, and its parameters `[D]`.

    Args:
        network: the joint network.
        theta: its parameters `[D]`.
        agent: the place of the agent.
        own: the agent's new network.
        own_theta: the parameters of that.
    """
    if own.bias == "one":
        own_theta = np.concatenate([own_theta, np.ones(sum(own.layers) + own.outputs, np.float32)])
    networks, parts = list(network.own), [network.own_parameters(theta, i) for i in range(len(network.own))]
    networks[agent], parts[agent] = own, np.asarray(own_theta, np.float32)
    shift, scale = (
        tuple(x for each in networks for x in getattr(each, name) or (default,) * each.inputs)
        if any(each.scale for each in networks)
        else ()
        for name, default in (("shift", 0.0), ("scale", 1.0))
    )
    members = tuple(
        replace(member, policy=i, index=0, hidden=None if each.hidden == network.hidden else each.hidden)
        for i, (member, each) in enumerate(zip(network.members, networks, strict=True))
    )
    made = replace(network, bias="learned", shift=shift, scale=scale, members=members)
    return made, np.concatenate(parts)


def with_actions_of(network: Network, domain: Domain) -> Network:
    """Return a network from run.json with the action spaces of a domain: there Discrete and MultiBinary look alike."""
    spaces = agent_spaces_of(domain)
    if not isinstance(network, JointNetwork) or len(spaces) != len(network.members):
        return network
    return replace(
        network,
        members=tuple(replace(each, actions=own.actions) for each, own in zip(network.members, spaces, strict=True)),
    )


def several_agents(names: Sequence[str]) -> str:
    """Return why a joint policy does not do where one network is needed, and what to do."""
    return (
        f"this policy is that of several agents ({', '.join(names)}), which act apart from each other; name one: "
        f"--agent {names[0]}, in Python policy.agent({names[0]!r})"
    )


def joint_network_for(
    domain: Domain,
    *,
    hidden: Hidden,
    bias: Bias,
    memory: str = "none",
    encoder: str = "dense",
    policies: str | None = None,
) -> Network:
    """Return the network of a domain; of one with several agents, a joint one.

    Args:
        domain: where it will act.
        hidden: units of the hidden layer, or of each of several, of each policy.
        bias: 1, as in the paper's equation, or learned.
        memory: that of the policy, see `Network.memory`; several agents have none.
        encoder: dense or conv; several agents have no convolutions.
        policies: "shared": one for all agents; "separate": one for each; "group": one for each group; None: the
            default.
    """
    spaces = agent_spaces_of(domain)
    if not spaces:
        make = image_network_for if encoder == "conv" else network_for
        return make(domain, hidden=hidden, bias=bias, memory=memory)
    for name, given, missing in (("memory", memory, "memory"), ("encoder", encoder, "convolutions")):
        if given not in ("none", "dense"):
            raise RunError(
                f"policies of several agents have no {missing}, and {domain.name} has {len(spaces)}; leave out {name}"
            )
    whole = network_for(domain, hidden=hidden, bias=bias)
    members = _members(domain.name, spaces, policies or default_sharing(spaces))
    return JointNetwork(whole.inputs, whole.outputs, hidden, bias, whole.shift, whole.scale, members=members)


def default_sharing(spaces: Sequence[AgentSpace]) -> str:
    """Return the policies of agents by default: one where their spaces agree, else one for each group."""
    return "shared" if len({(each.size, each.actions) for each in spaces}) == 1 else "group"


def _members(owner: str, spaces: Sequence[AgentSpace], policies: str) -> tuple[TeamMember, ...]:
    key: Callable[[AgentSpace], str]
    match policies:
        case "shared":
            key = _everybody
        case "separate":
            key = _name
        case _:
            key = _group
    kinds: dict[str, list[AgentSpace]] = {}
    members = []
    for space in spaces:
        sharing = kinds.setdefault(key(space), [])
        if sharing and (space.size, space.actions) != (sharing[0].size, sharing[0].actions):
            first = sharing[0]
            raise RunError(
                f"{first.name} and {space.name} of {owner} differ in their spaces ({first.size} observations, "
                f"{first.actions}; {space.size} observations, {space.actions}), so they cannot share a policy: "
                "use policies='separate'" + (", or 'group'" if first.group != space.group else "")
            )
        members.append(TeamMember(space.name, space.size, space.actions, list(kinds).index(key(space)), len(sharing)))
        sharing.append(space)
    return tuple(members)


def _everybody(space: AgentSpace) -> str:
    return ""


def _name(space: AgentSpace) -> str:
    return space.name


def _group(space: AgentSpace) -> str:
    return space.group


def member_of(network: Network, name: str, owner: str) -> int:
    """Return the place of an agent in a joint network; raise RunError if there is none of that name."""
    return check_agent(name, network.members if isinstance(network, JointNetwork) else (), owner)
