"""Several agents: what three cost beside one, and simple_spread of PettingZoo under a constraint.

`python -m benchmarks.teams speed` and `python -m benchmarks.teams spread --seeds 302-306`. For each seed of the latter
policies are learned with the constraint, jointly and independently, and without it, in as many episodes. Finished rows
are kept in `build/teams.jsonl`, so that an interrupted benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

import psyco
from benchmarks.clock import one_core, side_by_side
from psyco._src.learners.loop import train
from psyco._src.runs.problem import prepare

RESULTS = Path("build/teams.jsonl")
EPISODES, MAX_EPISODES, AVERAGED = 10_000, 3_000, 500  # of learning, of a certificate, of a return
# After the start the agents touch in at most one state: entries 8 and 9 of an observation are where the other one is.
# The start is random, and 6.2% of them touch in it.
FORMULA = "G (count(step >= 1 & any(agent.obs[8]*agent.obs[8] + agent.obs[9]*agent.obs[9] < 0.09)) <= 1)"
CONSTRAINED = f"P>=0.9 [ {FORMULA} ] & C>=0.98"
# Requirement, and how the agents learn.
SPREAD = {
    "joint": (CONSTRAINED, "joint"),
    "independent": (CONSTRAINED, "independent"),
    "unconstrained": ("Rmax=? [ C ]", "joint"),
}


def speed() -> None:
    """Print seconds of processor time of learning in Particle Dance with 1 and with 3 agents."""
    print("| learner | episodes | 1 agent | 3 agents | ratio |\n|---|---|---|---|---|")
    with one_core():
        for learner, episodes in (("safe-es", 60_000), ("ppo", 10_000)):
            seconds = side_by_side({str(n): learning(learner, n, episodes) for n in (1, 3)}, rounds=3)
            one, three = seconds["1"], seconds["3"]
            print(f"| `{learner}` | {episodes:,} | {one:.2f} s | {three:.2f} s | {three / one:.2f} |", flush=True)


def learning(learner: str, agents: int, episodes: int) -> Any:
    """Return a function that learns with equally large networks, compiled already."""
    domain, key = psyco.make("particle-dance", agents=agents), jax.random.key(0)
    problem = prepare(domain, psyco.parse(domain.requirement), psyco.Settings(learner=learner, hidden=32))
    generations = -(-episodes // problem.learner.episodes_per_generation)
    start = problem.learner.init(problem.network.init(key))
    run = partial(train, problem.learner, problem.sampler, key, start, first=0, generations=generations)
    jax.block_until_ready(run())
    return lambda: jax.block_until_ready(run())


def spread(seeds: list[int]) -> None:
    """Learn on simple_spread with two agents, with the constraint, also independently, and without; print a table."""
    kept = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    rows = {(row["seed"], row["variant"]): row for row in kept}
    RESULTS.parent.mkdir(exist_ok=True)
    for seed in seeds:
        for variant in SPREAD:
            if (seed, variant) not in rows:
                rows[seed, variant] = spread_row(seed, variant)
                with RESULTS.open("a") as file:
                    file.write(json.dumps(rows[seed, variant]) + "\n")
            print(rows[seed, variant], flush=True)
    print("| seed | joint | independent | without the constraint |\n|---|---|---|---|")
    for seed in seeds:
        cells = (rows[seed, variant] for variant in SPREAD)
        texts = (f"{each['verdict']}, {each['share']:.3f}, {each['return']:.1f}" for each in cells)
        print(f"| {seed} | {' | '.join(texts)} |")


def spread_row(seed: int, variant: str) -> dict[str, Any]:
    """Learn a policy, and play fresh episodes of it."""
    domain, began = psyco.make("pettingzoo:mpe2.simple_spread_v3", N=2), time.process_time()
    requirement, way = SPREAD[variant]
    settings = psyco.Settings(max_episodes=MAX_EPISODES, learning=way)
    run = psyco.synthesize(domain, requirement, episodes=EPISODES, seed=seed, settings=settings)
    seconds = time.process_time() - began
    asked = f"P=? [ {FORMULA} ]; R=? [ C ] within [-2000,0]"
    share, value = psyco.verify(run.policy, domain, asked, max_episodes=AVERAGED, seed=900_000 + seed).answers
    return {
        "seed": seed,
        "variant": variant,
        "verdict": run.certificate.verdict.name,
        "share": share.mean,
        "return": value.mean,
        "seconds": round(seconds),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=("speed", "spread"), default="speed")
    parser.add_argument("--seeds", default="302-306")
    given = parser.parse_args(arguments)
    if given.part == "speed":
        speed()
    else:
        first, _, last = given.seeds.partition("-")
        spread(list(range(int(first), int(last or first) + 1)))


if __name__ == "__main__":
    main()
