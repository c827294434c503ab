"""Sample episodes of a policy as plain data, stored by the run, so that its page needs no environment."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.core import files
from psyco._src.envs.base import Scene, counters_of
from psyco._src.envs.gym_env import GymDomain
from psyco._src.logic.ast import Constraint
from psyco._src.logic.batch_monitor import BatchMonitor
from psyco._src.logic.runtime_monitor import Monitor, episode_verdict
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.record import record_episodes
from psyco._src.runs.problem import Problem
from psyco._src.runs.train import Callback, TrainingState, current_policy

SHOWN_EPISODES = 6
SAMPLED_EPISODES = 100  # among which violating ones are sought
SAMPLED_EPISODES_GYM = 3  # the same in a Gymnasium environment, where an episode takes long
FIRST_SAMPLE, SAMPLE_EVERY = 1.0, 1.0  # seconds until the first sample of learning, and between two
MAX_SAMPLING_SHARE = 0.1  # maximum part of the time of learning that samples may take, after the first two
BUILT_IN_SIGNALS = ("action", "reward", "return", "terminated", "truncated")
MAX_COMPONENTS = 4  # shown components of a vector signal that is no position


def sampling_callback(path: Path, every: float = SAMPLE_EVERY) -> Callback:
    """Return a callback that writes sample episodes of the current policy to a file, for the live page.

    The worst violation and the closest call of all samples of this learning are in it too.
    """
    due = time.monotonic() + min(every, FIRST_SAMPLE)
    best = Extremes()
    taken = 0

    def sample(problem: Problem, state: TrainingState) -> None:
        nonlocal due, taken
        began = time.monotonic()
        if problem.sampler.compiled and began >= due:  # otherwise episodes cost too much time
            size = problem.learner.episodes_per_generation
            content = _sample(problem, current_policy(problem, state), best, state.generation * size)
            files.write(path, _to_json(content))
            taken += 1
            now = time.monotonic()
            # The first ones compile what the end of the run needs anyway.
            pause = (now - began) / MAX_SAMPLING_SHARE if taken > 2 else 0.0
            due = now + (max(every, pause) if every else 0.0)

    return Callback(on_checkpoint=sample)


def sample_episodes(problem: Problem, policy: Policy) -> bytes:
    """Return sample episodes for a page, as JSON; some are violating ones, if any were found."""
    return _to_json(_sample(problem, policy))


def _to_json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


@dataclass
class Extremes:
    """The worst violation and the closest call among the episodes of several samples."""

    worst: tuple[float, dict[str, Any]] | None = None  # cost, episode
    closest: tuple[float, dict[str, Any]] | None = None  # distance, episode

    def take(self, satisfied: bool, cost: float, distance: float, episode: dict[str, Any]) -> None:
        """Keep an episode if it is worse, or closer, than those before."""
        if not satisfied and (self.worst is None or cost > self.worst[0]):
            self.worst = cost, {**episode, "kind": "worst violation so far"}
        elif satisfied and math.isfinite(distance) and (self.closest is None or distance > self.closest[0]):
            self.closest = distance, {**episode, "kind": "closest call so far"}

    @property
    def episodes(self) -> list[dict[str, Any]]:
        """Those that there are."""
        return [found[1] for found in (self.closest, self.worst) if found is not None]


def _sample(problem: Problem, policy: Policy, kept: Extremes | None = None, training: int = 0) -> dict[str, Any]:
    """Return a sample as plain data; `kept` are extremes of earlier samples, after `training` episodes."""
    domain, monitor = problem.domain, problem.constraint_monitor
    constraints = problem.requirement.probability_constraints
    count = SAMPLED_EPISODES_GYM if isinstance(domain, GymDomain) else SAMPLED_EPISODES
    recorded = record_episodes(domain, policy, seed=0, count=count, execution=problem.execution, monitor=monitor)
    judged = [_judged(constraints, monitor, signals) for signals in recorded]
    satisfied = [each[0] for each in judged]
    bad = [i for i in range(count) if not all(satisfied[i])]
    good = [i for i in range(count) if all(satisfied[i])]
    shown = good[: SHOWN_EPISODES - min(len(bad), SHOWN_EPISODES // 3)]
    shown = sorted(shown + bad[: SHOWN_EPISODES - len(shown)])
    scene = getattr(domain, "scene", None)
    scene = scene if isinstance(scene, Scene) else None
    online = Monitor(problem.requirement, horizon=domain.horizon, counters=counters_of(domain))

    def order(name: str) -> tuple[bool, bool, bool, str]:
        """Signals of the requirement come first, those of every environment last."""
        return name not in monitor.signals, name != "obs", name in BUILT_IN_SIGNALS, name

    def described(i: int) -> dict[str, Any]:
        signals = {name: recorded[i][name] for name in sorted(recorded[i], key=order)}
        decided = episode_verdict(online, signals)
        return {
            "number": i,
            "return": _number(float(signals["return"][-1])),
            "steps": len(signals["step"]) - 1,
            "satisfied": satisfied[i],
            "decided": decided and decided[1],  # the step
            "violations": [] if all(satisfied[i]) else _violations(constraints, satisfied[i], monitor, signals),
            "signals": _shown_signals(signals, scene),
        }

    episodes = [described(i) for i in shown]
    if kept is not None:
        for i in _extreme(judged):
            _, cost, distance = judged[i]
            kept.take(all(satisfied[i]), cost, distance, {**described(i), "after": training})
        episodes = [*kept.episodes, *episodes]
    return {
        "scene": scene and {**vars(scene), "bodies": list(scene.bodies)},
        "episodes": episodes,
        "looked_at": count,
        "violating": len(bad),
        "observations": {
            "policy": policy.digest,
            "episodes": count,
            **_observation_statistics([signals["obs"] for signals in recorded]),
        },
    }


def _observation_statistics(observations: list[NDArray[Any]]) -> dict[str, list[float | None]]:
    """Return mean and standard deviation of the observations of episodes, `[n+1, inputs]` each, for field tests."""
    joined = np.concatenate(observations).astype(np.float64)
    return {
        "mean": list(map(_number, joined.mean(axis=0))),
        "spread": list(map(_number, joined.std(axis=0))),
    }


def _judged(
    constraints: tuple[Constraint, ...], monitor: BatchMonitor, signals: Mapping[str, NDArray[Any]]
) -> tuple[list[bool], float, float]:
    """Return whether each constraint's formula has the wanted value in an episode, its cost, and its distance."""
    used = {name: signals[name] for name in monitor.signals} or {"step": signals["step"]}
    holds, costs = monitor(used)
    satisfied = [bool(value) == wants_formula(c) for value, c in zip(holds, constraints, strict=True)]
    distances = [d for d, c in zip(monitor.worst_distances(used), constraints, strict=True) if wants_formula(c)]
    known = [float(d) for d in distances if not math.isnan(d)]
    cost = sum(float(cost) for cost, good in zip(costs, satisfied, strict=True) if not good)
    return satisfied, cost, max(known, default=math.nan)


