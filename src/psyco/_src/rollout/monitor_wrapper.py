"""A Gymnasium environment with a requirement: every `info` says what the episode has come to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import gymnasium
import numpy as np

from psyco._src.envs.gym_env import SignalFunction, Transition, moment_signals, running_domain, time_limit
from psyco._src.logic.ast import Signal, walk
from psyco._src.logic.requirement import AnyRequirement
from psyco._src.logic.runtime_monitor import FOREVER, Monitor
from psyco._src.logic.validate import check_signals


class MonitorWrapper(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Puts the `Status` of the episode into `info["psyco"]`, at every reset and step.

    Only where the requirement speaks of `action`, which the first state has none of, that of the reset is what is known
    before the first state. What the environment does is not changed.
    """

    def __init__(
        self,
        env: Any,
        requirement: AnyRequirement,
        *,
        horizon: int | None = None,
        signals: Mapping[str, SignalFunction] | None = None,
        counters: Collection[str] = (),
    ) -> None:
        """Watch an environment.

        Args:
            env: the environment.
            requirement: itself, its text, or the name of its file.
            horizon: the longest episode, in steps; by default the environment's own time limit, if it has one.
            signals: further signals by name, functions `(observation, info) -> number, Boolean or vector`.
            counters: signals that never fall along an episode, such as `info.collisions`.
        """
        super().__init__(env)
        horizon = horizon or time_limit(env)
        self.monitor = Monitor(requirement, horizon=horizon, counters=counters)
        self.domain = running_domain(env, horizon=horizon or FOREVER, signals=signals or {})
        check_signals(self.monitor.requirement, self.domain.table, self.domain.name)
        self._vectors = _vector_sizes(self.monitor)

    def reset(self, **arguments: Any) -> Any:
        """Start an episode of the environment, and watch it."""
        observation, info = self.env.reset(**arguments)
        self._first, self._step, self._return = Transition(observation, info, None), 0, 0.0
        status = self.monitor.start()
        if "action" not in self.monitor.signals:
            status = self._update(self._first)
        return observation, {**info, "psyco": status}

    def step(self, action: Any) -> Any:
        """One step of the environment."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._step == 0 and "action" in self.monitor.signals:
            self._update(self._first._replace(action=action))
        self._step, self._return = self._step + 1, self._return + float(reward)
        moment = Transition(
            observation, info, action, self._step, float(reward), self._return, terminated, truncated
        )
        return observation, reward, terminated, truncated, {**info, "psyco": self._update(moment)}

    def _update(self, moment: Transition) -> Any:
        found = moment_signals(self.domain, self.monitor.signals, moment)
        for name, value in found.items():
            if value is None and name.startswith("info."):  # as in verification: 0, or false
                found[name] = np.zeros(self._vectors[name]) if name in self._vectors else 0.0
        return self.monitor.update(found, end=bool(moment.terminated or moment.truncated))


def _vector_sizes(monitor: Monitor) -> dict[str, int]:
    """How many entries vectors have at the least, by what is asked of them."""
    sizes: dict[str, int] = {}
    for tree in monitor.trees:
        for node in walk(tree):
            if isinstance(node, Signal) and node.index is not None:
                sizes[node.name] = max(sizes.get(node.name, 0), node.index + 1)
    return sizes
