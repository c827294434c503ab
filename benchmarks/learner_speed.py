"""Steps per second of the learners on Particle Dance, by processor time in one process on one core."""

from __future__ import annotations

from functools import partial

import jax

import psyco
from benchmarks.clock import one_core, side_by_side
from psyco._src.learners.loop import train
from psyco._src.runs.problem import prepare
from psyco._src.runs.settings import Settings

LEARNERS = ("snes", "safe-es", "ppo")
EPISODES = 10_000


def main() -> None:
    with one_core():
        domain, key = psyco.make("particle-dance"), jax.random.key(0)
        work, steps = {}, {}
        for name in LEARNERS:
            problem = prepare(domain, psyco.parse(domain.requirement), Settings(learner=name))
            learner, start = problem.learner, problem.learner.init(problem.network.init(key))
            generations = -(-EPISODES // learner.episodes_per_generation)
            run = partial(train, learner, problem.sampler, key, start, first=0, generations=generations)
            work[name] = lambda run=run: jax.block_until_ready(run())
            work[name]()  # compiles
            steps[name] = generations * learner.episodes_per_generation * domain.horizon
        seconds = side_by_side(work, rounds=5)
    rates = {name: steps[name] / seconds[name] for name in LEARNERS}
    print("  | learner | steps/s | of safe-es |\n  |---|---|---|")
    for name, rate in rates.items():
        print(f"  | {name} | {rate:,.0f} | {rate / rates['safe-es']:.2f} |")
