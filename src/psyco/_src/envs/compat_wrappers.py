"""Wrappers that adapt environments with deviations from the Gymnasium interface; probing decides which are used."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np


class CostInInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Move the cost, sixth value of `step` in Safety-Gymnasium, into `info["cost"]`."""

    def step(self, action: Any) -> Any:
        """Return the five values of Gymnasium."""
        observation, reward, cost, terminated, truncated, info = self.env.step(action)  # type: ignore[misc]
        return observation, reward, terminated, truncated, {"cost": cost, **info}


class SeededGlobalRandom(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Give an environment that draws from the global generators (`np.random`, `random`) its own state of these.

    `reset(seed=...)` seeds that state. So an episode depends on its seed alone, and the global generators of the rest
    of the process are unaffected.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._numpy = np.random.MT19937(0)
        self._python = random.Random(0).getstate()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment with its own random state."""
        if seed is not None:
            self._numpy = np.random.MT19937(seed)
            self._python = random.Random(seed).getstate()
        with self._own_random_state():
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Step the environment with its own random state."""
        with self._own_random_state():
            return self.env.step(action)

    @contextmanager
    def _own_random_state(self) -> Iterator[None]:
        global_numpy, global_python = np.random.get_bit_generator(), random.getstate()  # type: ignore[attr-defined]
        np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]
        random.setstate(self._python)
        try:
            yield
        finally:
            self._python = random.getstate()
            np.random.set_bit_generator(global_numpy)  # type: ignore[attr-defined]
            random.setstate(global_python)


def global_random_state() -> tuple[Any, ...]:
    """Return the state of the global generators; equal states mean that no number was drawn in between."""
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    return bytes(state["state"]["key"]), state["state"]["pos"], state["gauss"], random.getstate()
