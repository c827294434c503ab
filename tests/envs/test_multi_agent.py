"""Several agents act as one: joint observations and actions, a team's reward, exact answers known by hand."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.core.errors import DomainError, PsycoError
from psyco._src.envs.actions import Continuous, Discrete, MultiDiscrete
from psyco._src.envs.base import signal_table
from psyco._src.envs.dance_team import DanceTeam
from psyco._src.envs.multi_agent import JointDomain, joint_domain
from psyco._src.envs.obstacle_run import ObstacleRun
from psyco._src.envs.particle_dance import ParticleDance
from psyco._src.envs.registry import describe
from psyco._src.rollout.episodes import COMPILER_OPTIONS

REQUIRE = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"


def test_the_dance_of_a_team_is_the_dance_of_each_agent_and_counts_collisions_of_every_pair():
    team = DanceTeam(3, horizon=40, d_min=0.3)
    state, rng = team.reset(jax.random.key(1)), np.random.default_rng(0)
    bodies = np.concatenate([np.asarray(state.particle)[None], np.asarray(state.position)]).astype(np.float64)
    speed, counts = np.zeros((4, 2)), np.zeros((4, 4), int)
    for push in team.draw(jax.random.key(2)):
        # Towards the particle, so that agents meet it and each other.
        action = np.clip(bodies[0] - bodies[1:] + rng.uniform(-0.1, 0.1, (3, 2)), -0.1, 0.1)
        speed = np.clip(speed + np.concatenate([np.asarray(push)[None], action]), -0.1, 0.1)
        bodies = np.clip(bodies + speed, -2, 2)
        distance = np.linalg.norm(bodies[:, None] - bodies[None], axis=2)
        counts += np.triu(distance < 0.3, 1)
        state, reward, done = team.step(push, state, jnp.asarray(action, jnp.float32))
        found = team.signals(state)
        np.testing.assert_allclose(reward, -distance[0, 1:], atol=2e-5)
        assert float(found["distance"]) == pytest.approx(distance[np.triu_indices(4, 1)].min(), abs=2e-5)
        assert int(found["collisions"]) == counts.max() and not done
        for i, agent in enumerate(team.agents, 1):
            assert int(found[f"{agent}.collisions"]) == counts[i].sum() + counts[:, i].sum()
            nearest = np.delete(distance[i], i).min()
            assert float(found[f"{agent}.nearest"]) == pytest.approx(nearest, abs=2e-5)
        own = np.asarray(team.observe(state))[1]  # of agent_1: itself, the particle, agent_2, agent_0
        expected = [bodies[2], speed[2], *(x[j] - x[2] for j in (0, 3, 1) for x in (bodies, speed))]
        np.testing.assert_allclose(own, np.concatenate(expected), atol=2e-5)
    assert counts.max() > 1 and (counts[1:, 1:] > 0).any()


@pytest.mark.parametrize("agents", [2, 3])
def test_an_episode_of_a_team_does_not_depend_on_its_place_in_a_batch(agents):
    """Otherwise episodes of pure functions would differ when they are played again alone, and be refused."""
    team = DanceTeam(agents)

    @partial(jax.jit, compiler_options=COMPILER_OPTIONS)
    @jax.vmap
    def moved(key):
        state, reward, _ = team.step(team.draw(key)[0], team.reset(key), jnp.full((agents, 2), 0.03))
        return reward, team.signals(state)

    keys, order = jax.random.split(jax.random.key(0), 512), np.random.default_rng(0).permutation(512)
    for whole, same, few in zip(*map(jax.tree.leaves, map(moved, (keys, keys[order], keys[64:128]))), strict=True):
        np.testing.assert_array_equal(np.asarray(whole)[order], same)
        np.testing.assert_array_equal(whole[64:128], few)


def test_one_agent_is_the_domain_without_agents():
    assert psyco.make("particle-dance", agents=1) == psyco.make("particle-dance") == ParticleDance()
    assert psyco.make("obstacle-run", opponent=False) == ObstacleRun()
    assert "agents" not in describe(ParticleDance()).parameters


def test_a_joint_domain_is_described_and_made_again():
    team = psyco.make("particle-dance", agents=3, d_min=0.2)
    name, values = describe(team)
    assert (name, values["agents"], values["d_min"]) == ("particle-dance", 3, 0.2)
    assert psyco.make(name, **values) == team
    assert team.agents == ("agent_0", "agent_1", "agent_2") and team.groups == {"agent": team.agents}
    assert team.observation_size == 48 and team.actions.size == 6
    table = signal_table(team)
    assert table["agent_2.obs"].size == 16 and table["agent_0.action"].size == 2
    assert {"agent_1.reward", "agent_1.return", "agent_1.distance", "collisions"} <= table.keys()


def test_signals_of_agents_are_parts_of_the_joint_ones_and_their_rewards_sum_to_the_teams():
    team = psyco.make("particle-dance", agents=2, horizon=6)
    path = psyco.record(lambda obs: {name: np.full(2, 0.05) for name in obs}, domain=team)
    for i, agent in enumerate(team.agents):
        np.testing.assert_array_equal(path[f"{agent}.obs"], path["obs"][:, 12 * i : 12 * i + 12])
        np.testing.assert_array_equal(path[f"{agent}.action"], path["action"][:, 2 * i : 2 * i + 2])
        np.testing.assert_allclose(path[f"{agent}.return"], np.cumsum(path[f"{agent}.reward"]), rtol=1e-5)
    both = [path[f"{agent}.reward"] for agent in team.agents]
    np.testing.assert_allclose(path["reward"], np.sum(both, axis=0), rtol=1e-6)


@dataclass(frozen=True)
class Chase:
    """Two pursuers with two moves each and an evader with three on a line: spaces that differ by group."""

    horizon: int = 4
    name: ClassVar[str] = "chase"
    agents: ClassVar[tuple[str, ...]] = ("left", "evader", "right")
    groups: ClassVar = {"pursuer": ("left", "right"), "prey": ("evader",)}
    actions: ClassVar = {"pursuer": Discrete(2), "prey": Discrete(3)}
    observation_size: ClassVar = {"pursuer": 1, "prey": 2}

    __hash__ = object.__hash__

    def reset(self, key):
        return {"pursuer": jnp.array([0.0, 10.0]), "prey": jnp.array([5.0])}

    def step(self, key, state, action):
        pursuer = state["pursuer"] + action["pursuer"] * jnp.array([1.0, -1.0])
        prey = state["prey"] + action["prey"] - 1.0
        return {"pursuer": pursuer, "prey": prey}, -jnp.abs(pursuer[0] - prey[0]), False

    def observe(self, state):
        return {"pursuer": (state["prey"] - state["pursuer"])[:, None], "prey": state["pursuer"][None]}

    def signals(self, state):
        return {"left.x": state["pursuer"][0], "evader.x": state["prey"][0], "right.x": state["pursuer"][1]}


def test_agents_may_differ_in_their_spaces_by_groups():
    chase = joint_domain(Chase())
    assert isinstance(chase, JointDomain)
    assert chase.actions == MultiDiscrete((2, 3, 2)) and chase.observation_size == 4
    state = chase.reset(jax.random.key(0))
    assert chase.observe(state).tolist() == [5.0, 0.0, 10.0, -5.0]  # of left, of the evader, of right
    state, reward, _ = chase.step(jax.random.key(0), state, jnp.array([1, 2, 0]))
    found = chase.signals(state)
    assert [float(found[f"{name}.x"]) for name in chase.agents] == [1.0, 6.0, 10.0] and float(reward) == -5.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"groups": {"pursuer": ("left", "rihgt"), "prey": ("evader",)}}, "no agent .did you mean 'right'"),
        ({"groups": {"pursuer": ("left", "right"), "prey": ("evader", "left")}}, "left of chase is in 2 groups"),
        ({"agents": ("left", "left", "right")}, "two agents of one name"),
        ({"agents": ("left", "ev.ader", "right")}, "a name is a word"),
        ({"actions": {"pursuer": Discrete(2)}}, "actions of chase lacks the group prey"),
        ({"actions": {"pursuer": Discrete(2), "prey": Continuous((0.0,), (1.0,))}}, "different kinds of actions"),
        ({"has_mask": True}, "several agents and action masks"),
        ({"agents": "left"}, "agents of chase is the text 'left'; give a tuple of names"),
        ({"agents": ("left", "max", "right")}, "has the agent 'max', a word of the language"),
        ({"groups": ("left", "right")}, "groups of chase must map names to tuples of agents"),
        ({"groups": {"pursuer": ("left", "right"), "prey": "evader"}}, "groups of chase must map names to tuples"),
        ({"groups": {"left": ("evader",), "prey": ("left", "right")}}, "left of chase names an agent, and a group of"),
        ({"observation_size": {"pursuer": 1, "prey": "two"}}, "observation_size must be a whole number"),
    ],
)
def test_agents_that_do_not_fit_are_refused(change, words):
    with pytest.raises(DomainError, match=words):
        joint_domain(type("Changed", (Chase,), change)())


def test_rewards_and_observations_of_the_wrong_shape_are_refused():
    class TwoRewards(DanceTeam):
        def step(self, push, state, action):
            nxt, reward, done = super().step(push, state, action)
            return nxt, reward[:2], done

    class Flat(DanceTeam):
        def observe(self, state):
            return super().observe(state).ravel()

    with pytest.raises(DomainError, match=r"a reward of shape \[2\]; give one number, or one for each of its 3 agents"):
        signal_table(joint_domain(TwoRewards(3)))
    with pytest.raises(DomainError, match=r"an array of shape \[48\]; give \[3, 16\]"):
        signal_table(joint_domain(Flat(3)))


@pytest.mark.parametrize("name", ["agent_1.obs", "agent_0.action", "agent_0.reward", "agent_1.return"])
def test_a_signal_that_every_agent_has_is_refused(name):
    class Hiding(DanceTeam):
        def signals(self, state):
            return {**super().signals(state), name: jnp.float32(0.0)}

    with pytest.raises(DomainError, match=f"signals of particle-dance has '{name}', which is there already"):
        signal_table(joint_domain(Hiding(2)))


def test_agents_in_a_list_are_agents_too():
    listed = joint_domain(type("Listed", (Chase,), {"agents": ["left", "evader", "right"]})())
    assert isinstance(listed, JointDomain) and listed.agents == Chase.agents


@pytest.mark.parametrize("agents", [0, -1, 2.5, True, "two", 101])
def test_a_number_of_agents_that_makes_no_sense_is_refused(agents):
    with pytest.raises(DomainError, match="agents"):
        psyco.make("particle-dance", agents=agents)


def test_answers_about_two_agents_are_exact():
    """Nobody moves: the episode ends at once if the runner starts at the target, and else costs 50."""
    game = psyco.make("obstacle-run", opponent=True)
    answer = psyco.exact(
        lambda obs: dict.fromkeys(obs, 0), domain=game, requirement="P>=0.9 [ G (!caught | collisions <= 1) ]"
    )
    assert answer.value.expected_return == pytest.approx(-50 * 24 / 25 - 1 / 25)
    assert answer.value.probabilities[0] == pytest.approx(1 - 24 / 625)
    # Together the agents reach the target by the shortest path, 0 to 8 steps long, and 2 from the target to itself.
    x, y = np.meshgrid(np.arange(5), np.arange(5))
    assert answer.optimum.expected_return == pytest.approx(-np.maximum(x + y, 1).mean())


def test_exact_answers_see_what_each_agent_observes_and_refuse_their_actions():
    game = psyco.make("obstacle-run", opponent=True)

    def stay(observations):
        return {"runner": 0, "opponent": 0}

    def answer(formula):
        return psyco.exact(stay, domain=game, requirement=f"P>=0.1 [ {formula} ]").value.probabilities[0]

    assert answer("F each(agent.obs[0] >= 3)") == pytest.approx(0.16) == answer("F each(agent.position[0] >= 3)")
    assert answer("F any(agent.obs[0] >= 3)") == pytest.approx(0.64)
    for formula in ("F action = 7", "F any(agent.action = 0)"):
        with pytest.raises(PsycoError, match="exact answers know no signals of joint actions"):
            answer(formula)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"runner": [0, 1], "opponent": []}, r"gives runner \[0, 1\], not an action of Discrete"),
        ({"runner": 0, "opponent": 0, "nobody": 1}, "gives an action for nobody; the agents are: runner, opponent"),
        ({"runner": 0}, "gives no action for opponent"),
        ([0, 0], "give a dict with an action for each agent"),
    ],
)
def test_a_policy_of_several_agents_gives_one_action_for_each(chosen, words):
    game = psyco.make("obstacle-run", opponent=True)
    with pytest.raises(PsycoError, match=words):
        psyco.verify(lambda observations: chosen, game, "P>=0.1 [ G (!caught | collisions <= 1) ]", max_episodes=10)


def test_dancers_keep_their_names():
    team = psyco.make("particle-dance", agents=("ann", "bob"))
    assert team.parameters["agents"] == ["ann", "bob"]
    assert psyco.make("particle-dance", **team.parameters).agents == team.agents == ("ann", "bob")
    assert psyco.make("particle-dance", agents=2).parameters["agents"] == 2
    with pytest.raises(DomainError, match="got none"):
        psyco.make("particle-dance", agents=())


def test_an_opponent_with_the_moves_of_the_obstacle_makes_the_same_steps():
    game, alone = psyco.make("obstacle-run", opponent=True), ObstacleRun()
    state = own = alone.reset(jax.random.key(5))
    for move, drawn in [(1, 2), (3, 4), (4, 1), (2, 3)]:
        state, reward, done = game.step(jnp.int32(0), state, jnp.array([move, drawn]))
        own, expected, over = alone.step(jnp.int32(drawn), own, jnp.int32(move))
        assert jax.tree.map(np.array_equal, state, own) == type(own)(True, True, True)
        assert (float(reward), bool(done)) == (float(expected), bool(over))
        assert game.observe(state)[:4].tolist() == alone.observe(own).tolist()


@pytest.mark.parametrize(
    ("words", "act"),
    [
        ("sac learns for one agent, and particle-dance has 3", lambda d: psyco.synthesize(d, REQUIRE, learner="sac")),
        ("a family varies environments of one agent", lambda d: psyco.vary(d, d_min=(0.1, 0.2))),
        (
            "a shield is computed from a model of one agent",
            lambda d: psyco.synthesize(d, REQUIRE, settings=psyco.Settings(shield=0.9)),
        ),
    ],
)
def test_what_is_for_one_agent_is_refused_for_several(words, act):
    with pytest.raises(PsycoError, match=words):
        act(psyco.make("particle-dance", agents=3))


def test_policies_of_several_agents_are_refused_for_one():
    with pytest.raises(PsycoError, match="has one agent, so it has one policy: leave out --policies"):
        psyco.synthesize("particle-dance", REQUIRE, settings=psyco.Settings(policies="shared"))
