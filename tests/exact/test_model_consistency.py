"""A domain whose enumeration disagrees with its simulation gets no exact answers."""

import itertools
import re
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import psyco
from psyco._src.envs.actions import Discrete
from psyco._src.envs.obstacle_run import ObstacleRun
from psyco._src.exact.model_consistency import _log_likelihood_ratio, check_consistency
from psyco._src.exact.solver import EXACT, constrained_optimum
from psyco._src.exact.storm import storm_value

slow = pytest.mark.slow  # compiles

CHANCES = {
    "draw_probabilities": [0.9, 0.025, 0.025, 0.025, 0.025],
    "slightly other chances": [0.25, 0.1875, 0.1875, 0.1875, 0.1875],
    "half of the chances": [0.1] * 5,
    "negative chances": [0.4, 0.4, 0.4, -0.2, 0.0],
    "no numbers": [np.nan, 0.25, 0.25, 0.25, 0.25],
    "one move is missing": [0.25, 0.25, 0.25, 0.25, 0.0],
    "a table": [[0.2] * 5],
}


@dataclass(frozen=True)
class Lying(ObstacleRun):
    """An Obstacle Run whose enumeration disagrees with `reset` and `step`."""

    horizon: int = 12
    grid: int = 3
    lie: str = ""

    name: ClassVar[str] = "lying-run"

    def draw_probabilities(self):
        return np.array(CHANCES.get(self.lie, [0.2] * 5))

    def initial_distribution(self):
        p, states = super().initial_distribution()
        match self.lie:
            case "initial_distribution":  # the obstacle seldom stands to the left of the agent
                p = np.where(states.obstacle[:, 0] < states.agent[:, 0], 0.5, 1.2)
                return p / p.sum(), states
            case "a start is missing":
                return np.full(len(p) - 1, 1 / (len(p) - 1)), jax.tree.map(lambda leaf: leaf[1:], states)
            case "starts twice":  # which is no lie
                return np.tile(p / 2, 2), jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), states)
            case "too few starts":
                return np.full(3, 1 / 3), states
            case "fractions":
                return p, states._replace(agent=states.agent.astype(jnp.float32))
        return p, states

    def draw(self, key):
        drawn = super().draw(key)
        again = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.5, drawn.shape)
        if self.lie == "alternating":  # over all times, each move comes equally often
            even = jnp.arange(self.horizon) % 2 == 0
            turned = jnp.where(even & (drawn == 1), 2, jnp.where(~even & (drawn == 2), 1, drawn))
            return jnp.where(again, turned, drawn)
        return drawn

    def step(self, drawn, state, action):
        following, reward, done = super().step(drawn, state, action)
        match self.lie:
            case "reward":
                reward = jnp.where(done, 10.0, reward)
            case "end":
                done = done & jnp.any(following.agent != following.obstacle)
            case "jump":  # from one corner to the other
                corner = jnp.all(state.obstacle == self.grid - 1)
                following = following._replace(obstacle=jnp.where(corner, 0, following.obstacle))
            case "two places":  # over all of them, each move comes equally often
                to, back = (jnp.array_equal(state.agent, jnp.array(place)) for place in ((1, 0), (0, 1)))
                turned = jnp.where(to & (drawn == 1), 2, jnp.where(back & (drawn == 2), 1, drawn))
                return super().step(turned, state, action)
        return following, reward, done


@slow
@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ("draw_probabilities", "step of lying-run disagrees with draw_probabilities(): "),
        ("slightly other chances", "step of lying-run disagrees with draw_probabilities(): "),
        ("half of the chances",
         "draw_probabilities() of lying-run gives probabilities from 0.1 to 0.1 with the sum 0.5"),
        ("negative chances", "draw_probabilities() of lying-run gives probabilities from -0.2"),
        ("no numbers", "with the sum nan"),
        ("one move is missing", "step of lying-run leads from RunState(agent="),
        ("a table", "draw_probabilities() of lying-run gives an array of shape (1, 5)"),
        ("initial_distribution", "reset of lying-run disagrees with initial_distribution()"),
        ("a start is missing", "reset of lying-run gives RunState(agent=[0, 0], obstacle=[0, 0], collisions=0), which"),
        ("too few starts", "initial_distribution() of lying-run gives an array of shape (3,)"),
        ("fractions",
         "initial_distribution() of lying-run gives states that are not integers: RunState(agent=[0.0, 0.0]"),
        ("alternating", "as a comparison of time steps shows"),
        ("reward", "reward 10, terminated; no draw of positive probability makes transition do so"),
        ("end", "not terminated; no draw of positive probability"),
        ("jump", "obstacle=[2, 2], collisions="),
        ("two places", "as a comparison of states shows"),
    ],
)  # fmt: skip
def test_every_lie_is_found(lie, words):
    with pytest.raises(psyco.DomainError, match=re.escape(words)):
        check_consistency(Lying(lie=lie))


class CoinState(NamedTuple):
    heads: jax.Array  # [] int32


