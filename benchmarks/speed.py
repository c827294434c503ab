"""SNES on Particle Dance: steps per second, against plain NumPy and against evosax driving the same rollouts."""

from __future__ import annotations

import time
from functools import partial

import jax
import jax.numpy as jnp

import psyco
from benchmarks import numpy_loop
from benchmarks.clock import one_core, side_by_side
from psyco._src.learners.loop import train
from psyco._src.rollout.episodes import episode_keys
from psyco._src.runs.problem import prepare
from psyco._src.runs.settings import Settings

GENERATIONS, NUMPY_GENERATIONS, POPULATION, HORIZON = 500, 5, 20, 50


def main() -> None:
    with one_core():
        domain = psyco.make("particle-dance", horizon=HORIZON)
        settings = Settings(learner="snes", options={"population": POPULATION})
        problem = prepare(domain, psyco.parse(domain.requirement), settings)
        key = jax.random.key(0)
        start = problem.learner.init(problem.network.init(key))
        snes = partial(train, problem.learner, problem.sampler, key, start, first=0, generations=GENERATIONS)
        mirrored, single = evosax_run(problem, key), evosax_run(problem, key, use_antithetic_sampling=False)

        began = time.perf_counter()
        jax.block_until_ready(snes())
        compile_time = time.perf_counter() - began
        jax.block_until_ready([mirrored(), single()])
        seconds = side_by_side(
            {
                "psyco": lambda: jax.block_until_ready(snes()),
                "evosax": lambda: jax.block_until_ready(mirrored()),
                "evosax, same noise": lambda: jax.block_until_ready(single()),
                "numpy": lambda: numpy_loop.train(NUMPY_GENERATIONS),
            },
            rounds=10,
        )
    per_generation = POPULATION * HORIZON
    rates = {
        name: (NUMPY_GENERATIONS if name == "numpy" else GENERATIONS) * per_generation / seconds[name]
        for name in seconds
    }
    labels = {
        "psyco": "psyco, SNES",
        "evosax": "evosax, Open_ES driving the same rollouts (no belief, no metrics, half the random numbers)",
        "evosax, same noise": "the same without mirrored sampling, so with as many random numbers as SNES",
        "numpy": "plain NumPy loop, SNES",
    }
    for name, rate in rates.items():
        print(f"  {rate:12,.0f} steps/s  {rates['psyco'] / rate:7.2f}x  {labels[name]}")
    print(f"  psyco against NumPy: {rates['psyco'] / rates['numpy']:.0f}x (wanted: at least 100x)")
    print(f"  psyco against evosax: {rates['psyco'] / rates['evosax']:.2f}x (wanted: at least 1x)")
    print(f"  with the same random numbers: {rates['psyco'] / rates['evosax, same noise']:.2f}x")
    print(f"  compiling took {compile_time:.1f} s, once")


def evosax_run(problem, key, **options):
    """The same rollout function under evosax's Open_ES, compiled as one scan, minimising -return + cost."""
    from evosax.algorithms import Open_ES

    strategy = Open_ES(population_size=POPULATION, solution=problem.network.init(key), **options)
    params = strategy.default_params

    @jax.jit
    def run(key):
        state = strategy.init(key, problem.network.init(key), params)

        def generation(state, number):
            ask_key, sample_key, tell_key = jax.random.split(jax.random.fold_in(key, number), 3)
            population, state = strategy.ask(ask_key, state, params)
            episodes = problem.sampler(population, episode_keys(sample_key, 0, POPULATION))
            state, _ = strategy.tell(tell_key, population, episodes.cost[:, 0] - episodes.returns, state, params)
            return state, episodes.returns.mean()

        return jax.lax.scan(generation, state, jnp.arange(GENERATIONS))

    return partial(run, key)
