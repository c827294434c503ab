"""Parallel environments of PettingZoo as domains: a small one of our own, whose agents leave early, and real ones."""

import numpy as np
import pytest
from gymnasium import spaces

import psyco
from psyco._src.core.errors import DomainError, PsycoError
from psyco._src.envs.registry import DomainDescription, describe, make_from_description

END = {"red_0": 2, "red_1": 4, "blue_0": 5}  # the step at which each agent leaves


class Race:
    """A parallel environment without PettingZoo: agents walk by their actions, and leave one after the other."""

    metadata = {"name": "race", "is_parallelizable": True}  # noqa: RUF012
    possible_agents = list(END)  # noqa: RUF012

    def __init__(self, cut=False, absent=False, mixed=False):
        self.cut, self.absent, self.mixed = cut, absent, mixed

    def observation_space(self, agent):
        """Blue sees one number more."""
        return spaces.Box(-100, 100, (3 if agent == "blue_0" else 2,), np.float64)

    def action_space(self, agent):
        """Red has three actions that begin at 1, blue two pairs."""
        if agent == "blue_0":
            return spaces.Box(-1, 1, (2,)) if self.mixed else spaces.MultiDiscrete([2, 2])
        return spaces.Discrete(3, start=1)

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, list(self.possible_agents)
        self.x = dict.fromkeys(self.agents, float(np.random.default_rng(seed).integers(0, 5)))
        if self.absent:
            self.agents.remove("red_1")
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self):
        return {a: np.array([self.x[a], self.t, 7.0][: 3 if a == "blue_0" else 2]) for a in self.agents}

    def step(self, actions):
        assert list(actions) == self.agents
        self.t += 1
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action), (agent, action)
            self.x[agent] += int(np.sum(action))
        ended = {agent: self.t == END[agent] for agent in self.agents}
        seen, rewards = self._seen(), dict.fromkeys(self.agents, 1.0)
        infos = {agent: {"cost": self.x[agent]} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not ended[agent]]
        cut = {agent: ended[agent] and self.cut for agent in ended}
        return seen, rewards, {agent: ended[agent] and not self.cut for agent in ended}, cut, infos

    def close(self):
        """Nothing to close."""


def ones(observations):
    """A joint policy: red chooses 1, blue both actions 0."""
    assert [len(each) for each in observations.values()] == [2, 2, 3]
    return {agent: np.array([0, 0]) if agent == "blue_0" else 1 for agent in observations}


def test_agents_that_leave_keep_their_last_state_and_earn_nothing():
    domain = psyco.make(Race, horizon=8)
    assert domain.agents == tuple(END)
    assert domain.groups == {"red": ("red_0", "red_1"), "blue": ("blue_0",)}
    assert (domain.observation_size, domain.actions.n) == (7, (3, 3, 2, 2))
    path = psyco.record(ones, domain)
    start = path["red_0.obs"][0, 0]
    assert path["red_0.obs"].tolist() == [[start + min(t, 2), min(t, 2)] for t in range(6)]
    assert path["red_0.reward"].tolist() == [0, 1, 1, 0, 0, 0]
    assert path["red_1.return"].tolist() == [0, 1, 2, 3, 4, 4]
    assert path["red_0.terminated"].tolist() == [False, False, True, True, True, True]
    assert path["blue_0.info.cost"].tolist() == [0.0] + [start] * 5  # the key is missing in the first state
    assert path["reward"].tolist() == [0, 3, 3, 2, 2, 1] and path["return"][-1] == 11
    assert path["obs"][-1].tolist() == [start + 2, 2, start + 4, 4, start, 5, 7]
    assert path["terminated"].tolist() == [False] * 5 + [True] and not path["truncated"].any()


def test_an_episode_whose_agents_are_cut_is_truncated():
    path = psyco.record(ones, psyco.make(Race, horizon=8, cut=True))
    assert path["truncated"].tolist() == [False] * 5 + [True] and not path["terminated"].any()


REQUIREMENT = (
    "for each red: P>=0.9 [ F red.info.cost >= 2 ] & C>=0.9; "
    "P>=0.9 [ G (each(agent.terminated) | any(agent.reward >= 0)) & F each(agent.terminated) ] & C>=0.9"
)


