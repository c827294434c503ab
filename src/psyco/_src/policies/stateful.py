"""Policies with a memory, each episode with its own.

Many episodes are played side by side. Were there one memory for all of them, each would see what the others did, and
what is shown would be about another system than the one that acts alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from psyco._src.envs.actions import Actions

ROWS = 64  # networks of others always see so many rows: then a row does not depend on how many there are
DRAWS = 2  # beside an episode's seed, for the random numbers of a policy

# (which episodes [n], flat observations [n, size], raw observations [n], the actions to choose from) -> actions [n].
Play: TypeAlias = Callable[[NDArray[np.intp], NDArray[np.float32], Sequence[Any], Actions], Sequence[Any]]


class StatefulPolicy(NamedTuple):
    """A policy with a memory."""

    begin: Callable[
        [Sequence[int]], Play
    ]  # at the start of episodes with seeds [B], none of which knows anything


def each_its_own(make: Callable[[], Any]) -> StatefulPolicy:
    """A policy with `reset()`, or `reset(seed)`, and `act(observation)`; `make` gives one that nobody has used."""

    def begin(seeds: Sequence[int]) -> Play:
        players = [make() for _ in seeds]
        for player, seed in zip(players, seeds, strict=True):
            takes_seed = "seed" in inspect.signature(player.reset).parameters
            player.reset(**({"seed": _seed_beside(seed)} if takes_seed else {}))
        return lambda rows, flat, raw, actions: [
            players[row].act(seen) for row, seen in zip(rows, raw, strict=True)
        ]

    return StatefulPolicy(begin)


def explicit_state(policy: Any) -> StatefulPolicy:
    """A policy with `initial(count)` and `act(observations, state) -> actions, state`, with one row per episode.

    It always sees the same number of rows: those of episodes that have ended repeat their last observation. So nobody
    has to know where in a state a row is kept.
    """

    def begin(seeds: Sequence[int]) -> Play:
        count = max(ROWS, len(seeds))
        state: Any = policy.initial(count)
        block: list[Any] = []  # what each row has seen last

        def play(
            rows: NDArray[np.intp], flat: NDArray[np.float32], raw: Sequence[Any], actions: Actions
        ) -> Sequence[Any]:
            nonlocal state, block
            block = block or [raw[0]] * count
            for row, seen in zip(rows, raw, strict=True):
                block[row] = seen
            chosen, state = policy.act(stack(block), state)
            if len(chosen) != count:
                raise ValueError(f"the policy gives {len(chosen)} actions for {count} observations")
            return [chosen[row] for row in rows]

        return play

    return StatefulPolicy(begin)


def stack(block: Sequence[Any]) -> Any:
    """Observations as one array `[n, ...]`, or as a dictionary of such arrays."""
    if isinstance(block[0], dict):
        return {key: np.stack([each[key] for each in block]) for key in block[0]}
    return np.stack(block)


def _seed_beside(seed: int) -> int:
    """A policy's own seed: with its environment's it would draw the very numbers that its environment draws."""
    return int(np.random.SeedSequence((seed, DRAWS)).generate_state(1)[0])
