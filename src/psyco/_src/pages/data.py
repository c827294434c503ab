"""What a page about a run shows, as plain data: numbers for the charts, sample episodes, posteriors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.domain.base import Domain, Scene
from psyco._src.domain.catalogue import remake
from psyco._src.domain.gym_env import GymDomain
from psyco._src.errors import PsycoError
from psyco._src.learn.metrics import Metrics
from psyco._src.policy.file import Policy, load_policy
from psyco._src.rollout.device import record as record_episode
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key
from psyco._src.run.checkpoint import checkpoint_files, load_checkpoint
from psyco._src.run.folder import POLICY, Record
from psyco._src.smc.base import Counts
from psyco._src.smc.bayes import posterior_mass
from psyco._src.spec.formula import Constraint, Requirement
from psyco._src.spec.monitor import compile_monitor
from psyco._src.spec.parse import parse
from psyco._src.spec.path import check_path
from psyco._src.synthesis.problem import beginning, deployed

POINTS = 1000  # of a curve; a longer one is averaged in bins
EPISODES = 6  # sample episodes shown
LOOKED_AT, LOOKED_AT_SLOW = (
    100,
    20,
)  # looked at to find violating ones among them; of Gymnasium environments fewer
EVERYWHERE = ("action", "reward", "return", "terminated", "truncated")
COMPONENTS = 4  # of a vector signal that is no position
CURVES = (
    "return",
    "satisfied",
    "c_sat",
    "lambda",
    "cost",
    "return_satisfying",
    "return_violating",
)
CHECKS = ("verified_confidence", "verified_share", "verified_return", "verified_episodes")


def curves(metrics: Metrics) -> dict[str, list[float | None]]:
    """The curves over training episodes, binned by averaging to at most `POINTS` points."""
    if not metrics.rows:
        return {}
    bins = np.array_split(np.arange(metrics.rows), min(POINTS, metrics.rows))
    found: dict[str, list[float | None]] = {"episodes": [float(metrics["episodes"][b[-1]]) for b in bins]}
    for name in CURVES:
        if name in metrics:
            found[name] = [_number(_mean(metrics[name][b])) for b in bins]
    return found


def checks(metrics: Metrics) -> list[dict[str, Any]]:
    """The verifications during learning."""
    if not metrics.rows or "verified_share" not in metrics:
        return []
    rows = np.flatnonzero(~np.isnan(metrics["verified_share"]))
    if len(rows) > POINTS:
        rows = rows[np.linspace(0, len(rows) - 1, POINTS).astype(int)]
    return [
        {
            "episodes": float(metrics["episodes"][i]),
            "verdict": str(metrics["verdict"][i]),
            **{name: _number(metrics[name][i]) for name in CHECKS},
        }
        for i in rows
    ]


def posteriors(record: Record) -> list[dict[str, Any]]:
    """Beta(a, b) over p for every constraint: from the certificate, or before there is one from the last check."""
    requirement = requirement_of(record)
    if requirement is None:
        return []
    findings = (record.certificate or {}).get("findings") or []
    if len(findings) == len(requirement.constraints):
        counts = [(max(0, int(f.get("satisfied", 0))), max(0, int(f.get("violated", 0)))) for f in findings]
        source = "certificate"
    elif len(requirement.constraints) == 1 and (done := checks(record.metrics)):
        episodes = round(done[-1]["verified_episodes"] or 0)
        satisfied = round(episodes * (done[-1]["verified_share"] or 0.0))
        counts, source = [(satisfied, episodes - satisfied)], "last check"
    else:
        return []
    return [
        {
            "label": constraint.name or f"constraint {i + 1}",
            "satisfied": s,
            "violated": v,
            "lower": constraint.lower,
            "upper": constraint.upper,
            "confidence": constraint.confidence,
            "mass": float(posterior_mass(Counts(s, v), constraint.lower, constraint.upper)),
            "source": source,
        }
        for i, (constraint, (s, v)) in enumerate(zip(requirement.constraints, counts, strict=True))
    ]


def requirement_of(record: Record) -> Requirement | None:
    """The requirement, if it can be read."""
    try:
        return parse(record.config.requirement) if record.config else None
    except PsycoError:
        return None


# ---- sample episodes ------------------------------------------------------------------------------------------


def current_policy(record: Record) -> Policy | None:
    """The policy of a finished run; of another one that of its newest checkpoint, if there is any."""
    if record.config is None:
        return None
    if record.certificate is not None and (record.folder / POLICY).exists():
        return load_policy(record.folder / POLICY)
    for path in checkpoint_files(record.folder):
        problem = record.config.prepare()
        state = load_checkpoint(path).restore(beginning(problem)._replace(metrics=None)).state  # type: ignore[arg-type]
        return deployed(problem, state)
    return None


def trajectories(record: Record) -> dict[str, Any] | None:
    """A few episodes of the current policy to be played; violating ones are among them if any were seen.

    None where there is no policy yet, or where its domain can't be played here.
    """
    try:
        policy = current_policy(record)
        requirement = requirement_of(record)
        if policy is None or requirement is None:
            return None
        domain = remake(policy.domain, **policy.parameters)
        return _trajectories(domain, policy, requirement)
    except PsycoError:
        return None


def _trajectories(domain: Domain, policy: Policy, requirement: Requirement) -> dict[str, Any]:
    count = LOOKED_AT_SLOW if isinstance(domain, GymDomain) else LOOKED_AT
    seen = [record_episode(domain, policy, key) for key in episode_keys(stream_key(0, Stream.SHOW), 0, count)]
    kept = [_kept(requirement, signals) for signals in seen]
    bad = [i for i in range(count) if not all(kept[i])]
    good = [i for i in range(count) if all(kept[i])]
    few = min(len(bad), EPISODES // 3)
    shown = good[: EPISODES - few]
    shown = sorted(shown + bad[: EPISODES - len(shown)])
    scene = getattr(domain, "scene", None)
    scene = scene if isinstance(scene, Scene) else None
    spoken_of = compile_monitor([c.formula for c in requirement.constraints]).signals
    for i in shown:  # what the requirement is about comes first, what every environment has comes last
        seen[i] = dict(
            sorted(seen[i].items(), key=lambda s: (s[0] not in spoken_of, s[0] != "obs", s[0] in EVERYWHERE))
        )
    return {
        "scene": scene and {**vars(scene), "bodies": list(scene.bodies)},
        "episodes": [_episode(i, seen[i], kept[i], requirement, scene) for i in shown],
        "looked_at": count,
        "violating": len(bad),
    }


def _kept(requirement: Requirement, signals: Mapping[str, NDArray[Any]]) -> list[bool]:
    """For each constraint whether the episode did what it should."""
    return [check_path(c.formula, signals).satisfied == is_good(c) for c in requirement.constraints]


def _episode(
    number: int,
    signals: Mapping[str, NDArray[Any]],
    kept: list[bool],
    requirement: Requirement,
    scene: Scene | None,
) -> dict[str, Any]:
    broken = [c for c, good in zip(requirement.constraints, kept, strict=True) if not good]
    return {
        "number": number,
        "return": _number(float(signals["return"][-1])),
        "steps": len(signals["step"]) - 1,
        "satisfied": kept,
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
    costs = [
        check_path(constraint.formula, {name: values[: step + 1] for name, values in signals.items()}).cost
        for step in range(last + 1)
    ]
    rises = [step for step in range(1, last + 1) if costs[step] > costs[step - 1]]
    return ([0] if costs[0] > 0 and costs[-1] > costs[0] else []) + rises or [last]


def _mean(values: NDArray[Any]) -> float:
    """Of the numbers among them; NaN if there are none."""
    good = values[~np.isnan(values)]
    return float(good.mean()) if len(good) else math.nan


def _number(value: float) -> float | None:
    """Five digits are enough for a picture, and JSON has no NaN."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
