"""Several agents: what three cost beside one, and simple_spread of PettingZoo and of JaxMARL under a constraint.

`python -m benchmarks.teams speed`, `python -m benchmarks.teams spread --seeds 302-306` and `python -m benchmarks.teams
spread --simulator jaxmarl --seeds 622-626`. For each seed of the latter two policies are learned with the constraint,
jointly and independently, and without it, in as many episodes. Finished rows are kept in `build/teams.jsonl`, so that
an interrupted benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

import psyco
from benchmarks.clock import one_core, side_by_side
from psyco._src.learners.loop import train
from psyco._src.runs.problem import prepare

RESULTS = Path("build/teams.jsonl")
MAX_EPISODES, AVERAGED = 3_000, 500  # of a certificate, of a return
WAYS = ("joint", "independent", "unconstrained")  # how the agents learn


class Simulator(NamedTuple):
    """simple_spread with two agents in a simulator.

    After the start the agents shall touch in at most one state. The start is random, and they touch in 6.2% of all.
    """

    name: str
    parameters: dict[str, Any]
    touching: str  # state formula: an agent touches the other one
    episodes: int  # of learning

    @property
    def formula(self) -> str:
        """What an episode shall satisfy."""
        return f"G (count(step >= 1 & {self.touching}) <= 1)"


SIMULATORS = {
    # Entries 8 and 9 of an observation are where the other one is.
    "pettingzoo": Simulator(
        "pettingzoo:mpe2.simple_spread_v3",
        {"N": 2},
        "any(agent.obs[8]*agent.obs[8] + agent.obs[9]*agent.obs[9] < 0.09)",
        10_000,
    ),
    "jaxmarl": Simulator(
        "jaxmarl:MPE_simple_spread_v3", {"num_agents": 2, "num_landmarks": 2}, "any(agent.collided)", 60_000
    ),
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


def spread(simulator: str, seeds: list[int]) -> None:
    """Learn on simple_spread with two agents, with the constraint, also independently, and without; print a table."""
    kept = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    rows = {(row["simulator"], row["seed"], row["way"]): row for row in kept}
    RESULTS.parent.mkdir(exist_ok=True)
    for seed in seeds:
        for way in WAYS:
            if (simulator, seed, way) not in rows:
                rows[simulator, seed, way] = {"simulator": simulator} | spread_row(SIMULATORS[simulator], seed, way)
                with RESULTS.open("a") as file:
                    file.write(json.dumps(rows[simulator, seed, way]) + "\n")
            print(rows[simulator, seed, way], flush=True)
    print("| seed | joint | independent | without the constraint |\n|---|---|---|---|")
    for seed in seeds:
        cells = (rows[simulator, seed, way] for way in WAYS)
        texts = (f"{each['verdict']}, {each['share']:.3f}, {each['return']:.1f}" for each in cells)
        print(f"| {seed} | {' | '.join(texts)} |")


def spread_row(simulator: Simulator, seed: int, way: str) -> dict[str, Any]:
    """Learn a policy, and play fresh episodes of it."""
    domain, began = psyco.make(simulator.name, **simulator.parameters), time.process_time()
    requirement = "Rmax=? [ C ]" if way == "unconstrained" else f"P>=0.9 [ {simulator.formula} ] & C>=0.98"
    learning = "independent" if way == "independent" else "joint"
    settings = psyco.Settings(max_episodes=MAX_EPISODES, learning=learning)
    run = psyco.synthesize(
        domain, requirement, learner="ppo", episodes=simulator.episodes, seed=seed, settings=settings
    )
    seconds = time.process_time() - began
    asked = f"P=? [ {simulator.formula} ]; R=? [ C ] within [-2000,0]"
    share, value = psyco.verify(run.policy, domain, asked, max_episodes=AVERAGED, seed=900_000 + seed).answers
    return {
        "seed": seed,
        "way": way,
        "verdict": run.certificate.verdict.name,
        "share": share.mean,
        "return": value.mean,
        "seconds": round(seconds),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=("speed", "spread"), default="speed")
    parser.add_argument("--simulator", choices=SIMULATORS, default="pettingzoo")
    parser.add_argument("--seeds", default="302-306")
    given = parser.parse_args(arguments)
    if given.part == "speed":
        speed()
    else:
        first, _, last = given.seeds.partition("-")
        spread(given.simulator, list(range(int(first), int(last or first) + 1)))


if __name__ == "__main__":
    main()
