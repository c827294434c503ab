"""The process that makes environments for the studio: signals of a domain, warnings, and episodes before learning.

It reads one JSON request per line and writes one answer per line, so that the code of an environment runs outside of
the server, which kills this process where it takes too long.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import psyco
from psyco._src.core.errors import DomainError, PsycoError, format_exception
from psyco._src.envs.base import Domain, Scene, counters_of, signal_table, team_of, written_for
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.registry import DomainDescription, make_from_description
from psyco._src.envs.value_bounds import expression_range, requirement_warnings
from psyco._src.logic.ast import Constraint, Requirement, Signal
from psyco._src.logic.explanation import explain
from psyco._src.logic.parser import parse
from psyco._src.logic.runtime_monitor import Monitor, episode_verdict
from psyco._src.logic.validate import check_bounds, check_signals
from psyco._src.policies.image_network import default_network_for
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key
from psyco._src.rollout.record import record_episodes, record_signals
from psyco._src.runs.sample_trajectories import wants_formula

SHOWN_OF_EACH = 3  # satisfying and violating episodes
SOUGHT_COMPILED, SOUGHT = 400, 24  # episodes among which they are sought
AT_ONCE_COMPILED, AT_ONCE = 100, 6
MAX_POINTS = 200  # states of an episode that a page draws
MAX_ROWS = 6  # subformulas in a timeline
SPARKLINE_POINTS = 60


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # prints of environments are no answers
    sys.stdout = sys.stderr
    for line in sys.stdin:
        answers.write(json.dumps(answer(line), allow_nan=False) + "\n")
        answers.flush()


def answer(line: str) -> dict[str, Any]:
    """Return the answer to a request, or its error."""
    try:
        request = json.loads(line)
        found: dict[str, Any] = OPERATIONS[request["operation"]](request)
        return found
    except PsycoError as error:
        return {"error": str(error), "line": getattr(error, "line", None), "column": getattr(error, "column", None)}
    except Exception as error:
        return {"error": f"the environment failed: {format_exception(error)}"}


@lru_cache(maxsize=4)
def _made(name: str, parameters: str, trust: tuple[str, ...]) -> Domain:
    return make_from_description(DomainDescription(name, json.loads(parameters)), trust)


def _domain(request: Mapping[str, Any]) -> Domain:
    if request["trust"] and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, as on the command line
    return _made(request["domain"], json.dumps(request["parameters"], sort_keys=True), tuple(request["trust"]))


def _requirement(request: Mapping[str, Any], domain: Domain) -> Requirement:
    found = written_for(parse(request["requirement"]), domain)
    check_signals(found, signal_table(domain), domain.name)
    check_bounds(found, domain.horizon, domain.name)
    return found


# ---- operations ---------------------------------------------------------------------------------------------------


def describe_domain(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the signals of a domain with their types, ranges and values in an episode of a random policy."""
    domain = _domain(request)
    team = team_of(domain)
    (path,) = _random_episodes(domain, 0, 1)
    signals = []
    for name, info in sorted(signal_table(domain).items()):
        index = 0 if info.size else None
        low, high = expression_range(Signal(name, index), domain=domain) if not name.endswith(".") else (None, None)
        signals.append(
            {
                "name": name,
                "size": info.size,
                "boolean": bool(info.boolean),
                "low": _number(low),
                "high": _number(high),
                "recent": _recent(path.get(name)),
            }
        )
    signals += [_seen(name, path[name]) for name in sorted(path.keys() - {each["name"] for each in signals})]
    requirement = getattr(domain, "requirement", None)
    return {
        "name": domain.name,
        "horizon": domain.horizon,
        "compiled": not isinstance(domain, GymDomain),
        "signals": signals,
        "groups": {name: list(agents) for name, agents in team.groups.items() if agents},
        "requirement": requirement if isinstance(requirement, str) else None,
    }


def _seen(name: str, values: NDArray[Any]) -> dict[str, Any]:
    """Describe a signal that is known from an episode alone, such as an entry of `info`."""
    size = values.shape[1] if values.ndim == 2 else None
    boolean = values.dtype == np.bool_
    return {"name": name, "size": size, "boolean": boolean, "low": None, "high": None, "recent": _recent(values)}


