"""Time grows linearly in episodes, population and horizon, and memory does not grow with episodes.

Each row is a process of its own, because only so its peak memory can be told.
"""

from __future__ import annotations

import json
import subprocess
import sys

BASE = {"episodes": 60_000, "population": 20, "horizon": 50}
ROWS = [
    BASE,
    {**BASE, "episodes": 120_000},
    {**BASE, "episodes": 240_000},
    {**BASE, "episodes": 600_000},
    {**BASE, "population": 80},
    {**BASE, "population": 320},
    {**BASE, "horizon": 100},
    {**BASE, "horizon": 200},
]

ONE_RUN = """
import json, resource, sys, time
import jax, psyco
from psyco._src.learners.loop import train
from psyco._src.runs.problem import prepare
from psyco._src.runs.settings import Settings
row = json.loads(sys.argv[1])
domain = psyco.make("particle-dance", horizon=row["horizon"])
settings = Settings(learner="snes", options={"population": row["population"]})
problem = prepare(domain, psyco.parse(domain.requirement), settings)
key = jax.random.key(0)
state = problem.learner.init(problem.network.init(key))
segment = max(1, 1000 // row["population"])
def run(generations):
    now = state
    for first in range(0, generations, segment):
        now, rows = train(problem.learner, problem.sampler, key, now, first=first, generations=segment)
        jax.device_get(rows)
run(segment)
before = time.process_time()
run(row["episodes"] // row["population"])
print(json.dumps([time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def main() -> None:
    print("  episodes  population  horizon   seconds  against the work  peak memory")
    base = None
    for row in ROWS:
        done = subprocess.run(
            [sys.executable, "-c", ONE_RUN, json.dumps(row)], capture_output=True, text=True, check=True
        )
        seconds, memory = json.loads(done.stdout)
        work = row["episodes"] * row["horizon"] / (BASE["episodes"] * BASE["horizon"])
        base = base or seconds
        print(
            f"  {row['episodes']:8,}  {row['population']:10}  {row['horizon']:7}  {seconds:8.2f}"
            f"  {seconds / base / work:15.2f}x  {memory:7.0f} MB",
            flush=True,
        )
