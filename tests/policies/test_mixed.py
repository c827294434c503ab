"""Agents of two joint policies act as each would with its own partners."""

import jax
import numpy as np
import pytest

import psyco
from psyco._src.policies.external import as_policy
from psyco._src.policies.joint_network import JointNetwork, joint_network_for
from psyco._src.policies.mixed import MixedPolicy, mix
from psyco._src.policies.serialization import Policy, policy_for

TEAM = psyco.make("particle-dance", agents=3, horizon=6)
REQUIRE = "P>=0.5 [ G (distance >= 0.05) ]"


def team_policy(seed, policies="shared", bias="learned", scaled=False, hidden=(8, 6)):
    network = joint_network_for(TEAM, hidden=hidden, bias=bias, policies=policies)
    if scaled:
        drawn = np.random.default_rng(seed).uniform(0.5, 2.0, (2, 48))
        network = JointNetwork(
            network.inputs, network.outputs, network.hidden, network.bias, *map(tuple, drawn), members=network.members
        )
    return policy_for(TEAM, network, network.init(jax.random.key(seed)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {}),
        ({"policies": "separate"}, {"bias": "one"}),
        ({"scaled": True}, {"policies": "separate"}),
        ({"scaled": True}, {"scaled": True, "bias": "one"}),
    ],
)
def test_every_agent_acts_as_in_its_own_policy(one, other, tmp_path):
    one, other = team_policy(1, **one), team_policy(2, **other)
    both = mix(one, ("agent_1",), other, TEAM)
    assert isinstance(both, Policy)
    x = np.random.default_rng(0).normal(size=(50, 48)).astype(np.float32)
    expected = other(x)
    expected[:, 2:4] = one(x)[:, 2:4]
    np.testing.assert_allclose(both(x), expected, atol=1e-6)
    both.save(tmp_path / "both.safetensors")
    assert psyco.load_policy(tmp_path / "both.safetensors").digest == both.digest
    assert one.digest in both.origin and other.digest in both.origin


@pytest.mark.slow
def test_networks_that_do_not_join_play_the_same_episodes_side_by_side():
    """Of one policy with itself, so that the episodes of that policy are known."""
    policy = team_policy(1)
    apart = MixedPolicy(policy, ("agent_0", "agent_2"), policy)
    paths = [psyco.record(each, domain=TEAM, seed=3) for each in (policy, apart)]
    np.testing.assert_allclose(paths[0]["action"], paths[1]["action"], atol=1e-6)
    wide = team_policy(2, hidden=4)
    assert isinstance(mix(policy, ("agent_0",), wide, TEAM), MixedPolicy)
    path = psyco.record(mix(policy, ("agent_0",), wide, TEAM), domain=TEAM, seed=3)
    expected = wide(path["obs"])
    expected[:, :2] = policy(path["obs"])[:, :2]
    # The action of a state is the one that led to it.
    np.testing.assert_allclose(path["action"][1:], expected[:-1], atol=1e-6)


def test_what_a_mixed_policy_is_known_by():
    policy, scripted = team_policy(1), as_policy(_still)
    one, other = mix(policy, ("agent_0",), scripted, TEAM), mix(scripted, ("agent_0",), policy, TEAM)
    assert one.digest != other.digest and one.digest == mix(policy, ("agent_0",), scripted, TEAM).digest
    assert one.kind == "name" and not one.stateful
    assert one.notes[0].startswith("Agents of two policies: agent_0 of sha256:") and "Python code" in one.notes[1]


def _still(observations):
    return {agent: np.zeros(2) for agent in observations}
