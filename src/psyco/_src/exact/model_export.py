"""Export the Markov chain or decision process of a finite domain: PRISM language, `.drn`, and `.tra/.sta/.lab/.rew`.

State 0 leads to the random initial states, because the formats need one initial state. Final states are absorbing. Ask
for `P=? [ F "satisfied" ]` and `R{"total"}=? [ F "end" ]`. The `.rew` file of a decision process without positive
rewards holds costs, the negated rewards: Storm reads no negative numbers there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.base import Domain
from psyco._src.exact.unfold import Unfolding, policy_actions, unfold
from psyco._src.logic.ast import Requirement
from psyco._src.policies.external import AnyPolicy


class ModelAction(NamedTuple):
    """One action in one state."""

    reward: float  # expected
    successors: list[tuple[int, float]]  # in ascending order, each once


class ExplicitModel(NamedTuple):
    """A model with numbered states."""

    choices: list[list[ModelAction]]  # per state
    labels: dict[str, NDArray[np.int64]]  # name -> states
    initial: list[int]
    names: list[tuple[int, int]]  # per state the step, and the index of the domain's state

    @property
    def deterministic(self) -> bool:
        """Whether this is a Markov chain."""
        return all(len(choices) == 1 for choices in self.choices)


def explicit_model(
    graph: Unfolding, *, start: bool = True, quantity: int | None = None, restart: bool = False
) -> ExplicitModel:
    """Return the model with numbered states.

    Args:
        graph: the unfolding whose nodes become states.
        start: add a state 0 that leads to the initial states; else all of these are marked as initial.
        quantity: index of the quantity whose gains replace the rewards.
        restart: redirect a step that ends an episode to the initial states.
    """
    shift = int(start)
    first = np.cumsum([shift, *(len(layer.state) for layer in graph.layers)])
    choices: list[list[ModelAction]] = []
    if start:
        choices.append([ModelAction(0.0, _merged(shift + np.arange(len(graph.start)), graph.start))])

    def successors(targets: NDArray[np.int64], over: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the successors of a step and their probabilities."""
        if not (restart and over.any()):
            return targets, graph.draw_probabilities
        again = graph.draw_probabilities[over].sum() * graph.start
        beginning = shift + np.arange(len(graph.start))
        return np.concatenate([targets[~over], beginning]), np.concatenate([graph.draw_probabilities[~over], again])

    for offset, layer, below in zip(first[1:], graph.layers, (*graph.layers[1:], graph.layers[-1]), strict=True):
        steps = layer.reward if quantity is None else layer.gain[..., quantity]
        rewards = steps @ graph.draw_probabilities  # [M, actions]
        for node, final in enumerate(layer.final):
            if final:
                choices.append([ModelAction(0.0, [(len(choices), 1.0)])])
            else:
                choices.append(
                    [
                        ModelAction(float(worth), _merged(*successors(offset + targets, below.final[targets])))
                        for worth, targets in zip(rewards[node], layer.successor[node], strict=True)
                    ]
                )
    flat = {
        name: np.concatenate([getattr(x, name) for x in graph.layers]) for name in ("final", "satisfied", "letters")
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


def write_unfolding(graph: Unfolding, path: Path) -> list[Path]:
    """Write `path` with each of .prism, .drn, .tra, .sta, .lab and .rew added to its name; return these files."""
    model = explicit_model(graph)
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
    """Yield the lines of Storm's `.drn` format."""
    # It does not declare labels: one that holds nowhere is unknown to Storm, unless an unreachable state has it.
    unused = [name for name, states in model.labels.items() if not len(states)]
    if unused:
        unreachable = len(model.choices)
        labels = {name: np.array([unreachable]) if name in unused else states for name, states in model.labels.items()}
        model = model._replace(choices=[*model.choices, [ModelAction(0.0, [(unreachable, 1.0)])]], labels=labels)
    yield f"@type: {'DTMC' if model.deterministic else 'MDP'}"
    yield from ("@parameters", "", "@reward_models", "total", "@nr_states", str(len(model.choices)))
    yield from ("@nr_choices", str(sum(map(len, model.choices))), "@model")
    for state, (choices, names) in enumerate(zip(model.choices, _labels_by_state(model), strict=True)):
        yield " ".join([f"state {state} [0]", *names])
        for number, choice in enumerate(choices):
            yield f"\taction {number} [{choice.reward!r}]"
            yield from (f"\t\t{target} : {p!r}" for target, p in choice.successors)


def tra(model: ExplicitModel) -> Iterator[str]:
    """Yield the lines of PRISM's explicit transitions, in the form that Storm also reads."""
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
    """Yield the reward of every transition, which is that of its action."""
    rewards = [choice.reward for choices in model.choices for choice in choices]
    sign = -1.0 if not model.deterministic and max(rewards, default=0.0) <= 0.0 else 1.0
    for state, choices in enumerate(model.choices):
        for number, choice in enumerate(choices):
            if choice.reward:
                head = f"{state}" if model.deterministic else f"{state} {number}"
                yield from (f"{head} {target} {sign * choice.reward!r}" for target, _ in choice.successors)


def sta(model: ExplicitModel) -> Iterator[str]:
    """Yield PRISM's list of states: the step, and the index of the domain's state."""
    yield "(step,state)"
    yield from (f"{i}:({step},{state})" for i, (step, state) in enumerate(model.names))


def lab(model: ExplicitModel) -> Iterator[str]:
    """Yield the labels in the form that Storm reads."""
    yield "#DECLARATION"
    yield " ".join(["init", *model.labels])
    yield "#END"
    for state, names in enumerate(_labels_by_state(model)):
        if names:
            yield f"{state} {' '.join(names)}"


def prism(model: ExplicitModel) -> Iterator[str]:
    """Yield a program in PRISM's language with one variable, and one command per choice."""
    if model.initial != [0]:
        raise RunError("a PRISM program has one initial state; export the model with start=True")
    yield "dtmc" if model.deterministic else "mdp"
    yield from ("", "module psyco", f"  s : [0..{len(model.choices) - 1}] init 0;")
    for state, choices in enumerate(model.choices):
        for number, choice in enumerate(choices):
            updates = " + ".join(f"{p!r}:(s'={target})" for target, p in choice.successors)
            yield f"  [act{number}] s={state} -> {updates};"
    yield from ("endmodule", "")
    for name, states in model.labels.items():
        yield f'label "{name}" = {" | ".join(_ranges(states)) or "false"};'
    yield from ("", 'rewards "total"')
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
    """Yield one condition per interval of consecutive states."""
    for run in np.split(states, np.flatnonzero(np.diff(states) != 1) + 1):
        if len(run):
            yield f"s={run[0]}" if len(run) == 1 else f"(s>={run[0]} & s<={run[-1]})"


def write_model(policy: AnyPolicy, domain: Domain, requirement: Requirement, folder: Path) -> list[Path]:
    """Write the policy's Markov chain and the domain's decision process; return the files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write into {folder}: {error.strerror}") from None
    formulas = [constraint.formula for constraint in requirement.probability_constraints]
    chain = write_unfolding(unfold(domain, formulas, policy_actions(policy, domain)), folder / "chain")
    return chain + write_unfolding(unfold(domain, formulas), folder / "mdp")
