"""A Gymnasium wrapper that monitors a requirement and reports its status in every `info`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import gymnasium
import numpy as np

from psyco._src.envs.gym_env import (
    SignalFunction,
    Transition,
    domain_of_running_env,
    time_limit,
    transition_signals,
)
from psyco._src.logic.ast import Signal, walk
from psyco._src.logic.requirement import AnyRequirement
from psyco._src.logic.runtime_monitor import FOREVER, Monitor
from psyco._src.logic.validate import check_signals


class MonitorWrapper(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Puts the `Status` of the episode into `info["psyco"]`, at every reset and step.

    The environment's behaviour is unchanged. The first state has no `action` yet: if the requirement uses it, the
    status at the reset is the one before the first state.
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
        """Monitor an environment.

        Args:
            env: the environment.
            requirement: a requirement, its text, or the name of its file.
            horizon: maximum steps of an episode; default: the environment's time limit, if it has one.
            signals: further signals by name, functions `(observation, info) -> number, Boolean or vector`.
            counters: signals that never decrease during an episode, such as `info.collisions`.
        """
        super().__init__(env)
        horizon = horizon or time_limit(env)
        self.monitor = Monitor(requirement, horizon=horizon, counters=counters)
        self.domain = domain_of_running_env(env, horizon=horizon or FOREVER, signals=signals or {})
        check_signals(self.monitor.requirement, self.domain.table, self.domain.name)
        self._vectors = _vector_sizes(self.monitor)

    def reset(self, **arguments: Any) -> Any:
        """Reset the environment, and start monitoring an episode."""
        observation, info = self.env.reset(**arguments)
        self._step, self._return = 0, 0.0
        # Copied now: the environment may change its values in place.
        names = self.monitor.signals - {"action"}
        self._first = transition_signals(self.domain, names, Transition(observation, info, None))
        status = self.monitor.start()
        if "action" not in self.monitor.signals:
            status = self._update(self._first, end=False)
        return observation, {**info, "psyco": status}

    def step(self, action: Any) -> Any:
        """Step the environment, and update the status."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._step == 0 and "action" in self.monitor.signals:
            self._update({**self._first, "action": self.domain.action_signal([action])[0]}, end=False)
        self._step, self._return = self._step + 1, self._return + float(reward)
        transition = Transition(
            observation, info, action, self._step, float(reward), self._return, terminated, truncated
        )
        values = transition_signals(self.domain, self.monitor.signals, transition)
        status = self._update(values, end=bool(terminated or truncated))
        return observation, reward, terminated, truncated, {**info, "psyco": status}

    def _update(self, values: dict[str, Any], end: bool) -> Any:
        for name, value in values.items():
            if value is None and name.startswith("info."):  # 0 or false, as in verification
                values[name] = np.zeros(self._vectors[name]) if name in self._vectors else 0.0
        return self.monitor.update(values, end=end)


def _vector_sizes(monitor: Monitor) -> dict[str, int]:
    """Return the minimum size of each vector signal, from the indices that the requirement uses."""
    sizes: dict[str, int] = {}
    for tree in monitor.trees:
        for node in walk(tree):
            if isinstance(node, Signal) and node.index is not None:
                sizes[node.name] = max(sizes.get(node.name, 0), node.index + 1)
    return sizes
