"""Quantities have the values that docs/language.md defines, on NumPy arrays and compiled."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyco._src.core.errors import RequirementError
from psyco._src.logic.ast import Question
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.parser import parse
from psyco._src.logic.trace_check import path_value
from tests.logic import by_definition
from tests.logic.strategies import formulas, paths, quantities

LONGER = 3  # states by which a path is filled up


@settings(max_examples=300)
@given(quantities(), paths())
def test_the_value_of_a_path_is_the_definition(quantity, path):
    value, _ = by_definition.measured(quantity, path)
    assert path_value(Question(quantity), path) == pytest.approx(value, rel=1e-12, nan_ok=True)


@settings(max_examples=100)
@given(st.lists(quantities() | formulas(), min_size=1, max_size=3), paths(min_size=2))
def test_repetitions_of_the_last_state_add_nothing(measured, path):
    """As rollouts pad episodes up to the horizon; a formula has its value on the unpadded path."""
    monitor = compile_monitor([], measured=measured)
    path |= {"step": np.arange(len(path["x"]))}
    index = np.minimum(np.arange(len(path["x"]) + LONGER), len(path["x"]) - 1)
    end = np.arange(len(index)) >= len(path["x"]) - 1
    alone, filled = monitor.measure(path), monitor.measure({k: v[index] for k, v in path.items()}, end)
    np.testing.assert_allclose(filled.value, alone.value, rtol=1e-12)
    np.testing.assert_array_equal(filled.reached, alone.reached)


@pytest.mark.slow
@settings(max_examples=15)
@given(quantities(), st.lists(paths(min_size=5, max_size=5), min_size=2, max_size=2))
def test_compiled_values_of_a_batch_are_those_of_its_paths(quantity, batch):
    monitor = compile_monitor([], measured=[quantity])
    stacked = {name: jnp.stack([jnp.asarray(path[name]) for path in batch]) for name in batch[0]}
    stacked["step"] = jnp.tile(jnp.arange(5), (2, 1))
    value, reached, _ = monitor.measure(stacked)
    assert value.dtype == jnp.float32
    for row, path in enumerate(batch):
        expected, arrived = by_definition.measured(quantity, path)
        assert float(value[row, 0]) == pytest.approx(expected, rel=1e-3, abs=1e-3, nan_ok=True)
        assert bool(reached[row, 0]) == arrived


PATH = {"x": [1.0, 2.0, 4.0, 8.0], "a": [False, True, False, True], "reward": [0.0, -1.0, -2.0, -3.0]}


@pytest.mark.parametrize(
    ("question", "value"),
    [
        ("R=? [ C ]", -6),
        ("R{x}=? [ C ]", 14),  # state 0 belongs to no step
        ("R{x}=? [ C<=0 ]", 0),
        ("R{x}=? [ C<=2 ]", 6),
        ("R{x}=? [ C<=9 ]", 14),
        ("R{x}=? [ I=0 ]", 1),
        ("R{x}=? [ I=9 ]", 8),
        ("R{a}=? [ C ]", 2),
        ('R{"a"}=? [ C ]', 2),
        ('R{"end"}=? [ C ]', 1),
        ("R{true}=? [ F x > 2 ]", 2),
        ("R{x}=? [ F x > 2 ]", 6),  # the step that reaches it counts
        ("R{x}=? [ F x = 1 ]", 0),
        ("R{x}=? [ F x > 9 ]", 14),
        ("R{sum(x)}=? [ I=2 ]", 7),
        ("R{x - 1}=? [ S ]", 11),
        ("S=? [ a ]", 2),
        ("P=? [ F x > 7 ]", 1),
        ("P=? [ G a ]", 0),
    ],
)
def test_the_values_of_a_path_by_hand(question, value):
    assert path_value(question, PATH) == value


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ("R<=1 [ C ]", "0 questions in 'R<=1"),
        ("R=? [ C ]; P=? [ a ]", "2 questions"),
        ("R{y}=? [ C ]", "unknown signal 'y'"),
    ],
)
def test_invalid_questions_are_refused(question, says):
    with pytest.raises(RequirementError, match=says):
        path_value(question, PATH)


def test_without_measured_values_there_are_no_columns():
    monitor = compile_monitor([parse("P>=0.5 [ a ]").constraints[0].formula])
    assert monitor.measure({"a": np.ones(3, bool)}) == (None, None, None)
