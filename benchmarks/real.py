"""Real problems, from a requirement to a certificate: `make bench-real`.

One process per run, several at a time; each is `psyco synthesize` with the arguments below and nothing else. A run
whose folder has a certificate is not run again, one that was interrupted goes on: stop and start this as you like.

python -m benchmarks.real HalfCheetah LunarLander --seeds 500 501 502 --jobs 2 --steps 100000
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
POLL = 1.0  # seconds between two looks at a run's table


@dataclass(frozen=True)
class Task:
    """One line of the table."""

    domain: str
    require: str
    budget: tuple[str, str]  # --steps or --time, and how much
    options: tuple[str, ...] = ()  # further arguments of `psyco synthesize`, the learner among them
    code: tuple[str, ...] = ()  # module:name that the run's folder will name, for `psyco resume --trust`
    published: float | None = None  # PPOLag's return after 10 million steps, by OmniSafe's tables


def velocity(domain: str, limit: float, published: float, steps: str) -> Task:
    """At most 25 steps above a speed in 90% of the episodes: stronger than an expected cost of 25."""
    speed = "info.x_velocity"
    if domain.startswith("Ant"):
        # Its limit holds for the speed over ground, in any direction.
        speed, limit = "info.x_velocity * info.x_velocity + info.y_velocity * info.y_velocity", limit**2
    require = f"P>=0.9 [ G (count({speed} > {limit:.8g}) <= 25) ] & C>=0.95"
    return Task(domain, require, ("--steps", steps), published=published)


COST = "P>=0.9 [ G (sum(info.cost) <= 25) ] & C>=0.95"
FREE = "Rmax=? [ C ]"


def bullet(name: str, require: str = COST, *, seeded: bool = True) -> Task:
    """A task of bullet-safety-gym; not `seeded`: its physics engine keeps state, so episodes do not repeat."""
    domain = f"bullet_safety_gym:{name}"
    options = () if seeded else ("--set", "seeded=false")
    return Task(domain, require, ("--steps", "5e5"), options, code=(domain,))


TASKS = {
    "HalfCheetah": velocity("HalfCheetah-v5", 3.2096, 2946, "3e6"),
    "Hopper": velocity("Hopper-v5", 0.7402, 962, "2e6"),
    "Swimmer": velocity("Swimmer-v5", 0.2282, 65, "2e6"),
    "Walker2d": velocity("Walker2d-v5", 2.3415, 2982, "3e6"),
    "Ant": velocity("Ant-v5", 2.6222, 3262, "1e6"),
    "LunarLander": Task("LunarLander-v3", 'P>=0.9 [ F ("end" & return >= 200) ] & C>=0.95', ("--steps", "1e6")),
    "BallCircle": bullet("SafetyBallCircle-v0"),
    "BallCircle-free": bullet("SafetyBallCircle-v0", FREE),
    "BallRun": bullet("SafetyBallRun-v0"),
    "BallRun-free": bullet("SafetyBallRun-v0", FREE),
    "CarRun": bullet("SafetyCarRun-v0", seeded=False),
    "CarRun-free": bullet("SafetyCarRun-v0", FREE, seeded=False),
    "Pendulum": Task("Pendulum-v1", "P>=0.9 [ G (abs(action[0]) <= 1.2) ] & C>=0.98", ("--steps", "1e5")),
    "Slow-CartPole": Task(
        "CartPole-v1",
        "P>=0.9 [ G (abs(obs[0]) <= 1) ] & C>=0.95",
        ("--time", "10min"),
        ("--horizon", "100", "--set", "wrappers=['benchmarks.slow:Slow']"),
        code=("benchmarks.slow:Slow",),
    ),
}
COLUMNS = ("task", "seed", "budget", "learner", "verdict", "return", "satisfied", "episodes")
COLUMNS += ("learning", "total")  # seconds; learning lasts until the run's table has its last row


@dataclass(frozen=True)
class Cell:
    """One run."""

    name: str
    task: Task
    seed: int
    out: Path

    @property
    def folder(self) -> Path:
        budget = "".join(self.task.budget).lstrip("-")
        return self.out / f"{self.name}-{budget}-seed{self.seed}"

    @property
    def clock(self) -> Path:
        """Where the seconds are kept that the run has taken so far."""
        return self.folder.with_suffix(".json")

    def command(self) -> list[str]:
        program = [sys.executable, "-m", "psyco", "--quiet"]
        if (self.folder / "config.toml").exists():
            trusted = [word for code in self.task.code for word in ("--trust", code)]
            return [*program, "resume", str(self.folder), *trusted]
        task = self.task
        return [*program, "synthesize", task.domain, "--require", task.require, *task.budget,
                *task.options, "--seed", str(self.seed), "--out", str(self.folder)]  # fmt: skip


def run(cell: Cell) -> dict[str, Any]:
    """Run it unless it has ended before; its line of the table."""
    spent = json.loads(cell.clock.read_text()) if cell.clock.exists() else {"learning": 0.0, "total": 0.0}
    if not (cell.folder / "certificate.json").exists():
        cell.out.mkdir(parents=True, exist_ok=True)
        spent = follow(cell, spent)
    return line(cell, spent)


def follow(cell: Cell, spent: dict[str, float]) -> dict[str, float]:
    """Start the run and look at it until it ends: learning lasts as long as its table grows."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    began, learned, size = time.monotonic(), 0.0, -1
    metrics = cell.folder / "metrics.csv"
    with cell.folder.with_suffix(".log").open("a") as log:
        process = subprocess.Popen(cell.command(), stdout=log, stderr=log, env=environment, cwd=cell.out)
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL)
                now = metrics.stat().st_size if metrics.exists() else -1
                if now > size:
                    learned, size = time.monotonic() - began, now
                if process.returncode is not None:
                    break
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
            total = time.monotonic() - began
            spent = {"learning": spent["learning"] + learned, "total": spent["total"] + total}
            cell.clock.write_text(json.dumps(spent) + "\n")
    return spent


