"""Search ranges of options: declared ones are valid, and others can be given as text."""

import pytest

import psyco
from psyco._src.core.options import NumberRange, OptionChoice, read_range
from psyco._src.learners.learner_registry import LEARNERS, learner_options, learner_ranges
from psyco._src.studies.search_config import make_search
from psyco._src.studies.study_plan import check_plan

LAKE = "P>=0.7 [ F obs[15] = 1 ] & C>=0.95"
DANCE = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"


@pytest.mark.parametrize("name", list(LEARNERS))
def test_every_learner_declares_ranges_of_options_that_it_has(name: str) -> None:
    ranges, options = learner_ranges(name), learner_options(name)
    assert ranges, f"psyco tune has nothing to search: give an option of {name} a `search` range"
    assert set(ranges) <= set(options)
    for option, each in ranges.items():
        values = each.values if isinstance(each, OptionChoice) else (each.low, each.high)
        assert all(options[option].check(value) == value for value in values)
        assert isinstance(each, OptionChoice) or 0 < each.low < each.high or not each.log
        default = options[option].default
        assert default is None or default in each


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.extra("evosax") if name == "evosax" else ()) for name in LEARNERS]
)
def test_both_ends_of_every_range_make_a_learner(name: str) -> None:
    domain, requirement = ("FrozenLake-v1", LAKE) if name == "table" else ("particle-dance", DANCE)
    search = make_search(domain, requirement, learner=name, settings={"bias": "learned"})
    check_plan(search.boundary_plan())


def test_ranges_are_typed_as_two_ends_or_as_values() -> None:
    safe_es, ppo = learner_options("safe-es"), learner_options("ppo")
    assert read_range("0.01:0.3", ppo["score_limit"]) == NumberRange(0.01, 0.3, log=True)
    assert read_range("0.1:0.3", ppo["score_limit"]) == NumberRange(0.1, 0.3)
    assert read_range("0.01:0.9", safe_es["margin"]) == NumberRange(0.01, 0.9)
    assert read_range("0.01:0.03", safe_es["learning_rate"]) == NumberRange(0.01, 0.03, log=True)
    assert read_range("3:9", ppo["epochs"]) == NumberRange(3, 9)
    assert read_range("10,20", safe_es["population"]) == OptionChoice(10, 20)
    assert read_range("true,false", safe_es["mirrored"]) == OptionChoice(True, False)
    assert str(NumberRange(0.01, 0.3, log=True)) == "0.01 to 0.3, logarithmic"
    assert str(OptionChoice(1, 2)) == "1, 2"
    assert 0.01 in NumberRange(0.01, 0.3) and True not in NumberRange(0, 2) and "x" not in NumberRange(0, 2)


@pytest.mark.parametrize(
    ("text", "option", "words"),
    [
        ("0.3:0.01", "sigma", "the smaller first"),
        ("0.3:0.3", "sigma", "the smaller first"),
        ("pair:population", "shaping", "two numbers"),
        ("0.3", "sigma", "a single value is given by --option"),
        ("2,2", "population", "two different values"),
        ("2,x", "population", "population must be a whole number of at least 2, got 'x'"),
        ("2.5:3", "population", "a whole number"),
        ("0:0.3", "sigma", "sigma must be a number above 0"),
        ("yes,no", "mirrored", "true or false"),
    ],
)
def test_other_texts_are_refused(text: str, option: str, words: str) -> None:
    with pytest.raises(psyco.RunError, match=words):
        read_range(text, learner_options("safe-es")[option])
