"""The ranges of values are those of the arithmetic, and what has none is named with the remedy."""

import dataclasses
from typing import ClassVar

import jax
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import psyco
from psyco._src.core.errors import RequirementError
from psyco._src.envs.base import signal_table
from psyco._src.envs.value_bounds import episode_range, expression_range, value_ranges
from psyco._src.logic.ast import walk
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from tests.environments import Walk
from tests.logic import by_definition
from tests.logic.strategies import NUMBERS, paths, terms

RUN = psyco.make("obstacle-run", grid=3, horizon=7)


@dataclasses.dataclass(frozen=True)
class Declared:
    """Obstacle Run that tells what its signals can be."""

    horizon: int = 7
    ranges: ClassVar = {
        "reward": (-1, -1),
        "distance": (0, 4),
        "agent[1]": (0, 2),
        "x": (0, 3),
        "y": (0, 3),
        "obs": (0, 3),
    }

    def __getattr__(self, name):
        return getattr(RUN, name)


@dataclasses.dataclass(frozen=True)
class Silent(Declared):
    """One that tells nothing."""

    ranges: ClassVar = {}


def asked(text, domain=RUN):
    return episode_range(psyco.parse(text).measured[0], domain)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("P=? [ F caught ]", 0, 1),
        ("R{caught}<=1 [ C ]", 0, 7),
        ("R{caught}<=1 [ C<=3 ]", 0, 3),
        ("R{caught}<=1 [ I=3 ]", 0, 1),
        ("R{distance < 2}<=1 [ F target ]", 0, 7),
        ('R{"target"}<=1 [ C ]', 0, 7),
        ('R{"end"}=? [ C ]', 0, 7),
        ("S<=0.5 [ caught ]", 0, 7),
        ("R{step}=? [ I=3 ]", 0, 7),
        ("R{count(caught)}=? [ I=3 ]", 0, 8),
        ("R{action}=? [ C<=2 ]", 0, 8),
        ("R{min(max(distance, 0), 4)}=? [ C<=2 ]", 0, 8),
        ("R{0 * distance - 1}=? [ C ]", -7, -1),
        ("R{abs(step - 5)}=? [ I=1 ]", 0, 5),
        ("R{1 / (step + 1)}=? [ I=1 ]", 1 / 8, 1),
        ("R{distance}<=1 [ C ] within [-3,20]", -3, 20),
        ("R{distance}<=1 [ S ] within [2,4]", 2, 28),  # of every step
    ],
)
def test_what_is_known_by_itself(text, low, high):
    assert asked(text) == pytest.approx((low, high), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("R=? [ C ]", -7, -1),
        ("R=? [ C<=3 ]", -3, -1),  # there is at least one step
        ("R=? [ C<=0 ]", 0, 0),
        ("R=? [ F caught ]", -7, 0),  # unless the start is the end
        ("R{-distance + 1}=? [ C ]", -21, 7),
        ("R{distance * agent[1]}=? [ I=2 ]", 0, 8),
        ("R{sum(distance)}=? [ I=2 ]", 0, 32),
        ("R{mean(distance)}=? [ I=2 ]", 0, 4),
    ],
)
def test_what_a_domain_declares(text, low, high):
    """Rounded outward, since float32 may be off by as much."""
    found = asked(text, Declared())
    assert found == pytest.approx((low, high), rel=1e-5)
    assert found[0] <= low
    assert found[1] >= high


def test_a_rate_is_subtracted_at_every_step():
    stated = psyco.parse("R{caught}<=0.25 [ S ]").measured[0]
    assert episode_range(stated, RUN, rate=0.25) == (-0.25 * 7, 0.75 * 7)
    assert episode_range(stated, RUN, rate=-1.0) == (1.0, 14.0)


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        ("R{distance}<=1 [ C ]", "distance"),
        ("R<=1 [ C ]", "reward"),
        ("R{caught + agent[0]}=? [ C ]", "agent[0]"),
        ("R{1 / distance}=? [ C ]", "distance"),
        ("R{1 / step}=? [ C ]", "1 / step"),
    ],
)
def test_what_has_no_range_is_named_with_the_remedy(text, signal):
    with pytest.raises(RequirementError) as caught:
        asked(text, Silent())
    assert f"no range is known of {signal}, " in str(caught.value)
    assert "`within [lo,hi]` after the property" in str(caught.value)
    assert ("ranges = {" in str(caught.value)) == ("/ step" not in signal)  # nothing declared would help there


@pytest.mark.parametrize(
    "domain",
    [RUN, psyco.make("particle-dance"), psyco.make("particle-dance", size=0.2, horizon=9)],
    ids=["run", "dance", "small dance"],
)
def test_signals_of_the_built_in_domains_lie_in_their_ranges_and_each_has_one(domain):
    network = network_for(domain)
    tables = signal_table(domain)
    numbers = {name for name, info in tables.items() if not info.boolean} - {"obs", "action", "step"}
    assert set(domain.ranges) == numbers
    for seed in range(5):
        policy = policy_for(domain, network, 10 * network.init(jax.random.key(seed)))
        path = psyco.record(policy, domain, seed=seed)
        for name, (low, high) in domain.ranges.items():
            assert low - 1e-6 <= path[name].min() <= path[name].max() <= high + 1e-6, name


class Boxes(Walk):
    observation_space = spaces.Box(np.array([-4.8, -np.inf], np.float32), np.array([4.8, 3e38], np.float32))
    action_space = spaces.MultiDiscrete([3, 5], start=[1, 0])

    def step(self, action):
        return super().step(action[0])


def test_bounded_boxes_and_actions_of_gymnasium_have_ranges():
    domain = psyco.make(Boxes, horizon=10)
    assert asked("R{obs[0]}=? [ I=1 ]", domain) == pytest.approx((-4.8, 4.8), rel=1e-5)
    assert asked("R{action[0] + action[1]}=? [ I=1 ]", domain) == pytest.approx((1, 7), rel=1e-5)
    assert asked("R{abs(obs[1]) > 1}=? [ C ]", domain) == (0, 10)
    for text in ("R{obs[1]}=? [ C ]", "R{info.cost}=? [ C ]"):
        with pytest.raises(RequirementError, match="no range is known of"):
            asked(text, domain)


@settings(max_examples=200)
@given(
    terms().filter(lambda term: not any(str(node) in ("a", "b") for node in walk(term))),
    paths(max_size=7),
    st.data(),
)
def test_no_state_of_a_path_is_outside_of_the_range(term, path, data):
    """By the definition, on paths whose signals are in their ranges."""
    assert all(0 <= path[name].min() <= path[name].max() <= 3 for name in NUMBERS)
    value = by_definition.value(term, path, data.draw(st.integers(0, len(path["x"]) - 1)))
    low, high = expression_range(term, Declared())
    assert np.isnan(value) or low - 1e-9 * abs(low) <= value <= high + 1e-9 * abs(high)


def test_what_every_episode_has_the_same_value_of_is_no_question():
    with pytest.raises(RequirementError, match=r"every episode has the value 0, .*R{caught}=\? \[ C<=0 \]"):
        value_ranges(psyco.parse("R{caught}=? [ C<=0 ]"), psyco.make("obstacle-run"))
