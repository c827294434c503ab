"""Expected values on random finite chains are the exact fractions; backward induction, Storm and duality agree."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy import optimize

import psyco
from psyco._src.core.errors import RequirementError, RunError
from psyco._src.envs.actions import Discrete
from psyco._src.exact import plain_chain
from psyco._src.exact import unfold as unfolding
from psyco._src.exact.model_export import drn, explicit_model
from psyco._src.exact.solver import _backward_induction, _value_layout, constrained_optimum
from psyco._src.exact.unfold import unfold
from psyco._src.logic.ast import LongRun, Quantity
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from tests.logic import by_definition

pytestmark = pytest.mark.slow  # enumerates, and asks Storm

SMALL = psyco.make("obstacle-run", grid=3, horizon=7)


GENERATED = [Phase.generate]  # every chain is compiled, so finding a smaller one would take minutes


class Spot(NamedTuple):
    place: Any
    visits: Any  # of place 0


@dataclass(frozen=True)
class Chain:
    """Four places, two actions, three draws; all numbers are small fractions of 8, so that floats are exact."""

    moves: tuple[int, ...]  # [4 * 2 * 3] where each draw leads
    over: tuple[bool, ...]  # [4] coming there ends the episode
    worth: tuple[int, ...]  # [4] the signal x
    marked: tuple[bool, ...]  # [4] the signal a
    horizon: int = 4

    name: ClassVar[str] = "chain"
    counters: ClassVar[tuple[str, ...]] = ("visits",)
    observation_size: ClassVar[int] = 1
    actions: ClassVar[Discrete] = Discrete(2)

    def initial_distribution(self):
        return np.array([0.25, 0.75]), Spot(jnp.array([0, 3]), jnp.zeros(2, jnp.int32))

    def draw_probabilities(self):
        return np.array([0.5, 0.125, 0.375])

    def transition(self, state, action, chance):
        place = jnp.array(self.moves).reshape(4, 2, 3)[state.place, action, chance]
        visits = state.visits + (place == 0)
        return Spot(place, visits), jnp.float32(1) - place, jnp.array(self.over)[place]

    def reset(self, key):
        return Spot(jax.random.randint(key, (), 0, 4), jnp.int32(0))

    def step(self, key, state, action):
        return self.transition(state, action, jax.random.randint(key, (), 0, 3))

    def observe(self, state):
        return state.place[None].astype(jnp.float32)

    def signals(self, state):
        x, a = jnp.array(self.worth)[state.place], jnp.array(self.marked)[state.place]
        return {"x": x, "a": a, "visits": state.visits}


def listed(size, values):
    return st.lists(values, min_size=size, max_size=size).map(tuple)


chains = st.builds(
    Chain,
    listed(24, st.integers(0, 3)),
    listed(4, st.sampled_from([False, False, True])),
    listed(4, st.integers(-2, 3)),
    listed(4, st.booleans()),
)
policies = listed(4, st.integers(0, 1))
QUANTITIES = [
    *(
        "R=? [ C ]",
        "R{x}=? [ C ]",
        "R{x}=? [ C<=2 ]",
        "R{x}=? [ C<=0 ]",
        "R{a}=? [ C ]",
        "R{x > 0 & a}=? [ C<=3 ]",
    ),
    *("R{x}=? [ I=0 ]", "R{x * x - 1}=? [ I=3 ]", "R{return}=? [ I=2 ]", "R{count(a)}=? [ I=3 ]"),
    *(
        "R{x}=? [ F a ]",
        "R{true}=? [ F a & x > 0 ]",
        "R{visits}=? [ I=4 ]",
        'R{"visits"}=? [ C ]',
        'R{"end"}=? [ C ]',
    ),
    *("R{x}=? [ S ]", "S=? [ a ]", "P=? [ F a ]", "P=? [ G (x < 2 | visits <= 1) ]"),
    *("CVaR{x}(0.75)=? [ C ]", "CVaR{-x}(0.5)=? [ F a ]", "CVaR{visits}(0.875)=? [ I=4 ]", "CVaR(0.25)=? [ C<=3 ]"),
]
ASKED = psyco.parse("; ".join(QUANTITIES)).questions


class Node(NamedTuple):
    """A path up to now, by the definition of the domain in plain Python."""

    path: tuple[tuple[int, float], ...]  # place and reward of each state
    over: bool

    def signals(self, chain):
        places, rewards = zip(*self.path, strict=True)
        visits = list(itertools.accumulate((place == 0 for place in places[1:]), initial=0))
        return {
            "x": [float(chain.worth[place]) for place in places],
            "a": [chain.marked[place] for place in places],
            "visits": [float(count) for count in visits],
            "reward": rewards,
            "return": list(itertools.accumulate(rewards)),
        }


def successors(chain, node, action) -> Iterator[tuple[Fraction, Node]]:
    for draw, p in enumerate((Fraction(1, 2), Fraction(1, 8), Fraction(3, 8))):
        place = chain.moves[(node.path[-1][0] * 2 + action) * 3 + draw]
        path = (*node.path, (place, 1.0 - place))
        yield p, Node(path, chain.over[place] or len(path) > chain.horizon)


STARTS = [(Fraction(1, 4), Node(((0, 0.0),), False)), (Fraction(3, 4), Node(((3, 0.0),), False))]


def complete(chain, policy) -> Iterator[tuple[Fraction, Node]]:
    """All episodes with their probabilities."""
    todo = list(STARTS)
    while todo:
        p, node = todo.pop()
        if node.over:
            yield p, node
        else:
            todo += [(p * q, ahead) for q, ahead in successors(chain, node, policy[node.path[-1][0]])]


def number(subject, signals):
    if isinstance(subject, Quantity):
        return Fraction(by_definition.measured(subject, signals)[0])
    return Fraction(by_definition.satisfied(subject, signals))


def tail_mean(values, subject):
    """The mean of the worst values, by the definition."""
    total, left = Fraction(0), 1 - Fraction(subject.cvar)
    for value, p in sorted(values, reverse=True):
        total, left = total + value * min(p, left), left - min(p, left)
    return total / (1 - Fraction(subject.cvar))


def answered(chain, policy, require):
    with mock.patch.object(unfolding, "check_consistency"):  # it samples, and is tested elsewhere
        return psyco.exact(lambda seen: policy[int(seen[0])], chain, require)


@settings(max_examples=12, phases=GENERATED)
@given(chains, policies)
@pytest.mark.more
def test_expected_values_and_rates_of_random_chains_are_the_exact_fractions(chain, policy):
    episodes = [(p, node.signals(chain), len(node.path) - 1) for p, node in complete(chain, policy)]
    assert sum(p for p, *_ in episodes) == 1
    found = answered(chain, policy, "; ".join(QUANTITIES)).answers
    for question, answer in zip(ASKED, found, strict=True):
        exact = sum(p * number(question.subject, signals) for p, signals, _ in episodes)
        if isinstance(question.subject, Quantity) and question.subject.cvar is not None:
            exact = tail_mean([(number(question.subject, signals), p) for p, signals, _ in episodes], question.subject)
        if isinstance(question.subject, Quantity) and isinstance(question.subject.over, LongRun):
            exact /= sum(p * length for p, _, length in episodes)
        assert answer == pytest.approx(float(exact), abs=1e-12), question


def best(chain, node, worth, pick):
    """Return the best value of any controller with perfect memory from this node on."""
    if node.over:
        return worth(node)
    return pick(
        sum(p * best(chain, ahead, worth, pick) for p, ahead in successors(chain, node, action)) for action in (0, 1)
    )


@settings(max_examples=6, phases=GENERATED)
@given(chains)
def test_the_best_of_all_controllers_is_that_of_the_tree_of_all_episodes(chain):
    asked = ["P{}=? [ F a ]", "R{{x}}{}=? [ C ]", "R{{x}}{}=? [ F a ]", "R{{x}}{}=? [ I=3 ]"]
    ways = [(text, name, pick) for text in asked for name, pick in (("max", max), ("min", min))]
    require = "; ".join(text.format(name) for text, name, _ in ways)
    rates = "R{x}max=? [ S ]; R{x}min=? [ S ]"
    *found, highest, lowest = answered(chain, (0,) * 4, f"{require}; {rates}").answers
    for (text, _, pick), answer in zip(ways, found, strict=True):
        subject = psyco.parse(text.format("")).questions[0].subject
        tree = sum(
            p * best(chain, node, lambda end, s=subject: number(s, end.signals(chain)), pick) for p, node in STARTS
        )
        assert answer == pytest.approx(float(tree), abs=1e-12)
    total = psyco.parse("R{x}=? [ C ]").questions[0].subject
    for rate, pick in ((highest, max), (lowest, min)):  # no controller has more than 0 against the best rate

        def excess(end, r=Fraction(rate)):
            return number(total, end.signals(chain)) - r * (len(end.path) - 1)

        assert float(sum(p * best(chain, node, excess, pick) for p, node in STARTS)) == pytest.approx(0, abs=1e-9)


def random_policy(seed, domain=SMALL):
    network = network_for(domain)
    return policy_for(domain, network, network.init(jax.random.key(seed)))


BOUNDED = (
    "R<=0 [ C ]; P>=0.5 [ G !caught ]; R{distance}<=1 [ C<=3 ]; R{distance * 2}<=1 [ I=4 ]; R{caught}<=1 [ I=0 ];"
    "R{distance}<=1 [ F caught ]; R{collisions}<=1 [ C ]; R{distance}<=1 [ S ]; S<=0.5 [ caught ]"
)


def chain_of(seed):
    rng = np.random.default_rng(seed)
    return Chain(
        tuple(rng.integers(0, 4, 24).tolist()),
        (False, True, False, False),
        (3, -1, 2, 0),
        (False, True, True, False),
    )


@pytest.mark.extra("stormpy")
@pytest.mark.parametrize("domain", [SMALL, chain_of(1)], ids=["obstacle-run", "chain"])
def test_storm_agrees_to_1e_9_on_expected_values_and_long_run_averages(domain):
    from psyco._src.exact.storm import storm_value

    require = BOUNDED if domain is SMALL else "; ".join(text.replace("=?", "<=1") for text in QUANTITIES[:17])
    policy = random_policy(3) if domain is SMALL else lambda seen: int(seen[0]) % 2
    with mock.patch.object(unfolding, "check_consistency"), mock.patch.object(plain_chain, "check_consistency"):
        own, other = psyco.exact(policy, domain, require).value, storm_value(policy, domain, require)
    assert other.expected == pytest.approx(own.expected, abs=1e-9)
    assert other.probabilities == pytest.approx(own.probabilities, abs=1e-9)
    assert len(own.expected) >= 8


@pytest.mark.extra("stormpy")
def test_a_certified_rate_agrees_with_the_long_run_average_of_storm():
    """The interval misses by chance with probability 1e-6."""
    from psyco._src.exact.storm import storm_value

    policy = random_policy(3)
    (rate,) = storm_value(policy, SMALL, "R{caught}<=1 [ S ]").expected
    require = f"R{{caught}}<={1.1 * rate} [ S ]; R{{caught}}=? [ S ] & C>=0.999999"
    shown = psyco.verify(policy, SMALL, require, max_episodes=10_000)
    assert shown.verdict.name == "SATISFIED"
    (answer,) = shown.answers
    assert answer.lower <= rate <= answer.upper < 1.2 * rate


def test_the_expected_return_and_the_reward_added_up_are_one():
    found = psyco.exact(random_policy(3), SMALL, "R<=-3 [ C ]; R=? [ F target ]; R{caught}<=0.9 [ C ]")
    assert found.value.expected[0] == pytest.approx(found.value.expected_return, abs=1e-12)
    assert found.value.expected[0] == found.value.by_constraint(psyco.parse("R<=1 [ C ]; R<=1 [ C ]"))[0]
    assert found.verdict.name == "SATISFIED"


def test_the_worst_episodes_of_obstacle_run_are_those_that_sampling_finds():
    """The intervals miss by chance with probability 1e-6."""
    policy, ask = random_policy(3), "CVaR{caught}(0.9)=? [ C ] & C>=0.999999"
    bounds = "CVaR{caught}(0.9)<=3.7 [ C ]; CVaR{distance}(0.9)>=2 [ C ]; R{caught}<=1 [ C ]"
    found = psyco.exact(policy, SMALL, f"{bounds}; {ask}")
    worst, nearest, mean = found.value.expected
    assert mean < 1 < worst == found.answers[0]
    assert nearest < psyco.exact(policy, SMALL, "R{distance}=? [ C ]").answers[0]
    assert found.optimum is None
    (answer,) = psyco.verify(policy, SMALL, ask, max_episodes=2000).answers
    assert answer.lower < worst < answer.upper < answer.lower + 2
    with pytest.raises(RunError, match="the optimum under a bound on CVaR is not computed"):
        constrained_optimum(SMALL, bounds)
    with pytest.raises(RunError, match="about the first state alone"):
        psyco.exact(policy, SMALL, "CVaR{caught}(0.9)=? [ I=0 ]")


@pytest.mark.parametrize("stated", ["R{{caught}}<={} [ C ]", "R{{caught}}<={} [ S ]"])
def test_an_expected_constraint_binds_and_its_optimum_is_that_of_the_dual(stated):
    """Weak duality: no price of the constraint gives less than the optimum, and the right one gives as much."""
    rate = "[ S ]" in stated
    free = constrained_optimum(SMALL, stated.format(9))
    bound = 0.5 * free.expected[0]
    requirement = psyco.parse(stated.format(bound))
    found = constrained_optimum(SMALL, requirement)
    assert found.expected[0] == pytest.approx(bound, abs=1e-9)
    assert found.expected_return < free.expected_return - 1e-3
    columns = _value_layout(requirement)
    process = unfold(SMALL, columns.formulas, quantities=columns.quantities)
    row = columns.unit(columns.quantities[0]) - (bound * columns.unit(columns.quantities[-1]) if rate else 0)

    def dual(price):
        goal = np.eye(len(row))[0] - price * row
        return goal @ _backward_induction(process, goal) + (0 if rate else price * bound)

    least = optimize.minimize_scalar(dual, bounds=(0, 100), method="bounded", options={"xatol": 1e-9})
    assert least.fun == pytest.approx(found.expected_return, abs=1e-6)
    assert constrained_optimum(SMALL, "R{caught}<=-0.1 [ C ]") is None


def with_rewards(**models):
    """One `.drn` text of models that differ in their rewards alone."""
    for lines in zip(*map(drn, models.values()), strict=True):
        numbers = [re.search(r"\[(.*)\]", line) for line in lines]
        if lines[0] == "total":
            yield " ".join(models)
        elif all(numbers):
            yield re.sub(r"\[.*\]", f"[{', '.join(each[1] for each in numbers)}]", lines[0])
        else:
            yield lines[0]


@pytest.mark.extra("stormpy")
def test_storm_finds_the_same_optimum_under_several_objectives(tmp_path):
    """A run of steps that is as short as can be, where being caught is bounded on average and ever."""
    import stormpy

    free = constrained_optimum(SMALL, "R{caught}<=9 [ C ]; P>=0 [ G !caught ]")
    bound, p = 0.5 * free.expected[0], 0.5 + 0.5 * free.probabilities[0]
    both = psyco.parse(f"R{{caught}}<={bound} [ C ]; P>={p} [ G !caught ]; R{{true}}=? [ C ]")
    columns = _value_layout(both)
    process = unfold(SMALL, columns.formulas, quantities=columns.quantities)
    caught, steps = (explicit_model(process, quantity=i) for i in range(2))
    file = tmp_path / "model.drn"
    file.write_text("".join(f"{line}\n" for line in with_rewards(caught=caught, steps=steps)))
    model = stormpy.build_model_from_drn(str(file))

    def least_steps(*further):
        objectives = ", ".join(['R{"steps"}min=? [ C ]', *further])
        (asked,) = stormpy.parse_properties(f"multi({objectives})")
        return stormpy.model_checking(model, asked).get_value(model.initial_states[0])

    expected, probability = f'R{{"caught"}}<={bound} [ C ]', f'P>={p} [ F "satisfied" ]'
    found = constrained_optimum(SMALL, f"R{{caught}}<={bound} [ C ]").expected_return
    assert least_steps(expected) == pytest.approx(-found, abs=1e-4)  # Storm stops there
    assert least_steps(expected, probability) == pytest.approx(
        -constrained_optimum(SMALL, both).expected_return, abs=1e-4
    )
    assert constrained_optimum(SMALL, both).expected_return < found - 1e-3 < free.expected_return - 2e-3


def test_what_is_no_number_everywhere_has_no_exact_answer():
    with pytest.raises(RequirementError, match=r"1 / distance is not a finite number"):
        psyco.exact(random_policy(3), SMALL, "R{1 / distance}=? [ C ]")
