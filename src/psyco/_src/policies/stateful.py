"""Policies with a memory, one per episode.

Many episodes run side by side. With a shared memory each would depend on the others, and a result would be about
another system than the policy that acts alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from psyco._src.envs.actions import Actions

BATCH_ROWS = 64  # constant batch size of external networks: then a row does not depend on the number of rows
POLICY_STREAM = 2  # beside an episode's seed, for the random numbers of a policy

# (indices of episodes [n], flat observations [n, size], raw observations [n], action space) -> actions [n].
EpisodeFunction: TypeAlias = Callable[[NDArray[np.intp], NDArray[np.float32], Sequence[Any], Actions], Sequence[Any]]


class StatefulPolicy(NamedTuple):
    """A policy with a memory; `begin` starts episodes with seeds `[B]`, each with a fresh memory."""

    begin: Callable[[Sequence[int]], EpisodeFunction]


def from_episode_policy(make: Callable[[], Any]) -> StatefulPolicy:
    """Wrap objects with `reset()` or `reset(seed)`, and `act(observation)`; `make` returns an unused one."""

    def begin(seeds: Sequence[int]) -> EpisodeFunction:
        policies = [make() for _ in seeds]
        for policy, seed in zip(policies, seeds, strict=True):
            takes_seed = "seed" in inspect.signature(policy.reset).parameters
            policy.reset(**({"seed": _policy_seed(seed)} if takes_seed else {}))
        return lambda rows, flat, raw, actions: [
            policies[row].act(observation) for row, observation in zip(rows, raw, strict=True)
        ]

    return StatefulPolicy(begin)


def from_explicit_state(policy: Any) -> StatefulPolicy:
    """Wrap an object with `initial(count)` and `act(observations, state) -> actions, state`, one row per episode.

    It always gets the same number of rows: those of ended episodes repeat their last observation. So the layout of the
    state need not be known.
    """

    def begin(seeds: Sequence[int]) -> EpisodeFunction:
        count = max(BATCH_ROWS, len(seeds))
        state: Any = policy.initial(count)
        latest: list[Any] = []  # last observation of each row

        def act(
            rows: NDArray[np.intp], flat: NDArray[np.float32], raw: Sequence[Any], actions: Actions
        ) -> Sequence[Any]:
            nonlocal state, latest
            latest = latest or [raw[0]] * count
            for row, observation in zip(rows, raw, strict=True):
                latest[row] = observation
            chosen, state = policy.act(stack(latest), state)
            if len(chosen) != count:
                raise ValueError(f"the policy gives {len(chosen)} actions for {count} observations")
            return [chosen[row] for row in rows]

        return act

    return StatefulPolicy(begin)


def stack(observations: Sequence[Any]) -> Any:
    """Return observations as one array `[n, ...]`, or as a dictionary of such arrays."""
    if isinstance(observations[0], dict):
        return {key: np.stack([each[key] for each in observations]) for key in observations[0]}
    return np.stack(observations)


def _policy_seed(seed: int) -> int:
    """Return a seed for the policy: with the environment's own seed both would draw the same numbers."""
    return int(np.random.SeedSequence((seed, POLICY_STREAM)).generate_state(1)[0])
