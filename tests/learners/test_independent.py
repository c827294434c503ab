"""Independent learners: each sees what is its agent's, and learns although another one has no way to succeed."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.core.errors import RunError
from psyco._src.learners.belief import double_precision
from psyco._src.learners.expectation_constraints import expectation_bounds
from psyco._src.learners.independent import AgentTask, IndependentLearner, agent_tasks
from psyco._src.learners.loop import run_generations, train
from psyco._src.learners.running_stats import NormalizedLearner
from psyco._src.logic.quantifiers import make_team, write_out
from psyco._src.policies.joint_network import joint_network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.runs.problem import prepare
from psyco._src.runs.settings import Settings
from psyco._src.runs.warm_start import with_initial_policy
from tests.envs.test_team_env import Race

TEAM = psyco.make("particle-dance", agents=3, horizon=6)
EACH = "for each agent: P>=0.6 [ G (agent.nearest >= 0.05) ]; P>=0.7 [ G (distance >= 0.05) ]; R{reward}>=-30 [ C ]"


def problem(require=EACH, learner="safe-es", domain=TEAM, **settings):
    options = {"hidden": 4, "episodes": 600} | settings
    requirement = write_out(psyco.parse(require), make_team(domain.agents, None), domain.name)
    return prepare(domain, requirement, Settings(learner=learner, learning="independent", **options))


def independent(found) -> IndependentLearner:
    inner = found.wrapped_learner.inner
    return inner.inner if isinstance(inner, NormalizedLearner) else inner


def test_constraints_that_name_one_agent_are_its_own_and_all_others_common():
    found = problem()
    assert [task.constraints for task in independent(found).tasks] == [(0, 3, 4), (1, 3, 4), (2, 3, 4)]
    # Returns of agents follow the one measured value.
    assert [task.own_return for task in independent(found).tasks] == [1, 2, 3]
    mixed = psyco.parse(
        "P>=0.5 [ F (agent_0.nearest <= agent_1.nearest) ]; P>=0.5 [ F agent_0.nearest <= distance ];"
        "P>=0.5 [ F (agent_2.nearest <= 1 & step >= 3) ]; R{agent_1.reward}>=-9 [ C ]"
    )
    bounds = expectation_bounds(mixed, TEAM)
    assert [task.constraints for task in agent_tasks(mixed, bounds, TEAM)] == [(0, 1), (0, 1, 3), (0, 1, 2)]
    game = psyco.make("obstacle-run", opponent=True)
    assert agent_tasks(psyco.parse("P>=0.5 [ F caught ]"), (), game) == (AgentTask((0,), None),) * 2


def test_a_learner_has_the_network_the_bounds_and_the_options_of_its_agent():
    learner = independent(problem("for each agent: P>=0.6 [ F agent.nearest >= 1 ] & C>=0.9"))
    for own, member in zip(learner.learners, learner.network.members, strict=True):
        task = own.known_task
        assert (task.p_req, task.c_req, task.conjuncts) == ((0.6,), (0.9,), (0,))
        assert (task.network.inputs, task.network.outputs, task.actions) == (16, 2, member.actions)
        assert own.population == learner.joint.population and own.belief_window == learner.joint.belief_window


@pytest.mark.more
@pytest.mark.parametrize("how", ["safe-es", "ppo"])
def test_an_agent_sees_its_own_return_costs_observations_and_noise(how):
    found = problem(learner=how, options={"hold": 2} if how == "ppo" else {})
    learner = independent(found)
    state = learner.init(found.network.init(jax.random.key(0)))
    proposal = learner.propose(jax.random.key(1), state)
    keys = jax.random.split(jax.random.key(2), learner.episodes_per_generation)
    explores = proposal.std is not None
    episodes = (
        found.training_sampler.explore(proposal.theta, proposal.std, keys, proposal.hold)
        if explores
        else found.training_sampler(proposal.theta, keys)
    )
    seen = [learner.seen_by(i, episodes) for i in range(3)]
    np.testing.assert_allclose(sum(each.returns for each in seen), episodes.returns, rtol=1e-5)
    assert abs(seen[0].returns - seen[1].returns).max() > 0.1
    for i, each in enumerate(seen):
        np.testing.assert_array_equal(each.satisfied, np.asarray(episodes.satisfied)[:, [i, 3]])
        np.testing.assert_array_equal(each.cost, np.asarray(episodes.cost)[:, [i, 3]])
        if explores:
            whole = episodes.trace
            np.testing.assert_allclose(each.trace.reward.sum(axis=1), each.returns, rtol=1e-5)
            np.testing.assert_array_equal(each.trace.cost, whole.cost[..., [i, 3]])
            np.testing.assert_array_equal(each.trace.obs, whole.obs[..., 16 * i : 16 * i + 16])
            np.testing.assert_array_equal(each.trace.final_obs, whole.final_obs[..., 16 * i : 16 * i + 16])
            np.testing.assert_array_equal(each.trace.noise, whole.noise[..., 2 * i : 2 * i + 2])
    # What an update learns is what a single learner would have learned from what it sees.
    with double_precision():
        after, info = learner.update(state, proposal, episodes)
        alone = [  # noise is held in common episodes
            own.update(before, tried._replace(hold=proposal.hold), each)
            for own, before, tried, each in zip(learner.learners, state.agents, proposal.memo, seen, strict=True)
        ]
    for one, (other, _) in zip(after.agents, alone, strict=True):
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(a, b)
    own = [each.c_sat for _, each in alone]
    np.testing.assert_allclose(info.c_sat, [own[0][0], own[1][0], own[2][0], own[0][1], own[0][2]])
    assert float(info.lam) == min(float(each.lam) for _, each in alone)
    parts = [each.theta for each in after.agents]
    np.testing.assert_array_equal(learner.deployed(after), jnp.concatenate(parts))


def test_agents_explore_by_themselves_and_check_together():
    found = problem()
    learner = independent(found)
    theta = found.network.init(jax.random.key(0))
    proposal = learner.propose(jax.random.key(1), learner.init(theta))
    noise = [(np.asarray(proposal.theta) - theta)[:, place] for place in found.network.policy_places]
    assert (noise[0] != noise[1]).any() and all(np.ptp(each, axis=0).min() > 0 for each in noise)
    np.testing.assert_array_equal(proposal.theta[-learner.checks :], np.tile(theta, (learner.checks, 1)))
    assert len(np.unique(proposal.episode[-learner.checks :])) == learner.checks


@pytest.mark.more
def test_agents_of_a_parallel_environment_learn_from_their_own_rewards():
    """Each is paid 1 for every step that it takes part in: 2, 4 and 5; the team 11."""
    race, played = psyco.make(Race, horizon=8), []
    requirement = write_out(
        psyco.parse("for each red: P>=0.5 [ F red.info.cost >= 8 ]"), make_team(race.agents, race.groups), ""
    )
    settings = Settings(
        learner="ppo", learning="independent", hidden=4, episodes=60, verify_every=0, options={"population": 8}
    )
    found = prepare(race, requirement, settings)
    learner = independent(found)
    assert [task.constraints for task in learner.tasks] == [(0,), (1,), ()]
    start = found.wrapped_learner.init(found.network.init(jax.random.key(1)))
    for _, rows in run_generations(
        found.wrapped_learner, found.training_sampler, jax.random.key(2), start, first=0, generations=2
    ):
        played.append(rows.episodes)
        one = jax.tree.map(lambda column: column[0], rows.episodes)
        assert [set(np.asarray(learner.seen_by(i, one).returns).tolist()) for i in range(3)] == [{2.0}, {4.0}, {5.0}]
        assert set(one.returns.tolist()) == {11.0} and found.as_measured(rows.episodes).value is None
    assert len(played) == 2


@dataclass(frozen=True)
class Lanes:
    """Two walkers on lanes of their own: each is rewarded for its place; the luck of `left` is no matter of skill."""

    horizon: int = 3
    name: ClassVar[str] = "lanes"
    agents: ClassVar[tuple[str, ...]] = ("left", "right")
    actions: ClassVar = psyco.Continuous((-1.0,), (1.0,))
    observation_size: ClassVar[int] = 1

    def reset(self, key):
        return jnp.zeros(2), 3 * jax.random.uniform(key)

    def step(self, key, state, action):
        x = state[0] + action[:, 0]
        return (x, state[1]), x, False

    def observe(self, state):
        return jnp.ones((2, 1))

    def signals(self, state):
        return {"left.luck": state[1], "right.x": state[0][1]}


@pytest.mark.more
def test_an_agent_learns_its_task_although_another_one_cannot():
    """Joint learning has one λ for all: what `left` cannot keep takes the weight from the return of `right`.

    The costs of episodes differ, or λ would have a floor.
    """
    require = psyco.parse("P>=0.9 [ G (step < left.luck) ]; P>=0.9 [ G (right.x <= 10) ]")
    reached = {}
    for learning in ("joint", "independent"):
        options = {"curriculum": 0.0, "gain": 1.0, "population": 20}
        settings = Settings(
            learner="safe-es", learning=learning, policies="separate", hidden=4, options=options, episodes=3000
        )
        found = prepare(psyco.make(Lanes), require, settings)
        start = found.wrapped_learner.init(found.network.init(jax.random.key(1)))
        after, _ = train(
            found.wrapped_learner, found.training_sampler, jax.random.key(2), start, first=0, generations=130
        )
        reached[learning] = 3 * float(found.policy(found.wrapped_learner.deployed(after))(np.ones(2))[1])
    assert reached["independent"] > 2.5  # of 3
    assert reached["joint"] < 2.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"domain": psyco.make("particle-dance")}, "has one agent, which learns by itself: leave out --learning"),
        ({"learner": "snes"}, "snes learns for all agents together; --learning independent needs safe-es or ppo"),
        ({"learner": "sac"}, "sac learns for one agent"),
        ({"policies": "shared"}, "--policies shared lets agents share a policy"),
        ({"policies": "group"}, "--policies group lets agents share a policy"),
        ({"violations_while_learning": 100}, "needs one learner that keeps it"),
        ({"learning": "indepedent"}, r"learning.*joint, independent"),
        ({"learning": "alternating"}, "psyco exploit RUN --agent AGENT --train-against ROUNDS"),
    ],
)
def test_what_does_not_go_with_independent_learning_is_refused(settings, words):
    options = {"domain": TEAM, "learner": "safe-es", "learning": "independent"} | settings
    with pytest.raises(RunError, match=words):
        prepare(options.pop("domain"), psyco.parse("P>=0.5 [ G (distance >= 0.05) ]"), Settings(**options))


def test_independent_learning_starts_from_a_policy_for_each_agent():
    def start(policies):
        network = joint_network_for(TEAM, hidden=4, bias="learned", policies=policies)
        policy = policy_for(TEAM, network, network.init(jax.random.key(3)))
        settings = with_initial_policy(Settings(learner="safe-es", learning="independent", episodes=600), policy)
        return policy, prepare(TEAM, psyco.parse("P>=0.5 [ F distance <= 1 ]"), settings, initial_policy=policy)

    policy, found = start("separate")
    assert found.network.sharers == policy.network.sharers
    with pytest.raises(RunError, match=r"starts from a policy for each agent: the agents agent_0, .* share one policy"):
        start("shared")
