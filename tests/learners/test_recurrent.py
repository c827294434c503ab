"""Policies with a memory: learned where nothing else suffices, the same wherever they run, and refused elsewhere."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco import runtime
from psyco._src.core.errors import RunError
from psyco._src.envs.actions import Discrete
from psyco._src.envs.base import parameters
from psyco._src.policies.c_export import c_files
from psyco._src.policies.network import Network, network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.episodes import episode_keys
from psyco._src.rollout.record import record_episodes
from tests.environments import Cue, HiddenWalk
from tests.making import prepared, stopped_and_resumed

ALWAYS = "P>=0.5 [ G (step >= 0) ]"
NEAR = "P>=0.6 [ G (abs(obs[0]) <= 2.9) ] & C>=0.8"
SMALL = {"memory": "gru", "hidden": 8, "candidates": 1, "verify_every": 0, "learner": "ppo", "critic_hidden": 8}
QUICK = psyco.Settings(memory="gru", hidden=4, learner=psyco.PPO(critic_hidden=4), candidates=1, max_episodes=20)


def by_definition(network: Network, theta, path):
    """The scores along a path, by the equations of gated recurrent units, in float64."""
    w, u, w2, b, b2 = (part.astype(np.float64) for part in network.unflatten(theta))
    units, scores = network.memory_size, []
    h = np.zeros(units)
    logistic = lambda x: 1.0 / (1.0 + np.exp(-x))  # noqa: E731
    for x in path:
        inner, again = x @ w + b, u @ h
        z, r = (logistic(inner[i * units : (i + 1) * units] + again[i * units : (i + 1) * units]) for i in (0, 1))
        n = np.tanh(inner[2 * units :] + r * again[2 * units :])
        h = (1.0 - z) * n + z * h
        scores.append(w2 @ h + b2)
    return np.array(scores)


def test_scores_are_those_of_the_equations_compiled_and_in_numpy() -> None:
    network = Network(3, 2, 5, "learned", memory="gru")
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(4, network.size)).astype(np.float32)
    path = rng.normal(size=(6, 4, 3)).astype(np.float32)
    wanted = [by_definition(network, theta[i], path[:, i]) for i in range(4)]
    scores, memory = network.numpy_scores(theta), np.zeros((4, 5), np.float32)
    ours = [scores(x, memory) for x in path]
    np.testing.assert_allclose(np.stack(ours, axis=1), wanted, rtol=0, atol=2e-5)
    # A row does not see its neighbours.
    alone, memory = network.numpy_scores(theta[2:3]), np.zeros((1, 5), np.float32)
    np.testing.assert_array_equal([alone(x[2:3], memory)[0] for x in path], [y[2] for y in ours])
    layers, compiled = network.unflatten(jnp.asarray(theta[1])), network.empty_memory()
    for x, y in zip(path[:, 1], wanted[1], strict=True):
        found, compiled = network.scores_and_memory(layers, jnp.asarray(x), compiled)
        np.testing.assert_allclose(found, y, rtol=0, atol=2e-5)


@pytest.mark.extra("torch")
def test_the_units_are_those_of_torch() -> None:
    import torch

    network = Network(3, 5, 5, "learned", memory="gru")
    theta = np.random.default_rng(0).normal(size=network.size).astype(np.float32)
    w, u, _, b, _ = network.unflatten(theta)
    theirs = torch.nn.GRU(3, 5, batch_first=True)
    order = np.r_[5:10, 0:5, 10:15]  # r, z, n
    with torch.no_grad():
        for name, value in {"weight_ih": w.T, "weight_hh": u, "bias_ih": b, "bias_hh": 0 * b}.items():
            getattr(theirs, f"{name}_l0").copy_(torch.from_numpy(value[order].copy()))
    path = np.random.default_rng(1).normal(size=(7, 3)).astype(np.float32)
    scores, memory = network.numpy_scores(theta[None]), np.zeros((1, 5), np.float32)
    for x, h in zip(path, theirs(torch.from_numpy(path[None]))[0][0].detach().numpy(), strict=True):
        scores(x[None], memory)
        np.testing.assert_allclose(memory[0], h, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_ppo_learns_what_needs_a_memory() -> None:
    learner = psyco.PPO(critic_hidden=8, learning_rate=0.01)
    settings = psyco.Settings(learner=learner, memory="gru", hidden=8, candidates=1, verify_every=0, max_episodes=100)
    found = psyco.synthesize(Cue(), ALWAYS, settings=settings, episodes=1500)
    assert found.certificate.mean_return > 0.8 * Cue().horizon  # at most 1 without a memory
    assert found.policy.network.memory == "gru"


@pytest.mark.slow
@pytest.mark.more
def test_sequences_begin_with_the_memory_of_the_policy_that_played() -> None:
    """Scores recomputed from sequences are those along the whole episode, also where episodes end early."""
    problem = prepared(psyco.make(HiddenWalk, horizon=11), ALWAYS, **SMALL, episodes=40, sequence_length=4)
    learner, state = problem.learner, problem.learner.init(problem.network.init(jax.random.key(0)))
    proposal = learner.propose(jax.random.key(1), state)
    episodes = problem.sampler.explore(
        proposal.theta, proposal.std, episode_keys(jax.random.key(2), 0, learner.episodes_per_generation)
    )
    assert len(set(episodes.length.tolist())) > 1
    trace = jax.tree.map(lambda x: jnp.asarray(x)[: learner.population], episodes.trace)
    batch = learner._evaluate(state, trace, jnp.ones(1), proposal.std[0]).batch
    assert batch.obs.shape == (3 * learner.population, 4, 2)
    cut, _ = learner._recall(state.theta, batch.obs, batch.memory)
    whole, _ = learner._recall(state.theta, trace.obs, jnp.zeros((learner.population, 8)))
    np.testing.assert_allclose(cut.reshape(learner.population, 12, -1)[:, :11], whole, rtol=0, atol=1e-6)
    assert batch.alive.sum() == trace.alive.sum() and float(jnp.abs(batch.memory[1::3]).max()) > 0


def test_a_memory_ends_with_its_episode_and_is_of_one_episode() -> None:
    domain = psyco.make(HiddenWalk, horizon=11)
    network = network_for(domain, hidden=4, bias="learned", memory="gru")
    theta = 3 * np.random.default_rng(0).normal(size=network.size).astype(np.float32)
    policy = policy_for(domain, network, theta)
    together = record_episodes(domain, policy, seed=0, count=6)
    assert len({len(path["step"]) for path in together}) > 1  # some end early, and rows move up
    for i, path in enumerate(together):
        (alone,) = record_episodes(domain, policy, seed=0, first=i, count=1)
        assert {name: values.tobytes() for name, values in path.items()} == {
            name: values.tobytes() for name, values in alone.items()
        }
        running = policy.begin()
        assert [int(running.act(obs)) for obs in path["obs"][:-1]] == path["action"][1:].tolist()


def test_a_file_acts_with_numpy_as_in_compiled_episodes(tmp_path: Path) -> None:
    domain = psyco.make("particle-dance", velocities=False, horizon=10)
    network = network_for(domain, hidden=4, bias="learned", memory="gru")
    made = policy_for(domain, network, np.random.default_rng(0).normal(size=network.size))
    made.save(tmp_path / "policy")
    policy = runtime.load_policy(tmp_path / "policy")
    assert policy.digest == made.digest and policy.network == network
    for path in record_episodes(domain, policy, seed=0, count=2):
        running = policy.begin()
        chosen = [running.act(obs) for obs in path["obs"][:-1]]
        np.testing.assert_allclose(chosen, path["action"][1:], rtol=0, atol=1e-6)
    guard = psyco.Guard(policy, policy, "P>=0.5 [ G (collisions <= 1) ]", counters=["collisions"])
    for _ in range(2):  # every episode begins without a memory
        guard.reset()
        again = [guard.act(obs, {"collisions": 0}) for obs in path["obs"][:-1]]
        np.testing.assert_array_equal(again, chosen)
    with pytest.raises(RunError, match=r"has a memory: .* Ask policy.begin\(\)"):
        policy(path["obs"][0])
    with pytest.raises(RunError, match="one observation at a time"):
        policy.begin().act(path["obs"])


def test_velocities_are_hidden_and_files_of_the_full_dance_stay_as_they_were() -> None:
    full, hidden = psyco.make("particle-dance"), psyco.make("particle-dance", velocities=False)
    assert "velocities" not in parameters(full) and parameters(hidden)["velocities"] is False
    state = full.reset(jax.random.key(0))
    np.testing.assert_array_equal(full.observe(state)[:4], hidden.observe(state))


@pytest.mark.extra("onnx", "onnxruntime")
@pytest.mark.parametrize("actions", [psyco.Continuous((-1.0, 0.0), (1.0, 5.0)), Discrete(3)])
def test_an_onnx_file_carries_the_memory(actions, tmp_path: Path) -> None:
    import onnxruntime

    for hidden, scale in (6, ()), ((6, 5), (3.0, 0.5, 2.0)):
        network = Network(3, actions.outputs, hidden, "learned", (1.0,) * len(scale), scale, memory="gru")
        theta = np.random.default_rng(0).normal(size=network.size).astype(np.float32)
        policy = psyco.Policy(theta, network, actions, "somewhere", {})
        assert psyco.export(policy, tmp_path / "p.onnx") <= 2e-5
        session, running = onnxruntime.InferenceSession(tmp_path / "p.onnx"), policy.begin()
        memory = np.zeros((1, 6), np.float32)
        for x in np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32):
            action, memory = session.run(None, {"observation": x[None], "memory": memory})
            np.testing.assert_allclose(action[0], running.act(x), rtol=0, atol=2e-5)


@pytest.mark.extra("onnx", "onnxruntime")
def test_an_onnx_file_with_a_memory_is_verified_as_the_policy_is(tmp_path: Path) -> None:
    domain = psyco.make(HiddenWalk, horizon=11)
    network = network_for(domain, hidden=4, bias="learned", memory="gru")
    policy = policy_for(domain, network, 3 * np.random.default_rng(0).normal(size=network.size))
    psyco.export(policy, tmp_path / "p.onnx")
    ours, theirs = (psyco.verify(each, domain, NEAR, max_episodes=70) for each in (policy, tmp_path / "p.onnx"))
    assert (ours.mean_return, ours.verdict) == (theirs.mean_return, theirs.verdict)


@pytest.mark.more
def test_a_run_resumes_to_the_same_bytes_on_any_number_of_workers(tmp_path: Path) -> None:
    domain = psyco.make(HiddenWalk, horizon=11)
    whole = psyco.synthesize(domain, NEAR, settings=QUICK, episodes=60)
    pool = psyco.synthesize(domain, NEAR, settings=QUICK, episodes=60, execution=psyco.Execution(workers=2))
    assert pool.policy.digest == whole.policy.digest
    resumed = stopped_and_resumed(
        domain, NEAR, tmp_path, settings=QUICK, episodes=60, trust=["tests.environments:HiddenWalk"]
    )
    assert resumed.policy.digest == whole.policy.digest


@pytest.mark.more
def test_commands_work_with_a_memory(cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    cli("synthesize", "particle-dance", "--set", "velocities=false", "--set", "horizon=10", "--memory", "gru",
        "--require", "P>=0.9 [ G (distance >= 0.5) ]", "--episodes", 40, "--hidden", 4, "--max-episodes", 40,
        "--out", run, "--quiet")  # fmt: skip
    assert (run / "policy.safetensors").exists()
    for words in (
        ("verify", run, "--max-episodes", 40),
        ("counterexamples", run),
        ("report", run),
        ("verify", "--replay", run / "certificate.json", run / "policy.safetensors"),
    ):
        assert cli(*words).status in (0, 1, 3), words


@pytest.mark.parametrize("learner", ["safe-es", "snes", "sac", "table"])
def test_learners_without_a_memory_say_so(learner: str) -> None:
    with pytest.raises(
        RunError, match=r"learns policies without a memory; --memory gru needs ppo|has no hidden layers"
    ):
        prepared(Cue(), ALWAYS, memory="gru", learner=learner)


def test_auto_chooses_ppo_for_a_memory_and_biases_are_learned() -> None:
    problem = prepared(Cue(), ALWAYS, memory="gru", episodes=100)
    assert problem.settings.learner == "ppo" and problem.network.recurrent and problem.network.bias == "learned"
    with pytest.raises(RunError, match="learned biases"):
        prepared(Cue(), ALWAYS, memory="gru", learner="ppo", bias="one")
    with pytest.raises(RunError, match="memory"):
        prepared(Cue(), ALWAYS, memory="lstm")


def test_what_needs_the_current_observation_alone_refuses_a_memory() -> None:
    domain = psyco.make("obstacle-run")
    network = network_for(domain, hidden=4, bias="learned", memory="gru")
    policy = policy_for(domain, network, np.zeros(network.size))
    with pytest.raises(RunError, match="this policy has a memory; exact answers"):
        psyco.exact(policy, domain, domain.requirement)
    with pytest.raises(RunError, match="a policy with a memory is not exported as C"):
        c_files(policy)
    with pytest.raises(RunError, match="an adversary of a compiled domain"):
        psyco.attack(policy, domain, domain.requirement, adversary=0.2, episodes=10)


def test_a_mask_takes_no_part_in_the_memory() -> None:
    network = Network(5, 3, 4, "learned", masked=True, memory="gru")
    theta = np.random.default_rng(0).normal(size=network.size).astype(np.float32)
    scores, memories = network.numpy_scores(theta[None]), np.zeros((2, 1, 4), np.float32)
    x = np.array([[0.3, -1.0, 1, 0, 1], [0.3, -1.0, 0, 1, 1]], np.float32)
    one, two = (scores(row[None], memory)[0] for row, memory in zip(x, memories, strict=True))
    np.testing.assert_array_equal(memories[0], memories[1])
    assert one[1] == two[0] == np.float32(-1e30) and one[2] == two[2]
