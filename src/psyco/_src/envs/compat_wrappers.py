"""Habits of environments that are not Gymnasium's, found when a domain is tried out, and a wrapper that mends each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np


class CostInInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """For the interface of Safety-Gymnasium, whose `step` gives six values: the cost goes into `info["cost"]`."""

    def step(self, action: Any) -> Any:
        """The five values of Gymnasium."""
        observation, reward, cost, terminated, truncated, info = self.env.step(action)  # type: ignore[misc]
        return observation, reward, terminated, truncated, {"cost": cost, **info}


class SeededGlobalRandom(gymnasium.Wrapper[Any, Any, Any, Any]):
    """For environments that draw from the random numbers that a whole process shares (`np.random`, `random`).

    Each has such numbers of its own while it is at work, and `reset(seed=...)` seeds them. So an episode depends on its
    seed alone, whatever else is played in the process, and what the rest of the process draws is left alone.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._numpy = np.random.MT19937(0)
        self._python = random.Random(0).getstate()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """As the environment does it."""
        if seed is not None:
            self._numpy = np.random.MT19937(seed)
            self._python = random.Random(seed).getstate()
        with self._at_work():
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """As the environment does it."""
        with self._at_work():
            return self.env.step(action)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        shared, state = np.random.get_bit_generator(), random.getstate()  # type: ignore[attr-defined]
        np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]
        random.setstate(self._python)
        try:
            yield
        finally:
            self._python = random.getstate()
            np.random.set_bit_generator(shared)  # type: ignore[attr-defined]
            random.setstate(state)


def shared_chance() -> tuple[Any, ...]:
    """Where the shared random numbers are now; two equal answers mean that nobody has drawn in between."""
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    return bytes(state["state"]["key"]), state["state"]["pos"], state["gauss"], random.getstate()
