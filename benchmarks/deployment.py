"""All figures of docs/deployment.md: what a deployed policy costs here, then `detection` and `guarding`.

Loading it, one action, one step of the monitor; rtamt's online monitor beside ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import detection, guarding
from benchmarks.clock import one_core, side_by_side
from psyco import runtime

EXAMPLES = Path(__file__).parents[1] / "examples"
HORIZON = 50
STEPS = 2000
IMPORTS = 7
# Limits, which docs/deployment.md states.
IMPORT, ACTION, STEP, FASTER = 0.25, 20.0, 10.0, 20.0

DANCE = [{"distance": d, "collisions": 0.0} for d in np.random.default_rng(0).uniform(0.1, 1, STEPS).tolist()]
RUN = [{"caught": False, "collisions": 0.0} for _ in range(STEPS)]


def main() -> None:
    costs()
    detection.main()
    guarding.main()


def costs() -> None:
    with one_core():
        shown("importing psyco.runtime, processor time", _import_seconds(), IMPORT, "s")
        work: dict[str, Callable[[], object]] = {
            "one action of the paper's network": _actions(),
            "particle_dance.props": _monitor("particle_dance.props", DANCE),
            "the same with its counter": _monitor("particle_dance.props", DANCE, counters=["collisions"]),
            "obstacle_run.props": _monitor("obstacle_run.props", RUN),
            "rtamt": _rtamt(f"always[0:{HORIZON}]((d >= 0.1) or (c <= 1))", future=True),
            "rtamt, past": _rtamt("historically((d >= 0.1) or (c <= 1))", future=False),
        }
        micro = {name: 1e6 * t / STEPS for name, t in side_by_side(work, rounds=15).items()}
    shown("one action of the paper's network", micro["one action of the paper's network"], ACTION, "us")
    for name in ("particle_dance.props", "the same with its counter", "obstacle_run.props"):
        shown(f"a step of the monitor, {name}", micro[name], STEP, "us")
    ours = micro["particle_dance.props"]
    print(f"  rtamt's online monitor, always[0:{HORIZON}](...): {micro['rtamt']:.1f} us a step")
    kept = "kept" if micro["rtamt"] >= FASTER * ours else "MISSED"
    print(f"    {micro['rtamt'] / ours:.1f} times ours (limit {FASTER:.0f}: {kept})")
    past = micro["rtamt, past"]
    print(f"  rtamt, historically(...): another formula, without a window: {past:.1f} us, {past / ours:.1f} times ours")


def shown(what: str, measured: float, limit: float, unit: str) -> None:
    """One line, with the limit and whether it was kept."""
    kept = "kept" if measured < limit else "MISSED"
    print(f"  {what:55}{measured:8.2f} {unit}  (limit {limit:g}: {kept})")


def _import_seconds() -> float:
    code = "import time; t = time.process_time(); import psyco.runtime; print(time.process_time() - t)"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    runs = [subprocess.check_output([sys.executable, "-c", code], env=environment) for _ in range(IMPORTS)]
    return min(map(float, runs))


def _actions() -> Callable[[], None]:
    from psyco._src.envs.actions import Continuous
    from psyco._src.policies.network import Network

    network = Network(8, 2)  # that of Particle Dance
    theta = np.random.default_rng(0).normal(0, 0.3, network.size).astype(np.float32)
    policy = runtime.Policy(theta, network, Continuous((-0.1,) * 2, (0.1,) * 2), "particle-dance", {})
    observations = list(np.random.default_rng(1).normal(size=(STEPS, 8)).astype(np.float32))

    def act() -> None:
        for observation in observations:
            policy(observation)

    return act


def _monitor(file: str, states: list[dict[str, Any]], **arguments: Any) -> Callable[[], None]:
    monitor = runtime.Monitor(EXAMPLES / file, **arguments)

    def watch() -> None:
        monitor.start()
        for state in states:
            monitor.update(state)

    return watch


def _rtamt(formula: str, *, future: bool) -> Callable[[], None]:
    import rtamt

    monitor = rtamt.StlDiscreteTimeSpecification()
    for name in ("d", "c"):
        monitor.declare_var(name, "float")
    monitor.spec = formula
    monitor.parse()
    if future:  # its online monitor knows the past only: the verdict comes with the window's delay
        monitor.pastify()
    pairs = [[("d", state["distance"]), ("c", state["collisions"])] for state in DANCE]

    def watch() -> None:
        for time, pair in enumerate(pairs):
            monitor.update(time, pair)

    return watch