@dataclass(frozen=True)
class Coin:
    """Heads come with probability p; a domain as short as can be, without `draw` and without an end."""

    p: float = 0.25
    secret: bool = False  # the more heads there were, the more there will be
    horizon: int = 6

    name: ClassVar[str] = "coin"
    actions: ClassVar[Discrete] = Discrete(2)
    observation_size: ClassVar[int] = 1
    counters: ClassVar[tuple[str, ...]] = ("heads",)

    def reset(self, key):
        return CoinState(jnp.int32(0))

    def initial_distribution(self):
        return np.ones(1), CoinState(jnp.zeros(1, jnp.int32))

    def draw_probabilities(self):
        return np.array([1 - self.p, self.p])

    def step(self, key, state, action):
        return self.transition(state, action, jax.random.bernoulli(key, self.p).astype(jnp.int32))

    def transition(self, state, action, chance):
        more = jnp.where(self.secret & (state.heads > 0), 1, chance)
        return CoinState(state.heads + more), 1.0 * more, False

    def observe(self, state):
        return jnp.zeros(1)

    def signals(self, state):
        return {"heads": state.heads}


@dataclass(frozen=True)
class Repeating(Coin):
    """Every second toss shows what the one before has shown; taken alone, each is as it should be."""

    def draw(self, key):
        return jax.random.split(key, self.horizon)[jnp.arange(self.horizon) // 2]


@slow
def test_a_domain_that_tells_the_truth_is_answered_for_and_compared_once(monkeypatch):
    from psyco._src.exact import model_consistency

    answer = psyco.exact(lambda observation: 0, Coin(), "P>=0.5 [ F heads >= 2 ]")
    assert answer.value.probabilities[0] == pytest.approx(1 - stats.binom.cdf(1, 6, 0.25), abs=1e-12)
    monkeypatch.delattr(model_consistency, "_simulate")
    check_consistency(Coin())
    check_consistency(Coin(horizon=6))
    with pytest.raises(NameError):
        check_consistency(Coin(horizon=7))


@slow
def test_what_is_listed_twice_and_the_paper_s_domain_are_no_lies():
    check_consistency(Lying(lie="starts twice"))
    check_consistency(psyco.make("obstacle-run"))


@slow
def test_draws_that_depend_on_each_other_are_found():
    with pytest.raises(psyco.DomainError, match="as a comparison of steps after different draws shows"):
        check_consistency(Repeating())


@slow
def test_a_counter_that_influences_something_is_none():
    with pytest.raises(
        psyco.DomainError,
        match=r"coin behaves differently in CoinState\(heads=\d\) .* counters \(heads\) at 0",
    ):
        check_consistency(Coin(secret=True))


@slow
def test_no_answer_passes_the_comparison_by():
    lying = Lying(lie="half of the chances")
    with pytest.raises(psyco.DomainError, match=r"sum 0\.5"):
        psyco.exact(lambda observation: 0, lying, "P>=0.5 [ F caught ]")
    with pytest.raises(psyco.DomainError, match=r"sum 0\.5"):
        constrained_optimum(lying, "P>=0.5 [ F caught ]")
    with pytest.raises(psyco.DomainError, match=r"sum 0\.5"):
        storm_value(lambda observation: 0, lying, "P>=0.5 [ F caught ]")


def test_the_guarantee_says_what_was_compared_and_how_often_that_errs():
    for words in ("65,536", "single steps", "reset and step", "at most 1e-06", "may remain"):
        assert words in EXACT.statement


DRAWS = np.array([[1, 0, 0], [0, 1, 1]], bool)  # two of three draws lead to the same


def test_the_likelihood_ratio_is_one_on_average_if_the_chances_are_right():
    """The sum over all sequences of 5 steps, each as likely as the chances make it; the test is Markov's inequality."""
    draw_probabilities, outcome = np.array([0.3, 0.6, 0.1]), np.array([0.3, 0.7])
    fit, group = np.array([True, True, True, False, False]), np.array([0, 1, 0, 1, 0])
    average = 0.0
    for sequence in map(list, itertools.product([0, 1], repeat=5)):
        log_ratio = _log_likelihood_ratio(DRAWS[sequence], draw_probabilities, fit, group)
        average += outcome[sequence].prod() * np.exp(log_ratio)
    assert average == pytest.approx(1, abs=1e-12)


def test_the_likelihood_ratio_finds_other_chances_also_where_they_differ_between_groups_only():
    """By chance, each count of about 4,000 that decides is off by a third with a probability below 1e-40."""
    rng = np.random.default_rng(0)
    group = np.arange(40_000) % 2
    sequence = (rng.random(40_000) < np.where(group, 0.8, 0.6)).astype(int)  # 0.7 over both
    fit, draw_probabilities = rng.random(40_000) < 0.5, np.array([0.3, 0.6, 0.1])
    assert _log_likelihood_ratio(DRAWS[sequence], draw_probabilities, fit, group) > 100
    assert _log_likelihood_ratio(DRAWS[sequence], draw_probabilities, fit, 0 * group) < 5
    assert _log_likelihood_ratio(DRAWS[sequence], np.array([0.4, 0.5, 0.1]), fit, 0 * group) > 100
