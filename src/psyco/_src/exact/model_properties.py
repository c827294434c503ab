"""What PSyCo makes of a model and of the properties in its file: accepted, answered exactly, or refused and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from psyco._src.core.errors import PsycoError
from psyco._src.core.wording import plural
from psyco._src.envs.base import signal_table
from psyco._src.envs.model_file import ModelFile
from psyco._src.envs.model_program import ModelProgram
from psyco._src.envs.model_tables import ModelTables
from psyco._src.envs.program_file import ProgramFile
from psyco._src.logic.ast import Requirement
from psyco._src.logic.parser import parse
from psyco._src.logic.validate import check_signals
from psyco._src.rollout.env_checker import CheckResult

# As Storm prints a property: P or R{"name"}; min or max; a question or a bound.
PROPERTY = re.compile(r'(P|R(?:\{"[^"]*"\})?)(min|max)?\s*(=\?|[<>]=?\s*[\d./eE+() -]+)\s*\[(.*)\]', re.DOTALL)
REFUSED = (
    (re.compile(r"rew\{|\{[^}]*\}\s*[<>]=?"), "it bounds a reward inside of a path formula"),
    (re.compile(r"\?.*:"), "it has a conditional expression"),
    (re.compile(r"\|\|"), "it is conditional"),
    (re.compile(r"\b(floor|ceil|round|mod|pow|log|sqrt)\b|%|\^"), "it has a function that the language lacks"),
    (re.compile(r"\[.*[PRST](?:min|max)?\s*(?:=\?|[<>])", re.DOTALL), "it nests an operator P, R or S"),
    (
        re.compile(r"^R.*\[\s*I\s*=", re.DOTALL),
        "it asks for the reward at one step, which PRISM counts from another step",
    ),
    (re.compile(r"^T"), "it asks for a number of steps; a reward structure that is 1 in every state counts them"),
    (re.compile(r"^(multi|S|LRA)\b"), "it is about several objectives, or about the long run"),
)


class ModelProperty(NamedTuple):
    """A property of a model file."""

    name: str
    text: str  # as Storm prints it
    requirement: str  # in our language; empty if it is refused
    best: str  # min or max over all policies; empty: there is nothing to choose, or it is about a given policy
    bound: str  # of the optimum, as in >=1; empty: a question
    refused: str  # why; empty if it is not


def model_properties(domain: ModelFile | ProgramFile) -> list[ModelProperty]:
    """Return the properties of the file."""
    return [_translate(domain, name, text) for name, text in _contents(domain).properties]


def _contents(domain: ModelFile | ProgramFile) -> ModelTables | ModelProgram:
    return domain.program if isinstance(domain, ProgramFile) else domain.tables


def _translate(domain: ModelFile | ProgramFile, name: str, text: str) -> ModelProperty:
    found = PROPERTY.fullmatch(text.strip())
    reason = next((why for pattern, why in REFUSED if pattern.search(text)), "")
    if found is None or reason:
        return ModelProperty(name, text, "", "", "", reason or "it is no property of a single probability or reward")
    subject, best, comparison, body = found.groups()
    best = "" if domain.is_chain else best or ""
    if subject == "R" and len(rewards := _contents(domain).rewards) > 1:
        why = f'it names none of the reward structures; write R{{"{next(iter(rewards))}"}}'
        return ModelProperty(name, text, "", "", "", why)
    body = re.sub(r"\b([UFGC])(?:steps)?\s*([<>]=?)", r"\1\2", body)
    body = re.sub(r"\b([UFC])<\s*([1-9]\d*)\b", lambda found: f"{found[1]}<={int(found[2]) - 1}", body)
    signals = signal_table(domain)
    for label in _contents(domain).labels:
        body = body.replace(f'"{label}"', _quoted(signals, label))
    for variable in _variables(domain):
        if (used := _used(signals, "var", variable)) != variable:
            body = re.sub(rf'(?<![\w."]){variable}(?![\w"])', used, body)
    subject = f"R{{{domain.reward}}}" if subject == "R" and domain.reward else subject
    bound = "" if comparison == "=?" else _decimal(re.sub(r"[ ()]", "", comparison))
    ours = f"{subject}=? [ {body.strip()} ]"
    try:
        check_signals(parse(ours), signals, domain.name)
    except PsycoError as error:
        # The place is one in the translation, which is not shown.
        return ModelProperty(name, text, "", best, bound, re.sub(r" at line \d.*", "", str(error).splitlines()[0]))
    return ModelProperty(name, text, ours, best, bound, "")


def _variables(domain: ModelFile | ProgramFile) -> list[str]:
    contents = _contents(domain)
    if isinstance(contents, ModelTables):
        return list(contents.variables)
    return [variable.name for variable in contents.variables]


def _used(signals: Mapping[str, Any], kind: str, name: str) -> str:
    """Return the name by which formulas know a label or variable, whose own name may be taken."""
    return f"{kind}.{name}" if f"{kind}.{name}" in signals else name


def _quoted(signals: Mapping[str, Any], label: str) -> str:
    return used if (used := _used(signals, "label", label)) != label else f'"{label}"'


def _decimal(comparison: str) -> str:
    """Return a comparison with its number, which Storm writes as a fraction, as a decimal."""
    sign = comparison.rstrip("0123456789./eE+-")
    return f"{sign}{float(Fraction(comparison[len(sign) :])):.17g}" if "/" in comparison else comparison


def check_model(domain: ModelFile | ProgramFile, requirement: Requirement | None = None) -> Iterator[CheckResult]:
    """Yield what there is to know about a model, and what becomes of each property of its file."""
    tables = _contents(domain)
    kind = "a Markov chain" if domain.is_chain else "a decision process"
    yield CheckResult("model", True, f"{kind} of type {tables.kind}: {_size(tables)}")
    signals = signal_table(domain)
    observed = domain.observed.items()
    names = ", ".join(f"{_used(signals, 'var', name)} ({low:g} to {high:g})" for name, (low, high) in observed)
    yield CheckResult("variables", True, names or "none")
    yield CheckResult("labels", True, ", ".join(_quoted(signals, name) for name in tables.labels) or "none")
    rewards = ", ".join(f'R{{"{name}"}}' + " (the reward)" * (name == domain.reward) for name in tables.rewards)
    yield CheckResult("rewards", True, rewards or "none")
    if not domain.is_chain:
        yield CheckResult("actions", True, f"0 to {domain.actions.n - 1}: {_offer(domain)}")
    if isinstance(tables, ModelTables) and (dead := int(np.count_nonzero(tables.labels.get("deadlock", False)))):
        yield CheckResult("deadlocks", None, f"no command is enabled in {dead:,} states: episodes end there")
    for each in model_properties(domain):
        yield CheckResult(each.name or "property", None if each.refused else True, _verdict(domain, each))
    if requirement is not None:
        check_signals(requirement, signal_table(domain), domain.name)
        yield CheckResult("requirement", True, "its variables and labels exist")


def _offer(domain: ModelFile | ProgramFile) -> str:
    if isinstance(domain, ProgramFile):
        return "action i is choice i of the n that a state offers, and i modulo n where i is n or more"
    if domain.has_mask:
        return "action i is choice i of those that a state offers, which an action mask says"
    return "action i is choice i of a state"


def _size(tables: ModelTables | ModelProgram) -> str:
    if isinstance(tables, ModelProgram):
        variables, commands = len(tables.variables), len(tables.commands)
        return f"too large to build; {variables:,} variables and {commands:,} commands, from which steps are simulated"
    branches = len(tables.successor)
    sizes = plural(tables.states, "state"), plural(len(tables.branches) - 1, "choice")
    return f"{', '.join(sizes)}, {branches:,} branch{'es' * (branches != 1)}"


def _verdict(domain: ModelFile | ProgramFile, stated: ModelProperty) -> str:
    if stated.refused:
        return f"{stated.text}: refused, {stated.refused}"
    if domain.is_chain:
        unbuilt = ", with a horizon" * isinstance(domain, ProgramFile)
        return f"{stated.requirement}: accepted; psyco verify samples it{unbuilt}, psyco exact answers it"
    if isinstance(domain, ProgramFile):
        return f"{stated.text}: accepted for a policy; psyco verify samples it, with a horizon"
    if not stated.best:
        return f"{stated.requirement}: answered exactly, by psyco exact --optimum; of a policy, psyco verify samples it"
    question = stated.requirement.replace("=?", f"{stated.best}=?", 1)
    bound = f", for the bound {stated.bound}" * bool(stated.bound)
    return f"{question}: answered exactly, by psyco exact{bound}; of a policy, psyco verify samples it"
