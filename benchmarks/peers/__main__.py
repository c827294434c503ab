"""Others and ourselves on the same environments: return and certified probability against the time on the clock.

    python -m benchmarks.peers                                    # all tasks, Stable-Baselines3 beside PSyCo
    python -m benchmarks.peers dance --seeds 0 1 2 --steps 100000
    python -m benchmarks.peers dance --omnisafe omnisafe/bin/python --omnisafe-steps 20000

PSyCo's runs are a study, with its folder and page; what others have learned is verified as `psyco verify` does it.
Every run is kept in a folder that is named by what it is, so that the same again computes what is missing and draws.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import psyco
from benchmarks.peers import ppolag
from benchmarks.peers.page import peers_page
from benchmarks.peers.penalty import train
from benchmarks.peers.tasks import TASKS, Task, Unavailable

EPISODES = 500  # of a verification
MORE = 10  # times the steps of the others take us about as long
COMPILED = 3_000_000  # steps of a compiled domain: the paper's 60,000 episodes, in seconds
FIRST_SEED = 1000  # of verifications, apart from those of learning
COLUMNS = (
    "task",
    "method",
    "seed",
    "steps",
    "verdict",
    "return",
    "certified",
    "share",
    "learning_seconds",
    "seconds",
)


@dataclass(frozen=True)
class Peer:
    """A run of somebody else's program."""

    task: str
    method: str
    seed: int
    steps: int
    learn: Callable[[Path], float]  # leaves a policy in a folder; returns the seconds that it took
    load: Callable[[Path], Any]  # that policy, as `psyco.verify` takes it

    def folder(self, out: Path) -> Path:
        what = json.dumps([self.task, self.method, self.seed, self.steps, TASKS[self.task].require])
        name = f"{self.task}-{self.method}-seed{self.seed}".replace(" ", "-").replace(",", "")
        return out / "peers" / f"{name}-{hashlib.sha256(what.encode()).hexdigest()[:12]}"


def others(name: str, seeds: list[int], steps: int, omnisafe: Path | None, omnisafe_steps: int) -> Iterator[Peer]:
    """The runs of others on a task."""
    for seed in seeds:
        for weight in TASKS[name].weights:
            learn = partial(_penalized, TASKS[name], weight, steps, seed)
            yield Peer(name, f"SB3 PPO, penalty {weight:g}", seed, steps, learn, _model)
        if omnisafe is not None:
            learn = partial(_lagrangian, name, omnisafe, omnisafe_steps, seed)
            called = "OmniSafe PPOLag" + f", {omnisafe_steps:,} steps" * (omnisafe_steps != steps)
            yield Peer(name, called, seed, omnisafe_steps, learn, _arrays)


def _penalized(task: Task, weight: float, steps: int, seed: int, folder: Path) -> float:
    return train(task, weight, steps, seed, folder / "model.zip")


def _model(folder: Path) -> str:
    return f"sb3:ppo:{folder / 'model.zip'}"


def _lagrangian(name: str, python: Path, steps: int, seed: int, folder: Path) -> float:
    path = (folder / "policy.npz").resolve()
    words = [str(python), ppolag.__file__, name, str(steps), str(seed), str(TASKS[name].limit), str(path)]
    with (folder / "ppolag.log").open("w") as log:
        done = subprocess.run(words, stdout=log, stderr=log, check=False)
    if done.returncode:
        last = (folder / "ppolag.log").read_text(errors="replace").strip().splitlines()[-1:]
        raise Unavailable(f"PPOLag could not be run: {' '.join(last)}")
    with np.load(path, allow_pickle=False) as file:
        return float(file["seconds"])


def _arrays(folder: Path) -> Any:
    return ppolag.act(folder / "policy.npz")


def outcome(peer: Peer, out: Path) -> dict[str, Any]:
    """What came of a run: learned once, then read, and verified again."""
    folder, task = peer.folder(out), TASKS[peer.task]
    file = folder / "learned.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{peer.task}: {peer.method}, seed {peer.seed}", file=sys.stderr, flush=True)
        file.write_text(json.dumps({"seconds": peer.learn(folder)}) + "\n")
    learning = float(json.loads(file.read_text())["seconds"])
    domain = psyco.make(task.domain, horizon=task.horizon)
    found = verified(peer.load(folder), domain, task.require, peer.seed, learning)
    return {"task": peer.task, "method": peer.method, "seed": peer.seed, "steps": peer.steps, **found}


