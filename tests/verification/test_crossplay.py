"""Cross-play: each pairing is the pair of policies that it says, and its bounds hold what exact answers know."""

import json

import jax
import numpy as np
import pytest

import psyco
from psyco._src.core.errors import PsycoError
from psyco._src.policies.joint_network import joint_network_for
from psyco._src.policies.serialization import policy_for
from tests.envs.test_team_env import Race, ones

GAME = psyco.make("obstacle-run", opponent=True, grid=3, horizon=6)
SAFE = "P>=0.8 [ G (!caught | collisions <= 1) ] & C>=0.9"


def stay(observations):
    return dict.fromkeys(observations, 0)


def right(observations):
    return dict.fromkeys(observations, 1)


def game_policy(seed, domain=GAME):
    network = joint_network_for(domain, hidden=4, bias="learned", policies="separate")
    return policy_for(domain, network, network.init(jax.random.key(seed)))


@pytest.mark.slow
def test_the_bounds_of_every_cell_hold_the_exact_probability():
    """Four intervals at 90% together: with this seed none misses; by luck one would in at most 10% of all seeds."""
    require, scripts = "P>=0.5 [ F (runner.obs[0] >= 2) & G (!caught | collisions <= 1) ] & C>=0.9", (stay, right)
    found = psyco.crossplay(scripts, GAME, require, episodes=400)
    assert (found.agents, found.partners) == (("runner",), ("opponent",))
    exact = np.zeros((2, 2))
    for i, runner in enumerate(scripts):
        for j, opponent in enumerate(scripts):
            together = lambda obs, a=runner, b=opponent: {"runner": a(obs)["runner"], "opponent": b(obs)["opponent"]}  # noqa: E731
            exact[i, j] = psyco.exact(together, domain=GAME, requirement=require).value.probabilities[0]
            pairing = found.pairings[i][j].findings[0]
            assert pairing.lower <= exact[i, j] <= pairing.upper and pairing.episodes == 400
            assert pairing.verdict is not (psyco.Verdict.VIOLATED if exact[i, j] >= 0.5 else psyco.Verdict.SATISFIED)
            assert found.pairings[i][j].share == pytest.approx(1 / 4)
            # A quarter of 10%.
            assert pairing.interval_level == pytest.approx(1 - 0.1 / 4)
    assert len(np.unique(exact.round(6))) == 4  # else pairings could be in each other's places unnoticed


@pytest.mark.slow
def test_all_cells_play_the_same_seeds_and_share_one_error():
    first, second = game_policy(1), game_policy(2)
    found = psyco.crossplay([first, second], requirement=SAFE, episodes=300, agent="opponent")
    assert found.agents == ("opponent",) and found.policies == (first.digest, second.digest)
    pairings = [pairing for row in found.pairings for pairing in row]
    assert {(pairing.seed, pairing.seed_block, pairing.stream) for pairing in pairings} == {(0, 0, "crossplay")}
    # Bonferroni, and both kinds of errors: a bound of each pairing's test times the pairings is that of the matrix.
    errors = [pairing.findings[0].guarantee.false_accept for pairing in pairings]
    assert sum(errors) == pytest.approx(pairings[0].guarantee.false_accept) and sum(errors) <= 0.1 + 1e-12
    assert pairings[0].policy == first.digest and pairings[3].policy == second.digest
    again = psyco.crossplay([second, first], requirement=SAFE, episodes=300, agent="opponent")
    assert again.pairings[0][1].findings == found.pairings[1][0].findings
    other = psyco.crossplay([first, second], requirement=SAFE, episodes=300, agent="opponent", seed=1)
    assert other.pairings[0][1].mean_return != found.pairings[0][1].mean_return


