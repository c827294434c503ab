"""A model that Storm has built, as tables of its states, choices and branches, and questions about its graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.envs.model_alias import AliasTables, alias_tables
from psyco._src.logic.ast import Formula, Instant, Quantity
from psyco._src.logic.batch_monitor import compile_monitor

RESERVED = frozenset({"obs", "action", "step", "reward", "return", "end"})  # signals of every domain
MAX_HALF_LIFE = 20_000  # steps in which the probability that an episode still runs must halve
MAX_BRANCH_STEPS = 10**9  # branches times steps in a search for a half-life


@dataclass(frozen=True, eq=False)
class ModelTables:
    """A built model with S states, M choices, E branches and R reward structures."""

    digest: str  # SHA-256 of the file
    kind: str  # DTMC or MDP
    initial: NDArray[np.int64]  # [I] states
    choices: NDArray[np.int64]  # [S+1] first choice of each state
    branches: NDArray[np.int64]  # [M+1] first branch of each choice
    successor: NDArray[np.int32]  # [E]
    probability: NDArray[np.float64]  # [E]
    variables: dict[str, NDArray[Any]]  # [S] each
    labels: dict[str, NDArray[np.bool_]]  # [S] each
    rewards: dict[str, NDArray[np.float64]]  # [M] each
    properties: tuple[tuple[str, str], ...]  # name and text, of the file

    @property
    def states(self) -> int:
        """S."""
        return len(self.choices) - 1

    @cached_property
    def state_of_choice(self) -> NDArray[np.int64]:
        """[M]."""
        return np.repeat(np.arange(self.states), np.diff(self.choices))

    @cached_property
    def choice_of_branch(self) -> NDArray[np.int64]:
        """[E]."""
        return np.repeat(np.arange(len(self.branches) - 1), np.diff(self.branches))

    @cached_property
    def absorbing(self) -> NDArray[np.bool_]:
        """[S] states that no choice leaves, and in which no reward accrues."""
        source = self.state_of_choice[self.choice_of_branch]
        stays = np.ones(self.states, bool)
        stays[source[self.successor != source]] = False
        for values in self.rewards.values():
            stays[self.state_of_choice[values != 0]] = False
        return stays

    @cached_property
    def alias(self) -> AliasTables:
        """Tables from which a branch is drawn in constant time."""
        return alias_tables(self.branches, self.probability)

    @cached_property
    def signals(self) -> dict[str, NDArray[Any]]:
        """Variables and labels by the names that formulas use, [S] each."""
        names: dict[str, NDArray[Any]] = {}
        taken = {*RESERVED, *self.rewards}
        for prefix, group in (("label", self.labels), ("var", self.variables)):
            for name, values in group.items():
                if name in taken or (name in names and not np.array_equal(names[name], values)):
                    name = f"{prefix}.{name}"
                names[name] = values
        return names

    def holds(self, formula: Formula) -> NDArray[np.bool_]:
        """Return in which states `[S]` a state formula over variables and labels holds."""
        monitor = compile_monitor([formula])
        paths = {name: self.signals[name][:, None] for name in monitor.signals}
        satisfied, _ = monitor(paths, end=np.zeros((self.states, 1), bool))
        return np.asarray(satisfied)[:, 0]

    def values(self, body: Any) -> NDArray[np.float64]:
        """Return the value of a term, or of a state formula as 0 or 1, in each state `[S]`."""
        quantity = Quantity(body, Instant(0))
        monitor = compile_monitor([], measured=[quantity])
        paths = {name: self.signals[name][:, None] for name in monitor.signals}
        measured = monitor.measure(paths, end=np.ones((self.states, 1), bool))
        return np.asarray(measured.value, np.float64)[:, 0]

    def never(self, through: NDArray[np.bool_], target: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the states from which no choices lead through states `through` to a target."""
        source = self.state_of_choice[self.choice_of_branch]
        order = np.argsort(self.successor, kind="stable")
        before = source[order]
        first = np.searchsorted(self.successor[order], np.arange(self.states + 1))
        reached, front = target.copy(), np.flatnonzero(target)
        while len(front):
            found = before[_ranges(first[front], first[front + 1])]
            front = np.unique(found[through[found] & ~reached[found]])
            reached[front] = True
        return ~reached

    def reachable(self, start: int, stop: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the states that some choices reach from a state, without leaving states `stop`."""
        reached = np.zeros(self.states, bool)
        front = np.array([start])
        while len(front):
            reached[front] = True
            inner = front[~stop[front]]
            after = self.successor[_ranges(self.branches[self.choices[inner]], self.branches[self.choices[inner + 1]])]
            front = np.unique(after[~reached[after]])
        return reached

    def half_life(self, ended: NDArray[np.bool_]) -> int | None:
        """Return the steps in which any policy ends half of the episodes, from any state; None: too many."""
        from scipy.sparse import csr_array

        matrix = csr_array((self.probability, self.successor, self.branches), (len(self.branches) - 1, self.states))
        running = (~ended).astype(float)
        for step in range(min(MAX_HALF_LIFE, max(100, MAX_BRANCH_STEPS // len(self.successor)))):
            if running.max() <= 0.5:
                return max(step, 1)
            after = np.where(ended, 0.0, np.maximum.reduceat(matrix @ running, self.choices[:-1]))
            if np.array_equal(after, running):  # some policy never ends
                return None
            running = after
        return None


def _ranges(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the concatenation of the ranges from starts to stops."""
    lengths = stops - starts
    offsets = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return offsets + np.arange(lengths.sum())


# ---- from files ---------------------------------------------------------------------------------------------------
