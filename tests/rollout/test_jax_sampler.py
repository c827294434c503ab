"""Episodes are a function of parameters and key alone, and are judged as check_path judges their recording."""

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key
from psyco._src.rollout.sampler import make_sampler

REQUIREMENTS = {
    "particle-dance": 'P>=0.5 [ G (distance >= 0.1 | collisions <= 1) ]; P>=0.5 [ F<=20 distance <= 0.3 ];'
    'P>=0.5 [ (distance > 0.5) U (agent[0] > 0.5) ]; P<=0.5 [ F ("end" & return >= -60) ];'
    "P>=0.5 [ G (distance <= 0.5 => F<=5 distance > 0.5) ]; P>=0.5 [ G abs(action[1]) < 0.0999 ];"
    "P>=0.5 [ G (count(step > 0 & distance < 0.1) = collisions & abs(sum(reward) - return) < 0.001) ];"
    'P>=0.5 [ F ("end" & count(distance < 0.3) >= 2) ]; P>=0.5 [ G mean(distance) > 0.6 ]',
    "obstacle-run": 'P>=0.5 [ G (!caught | collisions <= 1) ]; P>=0.5 [ F "target" ];'
    'P>=0.5 [ F ("end" & step <= 12) ];'
    "P>=0.5 [ G[3,9] distance > 0 ];"
    'P>=0.5 [ F ("end" & count(distance <= 1) <= 4 & least(target_distance) < 3) ]',
}  # fmt: skip


def thetas(network, count):
    return jax.vmap(network.init)(jax.random.split(jax.random.key(11), count))


@pytest.mark.parametrize("name", [pytest.param("particle-dance", marks=pytest.mark.full), "obstacle-run"])
def test_an_episode_is_judged_as_its_recording_is(name):
    domain, requirement = psyco.make(name), psyco.parse(REQUIREMENTS[name])
    network = network_for(domain)
    sampler = make_sampler(domain, network, requirement)
    theta, keys = thetas(network, 40), episode_keys(stream_key(0, Stream.RECORD), 0, 40)
    episodes = jax.jit(sampler)(theta, keys)
    seen = set()
    for i in range(40):
        path = psyco.record(policy_for(domain, network, theta[i]), domain, episode=i)
        assert len(path["step"]) == episodes.length[i] + 1
        assert path["return"][-1] == episodes.returns[i]
        assert path["reward"][1:].sum() == pytest.approx(float(episodes.returns[i]), rel=1e-5)
        # The last state repeats up to the horizon; numbers are float32 in the simulation.
        padded = {key: np.concatenate([x] + [x[-1:]] * (domain.horizon - len(x) + 1)) for key, x in path.items()}
        for k, demand in enumerate(requirement.probability_bounds):
            if '"end"' in str(demand.formula):
                check = psyco.check_path(demand.formula, path)
                assert check.satisfied == episodes.satisfied[i, k]
                seen.add((k, check.satisfied))
                continue
            check = psyco.check_path(demand.formula, padded)
            assert check.satisfied == episodes.satisfied[i, k], (i, str(demand.formula))
            assert check.cost == episodes.cost[i, k]
            seen.add((k, check.satisfied))
    # Both outcomes occurred for most formulas, so the comparison means something.
    assert len(seen) >= 2 * len(requirement.probability_bounds) - 3


@pytest.mark.parametrize("name", ["obstacle-run", pytest.param("particle-dance", marks=pytest.mark.full)])
@pytest.mark.more
def test_an_episode_does_not_depend_on_its_batch(name):
    domain = psyco.make(name)
    network = network_for(domain)
    sampler = jax.jit(make_sampler(domain, network, psyco.parse(REQUIREMENTS[name])))
    theta, keys = thetas(network, 64), episode_keys(stream_key(5, Stream.TRAIN), 0, 64)
    whole = jax.device_get(sampler(theta, keys))
    for part in (slice(0, 1), slice(20, 53)):
        expected = jax.tree.map(lambda x: x[part], whole)  # noqa: B023
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(sampler(theta[part], keys[part])), expected)


def test_keys_depend_on_the_index_alone_and_streams_are_disjoint():
    key = stream_key(0, Stream.CERTIFY)
    data = jax.random.key_data
    assert (data(episode_keys(key, 0, 50))[20:30] == data(episode_keys(key, 20, 10))).all()
    drawn = [
        tuple(map(int, row))
        for seed in range(3)
        for stream in Stream
        for block in range(5)
        for row in data(episode_keys(stream_key(seed, stream, block), 0, 20))
    ]
    assert len(set(drawn)) == len(drawn)


@dataclass(frozen=True)
class Fuse:
    """Counts down from 3 and ends; anything after the end would go negative and be seen."""

    horizon: int = 10
    name: ClassVar[str] = "fuse"
    actions: ClassVar[psyco.Discrete] = psyco.Discrete(2)
    observation_size: ClassVar[int] = 1

    def reset(self, key):
        return jnp.float32(3)

    def step(self, key, state, action):
        return state - 1, jnp.float32(1), state - 1 <= 0

    def observe(self, state):
        return state[None]

    def signals(self, state):
        return {"left": state, "out": state <= 0}


def test_nothing_past_an_episodes_end_is_seen():
    domain = Fuse()
    network = network_for(domain)
    requirement = psyco.parse(
        'P>=0.5 [ G left >= 0 ]; P>=0.5 [ F ("end" & return = 3 & step = 3) ]; P>=0.5 [ F "out" ]'
    )
    episodes = make_sampler(domain, network, requirement)(thetas(network, 2), episode_keys(jax.random.key(0), 0, 2))
    assert episodes.satisfied.all()
    assert episodes.returns.tolist() == [3, 3] and episodes.length.tolist() == [3, 3]


DIGESTS = """
import hashlib, jax, psyco, sys
devices = int(sys.argv[1])
assert len(jax.devices()) == devices
domain, require = psyco.make("obstacle-run"), "P>=0.9 [ G (!caught | collisions <= 1) ] & C>=0.98"
for again in range(2):
    run = psyco.synthesize(
        domain, require, episodes=2100, seed=4, learner=psyco.SNES(population=21),
        settings=psyco.Settings(method="bayes"), execution=psyco.Execution(devices=devices),
    )
    print(run.policy.digest, hashlib.sha256(run.metrics.to_csv().encode()).hexdigest())
"""


@pytest.mark.full
def test_the_same_seed_gives_the_same_bytes_twice_and_on_one_and_two_devices():
    """Two processes: JAX fixes the number of devices at its start. 21 offspring do not divide by 2."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", DIGESTS, str(devices)],
            env={**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"},
            capture_output=True, text=True, check=True,
        ).stdout.split("\n")
        for devices in (1, 2)
    ]  # fmt: skip
    assert len(outputs[0][0]) == 129
    assert outputs[0][0] == outputs[0][1] == outputs[1][0] == outputs[1][1]