def line(cell: Cell, spent: dict[str, float]) -> dict[str, Any]:
    """What came of a run, as far as it got."""
    row: dict[str, Any] = {
        "task": cell.name,
        "seed": cell.seed,
        "budget": " ".join(cell.task.budget).lstrip("-"),
    }
    row |= {name: round(seconds, 1) for name, seconds in spent.items()}
    certificate, config = cell.folder / "certificate.json", cell.folder / "config.toml"
    if config.exists():
        row["learner"] = tomllib.loads(config.read_text())["learner"]["name"]
    if not certificate.exists():
        return row | {"verdict": f"none; see {cell.folder.with_suffix('.log').name}"}
    content = json.loads(certificate.read_text())
    findings = [each for each in content["findings"] if "satisfied" in each]
    row |= {"verdict": content["verdict"], "return": round(content["mean_return"] or 0.0, 1)}
    if findings:
        worst = min(findings, key=lambda each: each["lower"])
        row |= {"satisfied": worst["satisfied"], "episodes": worst["episodes"]}
    return row


def table(rows: list[dict[str, Any]], machine: str) -> str:
    """Markdown: a line per task with all its seeds, return beside PPOLag's and beside the unconstrained one."""
    lines = [
        f"{machine}; times in seconds on the clock, other runs beside it.", "",
        "| task | budget | learner | seeds | certified | return | satisfied episodes | compare | learning | total |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip

    def listed(mine: list[dict[str, Any]], column: str) -> str:
        return ", ".join(str(row.get(column, "–")) for row in mine)

    rows = [row | {"shown": f"{row['satisfied']}/{row['episodes']}"} if "satisfied" in row else row for row in rows]
    for name in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == name]
        free = [row for row in rows if row["task"] == f"{name}-free"]
        certified = sum(row["verdict"] == "SATISFIED" for row in mine)
        published = TASKS[name].published
        compare = f"unconstrained {listed(free, 'return')}" if free else f"PPOLag {published:g}" if published else ""
        cells = [
            name, mine[0]["budget"], " ".join(dict.fromkeys(str(row.get("learner", "–")) for row in mine)),
            listed(mine, "seed"), "–" if name.endswith("-free") else f"{certified}/{len(mine)}", listed(mine, "return"),
            listed(mine, "shown"), compare, listed(mine, "learning"), listed(mine, "total"),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def merged(file: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """These rows and those that are in a table already, in the order of the tasks."""
    earlier: list[dict[str, Any]] = []
    if file.exists():
        with file.open(newline="") as found:
            earlier = [{name: value for name, value in row.items() if value} for row in csv.DictReader(found)]
    every = {(row["task"], int(row["seed"]), row["budget"]): row for row in (*earlier, *rows)}
    order = list(TASKS)
    return [row for _, row in sorted(every.items(), key=lambda item: (order.index(item[0][0]), *item[0][1:]))]


def processor() -> str:
    """What this machine is."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [each.split(":", 1)[1].strip() for each in lines if each.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def cells(names: list[str], seeds: list[int], out: Path, steps: str | None, options: list[str]) -> list[Cell]:
    """The runs of a selection; all seeds of the first task come first."""
    chosen = {name: TASKS[name] for name in names or TASKS}
    if steps is not None:
        chosen = {name: replace(task, budget=("--steps", steps)) for name, task in chosen.items()}
    chosen = {name: replace(task, options=(*task.options, *options)) for name, task in chosen.items()}
    return [Cell(name, task, seed, out.resolve()) for name, task in chosen.items() for seed in seeds]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[500, 501, 502])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--steps", help="a budget in steps for all tasks, instead of their own")
    parser.add_argument("--out", type=Path, default=Path("runs/real"))
    more = "a further argument of psyco synthesize for every run, as in --option=--learner=ppo"
    parser.add_argument("--option", action="append", default=[], metavar="ARG", help=more)
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.tasks) - set(TASKS)):
        parser.error(f"unknown task {', '.join(unknown)}; there are: {', '.join(TASKS)}")
    todo = cells(chosen.tasks, chosen.seeds, chosen.out, chosen.steps, chosen.option)
    rows = []
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for row in pool.map(run, todo):
            rows.append(row)
            print("  ".join(f"{name} {row[name]}" for name in COLUMNS if name in row), flush=True)
    rows = merged(chosen.out / "results.csv", rows)
    with (chosen.out / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    text = table(rows, processor())
    (chosen.out / "results.md").write_text(text)
    print(f"\n{text}\nin {chosen.out}/results.csv and results.md")


if __name__ == "__main__":
    main()