def test_a_joint_policy_is_verified_by_what_its_agents_do():
    """red_0 ends at its start + 2, and red_1 at its start + 4, so both always reach 2."""
    certificate = psyco.verify(ones, psyco.make(Race, horizon=8), REQUIREMENT, max_episodes=100)
    assert [finding.satisfied for finding in certificate.findings] == [certificate.episodes] * 3
    assert certificate.verdict.name == "SATISFIED"
    assert "for each" not in certificate.requirement and "red_1.info.cost >= 2" in certificate.requirement
    failed = psyco.verify(ones, psyco.make(Race, horizon=8), "P>=0.9 [ each(F red.obs[1] >= 3) ]", max_episodes=100)
    assert failed.verdict.name == "VIOLATED"  # red_0 has left by then


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (lambda observations: 0, "give a dict with an action for each agent"),
        (lambda observations: {"red_0": 1, "blue_0": [0, 0]}, "gives no action for red_1"),
        (lambda observations: {"red_0": 0, "red_1": 1, "blue_0": np.array([0, 0])}, "gives red_0 the action 0"),
        (lambda observations: {"red_0": 1.5, "red_1": 1, "blue_0": [0, 0]}, "gives red_0 the action 1.5"),
        (lambda observations: {"red_0": np.nan, "red_1": 1, "blue_0": [0, 0]}, "gives red_0 the action nan"),
        (lambda observations: {"red_0": 1, "red_1": 1, "blue_0": [0, 0.5]}, "gives blue_0 the action"),
        (lambda observations: {"red_0": "1", "red_1": 1, "blue_0": [0, 0]}, "gives red_0 '1', not an action of"),
    ],
)
def test_a_joint_policy_that_does_not_act_for_all_agents_is_refused(policy, says):
    with pytest.raises(PsycoError, match=says):
        psyco.verify(policy, psyco.make(Race, horizon=8), "P>=0.5 [ F step >= 1 ]", max_episodes=10)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"absent": True}, "red_1 is not there at the start of an episode"),
        ({"mixed": True}, "give all of them continuous actions, or all of them discrete ones"),
    ],
)
def test_environments_that_cannot_be_joined_are_refused(parameters, says):
    with pytest.raises(DomainError, match=says):
        psyco.make(Race, horizon=8, **parameters)


@pytest.mark.slow
@pytest.mark.more
def test_learned_joint_policies_do_not_depend_on_workers(tmp_path):
    """Agents of two groups learn, each from its own observation, and one of them acts alone afterwards."""
    domain = psyco.make(Race, horizon=6)
    settings = psyco.Settings(learner="safe-es", hidden=4, verify_every=0, max_episodes=60, selection_episodes=10)

    def learn(**execution):
        return psyco.synthesize(
            domain, "P>=0.6 [ F each(red.info.cost >= 3) ] & C>=0.9", episodes=200, settings=settings,
            execution=psyco.Execution(**execution),
        )  # fmt: skip

    alone, two = learn(), learn(workers=2)
    assert alone.policy.theta.tobytes() == two.policy.theta.tobytes()
    assert alone.certificate.episodes == two.certificate.episodes
    assert alone.policy.agents == domain.agents
    assert alone.policy.agent("blue_0")(np.zeros(3)).shape == (2,)


class Named(Race):
    """Its agents have other names; all of them are red."""

    def __init__(self, names, **options):
        super().__init__(**options)
        self.possible_agents = names

    def observation_space(self, agent):
        return spaces.Box(-100, 100, (2,), np.float64)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, list(self.possible_agents)
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self):
        return {agent: np.array([self.t, 0.0]) for agent in self.agents}

    def step(self, actions):
        self.t += 1
        here = list(self.agents)
        seen, rewards, no = self._seen(), dict.fromkeys(here, 1.0), dict.fromkeys(here, False)
        end = dict.fromkeys(here, self.t >= 5)
        self.agents = [] if self.t >= 5 else here
        return seen, rewards, no, end, {agent: {} for agent in here}


