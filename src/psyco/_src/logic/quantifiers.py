"""Formulas about agents: `each(agent.x > 0)`, `any(agent.x > 0)` and `for each agent:`, written out for a team.

`each(φ)` becomes a conjunction with one φ per agent of the group, `any(φ)` a disjunction, and a property `for each
agent` one property per agent. The result is an ordinary requirement, so nothing else knows about agents.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from psyco._src.core.errors import RequirementError, SourceLocation, suggest
from psyco._src.logic.ast import (
    Connective,
    Constraint,
    Formula,
    Group,
    Label,
    Node,
    Quantified,
    Quantity,
    Requirement,
    Signal,
    children,
)

EVERYBODY = "agent"  # the group of all agents, unless a domain gives that name to another group
SHARED = ("info", "obs")  # the starts of dotted signals that are of no agent
_NUMBERED = re.compile(r"([A-Za-z_]\w*?)_\d+")

Subject = TypeVar("Subject", Requirement, Formula, Quantity)


@dataclass(frozen=True)
class Team:
    """The agents of a domain or a recording, and their groups.

    Args:
        agents: their names; none where there is one agent.
        groups: the agents of each group; `agent` is that of all agents, if it is not among them.
    """

    agents: tuple[str, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = ()  # type: ignore[assignment]

    def __post_init__(self) -> None:
        everybody = {EVERYBODY: self.agents} if self.agents else {}
        object.__setattr__(self, "groups", everybody | {name: tuple(own) for name, own in dict(self.groups).items()})


def make_team(agents: Sequence[str], groups: Mapping[str, Sequence[str]] | None) -> Team:
    """Return the team of these arguments of a call; raise RequirementError unless groups consist of agents.

    Args:
        agents: names of the agents; if there are none, those of the groups.
        groups: names of groups and their agents.
    """
    if isinstance(agents, str) or not all(isinstance(agent, str) for agent in agents):
        raise RequirementError(f"agents must be a list of names, such as ['agent_0', 'agent_1']; got {agents!r:.100}")
    members = {} if groups is None else groups
    if not isinstance(members, Mapping) or any(isinstance(own, str) for own in members.values()):
        problem = "groups must map names to lists of agents, such as {'pursuer': ['agent_0', 'agent_1']}"
        raise RequirementError(f"{problem}; got {groups!r:.100}")
    named = tuple(agents) or tuple(dict.fromkeys(agent for own in members.values() for agent in own))
    for group, own in members.items():
        for agent in own:
            if agent not in named:
                advice = f"agents are: {', '.join(named)}"
                raise RequirementError(f"{agent!r} of group {group!r} is no agent{suggest(agent, named)}", None, advice)
    return Team(named, {group: tuple(own) for group, own in members.items()})


def team_of_signals(names: Iterable[str]) -> Team:
    """Return the agents of recorded signals: `pursuer_0.x` is one of the agent pursuer_0, of the group `pursuer`."""
    heads = dict.fromkeys(name.partition(".")[0] for name in names if "." in name)
    agents = tuple(head for head in heads if head not in SHARED and _NUMBERED.fullmatch(head))
    return Team(agents, groups_by_name(agents))


def groups_by_name(agents: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the groups of agents that are numbered: pursuer_0 and pursuer_1 are the group `pursuer`."""
    found: dict[str, tuple[str, ...]] = {}
    for agent in agents:
        if numbered := _NUMBERED.fullmatch(agent):
            found[numbered[1]] = (*found.get(numbered[1], ()), agent)
    return found


def is_quantified(subject: Requirement | Formula | Quantity) -> bool:
    """Return whether `each`, `any` or `for each` stands in a requirement, formula or quantity."""
    return next(_quantifiers(subject), None) is not None