def verified(policy: Any, domain: Any, requirement: str, seed: int, seconds: float) -> dict[str, Any]:
    """The same look at everybody: so many fresh episodes, decided in the end, and none of them chosen."""
    began = time.perf_counter()
    certificate = psyco.verify(
        policy,
        domain,
        requirement,
        seed=FIRST_SEED + seed,
        method="fixed",
        max_episodes=EPISODES,
        trust=[policy] if isinstance(policy, str) else (),
    )
    finding = certificate.findings[0]
    assert isinstance(finding, psyco.Finding)
    return {
        "verdict": certificate.verdict.name,
        "return": certificate.mean_return,
        "certified": finding.lower,
        "share": finding.share,
        "learning_seconds": round(seconds, 1),
        "seconds": round(seconds + time.perf_counter() - began, 1),
    }


def ours(names: list[str], seeds: list[int], steps: int | None, out: Path) -> list[dict[str, Any]]:
    """PSyCo on the same tasks, as a study: with the same steps, and with about the same time."""
    cells: list[dict[str, Any]] = []
    for name in names:
        task = TASKS[name]
        few = steps or task.steps
        many = MORE * few
        gym = {"domain": {"name": task.domain, "horizon": task.horizon}}
        gym["requirement"] = {"name": name, "text": task.require}
        cells += [
            {"label": f"PSyCo {learner}", "learner": learner, "steps": few, **gym} for learner in ("safe-es", "ppo")
        ]
        cells.append({"label": f"PSyCo {task.learner}, {many:,} steps", "learner": task.learner, "steps": many, **gym})
        if task.compiled:
            same = {"name": f"{name}, compiled", "text": task.require.replace("info.", "")}
            cells.append(
                {"label": f"PSyCo safe-es, compiled, {COMPILED:,} steps", "domain": task.compiled,
                 "steps": COMPILED, "requirement": same}
            )  # fmt: skip
    study = psyco.study({"title": "PSyCo beside its peers", "seeds": seeds, "cells": cells}, out / "psyco", workers=1)
    rows = []
    for each in study.outcomes:
        if each.run is None or each.run.certificate is None:
            print(f"{each.cell.label}: {each.error or each.state}", file=sys.stderr)
            continue
        name = next(name for name in names if name in each.cell.task)
        config = each.cell.config
        domain = psyco.make(config.domain, **config.parameters)
        found = verified(each.run.policy, domain, config.requirement, each.cell.seed, each.times.seconds)
        about = {"task": name, "method": each.cell.method, "seed": each.cell.seed, "steps": each.run.steps}
        rows.append({**about, **found})
    return rows


def _told(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}" if 0 <= value <= 1 else f"{value:.1f}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="of learning; default: the task's")
    parser.add_argument("--omnisafe", type=Path, metavar="PYTHON", help="an interpreter that has OmniSafe")
    parser.add_argument("--omnisafe-steps", type=int, help="for PPOLag, which is slow; default: as the others")
    parser.add_argument("--out", type=Path, default=Path("studies/peers"))
    chosen = parser.parse_args(arguments)
    names = chosen.tasks or list(TASKS)
    if unknown := sorted(set(names) - set(TASKS)):
        parser.error(f"unknown task {', '.join(unknown)}; there are: {', '.join(TASKS)}")
    rows = ours(names, chosen.seeds, chosen.steps, chosen.out)
    for name in names:
        steps = chosen.steps or TASKS[name].steps
        for peer in others(name, chosen.seeds, steps, chosen.omnisafe, chosen.omnisafe_steps or steps):
            try:
                rows.append(outcome(peer, chosen.out))
            except Unavailable as why:
                print(f"left out: {peer.method} on {name}, seed {peer.seed}: {why}", file=sys.stderr)
    rows.sort(key=lambda row: names.index(row["task"]))
    with (chosen.out / "peers.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    page = chosen.out / "peers.html"
    page.write_text(peers_page(rows, {name: TASKS[name].require for name in names}))
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for row in rows:
        print("| " + " | ".join(_told(row[name]) for name in COLUMNS) + " |")
    print(f"{page} shows all of it", file=sys.stderr)


if __name__ == "__main__":
    main()