class Flashing(Named):
    """`info` has a key in the second step alone."""

    def step(self, actions):
        *rest, infos = super().step(actions)
        return *rest, {agent: {"hit": True} for agent in infos if self.t == 2}


def test_info_of_an_agent_that_is_there_does_not_outlive_its_step():
    """Otherwise one hit would be a hit in all later states."""
    domain = psyco.make(Flashing, horizon=8, names=["red_0", "red_1"])
    path = psyco.record(lambda seen: dict.fromkeys(seen, 0), domain)
    assert path["red_0.info.hit"].tolist() == [0, 0, 1, 0, 0, 0]
    once = "P>=0.9 [ F red_0.info.hit >= 1 & G (count(red_0.info.hit >= 1) <= 1) ] & C>=0.9"
    assert psyco.verify(lambda seen: dict.fromkeys(seen, 0), domain, once, max_episodes=60).verdict.name == "SATISFIED"


class Vanishing(Named):
    """red_0 leaves after two steps: it is no longer listed, and no flag says so."""

    def step(self, actions):
        answer = super().step(actions)
        self.agents = [agent for agent in self.agents if agent != "red_0" or self.t < 2]
        return answer


class Lingering(Named):
    """red_0 is terminated after two steps, but still listed, observed and rewarded."""

    def step(self, actions):
        seen, rewards, terminated, *rest = super().step(actions)
        return seen, rewards, {agent: agent == "red_0" and self.t == 2 for agent in terminated}, *rest


@pytest.mark.parametrize("env", [Vanishing, Lingering])
def test_an_agent_has_left_once_it_is_terminated_or_no_longer_listed(env):
    path = psyco.record(lambda seen: dict.fromkeys(seen, 0), psyco.make(env, horizon=8, names=["red_0", "red_1"]))
    assert path["red_0.terminated"].tolist() == [False] * 2 + [True] * 4
    assert path["red_0.obs"][:, 0].tolist() == [0, 1, 2, 2, 2, 2] and path["red_0.return"][-1] == 2
    assert path["red_1.truncated"].tolist() == [False] * 5 + [True] and path["truncated"][-1]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["red_0", "red_0"], "two agents of one name"),
        ([0, 1], "has the agent '0'; a name is a word such as agent_0"),
        (["red-0", "red-1"], "has the agent 'red-0'; a name is a word"),
        (["F", "red_0"], "has the agent 'F', a word of the language; call it agent_F"),
        (["info", "red_0"], "has the agent 'info', a word of the language"),
        ([], "possible_agents of the environment is empty"),
    ],
)
def test_agents_that_formulas_cannot_name_are_refused(names, says):
    with pytest.raises(DomainError, match=says):
        psyco.make(Named, horizon=8, names=names)


def test_an_agent_may_have_any_other_name():
    path = psyco.record(lambda seen: dict.fromkeys(seen, 0), psyco.make(Named, horizon=8, names=["team", "reward"]))
    assert {name for name in path if name.startswith("team.")} == {
        f"team.{signal}" for signal in ("obs", "reward", "return", "terminated", "truncated")
    }


@pytest.mark.parametrize("signal", ["red_0.reward", "red_1.obs", "blue_0.terminated", "red_0.action"])
def test_a_signal_of_ones_own_does_not_hide_that_of_an_agent(signal):
    with pytest.raises(DomainError, match=f"a signal cannot be called '{signal}'"):
        psyco.make(Race, horizon=8, signals={signal: lambda observations, info: 0.0})


# ---- real environments -------------------------------------------------------------------------------------------


SPREAD = "pettingzoo:mpe2.simple_spread_v3"


def stay(observations):
    """A joint policy that does nothing."""
    return dict.fromkeys(observations, 0)


