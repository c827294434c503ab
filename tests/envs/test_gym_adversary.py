"""An adversary in Gymnasium environments: what it changes, what signals show, and that it is learned."""

import dataclasses

import gymnasium
import jax
import numpy as np
import pytest

import psyco
from psyco._src.core.errors import RunError
from psyco._src.envs.gym_adversary import GymAttacked
from psyco._src.envs.variants import Disturbance, mixture_member
from psyco._src.policies.network import Network, network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key
from psyco._src.rollout.sampler import make_sampler
from psyco._src.runs.adversarial_training import mixture_domain
from psyco._src.runs.attack import adversary_domain, attacked_domain

CARTPOLE = psyco.make("CartPole-v1", horizon=30)
PENDULUM = psyco.make("Pendulum-v1", horizon=10)
REQUIREMENT = psyco.parse("P>=0.9 [ G abs(obs[2]) <= 0.1 ] & C>=0.95")


def balancing_policy():
    """It pushes towards the side to which the pole falls: score 1 is x2 + x3 / 2, score 0 its negative."""
    network = Network(4, 2, 1, "learned")
    weights = [np.array([0, 0, 1, 0.5]), np.array([-1, 1]), np.array([10.0]), np.array([10.0, -10.0])]
    return policy_for(CARTPOLE, network, np.concatenate([w.ravel() for w in weights]))


def random_policy(domain, seed):
    network = network_for(domain)
    return policy_for(domain, network, network.init(jax.random.key(seed)))


def play(domain, policy, count=3, requirement="P>=0.9 [ G obs[0] <= 9 ]"):
    sampler = make_sampler(domain, policy.network, psyco.parse(requirement))
    seeds = list(range(count))
    theta = np.broadcast_to(policy.theta, (count, policy.theta.size))
    return seeds, sampler.record(theta, seeds, frozenset({"obs", "action", "reward"}))


def step_by_hand(domain, seed, choose):
    """Signals of an episode in which `choose` maps an observation to an argument of `step`."""
    env = gymnasium.make(domain.name, max_episode_steps=domain.horizon)
    obs, _ = env.reset(seed=seed)
    seen, actions, ended = [obs], [], False
    while not ended:
        actions.append(choose(obs.astype(np.float32)))
        obs, _, terminated, truncated, _ = env.step(actions[-1])
        seen.append(obs)
        ended = terminated or truncated
    return np.array(seen), np.array(actions)


def test_a_disturbed_observation_changes_the_action_and_not_the_signal():
    policy, size = balancing_policy(), Disturbance("obs", 0.2)
    adversary = random_policy(adversary_domain(policy, CARTPOLE, size), 1)
    attacked = attacked_domain(CARTPOLE, size, adversary)
    seeds, paths = play(attacked, policy)
    for seed, path in zip(seeds, paths, strict=True):
        obs, actions = step_by_hand(CARTPOLE, seed, lambda x: int(policy(x + np.float32(0.2) * adversary(x))))
        assert np.array_equal(path["obs"], obs)
        assert np.array_equal(path["action"][1:], actions)
    assert not np.array_equal(paths[0]["obs"], play(CARTPOLE, policy)[1][0]["obs"])


def test_a_disturbed_action_stays_within_its_bound_and_range():
    policy, size = random_policy(PENDULUM, 0), Disturbance("action", 0.5)
    adversary = random_policy(adversary_domain(policy, PENDULUM, size), 1)
    seeds, paths = play(attacked_domain(PENDULUM, size, adversary), policy)

    def choose(x):
        own = policy(x)
        return np.clip(own + np.float32(0.5) * adversary(np.concatenate([x, own / np.float32(2.0)])), -2.0, 2.0)

    for seed, path in zip(seeds, paths, strict=True):
        obs, actions = step_by_hand(PENDULUM, seed, choose)
        assert np.allclose(path["obs"], obs, atol=1e-6)
        assert np.allclose(path["action"][1:, 0], actions[:, 0], atol=1e-6)
        change = np.abs(actions - np.array([policy(x.astype(np.float32)) for x in obs[:-1]]))
        assert 0 < change.max() <= 0.5 + 1e-6


