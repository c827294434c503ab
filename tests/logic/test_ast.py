import pytest
from hypothesis import given, settings

from psyco._src.logic.ast import (
    DEFAULT_CONFIDENCE,
    Goal,
    Not,
    ProbabilityBound,
    Requirement,
    Signal,
    is_state_formula,
    walk,
)
from psyco._src.logic.parser import parse, parse_formula
from tests.logic.strategies import formulas, requirements, state_formulas


@pytest.mark.slow
@settings(max_examples=50)
@given(requirements())
def test_a_printed_requirement_parses_to_an_equal_one(requirement):
    again = parse(str(requirement))
    assert again == requirement
    assert hash(again) == hash(requirement)


@given(formulas(max_leaves=12))
def test_a_printed_formula_parses_to_an_equal_one(formula):
    assert parse_formula(str(formula)) == formula


def test_printing_is_prism_with_few_parentheses():
    text = (
        '"optimize return": Rmax=? [ C ];\n'
        '"bounded collisions": P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98;\n'
        'P in [0.1,0.25] [ !"crashed" U[2,5] x - (y - 1) > 2 * -z ] & C>=0.95;'
    )
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "!(F a) & b",
        "(G a) => b",
        "G F !a",
        "a U (b U c)",
        "(a U b) U c",
        "(a & b) & c",
        "X (a = b)",
        "-(-x + 1) * 2 < 3",
        "-count(a | !b) * 2 <= sum(x - (y - 1)) / 3",
    ],
)
def test_parentheses_are_printed_where_they_matter_and_only_there(text):
    assert str(parse_formula(text)) == text


def test_locations_and_text_are_no_part_of_equality():
    assert parse("P>=0.5 [ G a ]") == parse("\n\n  P>=0.5 [G(a)] & C>=0.95;")
    assert parse_formula("  a").location != parse_formula("a").location


def test_empty_text_only_maximises_the_return():
    assert parse("") == parse(" // nothing\n") == Requirement(Goal(maximize=True), ())
    assert parse("").probability_bounds == ()


@pytest.mark.parametrize(
    ("constraint", "sides"),
    [
        ("P>=0.85", [(0.85, False)]),
        ("P>0.85", [(0.85, False)]),
        ("P<=0.9", [(0.1, True)]),
        ("P<0.15", [(0.85, True)]),
        ("P in [0.2,0.7]", [(0.2, False), (0.3, True)]),
        ("P in [0,0.7]", [(0.3, True)]),
        ("P in [0.2,1]", [(0.2, False)]),
        ("P in [0,1]", [(0.0, False)]),
        ("P<=1", [(0.0, True)]),
        ("P>=0", [(0.0, False)]),
    ],
)
def test_probability_bounds_are_one_sided(constraint, sides):
    a = Signal("a")
    requirement = parse(f"P>=0.5 [ b ]; {constraint} [ a ] & C>=0.9")
    assert requirement.probability_bounds == (
        ProbabilityBound(Signal("b"), 0.5, DEFAULT_CONFIDENCE, 0, False),
        *(ProbabilityBound(Not(a) if negated else a, p, 0.9, 1, negated) for p, negated in sides),
    )


@given(state_formulas())
def test_state_formulas_have_no_temporal_operator(formula):
    assert is_state_formula(formula)
    assert not is_state_formula(parse_formula(f"true & X ({formula})"))


def test_walk_visits_every_node_in_the_order_of_the_text():
    names = [node.name for node in walk(parse_formula("a U (b & c + min(d, e) > -f)")) if isinstance(node, Signal)]
    assert names == list("abcdef")