@pytest.mark.slow
@pytest.mark.extra("mpe2")
def test_simple_spread_is_a_domain_with_signals_of_agents(cli):
    domain = psyco.make(SPREAD, N=2)
    assert (domain.horizon, domain.agents, domain.observation_size) == (25, ("agent_0", "agent_1"), 24)
    again = make_from_description(describe(domain))  # a file may name it
    assert describe(again) == describe(domain)
    path = psyco.record(stay, domain)
    assert path["agent_1.obs"].shape == (26, 12) and path["obs"][:, 12:].tolist() == path["agent_1.obs"].tolist()
    assert path["return"][-1] == pytest.approx(path["agent_0.return"][-1] + path["agent_1.return"][-1])
    apart = "agent.obs[8]*agent.obs[8] + agent.obs[9]*agent.obs[9] >= 0.09"
    explained = cli("explain", f"P>=0.9 [ G each({apart}) ]", "--domain", SPREAD)
    assert explained.status == 0 and "agent_2.obs[8] * agent_2.obs[8]" in explained.out
    wrong = cli("explain", "P>=0.9 [ G each(agnt.obs[8] >= 0.09) ]", "--domain", SPREAD)
    assert wrong.status == 2 and "did you mean 'agent'?" in wrong.err


@pytest.mark.extra("mpe2")
def test_groups_are_those_of_the_agents_names():
    assert psyco.make("pettingzoo:mpe2.simple_tag_v3").groups == {
        "adversary": ("adversary_0", "adversary_1", "adversary_2"),
        "agent": ("agent_0",),
    }


@pytest.mark.slow
@pytest.mark.extra("mpe2")
def test_agents_that_take_turns_are_converted_by_pettingzoo():
    """The AEC environment of the same module gives the same episodes."""
    from mpe2 import simple_spread_v3

    paths = [psyco.record(stay, psyco.make(source, N=2, horizon=25)) for source in (simple_spread_v3.env, SPREAD)]
    assert np.allclose(paths[0]["obs"], paths[1]["obs"]) and np.allclose(paths[0]["return"], paths[1]["return"])


@pytest.mark.extra("mpe2")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("pettingzoo:mpe2.simple_spred_v3", "cannot import"),
        ("pettingzoo:json", "neither parallel_env nor env"),
    ],
)
def test_a_module_without_an_environment_is_refused(name, says):
    with pytest.raises(DomainError, match=says):
        psyco.make(name)


def test_a_file_may_not_name_any_module_as_one_of_pettingzoo():
    with pytest.raises(DomainError, match="pettingzoo:json"):
        make_from_description(DomainDescription("pettingzoo:json", {}))


@pytest.mark.more
@pytest.mark.extra("mpe2", "ray")
def test_episodes_on_ray_are_those_of_this_process():
    verified = [
        psyco.verify(stay, psyco.make(SPREAD, N=2), "P>=0.5 [ F any(agent.return < -20) ]", max_episodes=40,
                     execution=psyco.Execution(**where), issued="now")
        for where in ({}, {"ray": "local"})
    ]  # fmt: skip
    assert verified[0].to_json() == verified[1].to_json()


class Reusing(Race):
    """It writes observations into arrays of its own, also those of agents that have left."""

    def _seen(self):
        self.arrays = getattr(self, "arrays", {}) or {a: np.zeros(3 if a == "blue_0" else 2) for a in END}
        for agent, array in self.arrays.items():
            array[:2] = (self.x[agent], self.t) if agent in self.agents else (99.0, 99.0)
        return {agent: self.arrays[agent] for agent in self.agents}


def test_the_last_observation_of_an_agent_outlives_the_arrays_of_the_environment():
    path = psyco.record(ones, psyco.make(Reusing, horizon=8))
    assert path["red_0.obs"][:, 1].tolist() == [0, 1, 2, 2, 2, 2]


class Forgetful(Race):
    """Its step leaves out a reward or an observation of an agent that is there."""

    def step(self, actions):
        seen, rewards, *rest = super().step(actions)
        dict.pop(rewards if self.cut else seen, "red_1", None)
        return seen, rewards, *rest


@pytest.mark.parametrize(("cut", "what"), [(True, "reward"), (False, "observation")])
def test_what_a_step_leaves_out_is_an_error_and_no_zero(cut, what):
    with pytest.raises(PsycoError, match=f"gives no {what} of red_1, which was there"):
        psyco.record(ones, psyco.make(Forgetful, horizon=8, cut=cut))
