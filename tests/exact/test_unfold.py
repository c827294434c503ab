"""Counters are cut off only where nothing can tell: exact answers by hand, for counters that rise by more than 1."""

from dataclasses import dataclass
from math import comb
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.envs.actions import Discrete
from psyco._src.exact import unfold as unfolding
from psyco._src.exact.unfold import unfold

pytestmark = pytest.mark.slow  # enumerates, and asks Storm


class TollState(NamedTuple):
    cost: Any  # [] int32
    paid: Any  # [2] int32, one entry per gate


@dataclass(frozen=True)
class Toll:
    """Every step costs 0 or `price`, with probability 1/2 each; the action chooses one of two gates."""

    price: int = 10
    horizon: int = 4

    name: ClassVar[str] = "toll"
    counters: ClassVar[tuple[str, ...]] = ("cost", "paid")
    observation_size: ClassVar[int] = 1
    actions: ClassVar[Discrete] = Discrete(2)

    def initial_distribution(self):
        return np.ones(1), TollState(jnp.zeros(1, jnp.int32), jnp.zeros((1, 2), jnp.int32))

    def draw_probabilities(self):
        return np.array([0.5, 0.5])

    def transition(self, state, action, drawn):
        price = drawn * self.price
        paid = state.paid + price * (jnp.arange(2) == action)
        return TollState(state.cost + price, paid), -price.astype(jnp.float32), jnp.bool_(False)

    def reset(self, key):
        return TollState(jnp.int32(0), jnp.zeros(2, jnp.int32))

    def step(self, key, state, action):
        return self.transition(state, action, jax.random.bernoulli(key).astype(jnp.int32))

    def observe(self, state):
        return jnp.ones(1, jnp.float32)

    def signals(self, state):
        return {"cost": state.cost, "paid": state.paid}


TOLL = Toll()


def binomial(holds) -> float:
    """The probability that the number of payments among 4 steps is one for which `holds`."""
    return sum(comb(4, k) for k in range(5) if holds(k)) / 16


ANSWERS = {  # by hand, from the number k of payments among 4 steps
    "G (cost <= 20)": binomial(lambda k: k <= 2),  # 0.6875
    "G cost < 20": binomial(lambda k: k <= 1),
    "F cost = 30": binomial(lambda k: k >= 3),
    "G (cost != 20)": binomial(lambda k: k <= 1),
    "G cost >= -5": 1.0,
    "F (\"end\" & cost + 1 <= 21)": binomial(lambda k: k <= 2),
    "F (\"end\" & cost / step <= 5)": binomial(lambda k: k <= 2),
    "F (\"end\" & cost > 6 * step)": binomial(lambda k: k >= 3),
    "G (count(cost > 20) <= 1)": 1 - 1 / 8,  # more than 1 state: three payments in the first three steps
    "F (\"end\" & sum(cost) <= 10)": 2 / 16,  # no payment, or one in the last step
    "G (most(cost) <= 20)": binomial(lambda k: k <= 2),
    "G (paid[0] <= 20)": binomial(lambda k: k <= 2),
    "G (paid[1] <= 20)": 1.0,
    "G (30 >= cost & paid[0] <= 20)": binomial(lambda k: k <= 2),
}  # fmt: skip


def first_gate(observation) -> int:
    return 0


@pytest.mark.parametrize("text", ANSWERS)
def test_a_counter_that_rises_by_more_than_1_has_the_answer_by_hand(text):
    assert psyco.exact(first_gate, TOLL, f"P=? [ {text} ]").answers == pytest.approx((ANSWERS[text],), abs=1e-12)


def test_values_and_optima_need_every_value_of_a_counter():
    asked = "R{cost}=? [ I=4 ]; R{cost}=? [ C ]; R{paid[1]}max=? [ I=4 ]; Pmin=? [ F paid[0] >= 20 ]"
    assert psyco.exact(first_gate, TOLL, asked).answers == pytest.approx((20.0, 50.0, 20.0, 0.0), abs=1e-12)


def test_a_counter_costs_no_more_states_than_the_formula_can_tell():
    actions = unfolding.policy_actions(first_gate, TOLL)
    few, many = (
        unfold(TOLL, [psyco.parse_formula(f'F ("end" & cost <= {limit})')], actions).nodes for limit in (2, 2000)
    )
    assert few == 1 + 2 + 2 + 2 + 2 and many == 1 + 2 + 3 + 4 + 1


def test_too_many_values_of_a_counter_are_named(monkeypatch):
    monkeypatch.setattr(unfolding, "MAX_STATES", 4)
    with pytest.raises(psyco.DomainError, match=r"toll has more than 4 reachable states.*cost is used in arithmetic"):
        unfold(TOLL, [psyco.parse_formula("F (cost * cost >= 300)")])


@pytest.mark.extra("stormpy")
def test_storm_has_the_answer_by_hand_and_does_not_use_the_unfolding(monkeypatch):
    from psyco._src.exact.storm import storm_value

    monkeypatch.setattr(unfolding, "_counter_limit", lambda *_: 0)  # a defect of the unfolding
    assert psyco.exact(first_gate, TOLL, "P=? [ G (cost <= 20) ]").answers == (1.0,)
    require = "; ".join(f"P>=0 [ {text} ]" for text in ANSWERS)
    found = storm_value(first_gate, TOLL, require + "; R{cost}>=0 [ I=4 ]; R{cost}>=0 [ C ]")
    assert found.probabilities == pytest.approx(tuple(ANSWERS.values()), abs=1e-12)
    assert found.expected == pytest.approx((20.0, 50.0), abs=1e-12)
    assert found.expected_return == pytest.approx(-20.0, abs=1e-12)
