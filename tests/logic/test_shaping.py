"""Grades: how far a formula is from holding, where that grows step by step."""

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
    ("formula", "grade"),
    [
        # Each step takes as much of the budget as it uses up, also before that is spent.
        ("G (count(x > 3) <= 2)", [0, 0.5, 0.5, 0, 0.5, 0, 0]),
        ("!F (count(x > 3) > 2)", [0, 0.5, 0.5, 0, 0.5, 0, 0]),
        ("G (sum(x) <= 10)", [0, 0.4, 0.4, 0.1, 0.4, 0.1, 0]),
        ("G (sum(x) <= 2 * 5)", [0, 0.4, 0.4, 0.1, 0.4, 0.1, 0]),
        # A return counts as it changes, and where only the last state matters no other bound the way there.
        ('F ("end" & return >= 200)', [2, 0.05, -0.3, -0.5, -0.45, 0.05, 0]),
        ('G ("end" => return >= 200)', [2, 0.05, -0.3, -0.5, -0.45, 0.05, 0]),
        ("F (return >= 200)", [2, 0, -0.25, -0.5, -0.45, 0, 0]),
        ("F<=3 (return >= 200)", [2, 0, -0.25, -0.5, 0, 0, 0]),
        ("F[2,4] (return >= 200)", [0, 0, 0, 0, 0, 0, 0.8]),  # nothing is known before its window opens
        ("G[2,4] (return >= 100)", [0, 0, 1.5, 0, 0, 0, 0]),  # the worst is 50, half a bound below
        # What only holds or fails decides an |, and sets an & back by one bound.
        ("G (x >= 1 | count(x > 3) <= 2)", [0, 0, 0, 0, 0, 0, 0]),
        ("G (x != 1 | count(x > 3) <= 2)", [0, 0, 0, 1, 0, 0.5, 0]),
        ("F (x = 1 & return >= 200)", [3, 0, -0.25, -1.5, 0, -0.4, 0]),
        # An & of demands adds, and what has no grade keeps its cost.
        ("G (x >= 1 & count(x > 3) <= 2)", [1, 0.5, 0.5, 0, 0.5, 0, 0]),
        ("(G x < 4) & (G (count(x > 3) <= 2))", [0, 1.5, 1.5, 0, 1.5, 0, 0]),
        ("(G (return >= 0)) | (F (return >= 200))", [0, 0, 0, 0, 0, 0, 0.8]),
    ],
)
def test_a_state_adds_what_it_changes(formula, grade):
    monitor = compile_monitor([parse_formula(formula)])
    np.testing.assert_allclose(monitor.grade(SIGNALS, END)[:, 0], grade, atol=1e-12)
    on_device = {name: jnp.asarray(array) for name, array in SIGNALS.items()}
    np.testing.assert_allclose(monitor.grade(on_device, jnp.asarray(END))[:, 0], grade, atol=1e-5)


@pytest.mark.parametrize(
    "formula",
    [
        "G x <= 3",  # a signal of the domain may do what it likes
        "F x > 7",
        "return >= 200",  # about the first state alone
        "(G (sum(x) <= 3)) U (x > 3)",
        "X (count(x > 3) <= 1)",
        "G (count(x > 3) = 2)",
        "(G (sum(x) <= 3)) <=> (G (x <= 3))",
    ],
)
def test_other_formulas_have_none(formula):
    assert compile_monitor([parse_formula(formula)]).grade(SIGNALS, END) is None


def test_a_formula_without_one_keeps_its_blame_beside_others():
    texts = ["G x <= 3", "G (count(x > 3) <= 2)"]
    monitor = compile_monitor(list(map(parse_formula, texts)))
    grade = monitor.grade(SIGNALS, END)
    np.testing.assert_array_equal(grade[:, 0], monitor.blame(SIGNALS, END)[:, 0])
    assert grade[:, 1].sum() == 1.5


def test_severity_changes_only_what_has_no_grade():
    texts = ["G x <= 3", "G (x <= 5 | count(x > 3) <= 2)", "(G x <= 3) & (G (sum(x) <= 10))"]
    plain, severe = (compile_monitor(list(map(parse_formula, texts)), severity=s) for s in (False, True))
    np.testing.assert_allclose(plain.grade(SIGNALS, END), severe.grade(SIGNALS, END))  # x is beyond 3 by 1
    signals = SIGNALS | {"x": X + (X > 3)}
    difference = severe.grade(signals, END) - plain.grade(signals, END)
    np.testing.assert_allclose(difference, (X > 3)[:, None] * np.array([1.0, 0.0, 1.0]))


@settings(max_examples=60)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8), st.integers(0, 7), st.integers(1, 6))
def test_a_grade_is_at_most_1_exactly_where_a_bound_is_kept(rewards, length, bound):
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
    assert ((monitor.grade(signals, end).sum(axis=0) <= 1 + 1e-9) == satisfied).all()
