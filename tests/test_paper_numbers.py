"""The paper's runs at full size, with seeds 0 to 4 as anyone would choose them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key
from psyco._src.rollout.sampler import make_sampler

pytestmark = pytest.mark.full
SEEDS = range(5)


def run(name, seed, *, episodes, calibration="soft"):
    domain = psyco.make(name)
    return psyco.synthesize(
        domain,
        domain.requirement,
        episodes=episodes,
        seed=seed,
        settings=psyco.Settings(
            learner="snes",
            options={"calibration": calibration},
            bias="one",
            normalization="none",
            method="bayes",
            verify_every=0,
        ),
    )


def last_episodes(metrics, count):
    return metrics["return"][-count // 20 :].mean()


def test_particle_dance_meets_its_requirement_closely(capsys):
    for seed in SEEDS:
        metrics = run("particle-dance", seed, episodes=60_000).metrics
        share, ret = metrics["satisfied"].mean(), last_episodes(metrics, 5000)
        with capsys.disabled():
            print(f"  particle-dance snes seed {seed}: share {share:.4f}, return of the last 5,000 {ret:.2f}")
        assert 0.85 <= share <= 0.86
        assert ret > -40


def test_particle_dance_unconstrained_follows_closely():
    for seed in SEEDS:
        assert (
            last_episodes(
                run("particle-dance", seed, episodes=60_000, calibration="none").metrics,
                5000,
            )
            > -17
        )


def test_maximum_likelihood_over_satisfies():
    for seed in SEEDS:
        assert run("particle-dance", seed, episodes=60_000, calibration="naive").metrics["satisfied"].mean() > 0.87


def test_obstacle_run_ends_safe_and_fast(capsys):
    good = 0
    domain = psyco.make("obstacle-run")
    for seed in SEEDS:
        policy = run("obstacle-run", seed, episodes=20_000).policy
        sampler = jax.jit(make_sampler(domain, policy.network, psyco.parse(domain.requirement)))
        theta = jnp.broadcast_to(policy.theta, (10_000, policy.theta.size))
        fresh = sampler(theta, episode_keys(stream_key(seed, Stream.RECORD), 0, 10_000))
        p_sat, ret = float(np.mean(fresh.satisfied)), float(np.mean(fresh.returns))
        with capsys.disabled():
            print(f"  obstacle-run snes seed {seed}: p_sat {p_sat:.4f}, return {ret:.2f} on 10,000 fresh episodes")
        good += p_sat >= 0.93 and ret > -6
    assert good >= 4
