"""Explanations of verdicts, by their definition: the cells decide whatever the others are, and none can be left out."""

import dataclasses
import itertools
import time

import numpy as np
import pytest
from hypothesis import assume, given, settings

from psyco._src.logic.ast import Bool, Compare, Connective, Label, Not, Signal, Temporal, walk
from psyco._src.logic.explanation import explain, margin
from psyco._src.logic.parser import parse_formula
from psyco._src.logic.trace_check import check_path
from tests.logic import by_definition
from tests.logic.strategies import formulas, paths

MAX_CELLS = 9


def is_given(leaf):
    """Whether the length of the path alone decides a comparison or label."""
    named = [node for node in walk(leaf) if isinstance(node, Signal | Label)]
    return all(node == Label("end") or node.name == "step" for node in named)


def with_cells(formula, leaves):
    """Replace every comparison and Boolean signal by a signal of its own, so that its cells can be chosen freely."""
    match formula:
        case Not(body):
            return Not(with_cells(body, leaves))
        case Connective(_, operands) | Temporal(_, operands):
            return dataclasses.replace(formula, operands=tuple(with_cells(each, leaves) for each in operands))
        case Bool() | Label("end"):
            return formula
        case _ if is_given(formula):
            return formula
    return Signal(leaves.setdefault(formula, f"cell{len(leaves)}"))


def verdicts(formula, cells, names, states):
    """Return the set of verdicts over all values of the cells that are not fixed by `cells`, by the semantics."""
    free = [(name, step) for name in names for step in range(states) if (name, step) not in cells]
    found = set()
    for choice in itertools.product([False, True], repeat=len(free)):
        values = dict(cells) | dict(zip(free, choice, strict=True))
        path = {name: [values[name, step] for step in range(states)] for name in names}
        found.add(by_definition.satisfied(formula, path | {"x": range(states)}))
        if len(found) == 2:
            break
    return found


@settings(max_examples=100, deadline=None)
@given(formulas(), paths(max_size=4))
def test_the_cells_decide_whatever_the_others_are_and_none_can_be_left_out(formula, path):
    states = len(path["x"])
    leaves = {}
    free = with_cells(formula, leaves)
    assume(len(leaves) * states <= MAX_CELLS)
    found = explain(formula, path | {"step": np.arange(states)})
    assert found.satisfied == by_definition.satisfied(formula, path)
    assert found.deciding.keys() == leaves.keys()
    cells = {(leaves[leaf], step): by_definition.satisfied(leaf, path, step) for leaf, step in found.cells}
    assert verdicts(free, cells, leaves.values(), states) == {found.satisfied}
    for left_out in cells:
        fewer = {cell: value for cell, value in cells.items() if cell != left_out}
        assert verdicts(free, fewer, leaves.values(), states) == {True, False}


X = np.array([0.0, 4.0, 5.0, 1.0, 4.0, 1.0])
PATH = {"step": np.arange(6), "x": X, "a": X > 3, "return": np.cumsum(X)}


@pytest.mark.parametrize(
    ("formula", "satisfied", "cells"),
    [
        ("G x <= 3", False, [("x <= 3", 1)]),  # the first violation
        ("F x > 4", True, [("x > 4", 2)]),
        ("F x > 5", False, [("x > 5", step) for step in range(6)]),
        ("F<=2 x > 5", False, [("x > 5", step) for step in range(3)]),
        ("G (count(x > 3) <= 2)", False, [("count(x > 3) <= 2", 4)]),
        ('F ("end" & return >= 20)', False, [("return >= 20", 5)]),  # the length of the path is given
        ("G (step >= 5 => x > 2)", False, [("x > 2", 5)]),
        ('G (step <= 3 | !"end")', False, []),
        ("(F x > 5) & (G x <= 4)", False, [("x <= 4", 2)]),  # one cell rather than six
        ("(F a) | (G !a)", True, []),  # holds whatever a is
        ("(x > 0) <=> a", True, [("x > 0", 0), ("a", 0)]),
        ("G (x > 3 => F<=2 x <= 1)", True, None),
        ("(x < 4) U (x > 4)", False, [("x < 4", 1), ("x > 4", 0), ("x > 4", 1)]),
    ],
)
def test_an_explanation_is_the_earliest_and_shortest_that_is_found(formula, satisfied, cells):
    found = explain(parse_formula(formula), PATH)
    assert found.satisfied == satisfied
    if cells is not None:
        assert sorted((str(leaf), step) for leaf, step in found.cells) == sorted(cells)


def test_rows_are_the_subformulas_and_curves_the_compared_terms():
    found = explain(parse_formula("G (a => (count(x > 3) <= 2 & x < return))"), PATH)
    rows = [(row.depth, str(row.formula)) for row in found.rows]
    assert rows == [
        (0, "G (a => (count(x > 3) <= 2 & x < return))"),
        (1, "a => (count(x > 3) <= 2 & x < return)"),
        (2, "a"),
        (2, "count(x > 3) <= 2 & x < return"),
        (3, "count(x > 3) <= 2"),
        (4, "x > 3"),
        (3, "x < return"),
    ]
    assert [row.holds.tolist() for row in found.rows][5] == (X > 3).tolist()
    assert [(str(c.term), c.limits) for c in found.curves][-2:] == [("x", ()), ("return", ())]
    assert not np.concatenate([row.deciding for row in found.rows[:2]]).any()


@pytest.mark.slow
def test_a_long_path_is_explained_in_seconds():
    """A formula that needs every state, one with nested operators, and one that needs cases."""
    n = 301
    path = {"step": np.arange(n), "x": np.sin(np.arange(n)), "a": np.arange(n) % 7 > 3}
    began = time.monotonic()
    assert len(explain(parse_formula("F x > 2"), path).cells) == n
    assert explain(parse_formula("G (a => F<=20 (x > 0.9 & X x > 0))"), path).cells
    assert explain(parse_formula("G ((F<=5 a) <=> (F<=9 x > 0.5))"), path).cells
    assert time.monotonic() - began < 60


@settings(max_examples=60, deadline=None)
@given(formulas(), paths(max_size=5))
def test_a_margin_is_above_0_only_where_a_path_violates(formula, path):
    assume(not any(isinstance(node, Compare) and "/" in str(node) for node in walk(formula)))
    found = margin(formula, path | {"step": np.arange(len(path["x"]))})
    satisfied = check_path(formula, path).satisfied
    assert found <= 0 if satisfied else found >= 0


def test_a_margin_is_a_fraction_of_the_bound():
    assert margin(parse_formula("G x <= 4"), PATH) == pytest.approx(0.25)
    assert margin(parse_formula("G x <= 10"), PATH) == pytest.approx(-0.5)
    assert margin(parse_formula('F ("end" & return >= 30)'), PATH) == pytest.approx(0.5)
    assert margin(parse_formula("G (x <= 4 | a)"), PATH) == -0.75  # a Boolean signal counts as 1
