"""MPE environments of JaxMARL as compiled domains of several agents."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.envs import jaxmarl_env
from psyco._src.envs.actions import Continuous, Discrete
from psyco._src.envs.base import signal_table
from psyco._src.policies.joint_network import joint_network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key

pytestmark = pytest.mark.slow  # needs an extra


def random_policy(domain, seed=1):
    network = joint_network_for(domain, hidden=8, bias="learned")
    return policy_for(domain, network, network.init(jax.random.key(seed)))


@pytest.mark.extra("jaxmarl")
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("MPE_simple_spread_v3", {"num_agents": 2}),
        ("MPE_simple_spread_v3", {"num_agents": 2, "action_type": "Continuous"}),
        ("MPE_simple_tag_v3", {"num_adversaries": 2}),
        ("MPE_simple_reference_v3", {}),
    ],
)
def test_an_episode_is_jaxmarls_own(name, parameters):
    import jaxmarl

    domain = psyco.make(f"jaxmarl:{name}", **parameters)
    policy = random_policy(domain)
    path = psyco.record(policy, domain, seed=5)
    (key,) = episode_keys(stream_key(5, Stream.RECORD), 0, 1)

    env = jaxmarl.make(name, **parameters)
    key_reset, key_steps, _ = jax.random.split(key, 3)
    seen, state = env.reset(key_reset)
    for time, step_key in enumerate(jax.random.split(key_steps, 25)):
        joint = policy(np.concatenate([seen[agent] for agent in env.agents]))
        joint = {agent: joint[domain.chosen_by(i)] for i, agent in enumerate(env.agents)}
        action = {agent: own if own.size > 1 else own[0] for agent, own in joint.items()}
        seen, state, reward, done, _ = env.step_env(step_key, state, action)
        for i, agent in enumerate(env.agents):
            # One step after the other here, a whole episode at once there: the last bits differ.
            np.testing.assert_allclose(path[f"{agent}.obs"][time + 1], seen[agent], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(path[f"{agent}.reward"][time + 1], reward[agent], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(path[f"{agent}.position"][time + 1], state.p_pos[i], rtol=1e-4, atol=1e-5)
    assert len(path["step"]) == 26 and not done["__all__"]


@pytest.mark.extra("jaxmarl")
def test_a_step_has_the_same_bits_as_jaxmarls_own():
    import jaxmarl

    domain = psyco.make("jaxmarl:MPE_simple_tag_v3")
    env = jaxmarl.make("MPE_simple_tag_v3")
    seen, state = env.reset(jax.random.key(0))
    own = domain.reset(jax.random.key(0)).inner
    actions = jax.random.randint(jax.random.key(1), (25, 4), 0, 5)
    for key, action in zip(jax.random.split(jax.random.key(2), 25), actions, strict=True):
        by_agent = dict(zip(env.agents, action, strict=True))
        seen, state, reward, done, _ = env.step_env(key, state, by_agent)
        own, rewards, ended = domain.base.step(key, own, {"adversary": action[:3], "agent": action[3:]})
        assert all(map(np.array_equal, jax.tree.leaves(state), jax.tree.leaves(own)))
        assert rewards.tolist() == [reward[agent] for agent in env.agents] and bool(ended) == bool(done["__all__"])
        whole = domain.base.observe(own)
        assert np.array_equal(np.concatenate([*whole["adversary"], *whole["agent"]]), jnp.concatenate([*seen.values()]))


@pytest.mark.extra("jaxmarl")
def test_agents_with_different_spaces_are_groups():
    domain = psyco.make("jaxmarl:MPE_simple_tag_v3", num_adversaries=2, num_good_agents=1)
    assert domain.agents == ("adversary_0", "adversary_1", "agent_0")
    assert domain.groups == {"adversary": ("adversary_0", "adversary_1"), "agent": ("agent_0",)}
    # Fewer than the 16 and 14 of JaxMARL's declaration, which is about three adversaries.
    assert [each.size for each in domain.agent_spaces] == [14, 14, 12]
    assert {each.actions for each in domain.agent_spaces} == {Discrete(5)}
    speakers = psyco.make("jaxmarl:MPE_simple_speaker_listener_v4")
    assert [each.actions for each in speakers.agent_spaces] == [Discrete(3), Discrete(5)]
    moving = psyco.make("jaxmarl:MPE_simple_spread_v3", action_type="Continuous")
    assert moving.agent_spaces[0].actions == Continuous((0.0,) * 5, (1.0,) * 5)


@pytest.mark.extra("jaxmarl")
@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("MPE_simple_v3", ["agent"]),
        ("MPE_simple_world_comm_v3", ["leadadversary", "adversary", "agent"]),
        ("MPE_simple_crypto_v3", ["eve", "alice", "bob"]),
        ("MPE_simple_push_v3", ["adversary", "agent"]),
        ("MPE_simple_adversary_v3", ["adversary", "agent"]),
    ],
)
def test_other_mpe_environments_are_domains(name, groups):
    domain = psyco.make(f"jaxmarl:{name}", action_type="Discrete")
    assert list(domain.groups) == groups
    table = signal_table(domain)
    assert all(table[f"{space.name}.obs"].size == space.size for space in domain.agent_spaces)
    state, reward, _ = jax.eval_shape(domain.step, *jax.eval_shape(lambda: _first(domain)))
    assert reward.shape == () and state.agent_reward.shape == (len(domain.agents),)


def _first(domain):
    return jax.random.key(0), domain.reset(jax.random.key(1)), jnp.zeros(len(domain.agents), jnp.int32)


@pytest.mark.extra("jaxmarl")
def test_collided_says_whether_an_agent_touches_another_one():
    domain = psyco.make("jaxmarl:MPE_simple_spread_v3", num_agents=3)
    state = domain.reset(jax.random.key(0))
    places = jnp.array([[0.0, 0.0], [0.29, 0.0], [0.6, 0.0]])  # agents have a radius of 0.15
    inner = state.inner.replace(p_pos=state.inner.p_pos.at[:3].set(places))
    signals = domain.signals(state._replace(inner=inner))
    assert [bool(signals[f"{agent}.collided"]) for agent in domain.agents] == [True, True, False]
    assert np.array_equal(signals["landmark_2"], inner.p_pos[5])
    # In simple_reference, bodies pass through each other.
    assert "agent_0.collided" not in signal_table(psyco.make("jaxmarl:MPE_simple_reference_v3"))


@pytest.mark.extra("jaxmarl")
def test_parameters_are_checked_and_used():
    domain = psyco.make("jaxmarl:MPE_simple_spread_v3", num_agents=2, horizon=10, damping=0.5)
    assert psyco.make(domain.name, **domain.parameters) == domain
    assert domain.horizon == 10 and domain.base._env.damping == 0.5 and domain.base._env.max_steps == 10
    with pytest.raises(psyco.DomainError, match="did you mean 'num_agents'"):
        psyco.make("jaxmarl:MPE_simple_spread_v3", num_agent=2)
    with pytest.raises(psyco.DomainError, match="has no agents with these parameters"):
        psyco.make("jaxmarl:MPE_simple_spread_v3", num_agents=0)
    with pytest.raises(psyco.DomainError, match="give horizon"):
        psyco.make("jaxmarl:MPE_simple_spread_v3", max_steps=10)
    with pytest.raises(psyco.DomainError, match="did you mean 'MPE_simple_spread_v3'"):
        psyco.make("jaxmarl:MPE_simple_spred_v3")
    with pytest.raises(psyco.DomainError, match="jaxmarl has no MPE environment 'hanabi'"):
        psyco.make("jaxmarl:hanabi")


@pytest.mark.extra("jaxmarl")
def test_a_joint_policy_is_synthesized_verified_and_replayed(tmp_path):
    require = "P>=0.5 [ G (count(any(agent.collided)) <= 8) ] & C>=0.9"
    settings = psyco.Settings(max_episodes=200, seed=4)
    run = psyco.start(
        "jaxmarl:MPE_simple_spread_v3", require, tmp_path / "run", parameters={"num_agents": 2}, episodes=200,
        learner="safe-es", settings=settings,
    )  # fmt: skip
    assert run.certificate.verdict is psyco.Verdict.SATISFIED
    again = psyco.open_run(tmp_path / "run")
    assert again.policy.agents == ("agent_0", "agent_1")
    assert psyco.replay(again.certificate, again.policy).matches


def test_an_environment_of_a_missing_package_names_its_installation(monkeypatch):
    monkeypatch.setattr(jaxmarl_env, "find_spec", lambda name: None)
    jaxmarl_env._make.cache_clear()
    with pytest.raises(psyco.DomainError, match=r'pip install "psyco\[jaxmarl\]"'):
        psyco.make("jaxmarl:MPE_simple_spread_v3")


@pytest.mark.extra("jaxmarl")
def test_results_alone_are_on_standard_output():
    code = "import psyco; print(psyco.make('jaxmarl:MPE_simple_spread_v3').horizon)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "25\n"  # importing JaxMARL prints, and replaces the standard streams