def write_out(subject: Subject, team: Team, owner: str, known: Collection[str] | None = None) -> Subject:
    """Return a requirement, formula or quantity for the agents of a team, without each, any and for each.

    Args:
        subject: a subject without each, any and for each is returned unchanged.
        team: the agents and their groups.
        owner: whose agents these are, for messages.
        known: names of all signals; None: they are not known yet.

    Raises:
        RequirementError: for an unknown or empty group, or a signal of a group outside of each, any and for each.
    """
    if not team.agents:
        for node in _quantifiers(subject):
            raise _no_agents(node, owner)
        return subject
    writer = _AgentWriter(team, owner, None if known is None else frozenset(name.partition(".")[0] for name in known))
    if not isinstance(subject, Requirement):
        return writer.write(subject, {})
    given: Requirement = subject
    written = Requirement(
        given.goal,
        tuple(part for stated in given.constraints for part in writer.properties(stated)),
        tuple(part for asked in given.questions for part in writer.properties(asked)),
    )
    if written == given:
        return subject
    _check_size(str(written), team)
    return replace(written, text="\n".join([*as_comment(given.text), str(written)]))


def as_comment(text: str) -> list[str]:
    """Return the lines of a requirement as comments: a requirement that was written out begins with its source."""
    return [f"// {line}".rstrip() for line in text.strip().splitlines()]


def refuse_quantifiers(subject: Requirement | Formula | Quantity, owner: str) -> None:
    """Raise RequirementError if `each`, `any` or `for each` stands in a subject for a domain with one agent."""
    for node in _quantifiers(subject):
        raise _no_agents(node, owner)


def _no_agents(node: Quantified | Group, owner: str) -> RequirementError:
    what = f"for each {node.name}" if isinstance(node, Group) else f"{node.quantifier}(...)"
    advice = "a domain names them in `agents`, a monitor takes agents=[...]; or write one formula for every agent"
    return RequirementError(f"{what} is about several agents, and {owner} names none", node.location, advice)


def _check_size(text: str, team: Team) -> None:
    from psyco._src.logic.parser import parse

    try:
        parse(text)  # as when the run or its certificate is read
    except RequirementError as error:
        problem = f"written out for {len(team.agents)} agents, the requirement has {str(error).splitlines()[0]}"
        raise RequirementError(problem, None, "let there be fewer agents, or split the requirement") from None


def _quantifiers(subject: Any) -> Iterator[Quantified | Group]:
    """Yield every each, any and for each, in the order of the text."""
    if isinstance(subject, Requirement):
        for stated in (*subject.constraints, *subject.questions):
            if stated.for_each is not None:
                yield stated.for_each
            yield from _quantifiers(stated.formula if isinstance(stated, Constraint) else stated.subject)
    elif isinstance(subject, Quantified):
        yield subject
    elif is_dataclass(subject):
        for part in _parts(subject):
            yield from _quantifiers(part)


def _parts(node: Any) -> Iterator[Any]:
    """Yield the nodes directly below one, also those of a quantity."""
    for each in fields(node):
        value = getattr(node, each.name)
        yield from value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True)
