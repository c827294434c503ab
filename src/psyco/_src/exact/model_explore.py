"""The Markov chain of a policy on a model that is too large to build: only states that the policy reaches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.model_file import SUM_TOLERANCE, ModelFile
from psyco._src.envs.model_program import Branch, ModelProgram, evaluate
from psyco._src.envs.model_tables import ModelTables
from psyco._src.envs.program_file import ProgramFile
from psyco._src.exact.unfold import Act

MAX_FRONT = 20_000  # states that are expanded at once
MAX_BRANCHES = 100_000  # of a choice: products of those of its modules


class _Branches(NamedTuple):
    """Steps from some states, one per branch."""

    source: NDArray[np.int64]  # [n] numbers of states
    probability: NDArray[np.float64]  # [n]
    values: NDArray[np.int32]  # [n, V] of the successor
    gained: NDArray[np.float64]  # [n, R]


def reached_chain(domain: ProgramFile, act: Act) -> ModelFile:
    """Return the chain of a policy as a built model.

    With a horizon, states are expanded that are reached before it; the others are not left any more.
    """
    numbers: dict[bytes, int] = {domain.program.initial.tobytes(): 0}
    states, front = [domain.program.initial[None]], np.zeros(1, np.int64)
    parts: list[_Branches] = []
    depth = 0
    while len(front) and (domain.given_horizon is None or depth < domain.given_horizon):
        found = states[-1]
        begin, fresh = len(numbers) - len(found), []
        for first in range(0, len(found), MAX_FRONT):
            values = found[first : first + MAX_FRONT]
            made = _expand(domain, act, values, begin + first)
            parts.append(made)
            fresh.append(_new_states(numbers, made.values))
            if len(numbers) > domain.max_states:
                raise RunError(
                    f"the policy reaches more than {domain.max_states:,} states of {domain.name} (max_states), too "
                    "many for an exact answer; give a shorter horizon, or psyco verify samples it"
                )
        states.append(np.concatenate(fresh))
        front, depth = np.arange(len(numbers) - len(states[-1]), len(numbers)), depth + 1
    return _built(domain, numbers, np.concatenate(states), parts)


def _new_states(numbers: dict[bytes, int], values: NDArray[np.int32]) -> NDArray[np.int32]:
    """Give numbers to states that have none, and return them `[m, V]`."""
    unique = np.unique(values, axis=0)
    known = len(numbers)
    fresh = [i for i, row in enumerate(map(bytes, unique)) if numbers.setdefault(row, len(numbers)) >= known]
    return unique[fresh]


def _expand(domain: ProgramFile, act: Act, values: NDArray[np.int32], first: int) -> _Branches:
    """Return the steps of the policy from states `[n, V]` with numbers from `first` on; none from those that end."""
    program = domain.program
    rows = np.flatnonzero(~np.asarray(domain.ends(np, values)))
    parts = list(_choices(domain, act, values, rows)) if len(rows) else []
    made = [step for commands, chosen, weight in parts for step in _outcomes(domain, values, commands, chosen, weight)]
    if not made:
        return _Branches(np.zeros(0, np.int64), np.zeros(0), values[:0], np.zeros((0, len(program.rewards))))
    source, probability, after, gained = (np.concatenate(column) for column in zip(*made, strict=True))
    return _Branches(source + first, probability, after, gained)


def _choices(
    domain: ProgramFile, act: Act, values: NDArray[np.int32], rows: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
    """Yield commands `[m, P]`, the states that take them, and with which probability."""
    program = domain.program
    guards, counts = program.enabled(np, values[rows])
    offered = counts.prod(-1).sum(-1)
    if not domain.is_chain:
        actions = np.asarray(act(domain.observations(np, values[rows])), np.int64)
        yield program.select(np, guards, counts, actions % offered), rows, np.ones(len(rows))
        return
    for choice in range(int(offered.max())):
        own = np.flatnonzero(choice < offered)
        commands = program.select(np, guards[own], counts[own], np.full(len(own), choice))
        yield commands, rows[own], 1.0 / offered[own]


def _outcomes(
    domain: ProgramFile,
    values: NDArray[np.int32],
    commands: NDArray[np.int64],
    rows: NDArray[np.int64],
    weight: NDArray[np.float64],
) -> Iterator[_Branches]:
    """Yield the steps of states that take commands `[m, P]`, for all combinations of branches."""
    program = domain.program
    kinds, kind = np.unique(commands, axis=0, return_inverse=True)
    for k, chosen in enumerate(kinds):
        own = np.flatnonzero(kind.ravel() == k)
        here = values[rows[own]]
        options = [program.branches_of[e][program.branches_of[e] < len(program.branches)] for e in chosen]
        options = [branches for branches in options if len(branches)]
        if np.prod([float(len(each)) for each in options]) > MAX_BRANCHES:
            raise RunError(
                f"a choice of {domain.name} has more than {MAX_BRANCHES:,} branches; psyco verify samples it"
            )
        environment = program.environment(np, here)
        likely = {
            b: evaluate(np, program.branches[b].probability, environment) + np.zeros(len(here))
            for branches in options
            for b in branches.tolist()
        }
        _check_sums(domain, likely, options, here)
        for taken in np.stack(np.meshgrid(*options, indexing="ij"), -1).reshape(-1, len(options)):
            chance = np.prod([likely[b] for b in taken.tolist()], axis=0) * weight[own]
            some = np.flatnonzero(chance > 0)
            after, gained = _outcome(program, here[some], [program.branches[b] for b in taken.tolist()])
            _check_ranges(domain, here[some], after)
            yield _Branches(rows[own][some], chance[some], after, gained)


def _outcome(
    program: ModelProgram, values: NDArray[np.int32], taken: list[Branch]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return the values `[n, V]` and the rewards `[n, R]` after branches that all states take."""
    environment, after = program.environment(np, values), values.copy()
    gained = np.zeros((len(values), len(program.rewards)))
    for k, (name, of_state) in enumerate(program.rewards.items()):
        gained[:, k] = evaluate(np, of_state, environment)
        for branch in taken:
            gained[:, k] += evaluate(np, branch.rewards.get(name, 0.0), environment)
    for branch in taken:
        for i, new in branch.assignments.items():
            after[:, i] = evaluate(np, new, environment)
    return after, gained


