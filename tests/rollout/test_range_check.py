"""Values of episodes: equal in compiled domains, in Gymnasium environments, for external policies and recordings."""

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import psyco
from psyco._src.core.errors import EpisodeError
from psyco._src.policies.external import as_policy
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.episodes import Stream, check_value_ranges, episode_keys, stream_key
from psyco._src.rollout.sampler import make_sampler
from psyco._src.verification.recorded_traces import read_traces
from tests.environments import Walk

RUN = psyco.make("obstacle-run", grid=3, horizon=7)
WALK = psyco.make(Walk, horizon=12)
MEASURED = {
    RUN: "R<=1 [ C ]; R{distance - 0.5} in [0,1] [ C<=3 ]; P>=0.5 [ G !caught ]; R{distance}>=1 [ I=4 ];"
    "R{true}<=3 [ F caught ]; R{caught}<=0.5 [ S ]; S=? [ caught ]; P=? [ F caught ]; Pmax=? [ F caught ]",
    WALK: "R<=1 [ C ]; R{info.cost}<=1 [ C ]; R{obs[0]}<=1 [ I=4 ]; R{true}<=3 [ F obs[0] < -1 ]; P=? [ F obs[0] > 1 ]",
}
COUNT = 20


def played(domain, requirement, network=None, theta=None):
    network = network or network_for(domain)
    keys = episode_keys(stream_key(0, Stream.RECORD), 0, COUNT)
    theta = np.zeros((COUNT, 0)) if theta is None else np.broadcast_to(theta, (COUNT, len(theta)))
    return make_sampler(domain, network, psyco.parse(requirement))(theta, keys), keys


@pytest.mark.parametrize("domain", MEASURED, ids=["compiled", "host"])
def test_an_episode_has_the_values_of_its_recording(domain):
    network, requirement = network_for(domain), psyco.parse(MEASURED[domain])
    theta = network.init(jax.random.key(3))
    episodes, _ = played(domain, MEASURED[domain], network, theta)
    assert episodes.value.shape == episodes.reached.shape == (COUNT, len(requirement.measured))
    for i in range(COUNT):
        path = psyco.record(policy_for(domain, network, theta), domain, episode=i)
        path = {k: v for k, v in path.items() if v.dtype != object}
        for k, each in enumerate(requirement.measured):
            value = psyco.path_value(psyco.Question(each.subject), path)
            assert float(episodes.value[i, k]) == pytest.approx(value, rel=1e-5, abs=1e-6)
    waiting = [str(each).startswith("R{true}") for each in requirement.measured]
    assert episodes.reached.all(axis=0).tolist() == [not each for each in waiting]  # some wait in vain


def test_a_policy_of_others_has_the_same_values():
    network = network_for(RUN)
    theta = network.init(jax.random.key(3))
    own, _ = played(RUN, MEASURED[RUN], network, theta)
    policy = policy_for(RUN, network, theta)
    foreign, _ = played(RUN, MEASURED[RUN], as_policy(lambda seen: policy(seen)).network)
    np.testing.assert_allclose(foreign.value, own.value, rtol=1e-6)
    np.testing.assert_array_equal(foreign.reached, own.reached)


def test_without_anything_to_measure_there_is_no_column():
    network = network_for(RUN)
    episodes, _ = played(RUN, "P>=0.5 [ F caught ]; Pmax=? [ F caught ]", network, network.init(jax.random.key(3)))
    assert episodes.value is None
    assert episodes.reached is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "R<=1 [ C ] within [-3,0]",
            r"at step \d: R{reward}<=1 .* comes to -\d, outside of its range \[-3, 0\]; correct",
        ),
        (
            "R{distance}<=1 [ I=1 ] within [1,2]",
            r"at step 1: R{distance}.* comes to \d, outside of its range \[1, 2\]",
        ),
        (
            "R{-step}<=1 [ S ] within [-3,0]",
            r"at step 7: .* has on average -\d.*, outside of its range \[-3, 0\]",
        ),
        ("R{0 / (step - step)}<=1 [ C ] within [0,9]", "at step .* comes to nan, outside of its range"),
    ],
)
def test_a_value_outside_of_its_range_is_an_error_with_seed_and_value(text, says):
    network = network_for(RUN)
    theta = network.init(jax.random.key(3))
    episodes, keys = played(RUN, text, network, theta)
    with pytest.raises(EpisodeError, match=f"obstacle-run, episode with seed {{}}, {says}".replace("{}", r"\d+")):
        check_value_ranges(episodes, psyco.parse(text), RUN, keys)


def test_values_inside_of_their_ranges_pass():
    network = network_for(RUN)
    text = "R<=1 [ C ] within [-7,0]; R{caught}<=1 [ C ]; S<=0.5 [ caught ]; P=? [ F caught ]; R{step}=? [ I=7 ]"
    episodes, keys = played(RUN, text, network, network.init(jax.random.key(3)))
    check_value_ranges(episodes, psyco.parse(text), RUN, keys)
    check_value_ranges(episodes._replace(value=None), psyco.parse(text), RUN, keys)


def test_recorded_traces_have_values_too():
    csv = b"episode,x,hit\n0,1,0\n0,2,1\n0,4,1\n1,5,0\n1,7,0\n"
    requirement = psyco.parse(
        'R{x}<=1 [ C ] within [0,9]; P>=0.5 [ F hit ]; R{hit = 1}=? [ C<=1 ]; R{true}=? [ F "hit" ]; S=? [ hit ]'
    )
    recorded = read_traces(csv, requirement, origin="x", horizon=3)
    assert [column.tolist() for column in recorded.columns] == [
        [6, 7],
        [True, False],
        [1, 0],
        [1, 1],
        [[2, 2], [0, 1]],
    ]
    assert recorded.reached.tolist() == [[True, True, True, True], [True, True, False, True]]


class Boastful(gymnasium.Env):
    """Says that it shows at most 1, and has a signal that is a Boolean in the first state; both are 5 at step 1."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.cost = 5.0
        return np.zeros(1, np.float32), {"cost": False}

    def step(self, action):
        cost, self.cost = self.cost, 0.0
        return np.array([cost], np.float32), 0.0, False, False, {"cost": cost}


@pytest.mark.parametrize("x", ["obs[0]", "hit", "obs[0] * 1"])
@pytest.mark.parametrize("over", ["C", "C<=3", "F false", "S"])
def test_a_step_outside_of_the_range_of_x_is_an_error_even_if_the_episode_stays_inside_of_its_own(x, over):
    domain = psyco.make(Boastful, horizon=20, signals={"hit": lambda seen, info: info["cost"]})
    policy = lambda seen: 0  # noqa: E731
    with pytest.raises(EpisodeError, match=r"seed \d+, at step 1: .* is 5, outside of its range \[0, 1\]; "):
        psyco.verify(policy, domain, f"R{{{x}}}=? [ {over} ]", max_episodes=10)
    psyco.verify(policy, domain, f"R{{{x}}}=? [ {over} ] within [0,20]", max_episodes=10)


def test_a_share_of_time_counts_a_number_that_is_not_0_as_true():
    domain = psyco.make(Boastful, horizon=20)
    share = psyco.verify(lambda seen: 0, domain, "S=? [ info.cost ]", max_episodes=10).answers[0]
    assert share.mean == pytest.approx(1 / 20)
