"""Bits of reference runs: `python -m tests.goldens record` before a change, `python -m tests.goldens` after it.

Each case is a small run of one learner on one kind of domain, or something that is done with one: it is resumed, played
by two processes, verified, studied. Kept are a hash of the policy's parameters, a hash of the metrics table, and the
numbers of the certificate. Compiled code differs between processors, so the file also says on which one it was made; on
another one, record at the commit before the change.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("goldens.json")
DANCE = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"
RUN = "P>=0.9 [ G (!caught | collisions <= 1) ] & C>=0.95"
EXPECTED = "R{distance < 0.1}<=3 [ C ] & C>=0.9"
POLE = "P>=0.8 [ G (abs(obs[0]) <= 1.5) ] & C>=0.9"
TORQUE = "P>=0.6 [ G (abs(obs[2]) <= 7) ] & C>=0.9"

CASES: dict[str, Callable[[Path], dict[str, Any]]] = {}


def case(function: Callable[[Path], dict[str, Any]]) -> Callable[[Path], dict[str, Any]]:
    """Enter a case under its name."""
    CASES[function.__name__] = function
    return function


# ---- the calls; the only place that knows the words of the API -----------------------------------------------


def start(
    folder: Path, domain: str, requirement: str, parameters: dict[str, Any] | None = None, **settings: Any
) -> Any:
    """Run a synthesis in a folder."""
    import psyco
    from tests.making import flat

    return psyco.start(domain, requirement, folder, parameters=parameters or {}, **flat(**settings))


def run(
    folder: Path, domain: str, requirement: str, parameters: dict[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    """Run a synthesis and keep its bits."""
    return bits_of_run(start(folder, domain, requirement, parameters, **settings))


def bits_of_run(done: Any) -> dict[str, Any]:
    """Keep the bits of a finished run."""
    return {
        "policy": parameters_hash(done.folder / "policy.safetensors"),
        "metrics": table_hash((done.folder / "metrics.csv").read_text()),
        "lambda": float(done.metrics["lambda"][-1]),
        "return": float(done.metrics["return"][-1]),
        **bits_of_certificate(done.certificate),
    }


def bits_of_certificate(certificate: Any) -> dict[str, Any]:
    """Keep the numbers of a certificate."""
    return {
        "verdict": certificate.verdict.name,
        "episodes": certificate.episodes,
        "mean_return": certificate.mean_return,
        "findings": [
            [
                f.verdict.name,
                f.episodes,
                getattr(f, "satisfied", getattr(f, "mean", None)),
                f.lower,
                f.upper,
                f.confidence,
            ]
            for f in certificate.findings
        ],
        "answers": [[a.episodes, a.mean, a.lower, a.upper] for a in certificate.answers],
        "looks": [[look.share, look.verdict.name, look.episodes] for look in certificate.looks],
    }


def parameters_hash(file: Path) -> str:
    """Hash the tensors of a policy file, without its metadata."""
    from safetensors.numpy import load_file

    tensors = load_file(file)
    whole = hashlib.sha256()
    for name in sorted(tensors):
        whole.update(tensors[name].tobytes())
    return whole.hexdigest()[:16]


def table_hash(text: str) -> str:
    """Hash the values of a table, without the names of its columns."""
    return hashlib.sha256(text.partition("\n")[2].encode()).hexdigest()[:16]


# ---- every learner on every kind of domain -------------------------------------------------------------------


def _runs() -> None:
    compiled = {"safe-es": 6000, "snes": 6000, "ppo": 4000, "evosax": 3000}
    for learner, episodes in compiled.items():

        def dance(folder: Path, learner: str = learner, episodes: int = episodes) -> dict[str, Any]:
            return run(folder, "particle-dance", DANCE, episodes=episodes, learner=learner, seed=3)

        CASES[f"particle-dance {learner}"] = dance
    for learner in ("safe-es", "snes", "ppo"):

        def obstacle(folder: Path, learner: str = learner) -> dict[str, Any]:
            return run(folder, "obstacle-run", RUN, episodes=3000, learner=learner, seed=4)

        CASES[f"obstacle-run {learner}"] = obstacle
    for learner in ("safe-es", "snes", "ppo", "sac", "evosax"):

        def pole(folder: Path, learner: str = learner) -> dict[str, Any]:
            return run(folder, "CartPole-v1", POLE, episodes=150, learner=learner, seed=5)

        CASES[f"CartPole {learner}"] = pole
    for learner in ("safe-es", "ppo", "sac"):

        def pendulum(folder: Path, learner: str = learner) -> dict[str, Any]:
            return run(folder, "Pendulum-v1", TORQUE, steps=8000, learner=learner, seed=6)

        CASES[f"Pendulum {learner} steps"] = pendulum
    for domain in ("gymnax:CartPole-v1", "brax:inverted_pendulum"):
        for learner in ("safe-es", "ppo"):

            def other(folder: Path, domain: str = domain, learner: str = learner) -> dict[str, Any]:
                return run(
                    folder,
                    domain,
                    "P>=0.5 [ G (abs(obs[0]) <= 1) ] & C>=0.9",
                    episodes=400,
                    learner=learner,
                    seed=7,
                    max_episodes=200,
                )

            CASES[f"{domain} {learner}"] = other


_runs()


@case
def several_constraints(folder: Path) -> dict[str, Any]:
    requirement = f'"a": {DANCE}; "b": P>=0.6 [ F ("end" & return >= -60) ] & C>=0.9; "c": {EXPECTED}'
    return run(folder, "particle-dance", requirement, episodes=6000, seed=8)


@case
def several_constraints_ppo(folder: Path) -> dict[str, Any]:
    requirement = f'"a": {DANCE}; "b": P>=0.6 [ F ("end" & return >= -60) ] & C>=0.9'
    return run(folder, "particle-dance", requirement, episodes=4000, learner="ppo", seed=8)


@case
def severity_and_curriculum(folder: Path) -> dict[str, Any]:
    return run(
        folder,
        "particle-dance",
        DANCE,
        episodes=5000,
        severity=True,
        learner="safe-es",
        options={"curriculum": 0.3},
        seed=9,
    )


@case
def until_satisfied(folder: Path) -> dict[str, Any]:
    return run(folder, "particle-dance", DANCE, episodes=20000, until_satisfied=True, seed=10)


@case
def two_layers(folder: Path) -> dict[str, Any]:
    return run(folder, "particle-dance", DANCE, episodes=3000, hidden=(16, 16), seed=11, method="calibrated")


@case
def unconstrained(folder: Path) -> dict[str, Any]:
    return run(folder, "particle-dance", "Rmax=? [ C ]", episodes=3000, seed=12)


@case
def scaled_observations(folder: Path) -> dict[str, Any]:
    return run(folder, "CartPole-v1", POLE, episodes=100, learner="safe-es", normalization="sampled", seed=13)


@case
def resumed(folder: Path) -> dict[str, Any]:
    import psyco

    class Enough(Exception):
        pass

    def stop(problem: Any, at: Any) -> None:
        if at.generation >= 100:
            raise Enough

    with contextlib.suppress(Enough):
        start(
            folder,
            "particle-dance",
            DANCE,
            episodes=6000,
            learner="safe-es",
            seed=3,
            checkpoint_every=0,
            **follower(stop),
        )
    return bits_of_run(psyco.resume(folder))


def follower(stop: Callable[[Any, Any], None]) -> dict[str, Any]:
    import psyco

    return {"callbacks": [psyco.Callback(on_checkpoint=stop)]}


@case
def made_longer(folder: Path) -> dict[str, Any]:
    import psyco

    start(folder, "particle-dance", DANCE, episodes=3000, learner="safe-es", seed=14)
    return bits_of_run(psyco.resume(folder, episodes=5000))


@case
def two_workers(folder: Path) -> dict[str, Any]:
    return run(folder, "CartPole-v1", POLE, episodes=150, learner="ppo", seed=5, workers=2)


@case
def warm_start(folder: Path) -> dict[str, Any]:
    first = start(folder / "first", "particle-dance", DANCE, episodes=3000, seed=15)
    return run(folder / "second", "particle-dance", DANCE, episodes=3000, seed=16, start_from=first)


@case
def verified(folder: Path) -> dict[str, Any]:
    import psyco

    done = start(folder, "particle-dance", DANCE, episodes=20000, seed=17)
    found: dict[str, Any] = {}
    for method in ("anytime", "calibrated", "bayes", "sprt", "fixed"):
        found[method] = bits_of_certificate(
            psyco.verify(done.policy, "particle-dance", DANCE, seed=1, method=method, max_episodes=2000)
        )
    found["mean"] = bits_of_certificate(psyco.verify(done.policy, "particle-dance", EXPECTED, seed=2))
    found["question"] = bits_of_certificate(
        psyco.verify(done.policy, "particle-dance", "P=? [ G (collisions <= 1) ]", seed=3, max_episodes=3000)
    )
    found["again"] = bits_of_certificate(psyco.verify(done))
    return found


@case
def exact(folder: Path) -> dict[str, Any]:
    import psyco

    done = start(folder, "obstacle-run", RUN, episodes=3000, learner="safe-es", seed=4)
    answer = psyco.exact(done.policy, "obstacle-run", RUN)
    return {
        "verdict": answer.verdict.name,
        "value": list(answer.value),
        "optimum": list(answer.optimum or ()),
        "nodes": answer.nodes,
    }


@case
def studied(folder: Path) -> dict[str, Any]:
    import psyco

    plan = folder / "study.toml"
    folder.mkdir(parents=True)
    plan.write_text(STUDY)
    psyco.study(plan, folder / "out")
    found = {}
    for done in sorted((folder / "out" / "cells").iterdir()):
        found[done.name.rpartition("-")[0]] = bits_of_run(psyco.open_run(done))
    return found


STUDY = """
title = "Two learners"
seeds = 2
requirement = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"