class _AgentWriter:
    """Writes formulas out for a team."""

    team: Team
    owner: str
    heads: frozenset[str] | None  # before the first dot of all signals, if these are known

    def properties(self, stated: Any) -> Iterator[Any]:
        """Yield a property for every agent that it is for, or the property itself."""
        group, which = stated.for_each, "formula" if isinstance(stated, Constraint) else "subject"
        body = getattr(stated, which)
        if group is None:
            yield replace(stated, **{which: self.write(body, {})})
            return
        agents = self.members(group.name, group.location)
        bodies = [self.write(body, {group.name: agent}) for agent in agents]
        if len(bodies) > 1 and bodies[0] == bodies[1]:
            advice = f"name one of its signals, as in {group.name}.x, outside of each and any"
            raise RequirementError(f"this property is the same for each {group.name}", group.location, advice)
        for agent, own in zip(agents, bodies, strict=True):
            name = None if stated.name is None else f"{stated.name} ({agent})"
            yield replace(stated, **{which: own}, name=name, for_each=None)

    def write(self, node: Any, bound: Mapping[str, str]) -> Any:
        """Return a node with the agents of `bound` in the place of their groups."""
        match node:
            case Signal(name) | Label(name):
                return replace(node, name=self.name(name, bound, node.location))
            case Quantified(quantifier, body):
                group = self.group(node, bound)
                agents = self.members(group, node.location)
                operands = tuple(self.write(body, {**bound, group: agent}) for agent in agents)
                return Connective("&" if quantifier == "each" else "|", operands) if len(operands) > 1 else operands[0]
        if not is_dataclass(node) or isinstance(node, type):
            return node
        changes = {}
        for each in fields(node):
            value = getattr(node, each.name)
            many = type(value) is tuple  # not a location
            changes[each.name] = tuple(self.write(part, bound) for part in value) if many else self.write(value, bound)
        return replace(node, **changes)

    def name(self, name: str, bound: Mapping[str, str], location: SourceLocation | None) -> str:
        """Return the name of a signal for an agent; raise RequirementError if it is that of a whole group."""
        head, dot, rest = name.partition(".")
        if not dot or head in self.team.agents or head in SHARED:
            return name
        if head in bound:
            return f"{bound[head]}.{rest}"
        if head in self.team.groups:
            one = next(iter(self.team.groups[head]), self.team.agents[0])
            advice = (
                f"write each({name} ...) or any({name} ...), for each {head}: P>=p [ ... ], or name one: {one}.{rest}"
            )
            raise RequirementError(f"{name} is a signal of every agent in the group {head!r}", location, advice)
        if self.heads is not None and head not in self.heads:
            raise RequirementError(f"unknown agent {head!r}", location, self.offered(head, with_agents=True))
        return name

    def group(self, node: Quantified, bound: Mapping[str, str]) -> str:
        """Return the group that a quantifier is about: the one whose signals stand in it, outside of inner ones."""
        dotted = dotted_signals(node.body)
        groups = [head for head in dotted if head in self.team.groups and head not in self.team.agents]
        free = [head for head in groups if head not in bound] if len(groups) > 1 else groups
        word = node.quantifier
        if len(free) == 1:
            return free[0]
        if free:
            problem = f"{word}(...) is about one group of agents, and names {' and '.join(free)}"
            raise RequirementError(problem, node.location, "put another each or any around one of them")
        for head, signal in dotted.items():
            if head not in self.team.agents and head not in SHARED:
                raise RequirementError(f"unknown group {head!r}", signal.location, self.offered(head))
        example = next(iter(self.team.groups))
        advice = f"write the name of a group before a dot, as in {word}({example}.x > 0); {self.offered('')}"
        raise RequirementError(f"{word}(...) names no group of agents", node.location, advice)

    def members(self, group: str, location: SourceLocation | None) -> tuple[str, ...]:
        """Return the agents of a group; raise RequirementError for an unknown or an empty one."""
        if group not in self.team.groups:
            raise RequirementError(f"unknown group {group!r}", location, self.offered(group))
        if not self.team.groups[group]:
            raise RequirementError(f"the group {group!r} has no agents", location, self.offered(""))
        return self.team.groups[group]

    def offered(self, wrong: str, with_agents: bool = False) -> str:
        """Return advice with the groups, and the one that may be meant."""
        known = [*(self.team.agents if with_agents else ()), *self.team.groups]
        close = get_close_matches(wrong, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        groups = ", ".join(f"{name} ({', '.join(own) or 'no agents'})" for name, own in self.team.groups.items())
        return f"{hint}{self.owner} has the groups {groups}"


def dotted_signals(formula: Formula) -> dict[str, Signal | Label]:
    """Return the words before the dots of signals outside of inner each and any, with the last signal of each."""
    found = ((signal.name.partition("."), signal) for signal in _direct_signals(formula))
    return {head: signal for (head, dot, _), signal in found if dot}


def _direct_signals(node: Node) -> Iterator[Signal | Label]:
    """Yield the signals in a formula that stand in no inner each or any."""
    if isinstance(node, Signal | Label):
        yield node
    if not isinstance(node, Quantified):
        for child in children(node):
            yield from _direct_signals(child)