@pytest.mark.parametrize(
    ("base", "given"), [(CARTPOLE, Disturbance("obs", 0.2)), (PENDULUM, Disturbance("action", 0.5))]
)
def test_policy_against_adversary_and_adversary_against_policy_are_the_same_episodes(base, given):
    policy = random_policy(base, 0)
    domain = adversary_domain(policy, base, given)
    adversary = random_policy(domain, 1)
    _, one = play(domain, adversary)
    _, other = play(attacked_domain(base, given, adversary), policy)
    for first, second in zip(one, other, strict=True):
        assert np.array_equal(first["obs"], second["obs"])
        assert np.array_equal(first["action"], second["action"])


def test_learners_see_what_the_actor_saw():
    policy, size = random_policy(PENDULUM, 0), Disturbance("action", 0.5)
    domain = adversary_domain(policy, PENDULUM, size)
    adversary = random_policy(domain, 1)
    sampler = make_sampler(domain, adversary.network, psyco.parse("P>=0.9 [ G obs[0] <= 9 ]"), with_obs_stats=True)
    keys = episode_keys(stream_key(0, Stream.TRAIN), 0, 2)
    theta = np.broadcast_to(adversary.theta, (2, adversary.theta.size))
    trace = sampler.explore(theta, np.zeros((2, 1), np.float32), keys).trace
    assert trace.obs.shape == (2, 10, 4)  # three numbers, and the action of the policy
    assert np.allclose(trace.obs[0, :, 3], policy(trace.obs[0, :, :3])[:, 0] / 2.0, atol=1e-6)
    assert sampler(theta, keys).obs_stats.mean.shape == (2, 4)


def test_an_episode_of_a_mixture_is_that_of_the_adversary_that_its_seed_names():
    policy, size = balancing_policy(), Disturbance("obs", 0.2)
    where = adversary_domain(policy, CARTPOLE, size)
    adversaries = [random_policy(where, seed) for seed in range(3)]
    mixture = mixture_domain(CARTPOLE, size, adversaries)
    assert isinstance(mixture, GymAttacked)
    alone = [play(attacked_domain(CARTPOLE, size, each), policy, 12)[1] for each in adversaries]
    members = set()
    for seed, path in enumerate(play(mixture, policy, 12)[1]):
        same = [i for i in range(3) if np.array_equal(path["obs"], alone[i][seed]["obs"])]
        assert same
        members.update(same)
    assert members == {0, 1, 2}


def test_the_newest_of_several_adversaries_acts_in_half_of_the_episodes():
    drawn = [mixture_member(u, 3) for u in np.linspace(0, 1, 400, endpoint=False)]
    assert np.bincount(drawn).tolist() == [100, 100, 200]
    assert mixture_member(0.9, 1) == 0


@pytest.mark.more  # learns
@pytest.mark.parametrize(("learner", "episodes"), [("safe-es", 200), ("sac", 600)])
def test_an_adversary_of_observations_is_learned_and_certified(learner, episodes):
    policy = balancing_policy()
    plain = psyco.verify(policy, CARTPOLE, REQUIREMENT, max_episodes=400)
    found = psyco.attack(
        policy,
        CARTPOLE,
        REQUIREMENT,
        adversary="obs:0.15",
        learner=learner,
        episodes=episodes,
        max_episodes=200,
        seed=1,
    )
    assert plain.verdict.name == "SATISFIED"
    assert found.verdict.name == "VIOLATED"
    assert "changes each number of an observation by at most 0.15" in found.certificate.guarantee.statement
    assert psyco.replay(found.certificate, policy, adversary=found.adversary).matches


def test_what_an_adversary_cannot_do_is_an_error():
    policy = balancing_policy()
    with pytest.raises(RunError, match="leave out exact"):
        psyco.attack(policy, CARTPOLE, REQUIREMENT, adversary="obs:0.1", learner="safe-es", episodes=4, exact=True)
    with pytest.raises(RunError, match="learned against a PSyCo policy"):
        psyco.attack(lambda obs: 0, CARTPOLE, REQUIREMENT, adversary="obs:0.1")
    attacked = attacked_domain(
        CARTPOLE, Disturbance("obs", 0.1), random_policy(adversary_domain(policy, CARTPOLE, Disturbance("obs", 0.1)), 0)
    )
    assert dataclasses.asdict(attacked.disturbance) == {"kind": "obs", "size": 0.1}
    with pytest.raises(psyco.DomainError, match="has an adversary already"):
        adversary_domain(policy, attacked, Disturbance("obs", 0.1))
