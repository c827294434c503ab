"""What is worth trying of a learner's options: it is declared, it is true, and people can say otherwise."""

import pytest

import psyco
from psyco._src.learners.learner_registry import LEARNERS, learner_options, learner_ranges
from psyco._src.learners.search_space import NumberRange, OptionChoice, read_range
from psyco._src.studies.search_config import ask_search
from psyco._src.studies.study_plan import check_plan

DANCE = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"


@pytest.mark.parametrize("name", list(LEARNERS))
def test_every_learner_declares_ranges_of_options_that_it_has(name: str) -> None:
    ranges, options = learner_ranges(name), learner_options(name)
    assert len(ranges) >= 4 and set(ranges) <= set(options)
    for option, each in ranges.items():
        values = each.values if isinstance(each, OptionChoice) else (each.low, each.high)
        assert all(
            isinstance(value, int | float) == isinstance(options[option], int | float) for value in values
        )
        assert isinstance(each, OptionChoice) or 0 < each.low < each.high or not each.log
        default = options[option]
        assert default in each or default == 0  # 0: as the budget says


@pytest.mark.parametrize("name", list(LEARNERS))
def test_both_ends_of_every_range_make_a_learner(name: str) -> None:
    if name == "evosax":
        pytest.importorskip("evosax")
    search = ask_search("particle-dance", DANCE, learner=name, settings={"bias": "learned"})
    check_plan(search.ends())


def test_ranges_are_typed_as_two_ends_or_as_values() -> None:
    assert read_range("alpha", "0.01:0.3", 0.03, None) == NumberRange(0.01, 0.3, log=True)
    assert read_range("margin", "0.1:0.3", 0.3, None) == NumberRange(0.1, 0.3)
    assert read_range("margin", "0.01:0.9", 0.3, NumberRange(0.05, 0.7)) == NumberRange(0.01, 0.9)
    assert read_range("alpha", "0.01:0.03", 0.03, NumberRange(0.001, 0.1, log=True)).log
    assert read_range("epochs", "3:9", 0, None) == NumberRange(3, 9)
    assert read_range("population", "10,20", 0, None) == OptionChoice(10, 20)
    assert read_range("mirrored", "true,false", True, None) == OptionChoice(True, False)
    assert (
        str(NumberRange(0.01, 0.3, log=True)) == "0.01 to 0.3, by factors"
        and str(OptionChoice(1, 2)) == "1, 2"
    )
    assert 0.01 in NumberRange(0.01, 0.3) and True not in NumberRange(0, 2) and "x" not in NumberRange(0, 2)


@pytest.mark.parametrize(
    ("text", "default", "words"),
    [
        ("0.3:0.01", 0.03, "the smaller first"),
        ("0.3:0.3", 0.03, "the smaller first"),
        ("a:b", "pair", "two numbers"),
        ("0.3", 0.03, "one value alone is for --option"),
        ("1,1", 3, "that differ"),
        ("1,x", 3, "'x' is not allowed; the option is a whole number"),
        ("1.5:3", 3, "the option is a whole number"),
        ("yes,no", True, "the option is true or false"),
    ],
)
def test_what_is_no_range_is_refused(text: str, default: object, words: str) -> None:
    with pytest.raises(psyco.RunError, match=words):
        read_range("it", text, default, None)
