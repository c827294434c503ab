"""A finite domain's Markov chain or decision process as files: PRISM's language, `.drn`, and `.tra/.sta/.lab/.rew`.

State 0 is a start of its own that leads to the initial states, because these are drawn at random and the formats want
one initial state. Final states repeat forever. Ask for `P=? [ F "satisfied" ]` and `R{"return"}=? [ F "end" ]`.
The `.rew` file of a decision process holds costs, the negative of the rewards, where these are not positive: Storm
reads no negative numbers there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.base import Domain
from psyco._src.exact.unfold import Unfolding, actions_of, unfold
from psyco._src.logic.ast import Requirement
from psyco._src.policies.external import AnyPolicy

START = "start"


class ModelAction(NamedTuple):
    """One action in one state."""

    reward: float  # expected
    successors: list[tuple[int, float]]  # in ascending order, each once


class ExplicitModel(NamedTuple):
    """A model with numbered states; `labels` are sets of these."""

    choices: list[list[ModelAction]]  # per state
    labels: dict[str, NDArray[np.int64]]  # name -> states
    initial: list[int]
    names: list[tuple[int, int]]  # per state the step, and the number of the domain's state

    @property
    def deterministic(self) -> bool:
        """Is it a Markov chain?"""
        return all(len(choices) == 1 for choices in self.choices)


def explicit(
    graph: Unfolding, *, start: bool = True, quantity: int | None = None, restart: bool = False
) -> ExplicitModel:
    """The model with numbered states.

    Args:
        graph: whose nodes are numbered.
        start: state 0 leads to the initial ones; else these are all marked as initial.
        quantity: what the steps are worth, instead of their reward.
        restart: a step that ends an episode leads to the beginning of the next one.
    """
    shift = int(start)
    first = np.cumsum([shift, *(len(layer.state) for layer in graph.layers)])
    choices: list[list[ModelAction]] = []
    if start:
        choices.append([ModelAction(0.0, _merged(shift + np.arange(len(graph.start)), graph.start))])

    def ahead(targets: NDArray[np.int64], over: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Where a step leads, and how likely."""
        if not (restart and over.any()):
            return targets, graph.chances
        again = graph.chances[over].sum() * graph.start
        beginning = shift + np.arange(len(graph.start))
        return np.concatenate([targets[~over], beginning]), np.concatenate([graph.chances[~over], again])

    for offset, layer, below in zip(
        first[1:], graph.layers, (*graph.layers[1:], graph.layers[-1]), strict=True
    ):
        steps = layer.reward if quantity is None else layer.gain[..., quantity]
        rewards = steps @ graph.chances  # [M, actions]
        for node, final in enumerate(layer.final):
            if final:
                choices.append([ModelAction(0.0, [(len(choices), 1.0)])])
            else:
                choices.append(
                    [
                        ModelAction(float(worth), _merged(*ahead(offset + targets, below.final[targets])))
                        for worth, targets in zip(rewards[node], layer.successor[node], strict=True)
                    ]
                )
    flat = {
        name: np.concatenate([getattr(x, name) for x in graph.layers])
        for name in ("final", "satisfied", "letters")
    }
    labels = {"end": np.flatnonzero(flat["final"]) + shift}
    formulas = flat["satisfied"].shape[1]
    for k in range(formulas):
        name = "satisfied" if formulas == 1 else f"satisfied{k}"
        labels[name] = np.flatnonzero(flat["final"] & flat["satisfied"][:, k]) + shift
    for a in range(flat["letters"].shape[1]):
        labels[f"a{a}"] = np.flatnonzero(flat["letters"][:, a]) + shift
    names = [(-1, -1)] * shift
    names += [(step, int(state)) for step, layer in enumerate(graph.layers) for state in layer.state]
    return ExplicitModel(choices, labels, [0] if start else list(range(len(graph.start))), names)


def write_graph(graph: Unfolding, path: Path) -> list[Path]:
    """Write `path` with each of .prism, .drn, .tra, .sta, .lab and .rew added to its name; returns these files."""
    model = explicit(graph)
    writers = {
        ".prism": prism,
        ".drn": drn,
        ".tra": tra,
        ".sta": sta,
        ".lab": lab,
        ".rew": transition_rewards,
    }
    written = []
    for suffix, writer in writers.items():
        file = path.with_name(path.name + suffix)
        try:
            with file.open("w", encoding="ascii") as out:
                out.writelines(f"{line}\n" for line in writer(model))
        except OSError as error:
            raise RunError(f"cannot write {file}: {error.strerror}") from None
        written.append(file)
    return written


