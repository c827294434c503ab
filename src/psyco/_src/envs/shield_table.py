"""The table of a shield, with NumPy alone: which actions it allows in a state at a step. Policy files carry it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError


@dataclass(frozen=True, eq=False)
class ShieldTable:
    """What a shield allows in S states, in the first T steps of an episode, until the requirement is decided.

    Args:
        actions: number of actions.
        level: probability of satisfying the requirement that the best continuation must reach.
        signals: names of signals that tell states apart, beside the observation.
        masked: whether observations end with an action mask of their own.
        keys: observation and these signals of each state, `[S, F]`.
        decided: states `[S]` in which the requirement is decided.
        words: allowed actions `[U, S]`, bit a for action a.
        rows: row of `words` at each step, `[T]`.
    """

    actions: int
    level: float
    signals: tuple[str, ...]
    masked: bool
    keys: NDArray[np.float32]
    decided: NDArray[np.bool_]
    words: NDArray[np.uint32]
    rows: NDArray[np.int32]

    @cached_property
    def states(self) -> dict[bytes, int]:
        """The number of each state, by its key."""
        return {key.tobytes(): number for number, key in enumerate(self.keys + np.float32(0))}

    @property
    def is_unambiguous(self) -> bool:
        """Whether equal keys mean equal masks."""
        if len(self.states) == len(self.keys):
            return True
        same = np.array([self.states[key.tobytes()] for key in self.keys + np.float32(0)])
        equal = (self.words == self.words[:, same]).all() and (self.decided == self.decided[same]).all()
        return bool(equal)


def same_shield(one: ShieldTable | None, other: ShieldTable | None) -> bool:
    """Return whether two shields allow the same in the same states; two missing ones do."""
    if one is None or other is None:
        return one is other
    return all(np.array_equal(getattr(one, each.name), getattr(other, each.name)) for each in fields(ShieldTable))


class ShieldProgress:
    """Which actions the shield allows in each state of one running episode."""

    def __init__(self, table: ShieldTable) -> None:
        """Start an episode."""
        self.table, self.step, self.is_open = table, 0, True

    def mask(self, observation: NDArray[np.float32], signals: Mapping[str, Any]) -> NDArray[np.float32]:
        """Return the actions `[n]` that are allowed in the next state of the episode: 1 or 0 each."""
        table, step = self.table, self.step
        self.step += 1
        free = observation[-table.actions :] if table.masked else np.ones(table.actions, np.float32)
        if not self.is_open or step >= len(table.rows):
            return free
        if missing := [name for name in table.signals if name not in signals]:
            raise RunError(f"this shield needs the signal {missing[0]} beside the observation")
        key = np.concatenate([observation, [signals[name] for name in table.signals]]).astype(np.float32)
        state = table.states.get((key + np.float32(0)).tobytes())
        if state is None:
            raise RunError(f"step {step}: {key.tolist()} is no state of the model that this shield was computed from")
        self.is_open = not table.decided[state]
        if not self.is_open:
            return free
        word = table.words[table.rows[step], state]
        return (word >> np.arange(table.actions, dtype=np.uint32) & 1).astype(np.float32)
