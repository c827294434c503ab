"""One agent of several deviates: it acts for itself, and the others follow their policies."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.core.errors import DomainError, RunError
from psyco._src.envs.deviation import check_deviation
from psyco._src.envs.obstacle_run import MOVES
from psyco._src.envs.variants import Deviation
from psyco._src.exact.solver import best_probability, evaluate
from psyco._src.exact.unfold import policy_actions, unfold
from psyco._src.logic.ast import Requirement
from psyco._src.policies.joint_network import joint_network_for
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.episodes import episode_keys
from psyco._src.rollout.sampler import make_sampler
from psyco._src.runs.best_response import deviated_domain, measure_gain, response_domain, with_response

HORIZON = 5
GAME = psyco.make("obstacle-run", opponent=True, grid=3, horizon=HORIZON)
TEAM = psyco.make("particle-dance", agents=3, horizon=6)
VIOLATED = psyco.parse_formula("!(G (!caught | collisions <= 1))")
OPPONENT = Deviation("opponent")


def joint_policy(domain, seed, policies="separate"):
    network = joint_network_for(domain, hidden=8, bias="learned", policies=policies)
    return policy_for(domain, network, network.init(jax.random.key(seed)))


def response(policy, domain, deviation, seed, hidden=12):
    """A random response of the agent, in the joint policy."""
    where = response_domain(policy, domain, deviation)
    network = network_for(where, hidden=hidden, bias="learned")
    return with_response(policy, deviation, policy_for(where, network, network.init(jax.random.key(seed))))


@pytest.mark.parametrize("policies", ["shared", "separate"])
def test_the_agent_acts_and_the_others_follow_their_policies(policies):
    policy, deviation = joint_policy(TEAM, 0, policies), Deviation("agent_1")
    where = response_domain(policy, TEAM, deviation)
    state = TEAM.reset(jax.random.key(1))
    seen, own = TEAM.observe(state), jnp.array([0.02, -0.01])
    assert np.array_equal(where.observe(state), seen[where.observation_size : 2 * where.observation_size])
    wanted = np.array(policy(np.asarray(seen)))
    wanted[2:4] = own
    push = TEAM.draw(jax.random.key(2))[0]
    for one, other in zip(
        jax.tree.leaves(where.step(push, state, own)), jax.tree.leaves(TEAM.step(push, state, wanted)), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-6)


def play(domain, policy, count=64):
    requirement = psyco.parse("P>=0.5 [ G distance >= 0.1 ]")
    keys = episode_keys(jax.random.key(0), 0, count)
    sampler = make_sampler(domain, policy.network, requirement)
    return jax.jit(sampler)(jnp.tile(policy.theta, (count, 1)), keys)


def test_who_deviates_to_what_its_policy_says_changes_nothing():
    policy = joint_policy(TEAM, 0)
    for one, other in zip(
        jax.tree.leaves(play(TEAM, policy)),
        jax.tree.leaves(play(deviated_domain(TEAM, Deviation("agent_1"), policy), policy)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_policy_against_the_response_and_the_joint_policy_with_it_are_the_same_episodes():
    policy, deviation = joint_policy(TEAM, 0, "shared"), Deviation("agent_1")
    joined = response(policy, TEAM, deviation, 5)
    against = play(deviated_domain(TEAM, deviation, joined), policy).returns
    np.testing.assert_allclose(against, play(TEAM, joined).returns, atol=1e-4)
    assert (np.abs(against - play(TEAM, policy).returns) > 0.01).mean() > 0.9


def test_of_several_responses_an_episode_has_one_and_half_of_the_episodes_the_last():
    policy, deviation = joint_policy(TEAM, 0), Deviation("agent_1")
    responses = [response(policy, TEAM, deviation, seed) for seed in range(3)]
    domain = deviated_domain(TEAM, deviation, *responses)
    states = jax.vmap(domain.reset)(jax.random.split(jax.random.key(0), 4000))
    # A share of 4,000 is off by more than 0.04 with probability below 1e-6.
    assert np.bincount(states.member) / 4000 == pytest.approx([0.25, 0.25, 0.5], abs=0.04)
    state = jax.tree.map(lambda x: x[0], states)
    push, action = TEAM.draw(jax.random.key(2))[0], jnp.zeros(6)
    after, *_ = domain.step(push, state, action)
    alone, *_ = deviated_domain(TEAM, deviation, responses[int(state.member)]).step(push, state.own, action)
    assert int(after.member) == int(state.member)
    for one, other in zip(jax.tree.leaves(after.own), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


PLACES = list(itertools.product(range(3), repeat=2))
MOVE = {(place, m): tuple(np.clip(np.add(place, MOVES[m]), 0, 2).tolist()) for place in PLACES for m in range(5)}


@pytest.mark.slow  # enumerates
def test_the_best_response_is_that_of_value_iteration_by_definition():
    policy = joint_policy(GAME, 1)
    runner = policy.agent("runner")
    action = {(r, o): int(runner(np.array([*r, *o], np.float32))) for r in PLACES for o in PLACES}
    value = {(r, o, c): float(c >= 2) for r in PLACES for o in PLACES for c in range(3)}

    def after(r, o, c, m):
        r, o = MOVE[r, action[r, o]], MOVE[o, m]
        c = min(c + (r == o), 2)
        return float(c >= 2) if r == (0, 0) else value[r, o, c]

    for _ in range(HORIZON):
        value = {(r, o, c): 1.0 if c >= 2 else max(after(r, o, c, m) for m in range(5)) for r, o, c in value}
    wanted = np.mean([value[r, o, 0] for r in PLACES for o in PLACES])
    where = response_domain(policy, GAME, OPPONENT)
    assert best_probability(where, VIOLATED) == pytest.approx(wanted, abs=1e-9)
    joined = response(policy, GAME, OPPONENT, 3)
    learned, same = (
        evaluate(unfold(domain, [VIOLATED], policy_actions(actor, domain))).probabilities[0]
        for domain, actor in ((deviated_domain(GAME, OPPONENT, joined), policy), (GAME, joined))
    )
    assert learned == pytest.approx(same, abs=1e-12)
    assert learned <= wanted


@dataclass(frozen=True)
class Tug:
    """One step: who chooses 1 gains 1, and the other loses 3."""

    horizon: int = 1
    name: ClassVar[str] = "tug"
    agents: ClassVar[tuple[str, ...]] = ("left", "right")
    actions: ClassVar = psyco.Discrete(2)
    observation_size: ClassVar[int] = 1

    def reset(self, key):
        return jnp.float32(0.0)

    def step(self, key, x, action):
        pulls = action.astype(jnp.float32)
        return x, pulls - 3.0 * pulls[::-1], False

    def observe(self, x):
        return jnp.zeros((2, 1))

    def signals(self, x):
        return {"x": x}


def test_an_agent_with_a_reward_of_its_own_gains_that_and_not_the_teams():
    domain = psyco.make(Tug)
    network = joint_network_for(domain, hidden=2, bias="learned", policies="separate")
    still = policy_for(domain, network, np.zeros(network.size, np.float32))  # of equal scores the first
    selfish = Deviation("left", "return")
    where = response_domain(still, domain, selfish)
    own = network_for(where, hidden=2, bias="learned")
    pulls = np.zeros(own.size, np.float32)
    pulls[-1] = 1.0  # the bias of the second action
    joined = with_response(still, selfish, policy_for(where, own, pulls))
    gain = measure_gain(still, domain, selfish, joined, seed=0)
    assert (gain.before, gain.after, gain.difference, gain.lower, gain.upper) == (0.0, 1.0, 1.0, 1.0, 1.0)
    sampler = make_sampler(domain, joined.network, Requirement())
    assert sampler(joined.theta[None], episode_keys(jax.random.key(0), 0, 1)).returns.tolist() == [-2.0]


@pytest.mark.parametrize(
    ("domain", "agent", "words"),
    [
        (GAME, "oponent", r"no agent 'oponent' \(did you mean 'opponent'\?\); its agents are: runner, opponent"),
        (
            psyco.make("particle-dance"),
            "agent_0",
            "particle-dance has one agent, and an agent deviates where there are",
        ),
        (psyco.make("CartPole-v1"), "agent_0", "has one agent"),
    ],
)
def test_a_domain_without_that_agent_is_an_error(domain, agent, words):
    with pytest.raises((DomainError, RunError), match=words):
        check_deviation(domain, Deviation(agent))


@pytest.mark.extra("mpe2")
def test_an_environment_of_pettingzoo_is_refused():
    with pytest.raises(DomainError, match="is stepped by PettingZoo, and a best response is learned in compiled"):
        check_deviation(psyco.make("pettingzoo:mpe2.simple_spread_v3"), Deviation("agent_0"))


def test_a_deviated_domain_has_no_second_deviation():
    policy = joint_policy(GAME, 0)
    with pytest.raises(DomainError, match="deviates already"):
        check_deviation(deviated_domain(GAME, OPPONENT, policy), Deviation("runner"))


def test_a_goal_that_is_none_names_those_there_are():
    with pytest.raises(RunError, match=r"for violation or return, got 'violations' \(did you mean 'violation'\?\)"):
        Deviation("opponent", "violations")
