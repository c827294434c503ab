"""The agents of a domain with several: their names, groups and spaces, as plain data.

Many agents act as one: the joint observation is theirs one after the other, and so is the joint action. This module
does not import JAX, because `psyco.runtime` runs without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from psyco._src.core.errors import DomainError, RunError, suggest
from psyco._src.envs.actions import Actions, Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.logic.quantifiers import EVERYBODY, SHARED

NAME = re.compile(r"[A-Za-z_]\w*")
MAX_AGENTS = 100


@dataclass(frozen=True)
class AgentSpace:
    """An agent with its spaces.

    Args:
        name: of the agent.
        group: the group that it belongs to.
        size: length of its observation.
        actions: its action space.
    """

    name: str
    group: str
    size: int
    actions: Actions


def agent_names(count: int) -> tuple[str, ...]:
    """Return agent_0, agent_1, ..."""
    return tuple(f"agent_{i}" for i in range(count))


def agents_of(domain: Any) -> tuple[str, ...]:
    """Return the names of the agents of a domain; empty where there is one agent, without a name."""
    found = getattr(domain, "agents", ())
    if isinstance(found, str):
        raise DomainError(f"agents of {domain.name} is the text {found!r}; give a tuple of names")
    return tuple(found) if isinstance(found, list | tuple) else ()


def groups_of(domain: Any) -> dict[str, tuple[str, ...]]:
    """Return the groups of agents of a domain, by default one of all agents."""
    found = getattr(domain, "groups", {EVERYBODY: agents_of(domain)})
    if not isinstance(found, Mapping) or any(isinstance(group, str) for group in found.values()):
        raise DomainError(f"groups of {domain.name} must map names to tuples of agents, got {found!r:.100}")
    return {name: tuple(group) for name, group in found.items()}


def check_agents(name: str, agents: tuple[str, ...], groups: Mapping[str, Sequence[str]]) -> None:
    """Raise DomainError unless agents have different names that formulas can contain, and are in one group each."""
    from psyco._src.logic.parser import is_signal_name

    if len(agents) > MAX_AGENTS:
        raise DomainError(f"{name} can have at most {MAX_AGENTS} agents, got {len(agents)}")
    for kind, names in (("agent", agents), ("group", tuple(groups))):
        for each in names:
            if not isinstance(each, str) or not NAME.fullmatch(each):
                raise DomainError(f"{name} has the {kind} {each!r}; a name is a word such as {kind}_0")
            if each in SHARED or not is_signal_name(f"{each}.x"):
                raise DomainError(f"{name} has the {kind} {each!r}, a word of the language; call it {kind}_{each}")
    if len(set(agents)) < len(agents):
        raise DomainError(f"{name} has two agents of one name: {', '.join(agents)}")
    for group, members in groups.items():
        for each in members:
            if each not in agents:
                raise DomainError(f"the group {group} of {name} has {each!r}, which is no agent{suggest(each, agents)}")
        if group in agents and tuple(members) != (group,):
            raise DomainError(f"{group} of {name} names an agent, and a group of different agents; change one of them")
    counts = {each: sum(each in members for members in groups.values()) for each in agents}
    if wrong := [each for each, count in counts.items() if count != 1]:
        raise DomainError(f"{wrong[0]} of {name} is in {counts[wrong[0]]} groups; put every agent in one group")


def agent_spaces_of(domain: Any) -> tuple[AgentSpace, ...]:
    """Return the spaces of the agents of a domain with several; empty where there is one agent."""
    return tuple(getattr(domain, "agent_spaces", ()))


def check_agent(name: str, spaces: Sequence[Any], owner: str) -> int:
    """Return the place of the agent of that name; raise RunError if there is none."""
    known = [each.name for each in spaces]
    if not known:
        raise RunError(f"{owner} has one agent, so leave out the agent {name!r}")
    if name not in known:
        raise RunError(f"{owner} has no agent {name!r}{suggest(name, known)}; its agents are: {', '.join(known)}")
    return known.index(name)


def joint_actions(owner: str, spaces: Sequence[AgentSpace]) -> Actions:
    """Return the space of joint actions: those of the agents, one after the other."""
    kinds = [each.actions for each in spaces]
    boxes = [each for each in kinds if isinstance(each, Continuous)]
    choices = [
        (each.n,) if isinstance(each, Discrete) else each.n
        for each in kinds
        if isinstance(each, Discrete | MultiDiscrete)
    ]
    if len(boxes) == len(kinds):
        return Continuous(tuple(x for each in boxes for x in each.low), tuple(x for each in boxes for x in each.high))
    if len(choices) == len(kinds):
        return MultiDiscrete(tuple(n for each in choices for n in each))
    if all(isinstance(each, MultiBinary) for each in kinds):
        return MultiBinary(sum(each.outputs for each in kinds))
    different = ", ".join(sorted({type(each).__name__ for each in kinds}))
    raise DomainError(
        f"agents of {owner} have different kinds of actions ({different}); give all of them continuous actions, or all "
        "of them discrete ones"
    )


def slices(lengths: Sequence[int]) -> list[slice]:
    """Return the places of parts with these lengths, one after the other."""
    ends = list(accumulate(lengths))
    return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def action_width(actions: Actions) -> int:
    """Return the numbers that an action takes in a joint action."""
    return actions.size or 1
