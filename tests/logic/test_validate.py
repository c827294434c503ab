import pytest

from psyco._src.core.errors import RequirementError
from psyco._src.logic.ast import SignalInfo
from psyco._src.logic.parser import parse, parse_formula
from psyco._src.logic.validate import check_bounds, check_signals

AVAILABLE = {
    "distance": SignalInfo(),
    "obs": SignalInfo(size=3),
    "crashed": SignalInfo(boolean=True),
    "landed": SignalInfo(boolean=True),
    "info.": SignalInfo(boolean=None),
}


@pytest.mark.parametrize(
    "text",
    [
        'G (distance >= 0.1 | obs[2] > 0) & !crashed & "crashed" & F "end"',
        "info.success & info.cost < 1 & info.vector[7] = 2",
        "crashed = landed",
        "crashed = true",
        'count(crashed & !"landed") <= 1 & sum(obs[1]) + mean(info.cost) < most(distance) - least(distance)',
    ],
)
def test_known_signals_pass(text):
    check_signals(parse_formula(text), AVAILABLE, "test")
    check_signals(parse(f"P>=0.5 [ {text} ]"), AVAILABLE, "test")


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("distanc > 1", 1, "unknown signal 'distanc'"),
        ('"crash"', 1, 'unknown label "crash"'),
        ("X end", 3, "unknown signal 'end'"),
        ("obs[3] > 0", 1, "index 3 of signal 'obs' is out of range"),
        ("0 < obs", 5, "signal 'obs' has 3 entries"),
        ("distance[0] > 0", 1, "signal 'distance' is a single value"),
        ("G distance", 3, "signal 'distance' is a number, not true or false"),
        ('"distance"', 1, 'label "distance" is a number, not true or false'),
        ("true & distance = true", 8, "signal 'distance' is a number, not true or false"),
        ("crashed > 0", 1, "signal 'crashed' is true or false, not a number"),
        ("F (sum(distanc) > 1)", 8, "unknown signal 'distanc'"),
        ("F (count(distance) > 1)", 10, "signal 'distance' is a number, not true or false"),
        ("F (sum(crashed) > 1)", 8, "signal 'crashed' is true or false, not a number"),
        ("abs(crashed) = 0", 5, "signal 'crashed' is true or false, not a number"),
    ],
)
def test_wrong_signals_are_named_with_their_location(text, column, says):
    with pytest.raises(RequirementError) as caught:
        check_signals(parse(f"P>=0.5 [\n{text} ]"), AVAILABLE, "test")
    assert (caught.value.line, caught.value.column) == (2, column)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("R{distanc}<=1 [ C ]", "unknown signal 'distanc'"),
        ("R{distance}<=1 [ F distanc > 1 ]", "unknown signal 'distanc'"),
        ("R{obs}=? [ C ]", "signal 'obs' has 3 entries"),
        ("R{crashed + 1}=? [ C ]", "signal 'crashed' is true or false, not a number"),
        ("R{distance & true}=? [ C ]", "signal 'distance' is a number, not true or false"),
        ("S>=0.5 [ distance ]", "signal 'distance' is a number, not true or false"),
        ("P=? [ G distance ]", "signal 'distance' is a number, not true or false"),
    ],
)
def test_signals_of_quantities_are_checked(text, says):
    check_signals(
        parse(
            'R{distance}<=1 [ C ]; R{crashed}<=1 [ F landed ]; R{"distance"}=? [ S ]; S=? [ crashed ]; P=? [ landed ]'
        ),
        AVAILABLE,
        "test",
    )
    with pytest.raises(RequirementError, match=says):
        check_signals(parse(text), AVAILABLE, "test")


@pytest.mark.parametrize("text", ["R<=1 [ C<=50 ]", "R=? [ I=50 ]", "P=? [ F<=50 a ]", "R<=1 [ C<=3 ]; R<=1 [ I=50 ]"])
def test_bounds_of_quantities_end_at_the_horizon(text):
    check_bounds(parse(text), 50, "test")
    with pytest.raises(RequirementError, match="50 reaches beyond the horizon at line 1"):
        check_bounds(parse(text), 49, "test")


def test_an_unknown_signal_lists_the_known_ones():
    with pytest.raises(RequirementError) as caught:
        check_signals(parse("P>=0.85 [ G (distanc >= 0.1) ]"), AVAILABLE, "particle-dance")
    assert str(caught.value) == (
        "unknown signal 'distanc' at line 1, column 14:\n"
        "  P>=0.85 [ G (distanc >= 0.1) ]\n"
        "               ^\n"
        "did you mean 'distance'? particle-dance offers: crashed, distance, info.*, landed, obs[0..2]"
    )


def test_bounds_end_at_the_horizon():
    requirement = parse("P>=0.5 [ G<=50 a & X (b U[2,50] c) ]")
    check_bounds(requirement, 50, "particle-dance")
    with pytest.raises(RequirementError, match="bound <=50 reaches beyond the horizon") as caught:
        check_bounds(requirement, 49, "particle-dance")
    assert caught.value.column == 11
    assert "particle-dance has 49 steps" in str(caught.value)
    with pytest.raises(RequirementError, match=r"bound \[2,50\]"):
        check_bounds(parse_formula("a & X (b U[2,50] c)"), 49, "particle-dance")