@pytest.mark.more
def test_the_result_is_a_table_json_and_a_page(tmp_path):
    policies = [game_policy(1), stay]
    require = f"{SAFE}; R{{reward}}>=-6 [ C ] & C>=0.9"
    found = psyco.crossplay(policies, GAME, require, episodes=200, out=tmp_path / "page.html")
    assert len(found.constraints) == 2
    text, content = str(found), json.loads(found.to_json())
    assert text.startswith(f"{found.verdict.name}: with partners of its own policy: ")
    assert text.count("policy 0") >= 6 and "share one permitted error" in text
    assert content["verdict"] == found.verdict.name and content["pairings"][1][0]["findings"][0]["episodes"] == 200
    page = (tmp_path / "page.html").read_text()
    assert page.count('class="badge small') == 8 and "policy 0 with itself" in page and page.count("<svg") >= 2
    assert found.pairings[0][1].policy_kind == "name"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.more)])
def test_agents_of_a_parallel_environment_change_their_partners(workers):
    """Red walks by its actions, and blue by its own: a sum at the end says who acted for whom."""

    def twos(observations):
        return {agent: np.array([1, 1]) if agent == "blue_0" else 2 for agent in observations}

    race = psyco.make(Race, horizon=8)
    require = "for each agent: P>=0.5 [ F agent.info.cost >= 8 ] & C>=0.9"
    found = psyco.crossplay(
        [ones, twos], race, require, agent="red", episodes=40, execution=psyco.Execution(workers=workers)
    )
    assert (found.agents, found.partners) == (("red_0", "red_1"), ("blue_0",))
    # The start is uniform from 0 to 4, and steps are 2, 4 and 5 until an agent leaves.
    chances = {"red_1": (0.2, 1.0), "blue_0": (0.0, 1.0)}
    for i in range(2):
        for j in range(2):
            pairing = found.pairings[i][j]
            shares = {agent: pairing.findings[k].share for k, agent in enumerate(race.agents)}
            assert (shares["red_1"] == 1.0) == (chances["red_1"][i] == 1.0)
            assert shares["blue_0"] == chances["blue_0"][j]
            assert pairing.findings[1].lower <= chances["red_1"][i] <= pairing.findings[1].upper


TEAM, FEWER = (psyco.make("particle-dance", agents=n, horizon=4) for n in (3, 2))


@pytest.mark.parametrize(
    ("policies", "options", "words"),
    [
        ([stay], {"domain": GAME}, "needs two policies or more"),
        ([], {}, "no policies are given"),
        ("runs/team", {}, "a list of two or more"),
        ([stay, stay], {"domain": GAME}, "policy 0 and policy 1 are the same policy"),
        ([stay, right], {}, "give its domain with domain"),
        ([game_policy(1), game_policy(2)], {"requirement": None}, "no requirement; give one"),
        ([game_policy(1), game_policy(2)], {"requirement": "P=? [ F caught ]"}, "needs a constraint to test"),
        ([game_policy(1), game_policy(2, TEAM)], {}, r"obstacle-run\(.*and .* in particle-dance\(.*agents=3"),
        ([game_policy(1, TEAM), game_policy(2, FEWER)], {}, r"agents=3.*agents=2.*in one domain"),
        ([game_policy(1, TEAM), game_policy(2, FEWER)], {"domain": FEWER}, "agent_0, agent_1, agent_2; particle-dance"),
        ([game_policy(1), stay], {"agent": "runer"}, r"no agent or group 'runer' .did you mean 'runner'"),
        ([game_policy(1), stay], {"agent": ["runner", "opponent"]}, "runner, opponent are all agents"),
        ([game_policy(1), stay], {"agent": "agent"}, "agent are all agents"),
        ([game_policy(1), stay], {"episodes": 0}, "episodes"),
        ([stay, right], {"domain": "particle-dance", "requirement": "P>=0.5 [ F distance <= 1 ]"}, "has one agent"),
    ],
)
def test_what_cannot_play_together_is_refused(policies, options, words):
    with pytest.raises(PsycoError, match=words):
        psyco.crossplay(policies, **{"requirement": SAFE} | options)