[domain]
name = "particle-dance"

[settings]
episodes = 3000

[grid]
learner = ["safe-es", "snes"]
"""


def cpu() -> str:
    """Name the processor and its features, on which bits depend."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    parts = sorted({line for line in lines if line.startswith(("model name", "flags"))})
    return hashlib.sha256("".join([platform.machine(), *parts]).encode()).hexdigest()[:12]


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", nargs="?", default="compare", choices=["record", "compare"])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--file", type=Path, default=FILE)
    arguments = parser.parse_args()
    before: dict[str, Any] = (
        json.loads(arguments.file.read_text()) if arguments.file.exists() else {"cpu": cpu(), "cases": {}}
    )
    if arguments.verb == "record":
        before["cpu"] = cpu()
    elif before["cpu"] != cpu():
        print("NOTE: the goldens are of another processor; bits may differ. Record at the commit before the change.")
    wrong = 0
    for name, play in CASES.items():
        if arguments.only not in name:
            continue
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            try:
                now = json.loads(json.dumps(play(Path(folder) / "run")))
            except Exception as error:  # a case that ends with an error is a difference, and the others go on
                now = {"error": f"{type(error).__name__}: {error}"[:300]}
        seconds = time.perf_counter() - began
        if arguments.verb == "record":
            before["cases"][name] = now
            arguments.file.write_text(json.dumps(before, indent=1) + "\n")
            print(f"{name:40} {seconds:6.1f} s  {str(now)[:110]}", flush=True)
            continue
        same = now == before["cases"].get(name)
        wrong += not same
        print(f"{'same ' if same else 'OTHER'} {name:40} {seconds:6.1f} s", flush=True)
        if not same:
            print(f"      before {before['cases'].get(name)}\n      now    {now}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
