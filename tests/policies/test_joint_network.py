"""A joint policy keeps its agents apart: each acts on its own observation, alone as together."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
import psyco.runtime
from psyco._src.core.errors import RunError
from psyco._src.learners.running_stats import empty_stats, fold, normalize_obs, observe_rows, shared_stats
from psyco._src.logic.parser import parse
from psyco._src.policies.joint_network import joint_network_for, replace_agent
from psyco._src.policies.network import Network
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.jax_sampler import record_batch
from psyco._src.runs.problem import prepare
from psyco._src.runs.warm_start import initial_normalization, initial_parameters, with_initial_policy

TEAM = psyco.make("particle-dance", agents=3)
GAME = psyco.make("obstacle-run", opponent=True)


def team_policy(policies="shared", domain=TEAM, bias="learned"):
    network = joint_network_for(domain, hidden=(8, 6), bias=bias, policies=policies)
    return policy_for(domain, network, network.init(jax.random.key(3)))


def observations(size, count=50):
    return np.random.default_rng(0).normal(size=(count, size)).astype(np.float32)


@pytest.mark.parametrize("bias", ["learned", "one"])
@pytest.mark.parametrize("policies", ["shared", "separate", "group"])
def test_an_agent_acts_alone_as_in_the_joint_policy(policies, bias):
    policy, x = team_policy(policies, bias=bias), observations(48)
    together = policy(x)
    for i, agent in enumerate(TEAM.agents):
        own = policy.agent(agent)
        assert own.network.inputs == 16 and type(own.network) is Network
        np.testing.assert_array_equal(own(x[:, 16 * i : 16 * i + 16]), together[:, 2 * i : 2 * i + 2])
    compiled = jax.vmap(lambda row: policy.network.act(TEAM.actions, jnp.asarray(policy.theta), row))(x)
    np.testing.assert_allclose(compiled, together, atol=1e-6)


def test_a_shared_network_sees_whom_it_acts_for_by_a_one_hot_code():
    """The definition, written out: the code follows the observation of the agent."""
    policy, x = team_policy("shared"), observations(48, 1)[0]
    whole = policy.network.policies[0]
    assert whole.inputs == 16 + 3 and policy.network.size == whole.size
    for i in range(3):
        scores = whole.scores(jnp.asarray(policy.theta), jnp.concatenate([x[16 * i : 16 * i + 16], jnp.eye(3)[i]]))
        np.testing.assert_allclose(policy.network.scores(policy.theta, x)[2 * i : 2 * i + 2], scores, atol=1e-5)


def test_an_agent_sees_nothing_of_the_observations_of_others():
    policy, x = team_policy(), observations(48)
    other = x.copy()
    other[:, :16] += 1.0
    assert (policy(x) != policy(other)).any(axis=0).tolist() == [True, True, False, False, False, False]


def test_separate_policies_have_parameters_of_their_own():
    shared, separate = team_policy("shared").network, team_policy("separate").network
    own = Network(16, 2, (8, 6), "learned").size
    assert (shared.size, separate.size) == (own + 3 * 8, 3 * own)


@pytest.mark.parametrize("policies", ["shared", "separate"])
def test_a_joint_policy_is_one_file(policies, tmp_path):
    policy = team_policy(policies)
    policy.save(tmp_path / "team.safetensors")
    again = psyco.runtime.load_policy(tmp_path / "team.safetensors")
    assert again.to_bytes() == policy.to_bytes() and again.agents == TEAM.agents and again.network == policy.network
    own = again.agent("agent_2")
    own.save(tmp_path / "own.safetensors")
    x = observations(16)
    np.testing.assert_array_equal(psyco.load_policy(tmp_path / "own.safetensors")(x), policy.agent("agent_2")(x))
    assert policy.digest in own.origin and own.agents == ()


def test_agents_that_a_policy_lacks_are_refused():
    with pytest.raises(
        RunError, match=r"no agent 'agent_4' .did you mean 'agent_\d'.*; its agents are: agent_0, agent_1"
    ):
        team_policy().agent("agent_4")
    one = policy_for(psyco.make("particle-dance"), Network(8, 2), np.zeros(Network(8, 2).size))
    with pytest.raises(RunError, match=r"has one agent, so leave out the agent 'agent_0'"):
        one.agent("agent_0")


def test_a_joint_policy_takes_numbers_and_says_how_to_ask_one_agent():
    own = dict.fromkeys(TEAM.agents, np.zeros(16))
    with pytest.raises(RunError, match=r"takes 48 numbers, got .*; of one agent: policy.agent\('agent_0'\)"):
        team_policy()(own)


def test_a_policy_is_refused_for_other_agents():
    with pytest.raises(RunError, match=r"with the agents agent_0, agent_1, agent_2; particle-dance has one agent"):
        team_policy().check(psyco.make("particle-dance"))
    with pytest.raises(
        RunError, match=r"agents agent_0, agent_1, agent_2; particle-dance has the agents agent_0, agent_1"
    ):
        team_policy().check(psyco.make("particle-dance", agents=2))
    with pytest.raises(RunError, match=r"has the agents agent_0, agent_1, agent_2; this is the agent agent_1 of"):
        team_policy().agent("agent_1").check(TEAM)


def test_agents_whose_spaces_differ_do_not_share_a_policy():
    class Uneven:
        name, observation_size, actions = "uneven", 20, GAME.actions
        agent_spaces = TEAM.agent_spaces[0], GAME.agent_spaces[0]

    with pytest.raises(RunError, match=r"agent_0 and runner of uneven differ in their spaces.*use policies='separate'"):
        joint_network_for(Uneven(), hidden=8, bias="learned", policies="shared")


@pytest.mark.parametrize("policies", ["shared", "separate"])
def test_running_statistics_are_shared_by_agents_that_share_a_policy(policies):
    network, x = team_policy(policies).network, observations(48, 200) * 3.0 + 1.0
    stats = observe_rows(empty_stats(48), jnp.asarray(x), jnp.ones(200))
    theta, used = network.init(jax.random.key(0)), shared_stats(network, stats)
    for raw in x[:5]:
        expected = network.scores(theta, normalize_obs(used, jnp.asarray(raw)))
        np.testing.assert_allclose(network.scores(fold(network, theta, stats), raw), expected, atol=1e-5)
    same = np.array_equal(np.asarray(used.mean)[:16], np.asarray(used.mean)[16:32])
    assert same == (policies == "shared")
    if same:  # as of all three observations together
        np.testing.assert_allclose(used.mean[:16], x.reshape(-1, 16).mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(used.variance[:16], x.reshape(-1, 16).var(axis=0), rtol=1e-4)


def test_c_is_written_for_one_agent(tmp_path):
    with pytest.raises(RunError, match=r"that of several agents .*--agent agent_0"):
        psyco.export_c(team_policy(), tmp_path)
    files = psyco.export_c(team_policy(), tmp_path, agent="agent_1")
    assert "#define PSYCO_INPUTS 16" in files[0].read_text()


@pytest.mark.extra("onnx", "onnxruntime")
def test_onnx_is_written_for_one_agent(tmp_path):
    with pytest.raises(RunError, match=r"that of several agents .*--agent agent_0"):
        psyco.export(team_policy(), tmp_path / "team.onnx")
    assert psyco.export(team_policy(), tmp_path / "one.onnx", agent="agent_1") < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policies", "learner"),
    [
        ("shared", "ppo"),
        ("separate", "safe-es"),
        pytest.param("shared", "safe-es", marks=pytest.mark.more),
        pytest.param("separate", "ppo", marks=pytest.mark.more),
    ],
)
def test_learners_learn_joint_policies_and_certificates_name_the_agents(learner, policies):
    settings = psyco.Settings(policies=policies, hidden=8)
    run = psyco.synthesize(
        psyco.make("particle-dance", agents=2, horizon=10), "P>=0.3 [ G distance >= 0.05 ]", learner=learner,
        episodes=400, settings=settings,
    )  # fmt: skip
    start = run.policy.network.init(jax.random.key(0))
    assert run.policy.theta.shape == start.shape and len(run.policy.network.policies) == 1 + (policies == "separate")
    words = "share one policy" if policies == "shared" else "follow 2 policies (agent_0; agent_1)"
    assert any(f"The agents agent_0, agent_1 {words}" in note for note in run.certificate.notes)


def test_compiled_episodes_follow_the_joint_policy():
    policy = team_policy("shared")
    keys = jax.random.split(jax.random.key(5), 4)
    rows = jnp.tile(jnp.asarray(policy.theta), (4, 1))
    signals, length = record_batch(TEAM, policy.network, frozenset({"obs", "action"}), rows, keys)
    assert (length == TEAM.horizon).all()
    for observed, chosen in zip(signals["obs"], signals["action"], strict=True):
        np.testing.assert_allclose(chosen[1:], policy(observed[:-1]), atol=1e-5)  # the action that led to a state


def test_a_joint_network_has_no_memory():
    network = team_policy().network
    with pytest.raises(RunError, match="do not fit a network"):
        replace(network, memory="gru")


@pytest.mark.parametrize("change", [{"policy": 10**12}, {"policy": -1}, {"name": "agent_0"}])
def test_a_file_with_impossible_agents_is_refused_at_once(change):
    network = team_policy().network
    with pytest.raises(RunError, match="a joint network has"):
        replace(network, members=(*network.members[:2], replace(network.members[2], **change)))


def start_from(policy, **settings):
    """Return a prepared run that starts from a joint policy."""
    given = with_initial_policy(psyco.Settings(episodes=200, **settings), policy)
    return prepare(TEAM, parse("P>=0.5 [ G distance >= 0.1 ]"), given, initial_policy=policy)


@pytest.mark.parametrize(("asked", "scaled"), [("running", True), ("sampled", False)])
def test_learning_from_a_joint_policy_keeps_its_normalization(asked, scaled):
    policy = team_policy("shared")
    if scaled:
        policy = replace(policy, network=replace(policy.network, shift=(0.5,) * 48, scale=(2.0,) * 48))
    with pytest.raises(RunError, match=f"normalization = '{asked}' does not fit the joint policy to start from"):
        start_from(policy, learner="ppo", normalization=asked)
    assert initial_normalization(policy, asked, "auto") == "none"  # as `auto` would choose on PettingZoo
    problem = start_from(policy, learner="ppo")
    np.testing.assert_array_equal(initial_parameters(policy, problem.network), policy.theta)


def test_learning_from_a_joint_policy_keeps_who_shares_it():
    separate = team_policy("separate")
    assert start_from(separate).network.sharers == separate.network.sharers
    assert start_from(separate, policies="separate").settings.policies == "separate"
    with pytest.raises(RunError, match=r"policies = 'shared' does not fit .* follow 3 policies .*; leave it out"):
        start_from(separate, policies="shared")


def test_the_monitor_in_c_for_one_agent_knows_the_whole_team(tmp_path):
    require = "for each agent: P>=0.9 [ G agent.distance >= 0.05 ]"
    files = psyco.export_c(team_policy(), tmp_path, requirement=require, agent="agent_1")
    assert "agent_2.distance" in "".join(file.read_text() for file in files)


@pytest.mark.parametrize("bias", ["learned", "one"])
@pytest.mark.parametrize("policies", ["shared", "separate"])
def test_one_agent_is_replaced_and_the_others_act_as_before(policies, bias, tmp_path):
    policy, x = team_policy(policies, bias=bias), observations(48)
    own = Network(16, 2, 5, bias, (0.5,) * 16, (2.0,) * 16)  # other hidden layers, and a normalization
    theta = np.random.default_rng(1).normal(size=own.size).astype(np.float32)
    network, joined = replace_agent(policy.network, policy.theta, 1, own, theta)
    made = replace(policy, network=network, theta=joined)
    made.save(tmp_path / "made.safetensors")
    made = psyco.load_policy(tmp_path / "made.safetensors")
    assert made.network == network
    together, before = made(x), policy(x)
    np.testing.assert_allclose(together[:, [0, 1, 4, 5]], before[:, [0, 1, 4, 5]], atol=1e-6)
    alone = TEAM.agent_spaces[1].actions.decode(np.tanh(own.numpy_scores(theta[None])(x[:, 16:32])))
    np.testing.assert_allclose(together[:, 2:4], alone, atol=1e-6)
    compiled = jax.vmap(lambda row: network.act(TEAM.actions, jnp.asarray(joined), row))(x)
    np.testing.assert_allclose(compiled, together, atol=1e-6)


def test_a_file_names_hidden_units_only_of_agents_with_others_than_the_joint_network():
    assert team_policy().to_bytes().count(b"hidden") == 1