def _extreme(judged: Sequence[tuple[list[bool], float, float]]) -> list[int]:
    """Return the indices of the worst violation and of the closest call in a sample, if there are any."""
    bad = [i for i, (satisfied, _, _) in enumerate(judged) if not all(satisfied)]
    good = [i for i, (satisfied, _, distance) in enumerate(judged) if all(satisfied) and not math.isnan(distance)]
    worst = max(bad, key=lambda i: judged[i][1], default=None)
    closest = max(good, key=lambda i: judged[i][2], default=None)
    return [i for i in (worst, closest) if i is not None]


def wants_formula(constraint: Constraint) -> bool:
    """Whether an episode should satisfy the constraint's formula: not if its probability is bounded above."""
    return constraint.comparison not in ("<=", "<")


def _violations(
    constraints: tuple[Constraint, ...],
    satisfied: list[bool],
    monitor: BatchMonitor,
    signals: Mapping[str, NDArray[Any]],
) -> list[int]:
    costs = monitor.prefix_costs(signals)  # [n+1, K]
    violated = [k for k, good in enumerate(satisfied) if not good]
    return sorted({step for k in violated for step in violating_steps(constraints[k], costs[:, k])})


def violating_steps(constraint: Constraint, costs: NDArray[Any]) -> list[int]:
    """Return the steps of a violating episode that violate: those at which the cost of the prefix rises.

    If it never rises (a wanted event never happened, or the formula is the unwanted event), it is the last step.

    Args:
        constraint: the violated constraint.
        costs: costs of the prefixes of the episode, `[n+1]`.
    """
    last = len(costs) - 1
    if not wants_formula(constraint):
        return [last]
    rises = (1 + np.flatnonzero(np.diff(costs) > 0)).tolist()
    return ([0] if costs[0] > 0 and costs[-1] > costs[0] else []) + rises or [last]


def _shown_signals(signals: Mapping[str, NDArray[Any]], scene: Scene | None) -> dict[str, list[Any]]:
    """Return the numbers to draw; of vectors, positions in a scene, or else the first few components."""
    shown = {}
    for name, values in signals.items():
        values = np.asarray(values, float)
        if name == "step" or not np.isfinite(values).all():
            continue
        if values.ndim == 1 or (scene is not None and name in scene.bodies):
            shown[name] = np.round(values, 4).tolist()
        elif scene is None and values.ndim == 2:
            shown[name] = np.round(values[:, :MAX_COMPONENTS], 4).tolist()
    return shown


def _number(value: float) -> float | None:
    """Round to five digits, enough for a picture; NaN and infinity, which JSON lacks, become None."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
