"""Policies with a memory, one per episode.

Many episodes run side by side. With a shared memory each would depend on the others, and a result would be about
another system than the policy that acts alone.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from io import BytesIO
from random import Random
from typing import Any, NamedTuple, TypeAlias

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.actions import Actions

BATCH_ROWS = 64  # constant batch size of external networks: then a row does not depend on the number of rows
EARLIER_ACTIONS = 3  # in the episode that comes before another in a check
POLICY_STREAM = 2  # beside an episode's seed, for the random numbers of a policy

# (indices of episodes [n], flat observations [n, size], raw observations [n], action space) -> actions [n].
EpisodeFunction: TypeAlias = Callable[[NDArray[np.intp], NDArray[np.float32], Sequence[Any], Actions], Sequence[Any]]


class StatefulPolicy(NamedTuple):
    """A policy with a memory; `begin` starts episodes with seeds `[B]`, each with a fresh memory."""

    begin: Callable[[Sequence[int]], EpisodeFunction]


def from_episode_policy(make: Callable[[], Any]) -> StatefulPolicy:
    """Wrap objects with `reset()` or `reset(seed)`, and `act(observation)`; `make` returns an unused one.

    Its first action checks that `reset` sets all random generators, see `_check_reset`.
    """
    checked = False

    def begin(seeds: Sequence[int]) -> EpisodeFunction:
        policies = [make() for _ in seeds]
        for policy, seed in zip(policies, seeds, strict=True):
            _reset(policy, seed)
        fresh = [] if checked or not policies else _generators(policies[0])

        def act(
            rows: NDArray[np.intp], flat: NDArray[np.float32], raw: Sequence[Any], actions: Actions
        ) -> Sequence[Any]:
            nonlocal checked
            if fresh and not checked:
                _check_reset(make(), seeds[0], raw[0], fresh)
            checked = True
            return [policies[row].act(observation) for row, observation in zip(rows, raw, strict=True)]

        return act

    return StatefulPolicy(begin)


def _reset(policy: Any, seed: int) -> None:
    takes_seed = "seed" in inspect.signature(policy.reset).parameters
    policy.reset(**({"seed": _policy_seed(seed)} if takes_seed else {}))


def _check_reset(policy: Any, seed: int, observation: Any, fresh: list[bytes]) -> None:
    """Raise RunError if the random numbers of an episode depend on the episodes before it.

    Each episode gets an unused copy, so all of them would draw the same numbers, as no two episodes in the field do.

    Args:
        policy: an unused policy.
        seed: of an episode.
        observation: any one, to act on in an earlier episode.
        fresh: the generators of an unused policy after `reset` for this seed.
    """
    _reset(policy, seed ^ 1)
    for _ in range(EARLIER_ACTIONS):
        policy.act(deepcopy(observation))
    _reset(policy, seed)
    if _generators(policy) != fresh:
        raise RunError(
            f"the policy {type(policy).__qualname__} draws random numbers from a generator that its reset does not "
            "set. Each episode is played by a copy of the policy, so all episodes would draw the same numbers, and a "
            "certificate would be about that one draw. Draw from the seed that reset gets: "
            "def reset(self, seed): self.rng = np.random.default_rng(seed)"
        )


class _GeneratorFinder(cloudpickle.CloudPickler):
    """Collects the random generators in an object, wherever they are, while it is copied."""

    def __init__(self) -> None:
        super().__init__(BytesIO())
        torch = sys.modules.get("torch")
        self.kinds = (np.random.Generator, np.random.RandomState, Random, *([torch.Generator] if torch else []))
        self.states: list[bytes] = []

    def reducer_override(self, obj: Any) -> Any:
        """Note the state of a generator; copy as ever."""
        if isinstance(obj, self.kinds):
            self.states.append(cloudpickle.dumps(obj))
        return super().reducer_override(obj)


def _generators(policy: Any) -> list[bytes]:
    """Return the states of the random generators in an object; none if it cannot be copied."""
    finder = _GeneratorFinder()
    try:
        finder.dump(policy)
    except Exception:  # it runs code of the object
        return []
    return finder.states


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