def _check_sums(
    domain: ProgramFile, likely: dict[int, NDArray[np.float64]], options: list[Any], values: NDArray[np.int32]
) -> None:
    for branches in options:
        every = np.array([likely[b] for b in branches.tolist()])
        if (every < 0).any():
            branch, row = np.argwhere(every < 0)[0]
            where = describe_values(domain.program, values[row])
            raise RunError(f"{domain.name}: a branch has the probability {every[branch, row]:g}, below 0, in {where}")
        total = every.sum(axis=0)
        if (wrong := np.flatnonzero(np.abs(total - 1) > SUM_TOLERANCE)).size:
            where = describe_values(domain.program, values[wrong[0]])
            raise RunError(
                f"{domain.name}: the probabilities of a choice sum to {total[wrong[0]]:g}, not to 1, in {where}"
            )


def _check_ranges(domain: ProgramFile, values: NDArray[np.int32], after: NDArray[np.int32]) -> None:
    if (wrong := np.flatnonzero(~domain.program.in_range(np, after))).size:
        where, to = (describe_values(domain.program, each[wrong[0]]) for each in (values, after))
        raise RunError(f"{domain.name}: a variable leaves its range, from {where} to {to}")


def describe_values(program: ModelProgram, values: NDArray[np.int32]) -> str:
    """Return a state in words."""
    pairs = zip(program.variables, values.tolist(), strict=True)
    return "the state " + ", ".join(f"{variable.name}={value}" for variable, value in pairs)


def _built(
    domain: ProgramFile, numbers: dict[bytes, int], states: NDArray[np.int32], parts: list[_Branches]
) -> ModelFile:
    """Return the chain of numbered states `[n, V]` as tables; a state without steps is not left."""
    program = domain.program
    count = len(numbers)
    joined = _Branches(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    to = np.fromiter((numbers[row] for row in map(bytes, joined.values)), np.int64, len(joined.source))
    # Several branches may lead to one state.
    pairs, place = np.unique(joined.source * count + to, return_inverse=True)
    probability = np.bincount(place, joined.probability, len(pairs))
    source, successor = pairs // count, pairs % count
    still = np.setdiff1d(np.arange(count), source)
    order = np.argsort(np.concatenate([source, still]), kind="stable")
    source = np.concatenate([source, still])[order]
    gained: list[Any] = [np.bincount(joined.source, joined.probability * column, count) for column in joined.gained.T]
    columns = zip(program.variables, states.T, strict=True)
    tables = ModelTables(
        program.digest, "DTMC", np.zeros(1, np.int64), np.arange(count + 1),
        np.searchsorted(source, np.arange(count + 1)), np.concatenate([successor, still])[order].astype(np.int32),
        np.concatenate([probability, np.ones(len(still))])[order],
        {variable.name: column != 0 if variable.boolean else column.astype(np.int64) for variable, column in columns},
        _labels(domain, states), dict(zip(program.rewards, gained, strict=True)), program.properties,
    )  # fmt: skip
    until = domain.until and domain.until[0]
    return ModelFile(
        domain.name, tables, domain.constants, domain.given_horizon, domain.reward, until=until,
        max_states=domain.max_states,
    )  # fmt: skip


def _labels(domain: ProgramFile, states: NDArray[np.int32]) -> dict[str, NDArray[np.bool_]]:
    signals = domain.state_signals(np, states)
    found = {name: np.asarray(signals.get(f"label.{name}", signals.get(name))) for name in domain.program.labels}
    return {**found, "deadlock": np.asarray(signals["deadlock"])}
