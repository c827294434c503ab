"""Small environments for tests, in a module of their own so that worker processes can import them."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from psyco._src.domain.actions import Discrete


class Walk(gymnasium.Env[Any, Any]):
    """A random walk that ends at |x| >= 3; `fault` happens at step `at` of one in `rare` episodes, by their seeds."""

    observation_space: Any = spaces.Box(-10.0, 10.0, (2,))
    action_space: Any = spaces.Discrete(2)

    def __init__(self, fault: str = "", at: int = 3, rare: int = 2, marker: str = "") -> None:
        self.fault, self.at, self.rare, self.marker = fault, at, rare, marker

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.faulty = (
            seed is not None and seed % self.rare == 0 and seed > 0
        )  # 0 is the trial when a domain is made
        self.x, self.t, self.ended = float(self.np_random.normal()), 0, False
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        assert not self.ended, "stepped beyond its end"
        self.t += 1
        self.x += 0.5 * (1 if action else -1) + 0.3 * float(self.np_random.normal())
        self.ended = abs(self.x) >= 3
        outcome: list[Any] = [
            self._observe(),
            1.0,
            self.ended,
            False,
            {"cost": float(self.x > 1), "deep": {"x": self.x}},
        ]
        if self.faulty and self.t == self.at:
            self._go_wrong(outcome)
        return tuple(outcome)

    def _observe(self) -> Any:
        return np.array([self.x, self.t], np.float32)

    def _go_wrong(self, outcome: list[Any]) -> None:
        match self.fault:
            case "raise":
                raise ZeroDivisionError("the simulator fell over")
            case "nan":
                outcome[0] = np.array([np.nan, 0.0], np.float32)
            case "shape":
                outcome[0] = np.zeros(1, np.float32)
            case "reward":
                outcome[1] = float("nan")
            case "tuple":
                del outcome[4]
            case "info":
                outcome[4]["cost"] = float("nan")
            case "hang":
                time.sleep(3600)
            case "crash":
                os._exit(7)
            case "crash once":
                if not Path(self.marker).exists():
                    Path(self.marker).touch()
                    os._exit(7)


class Leaky(Walk):
    """It remembers something from one episode to the next."""

    memory = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.memory += 0.125
        self.x += self.memory
        return self._observe(), {}


class Drawn(Walk):
    """A walk whose picture is a grey that tells the step."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human", "rgb_array"], "render_fps": 25}

    def __init__(self, render_mode: str | None = None, broken: str = "") -> None:
        super().__init__()
        self.render_mode, self.broken = render_mode, broken

    def render(self) -> Any:
        if self.broken == "raise":
            raise ImportError("pygame is not installed")
        return np.full((20, 30, 1 if self.broken == "grey" else 3), 8 * self.t, np.uint8)


class Mixed(gymnasium.Env[Any, Any]):
    """Observations and actions of a given kind; it gives what it was given as information."""

    def __init__(self, observations: str = "dict", actions: str = "multi") -> None:
        self.observation_space = {
            "dict": spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1.0, 1.0, (2, 2))}),
            "tuple": spaces.Tuple((spaces.MultiBinary(2), spaces.Box(-1.0, 1.0, (1,)))),
            "discrete": spaces.Discrete(4, start=-1),
            "image": spaces.Box(0, 255, (2, 3), np.uint8),
        }[observations]
        self.action_space = {
            "multi": spaces.MultiDiscrete([2, 3]),
            "binary": spaces.MultiBinary(3),
            "discrete": spaces.Discrete(3, start=5),
            "box": spaces.Box(np.float32([-0.3, 0.1]), np.float32([0.7, 0.4])),
            "whole": spaces.Box(-2, 2, (2,), np.int64),
            "endless": spaces.Box(-np.inf, 1.0, (1,)),
            "text": spaces.Text(3),
        }[actions]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        inside = self.action_space.contains(action)
        return self.observation_space.sample(), 0.0, False, False, {"inside": inside, "action": action}


def slow_walk(seconds: float = 0.002) -> gymnasium.Env[Any, Any]:
    """A walk whose steps take some time."""
    return gymnasium.wrappers.TransformReward(Walk(), lambda reward: time.sleep(seconds) or reward)


def to_the_left(observation: Any) -> int:
    """A policy."""
    return int(observation[0] < 0)


def height(observation: Any, info: dict[str, Any]) -> float:
    """A signal."""
    return float(observation[0]) ** 2


gymnasium.register("PsycoTestWalk-v0", entry_point=Walk, max_episode_steps=40)
gymnasium.register("PsycoTestDrawn-v0", entry_point=Drawn, max_episode_steps=40)


@dataclasses.dataclass(frozen=True)
class Slide:
    """A compiled domain of one's own: a block on a line, pushed to and fro."""

    length: int = 5
    horizon: int = 8
    name: ClassVar[str] = "slide"

    @property
    def actions(self) -> Discrete:
        return Discrete(2)

    @property
    def observation_size(self) -> int:
        return 1

    def reset(self, key: Any) -> Any:
        return jax.random.uniform(key, (), minval=-self.length, maxval=self.length)

    def step(self, key: Any, state: Any, action: Any) -> Any:
        x = state + 2.0 * action - 1.0 + 0.1 * jax.random.normal(key)
        return x, -abs(x), False

    def observe(self, state: Any) -> Any:
        return state[None]

    def signals(self, state: Any) -> dict[str, Any]:
        return {"x": state}