def check_requirement(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the warnings about a requirement in a domain."""
    domain = _domain(request)
    return {"warnings": requirement_warnings(_requirement(request, domain), domain)}


def play(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return satisfying and violating episodes of a random policy, or of the policy of a run."""
    domain = _domain(request)
    requirement = _requirement(request, domain)
    constraints = requirement.probability_constraints
    monitor = Monitor(requirement, horizon=domain.horizon, counters=counters_of(domain))
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    counts = {True: 0, False: 0}
    compiled = not isinstance(domain, GymDomain)
    total, batch = (SOUGHT_COMPILED, AT_ONCE_COMPILED) if compiled else (SOUGHT, AT_ONCE)
    policy = psyco.open_run(Path(request["policy"])).policy if request.get("policy") else None
    for first in range(0, total, batch):
        for i, path in enumerate(_episodes(domain, policy, first, batch)):
            verdict = episode_verdict(monitor, path)
            satisfied = verdict is None or verdict[0].name == "SATISFIED"
            counts[satisfied] += 1
            if len(found[satisfied]) < SHOWN_OF_EACH:
                decided = verdict[1] if verdict else None
                found[satisfied].append(_episode(first + i, path, constraints, satisfied, decided))
        if min(map(len, found.values())) >= SHOWN_OF_EACH:
            break
    scene = getattr(domain, "scene", None)
    return {
        "episodes": [*found[True], *found[False]],
        "satisfied": counts[True],
        "violated": counts[False],
        "scene": {**vars(scene), "bodies": list(scene.bodies)} if isinstance(scene, Scene) else None,
    }


OPERATIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "domain": describe_domain,
    "check": check_requirement,
    "play": play,
}


# ---- episodes -----------------------------------------------------------------------------------------------------


def _episodes(domain: Domain, policy: Any, first: int, count: int) -> list[Any]:
    if policy is None:
        return _random_episodes(domain, first, count)
    return record_episodes(domain, policy, seed=0, first=first, count=count)


def _random_episodes(domain: Domain, first: int, count: int) -> list[Any]:
    """Return episodes of networks with random parameters, another one in each."""
    network = default_network_for(domain)
    theta = np.random.default_rng(first).normal(0.0, 1.0, (count, network.size)).astype(np.float32)
    keys = episode_keys(stream_key(0, Stream.RECORD, 0), first, count)
    return record_signals(domain, network, theta, keys, None)


def _episode(
    number: int,
    path: Mapping[str, NDArray[Any]],
    constraints: tuple[Constraint, ...],
    satisfied: bool,
    decided: int | None,
) -> dict[str, Any]:
    shown = np.unique(np.linspace(0, len(path["step"]) - 1, MAX_POINTS).astype(int))
    return {
        "number": number,
        "steps": len(path["step"]) - 1,
        "return": _number(float(path["return"][-1])),
        "satisfied": satisfied,
        "decided": decided,
        "shown": shown.tolist(),
        "signals": _drawn(path, shown),
        "timelines": [_timeline(constraint, path, shown) for constraint in constraints],
    }


def _timeline(constraint: Constraint, path: Mapping[str, NDArray[Any]], shown: NDArray[Any]) -> dict[str, Any]:
    """Return in which states each subformula holds, as text of 0 and 1."""
    why = explain(constraint.formula, path)
    rows = [
        {
            "formula": str(row.formula),
            "depth": row.depth,
            "holds": _bits(row.holds[shown]),
            "why": _bits(row.deciding[shown]),
        }
        for row in why.rows[:MAX_ROWS]
    ]
    return {"wanted": wants_formula(constraint), "holds": why.satisfied, "rows": rows}


def _bits(values: NDArray[Any]) -> str:
    return "".join("1" if value else "0" for value in values.tolist())


def _drawn(path: Mapping[str, NDArray[Any]], shown: NDArray[Any]) -> dict[str, Any]:
    found = {}
    for name, values in path.items():
        numbers = np.asarray(values, float)
        if name != "step" and numbers.ndim <= 2 and np.isfinite(numbers).all():
            found[name] = np.round(numbers[shown] if numbers.ndim == 1 else numbers[shown, :4], 4).tolist()
    return found


def _recent(values: NDArray[Any] | None) -> list[float]:
    """Return a few values of a signal, of a vector those of its first entry."""
    if values is None or np.asarray(values).size == 0:
        return []
    numbers = np.asarray(values, float).reshape(len(values), -1)[:, 0]
    shown = np.unique(np.linspace(0, len(numbers) - 1, SPARKLINE_POINTS).astype(int))
    return [float(f"{value:.4g}") for value in numbers[shown] if np.isfinite(value)]


def _number(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None and np.isfinite(value) else None


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, DomainError):
        sys.exit(130)
