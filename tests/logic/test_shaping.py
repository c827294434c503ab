"""Shaping costs: how far a formula is from holding, where that grows step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.parser import parse_formula

X = np.array([0.0, 4.0, 4.0, 1.0, 4.0, 1.0, 1.0])
RETURN = np.array([0.0, -10.0, 50.0, 150.0, 240.0, 230.0, 230.0])
END = np.arange(7) >= 5  # the last state is repeated once
SIGNALS = {"x": X, "return": RETURN}


@pytest.mark.parametrize(
    ("formula", "shaping"),
    [
        # Each step costs the fraction of the budget that it uses up, also before the budget is spent.
        ("G (count(x > 3) <= 2)", [0, 0.5, 0.5, 0, 0.5, 0, 0]),
        ("!F (count(x > 3) > 2)", [0, 0.5, 0.5, 0, 0.5, 0, 0]),
        ("G (sum(x) <= 10)", [0, 0.4, 0.4, 0.1, 0.4, 0.1, 0]),
        ("G (sum(x) <= 2 * 5)", [0, 0.4, 0.4, 0.1, 0.4, 0.1, 0]),
        # A return counts by its changes; where only the last state matters, also those after the bound is reached.
        ('F ("end" & return >= 200)', [2, 0.05, -0.3, -0.5, -0.45, 0.05, 0]),
        ('G ("end" => return >= 200)', [2, 0.05, -0.3, -0.5, -0.45, 0.05, 0]),
        ("F (return >= 200)", [2, 0, -0.25, -0.5, -0.45, 0, 0]),
        ("F<=3 (return >= 200)", [2, 0, -0.25, -0.5, 0, 0, 0]),
        ("F[2,4] (return >= 200)", [0, 0, 0, 0, 0, 0, 0.8]),  # nothing is known before its window opens
        ("G[2,4] (return >= 100)", [0, 0, 1.5, 0, 0, 0, 0]),  # the worst is 50, half a bound below
        # A part without a distance decides an |, and adds one bound to an &.
        ("G (x >= 1 | count(x > 3) <= 2)", [0, 0, 0, 0, 0, 0, 0]),
        ("G (x != 1 | count(x > 3) <= 2)", [0, 0, 0, 1, 0, 0.5, 0]),
        ("F (x = 1 & return >= 200)", [3, 0, -0.25, -1.5, 0, -0.4, 0]),
        # An & adds, and a formula without a shaping cost keeps its cost.
        ("G (x >= 1 & count(x > 3) <= 2)", [1, 0.5, 0.5, 0, 0.5, 0, 0]),
        ("(G x < 4) & (G (count(x > 3) <= 2))", [0, 1.5, 1.5, 0, 1.5, 0, 0]),
        ("(G (return >= 0)) | (F (return >= 200))", [0, 0, 0, 0, 0, 0, 0.8]),
    ],
)
def test_each_state_adds_its_change(formula, shaping):
    monitor = compile_monitor([parse_formula(formula)])
    np.testing.assert_allclose(monitor.step_shaping_costs(SIGNALS, END)[:, 0], shaping, atol=1e-12)
    on_device = {name: jnp.asarray(array) for name, array in SIGNALS.items()}
    compiled = jax.jit(monitor.step_shaping_costs)(on_device, jnp.asarray(END))
    np.testing.assert_allclose(compiled[:, 0], shaping, atol=1e-5)


@pytest.mark.parametrize(
    "formula",
    [
        "G x <= 3",  # a signal of the domain may rise and fall
        "F x > 7",
        "return >= 200",  # about the first state alone
        "(G (sum(x) <= 3)) U (x > 3)",
        "X (count(x > 3) <= 1)",
        "G (count(x > 3) = 2)",
        "(G (sum(x) <= 3)) <=> (G (x <= 3))",
    ],
)
def test_other_formulas_have_no_shaping_cost(formula):
    assert compile_monitor([parse_formula(formula)]).step_shaping_costs(SIGNALS, END) is None


def test_a_formula_without_shaping_keeps_its_step_costs():
    texts = ["G x <= 3", "G (count(x > 3) <= 2)"]
    monitor = compile_monitor(list(map(parse_formula, texts)))
    shaping = monitor.step_shaping_costs(SIGNALS, END)
    np.testing.assert_array_equal(shaping[:, 0], monitor.step_costs(SIGNALS, END)[:, 0])
    assert shaping[:, 1].sum() == 1.5


def test_severity_changes_only_formulas_without_shaping():
    texts = ["G x <= 3", "G (x <= 5 | count(x > 3) <= 2)", "(G x <= 3) & (G (sum(x) <= 10))"]
    plain, severe = (compile_monitor(list(map(parse_formula, texts)), severity=s) for s in (False, True))
    np.testing.assert_allclose(
        plain.step_shaping_costs(SIGNALS, END), severe.step_shaping_costs(SIGNALS, END)
    )  # x is beyond 3 by 1
    signals = SIGNALS | {"x": X + (X > 3)}
    difference = severe.step_shaping_costs(signals, END) - plain.step_shaping_costs(signals, END)
    np.testing.assert_allclose(difference, (X > 3)[:, None] * np.array([1.0, 0.0, 1.0]))


@settings(max_examples=60)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8), st.integers(0, 7), st.integers(1, 6))
def test_a_shaping_cost_is_at_most_1_exactly_where_a_bound_is_kept(rewards, length, bound):
    total = np.cumsum(np.array(rewards, float))
    end = np.arange(len(total)) >= length
    total = np.where(end, total[min(length, len(total) - 1)], total)
    signals = {"return": total, "x": total}
    texts = [
        f'F ("end" & return >= {bound})',
        f"F (return >= {bound})",
        f"G (return <= {bound})",
        f"G (count(x > 1) <= {bound})",
        f"G (sum(abs(x)) <= {bound})",
        f"G (most(x) <= {bound})",
    ]
    monitor = compile_monitor(list(map(parse_formula, texts)))
    end = end | (np.arange(len(total)) == len(total) - 1)
    satisfied, _ = monitor(signals, end)
    assert ((monitor.step_shaping_costs(signals, end).sum(axis=0) <= 1 + 1e-9) == satisfied).all()