def drn(model: ExplicitModel) -> Iterator[str]:
    """Storm's own format."""
    # It has no list of labels: one that holds nowhere is unknown, unless a state beyond reach carries it.
    unused = [name for name, states in model.labels.items() if not len(states)]
    if unused:
        beyond = len(model.choices)
        labels = {
            name: np.array([beyond]) if name in unused else states for name, states in model.labels.items()
        }
        model = model._replace(choices=[*model.choices, [ModelAction(0.0, [(beyond, 1.0)])]], labels=labels)
    yield f"@type: {'DTMC' if model.deterministic else 'MDP'}"
    yield from ("@parameters", "", "@reward_models", "return", "@nr_states", str(len(model.choices)))
    yield from ("@nr_choices", str(sum(map(len, model.choices))), "@model")
    for state, (choices, names) in enumerate(zip(model.choices, _labels_by_state(model), strict=True)):
        yield " ".join([f"state {state} [0]", *names])
        for number, choice in enumerate(choices):
            yield f"\taction {number} [{choice.reward!r}]"
            yield from (f"\t\t{target} : {p!r}" for target, p in choice.successors)


def tra(model: ExplicitModel) -> Iterator[str]:
    """PRISM's explicit transitions, in the form that Storm reads too."""
    if model.deterministic:
        yield "dtmc"
        for state, (choice,) in enumerate(model.choices):
            yield from (f"{state} {target} {p!r}" for target, p in choice.successors)
    else:
        yield "mdp"
        for state, choices in enumerate(model.choices):
            for number, choice in enumerate(choices):
                yield from (f"{state} {number} {target} {p!r}" for target, p in choice.successors)


def transition_rewards(model: ExplicitModel) -> Iterator[str]:
    """The reward of every transition: that of its action."""
    rewards = [choice.reward for choices in model.choices for choice in choices]
    sign = -1.0 if not model.deterministic and max(rewards, default=0.0) <= 0.0 else 1.0
    for state, choices in enumerate(model.choices):
        for number, choice in enumerate(choices):
            if choice.reward:
                head = f"{state}" if model.deterministic else f"{state} {number}"
                yield from (f"{head} {target} {sign * choice.reward!r}" for target, _ in choice.successors)


def sta(model: ExplicitModel) -> Iterator[str]:
    """PRISM's list of states: the step, and the number of the domain's state."""
    yield "(step,state)"
    yield from (f"{i}:({step},{state})" for i, (step, state) in enumerate(model.names))


def lab(model: ExplicitModel) -> Iterator[str]:
    """Labels, in the form that Storm reads."""
    yield "#DECLARATION"
    yield " ".join(["init", *model.labels])
    yield "#END"
    for state, names in enumerate(_labels_by_state(model)):
        if names:
            yield f"{state} {' '.join(names)}"


def prism(model: ExplicitModel) -> Iterator[str]:
    """PRISM's language: one variable, one command per choice."""
    if model.initial != [0]:
        raise RunError("a PRISM program has one initial state; export the model with its own start")
    yield "dtmc" if model.deterministic else "mdp"
    yield from ("", "module psyco", f"  s : [0..{len(model.choices) - 1}] init 0;")
    for state, choices in enumerate(model.choices):
        for number, choice in enumerate(choices):
            updates = " + ".join(f"{p!r}:(s'={target})" for target, p in choice.successors)
            yield f"  [act{number}] s={state} -> {updates};"
    yield from ("endmodule", "")
    for name, states in model.labels.items():
        yield f'label "{name}" = {" | ".join(_ranges(states)) or "false"};'
    yield from ("", 'rewards "return"')
    for state, choices in enumerate(model.choices):
        for number, choice in enumerate(choices):
            if choice.reward:
                yield f"  [act{number}] s={state} : {choice.reward!r};"
    yield "endrewards"


def _merged(targets: NDArray[np.int64], probabilities: NDArray[np.float64]) -> list[tuple[int, float]]:
    unique, inverse = np.unique(targets, return_inverse=True)
    return list(zip(unique.tolist(), np.bincount(inverse, weights=probabilities).tolist(), strict=True))


def _labels_by_state(model: ExplicitModel) -> list[list[str]]:
    labels: list[list[str]] = [[] for _ in model.choices]
    for state in model.initial:
        labels[state].append("init")
    for name, states in model.labels.items():
        for state in states.tolist():
            labels[state].append(name)
    return labels


def _ranges(states: NDArray[np.int64]) -> Iterable[str]:
    """Consecutive numbers as one condition each."""
    for run in np.split(states, np.flatnonzero(np.diff(states) != 1) + 1):
        if len(run):
            yield f"s={run[0]}" if len(run) == 1 else f"(s>={run[0]} & s<={run[-1]})"


def write_model(policy: AnyPolicy, domain: Domain, requirement: Requirement, folder: Path) -> list[Path]:
    """Write the policy's Markov chain and the domain's decision process; returns the files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write into {folder}: {error.strerror}") from None
    formulas = [constraint.formula for constraint in requirement.probabilities]
    chain = write_graph(unfold(domain, formulas, actions_of(policy, domain)), folder / "chain")
    return chain + write_graph(unfold(domain, formulas), folder / "mdp")
