"""A few episodes of a policy as plain data, kept by the run itself so that looking at it needs no environment."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.core import atomic_io
from psyco._src.envs.base import Domain, Scene, counters_of
from psyco._src.envs.gym_env import GymDomain
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.execution import HERE, Execution
from psyco._src.rollout.record import record_many
from psyco._src.logic.ast import Constraint, Requirement
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.runtime_monitor import Monitor, decision
from psyco._src.logic.trace_check import check_path
from psyco._src.runs.train import TrainingState, Callback, deployed
from psyco._src.runs.problem import Problem

EPISODES = 6  # sample episodes shown
LOOKED_AT = 100  # to find violating ones among them
LOOKED_AT_SLOW = 3  # of Gymnasium environments, where an episode takes long
EVERY = 10.0  # seconds between two samples while learning: they take time from the run itself
EVERYWHERE = ("action", "reward", "return", "terminated", "truncated")
COMPONENTS = 4  # of a vector signal that is no position


def sampling(path: Path, every: float = EVERY) -> Callback:
    """Keeps a few episodes of the current policy in a file, for whoever watches a long run on its live page."""
    due = time.monotonic() + every

    def sample(problem: Problem, position: TrainingState) -> None:
        nonlocal due
        if problem.sampler.compiled and time.monotonic() >= due:  # elsewhere episodes are too dear for that
            policy = deployed(problem, position)
            atomic_io.write(path, sample_episodes(problem.domain, policy, problem.requirement))
            due = time.monotonic() + every

    return Callback(reached=sample)


def sample_episodes(
    domain: Domain, policy: Policy, requirement: Requirement, execution: Execution = HERE
) -> bytes:
    """A few episodes to be played on a page, as JSON; violating ones are among them if any were seen."""
    return json.dumps(_trajectories(domain, policy, requirement, execution), separators=(",", ":")).encode()


def _trajectories(
    domain: Domain, policy: Policy, requirement: Requirement, execution: Execution
) -> dict[str, Any]:
    count = LOOKED_AT_SLOW if isinstance(domain, GymDomain) else LOOKED_AT
    seen = record_many(domain, policy, seed=0, count=count, execution=execution)
    kept = [_kept(requirement, signals) for signals in seen]
    bad = [i for i in range(count) if not all(kept[i])]
    good = [i for i in range(count) if all(kept[i])]
    few = min(len(bad), EPISODES // 3)
    shown = good[: EPISODES - few]
    shown = sorted(shown + bad[: EPISODES - len(shown)])
    scene = getattr(domain, "scene", None)
    scene = scene if isinstance(scene, Scene) else None
    monitor = Monitor(requirement, horizon=domain.horizon, counters=counters_of(domain))
    spoken_of = compile_monitor([c.formula for c in requirement.probabilities]).signals
    for i in shown:  # what the requirement is about comes first, what every environment has comes last
        seen[i] = dict(
            sorted(
                seen[i].items(),
                key=lambda s: (s[0] not in spoken_of, s[0] != "obs", s[0] in EVERYWHERE, s[0]),
            )
        )
    return {
        "scene": scene and {**vars(scene), "bodies": list(scene.bodies)},
        "episodes": [_episode(i, seen[i], kept[i], monitor, scene) for i in shown],
        "looked_at": count,
        "violating": len(bad),
        "observations": {
            "policy": policy.digest,
            "episodes": count,
            **_observations([signals["obs"] for signals in seen]),
        },
    }


def _observations(seen: list[NDArray[Any]]) -> dict[str, list[float | None]]:
    """Mean and spread of what the policy saw, `[n+1, inputs]` in each episode, for whoever watches it in the field."""
    every = np.concatenate(seen).astype(np.float64)
    return {
        "mean": list(map(_number, every.mean(axis=0))),
        "spread": list(map(_number, every.std(axis=0))),
    }


def _kept(requirement: Requirement, signals: Mapping[str, NDArray[Any]]) -> list[bool]:
    """For each constraint whether the episode did what it should."""
    return [check_path(c.formula, signals).satisfied == is_good(c) for c in requirement.probabilities]


def _episode(
    number: int,
    signals: Mapping[str, NDArray[Any]],
    kept: list[bool],
    monitor: Monitor,
    scene: Scene | None,
) -> dict[str, Any]:
    broken = [c for c, good in zip(monitor.requirement.probabilities, kept, strict=True) if not good]
    decided = decision(monitor, signals)
    return {
        "number": number,
        "return": _number(float(signals["return"][-1])),
        "steps": len(signals["step"]) - 1,
        "satisfied": kept,
        "decided": decided and decided[1],  # the step
        "violations": sorted({step for c in broken for step in violating_steps(c, signals)}),
        "signals": _shown_signals(signals, scene),
    }


def _shown_signals(signals: Mapping[str, NDArray[Any]], scene: Scene | None) -> dict[str, list[Any]]:
    """Numbers, and of the vectors what can be seen: positions in a scene, or else the first few components."""
    shown = {}
    for name, values in signals.items():
        values = np.asarray(values, float)
        if name == "step" or not np.isfinite(values).all():
            continue
        if values.ndim == 1 or (scene is not None and name in scene.bodies):
            shown[name] = np.round(values, 4).tolist()
        elif scene is None and values.ndim == 2:
            shown[name] = np.round(values[:, :COMPONENTS], 4).tolist()
    return shown


def is_good(constraint: Constraint) -> bool:
    """Whether an episode should satisfy the constraint's formula: not so where its probability is bounded above."""
    return constraint.comparison not in ("<=", "<")


def violating_steps(constraint: Constraint, signals: Mapping[str, NDArray[Any]]) -> list[int]:
    """The steps of a violating episode that did it: where the cost of what has happened so far rises.

    Where nothing rises (something good never happened, or the formula itself is the bad thing) it is the last step.
    """
    last = len(signals["step"]) - 1
    if not is_good(constraint):
        return [last]
    costs = compile_monitor([constraint.formula]).beginnings(signals)[:, 0]
    rises = (1 + np.flatnonzero(np.diff(costs) > 0)).tolist()
    return ([0] if costs[0] > 0 and costs[-1] > costs[0] else []) + rises or [last]


def _number(value: float) -> float | None:
    """Five digits are enough for a picture, and JSON has no NaN."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
