import pytest

import psyco
from psyco._src.envs.value_bounds import requirement_warnings
from psyco._src.logic.ast import UNBOUNDED_RANGE, Number, Signal
from psyco._src.logic.lint import lint, met_by_ending_early
from psyco._src.logic.parser import parse

RANGES = {"distance": (0.0, 1.5), "speed": (-2.0, 2.0)}


def warnings_of(text):
    def range_of(term, first=False):
        if isinstance(term, Number):
            return term.value, term.value
        if first and term == Signal("step"):
            return 0.0, 0.0
        return RANGES.get(getattr(term, "name", ""), UNBOUNDED_RANGE)

    return lint(parse(text), range_of, lambda stated: (0.0, 10.0))


@pytest.mark.parametrize(
    "text",
    [
        "P>=0.9 [ distance >= 0.1 ]",
        "P>=0.9 [ distance >= 0.1 & !crashed ]",
        "P>=0.9 [ distance >= 0.1 & F landed ]",
        "P=? [ distance >= 0.1 ]",
    ],
)
def test_a_forgotten_operator_is_named_with_both_meanings(text):
    (warning,) = warnings_of(text)
    assert "first state of an episode only" in warning
    assert "G (distance >= 0.1" in warning
    assert "F (distance >= 0.1" in warning


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("P>=0.9 [ crashed => F landed ]", "Write G (crashed => (F landed)) if it may come later"),
        ("P>=0.9 [ (G speed <= 1) & (crashed & F landed) ]", "Write G crashed if it must hold in every state"),
        ("P>=0.9 [ return >= 10 ]", 'Write F ("end" & return >= 10) for the end of an episode'),
    ],
)
def test_the_likely_meaning_is_written_out(text, says):
    (warning,) = warnings_of(text)
    assert says in warning


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("P>=0.9 [ G distance >= 2 ]", "fails in every episode"),
        ("P>=0.9 [ G distance <= 2 ]", "holds in every episode"),
        ("P>=0.9 [ F (distance >= 2 & landed) ]", "distance lies between 0 and 1.5"),
        ("P>=0.9 [ G (crashed | !crashed) ]", "holds in every episode"),
        ("P>=0.9 [ F (other > 2 & other < 1) ]", "fails in every episode"),
        ("P>=0.9 [ G (other >= 1 | 1 > other) ]", "holds in every episode"),
        ("P>=0.9 [ G (step >= 1) ]", "fails in every episode, whatever the policy does (the first state decides it"),
        ("P>=0.9 [ F (step <= 0) ]", "holds in every episode"),
        ("P>=0.9 [ true U (step = 0) ]", "holds in every episode"),
        ("P>=0.9 [ !(true W crashed) ]", "fails in every episode"),
        ("P>=0.9 [ crashed R false ]", "fails in every episode"),
        ("P>=0.9 [ G (landed | distance >= 2) ]", "distance >= 2 never holds: distance lies between 0 and 1.5"),
        ("P>=0 [ G crashed ]", "every probability"),
        ("R{distance}<=11 [ C ]", "holds whatever happens: the value of an episode lies between 0 and 10"),
        ("R{distance}>=11 [ C ]", "cannot be met"),
    ],
)
def test_certain_outcomes_are_named(text, says):
    (warning,) = warnings_of(text)
    assert says in warning


@pytest.mark.parametrize(
    "text",
    [
        "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98",
        "P<=0.1 [ distance >= 0.1 & F crashed ]",
        "P>=0.9 [ start => G crashed ]",
        "P>=0.9 [ X !crashed ]; P>=0.5 [ F<=5 (step >= 3) ]; P>=0.5 [ G[1,5] step >= 1 ]",
        "P>=0.9 [ G (x / y >= 1 | x / y < 1) ]",  # 0/0 is neither
        "P>=0.9 [ true U landed ]; P>=0.9 [ !crashed W landed ]; P>=0.9 [ crashed R landed ]; P>=0.2 [ a U[2,3] true ]",
        "P in [0.4,0.6] [ F distance > 1 ]",
        "P>0 [ F crashed ]; P<1 [ F crashed ]; R{distance}>0 [ C ]; R{distance}<10 [ C ]",
        "R{distance}<=5 [ C ]; R{distance} in [0,5] [ C ]; Rmin=? [ C ]; P=? [ F crashed ]; R{distance}=? [ C ]",
        "P>=0.5 [ F (distance > other) ]; P>=0.5 [ F abs(speed) > 1 ]",
    ],
)
def test_requirements_that_depend_on_the_episode_have_no_warning(text):
    assert warnings_of(text) == []


def test_ranges_of_a_domain_decide_comparisons():
    domain = psyco.make("particle-dance", horizon=20)
    assert requirement_warnings(parse("P>=0.9 [ F step >= 30 ]"), domain) == [
        "F (step >= 30) fails in every episode, whatever the policy does (step >= 30 never holds: step lies between 0 "
        "and 20)."
    ]
    assert "fails in every episode" in requirement_warnings(parse("P>=0.9 [ G reward > 0 ]"), domain)[0]
    assert requirement_warnings(parse("P>=0.9 [ F (step > 0 & reward > -1) ]"), domain) == []


@pytest.mark.parametrize(
    ("text", "early"),
    [
        ("G distance >= 0.1", True),
        ("G (distance >= 0.1 | count(crashed) <= 1)", True),
        ("!crashed W landed", True),
        ("(G !crashed) & F landed", False),
        ("F landed", False),
        ("!F crashed", True),
        ("!(true U crashed)", True),
        ("!G landed", False),
        ("start => G !crashed", True),
        ("G (!crashed & !terminated)", False),
        ('G ("end" => step >= 20)', False),
        ("distance >= 0.1", False),
    ],
)
def test_formulas_that_an_early_end_satisfies(text, early):
    assert met_by_ending_early(parse(f"P>=0.9 [ {text} ]")) is early


def test_a_bound_on_a_value_or_an_upper_bound_counts_for_early_ends():
    assert met_by_ending_early(parse("P<=0.1 [ F crashed ]"))
    assert not met_by_ending_early(parse("P<=0.1 [ G crashed ]"))
    assert not met_by_ending_early(parse("P>=0.9 [ G !crashed ]; R>=5 [ C ]"))
    assert not met_by_ending_early(parse("Rmax=? [ C ]"))


def test_the_range_of_an_observation_decides_a_bound_that_it_cannot_reach():
    (warning,) = requirement_warnings(parse("P>=0.9 [ G obs[0] >= 10 ]"), psyco.make("CartPole-v1"))
    assert "fails in every episode" in warning and "obs[0] lies between -4.8 and 4.8" in warning
