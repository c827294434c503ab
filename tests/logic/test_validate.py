import pytest

import psyco
from psyco._src.core.errors import RequirementError
from psyco._src.exact.solver import constrained_optimum
from psyco._src.logic.ast import SignalInfo
from psyco._src.logic.c_monitor import c_monitor
from psyco._src.logic.parser import parse, parse_formula
from psyco._src.logic.validate import check_bounds, check_precision, check_signals
from psyco._src.rollout.sampler import make_monitor

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


WHOLE = {"n": SignalInfo(whole=True), "m": SignalInfo(whole=True), "x": SignalInfo()}


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("G n <= 2.99999999", 3, "cannot decide n <= 2.99999999: it rounds 2.99999999 to 3 at line 2"),
        ("G (n > 2.99999999)", 4, "compare whole numbers with a whole number"),
        ("F n = 3.0000000001", 3, "it rounds 3.0000000001 to 3"),
        ("F 0.1 * n >= 0.30000000001", 9, "it rounds 3.0000000001 to 3"),
        ("F step > 20000000", 3, "it has all whole numbers up to 16,777,216 only"),
        ("F sum(n) - m > 20000000", 3, "count in larger units"),
        ("F count(n > 1) < 7.00000001", 3, "it rounds 7.00000001 to 7"),
        ("F n / m + m / n <= 2", 3, "neither whole numbers nor ratios of two"),
        ("F sum(n / m) <= 2", 3, "multiply divisions out"),
        ("F 0.123456789 * n + 0.3 * m <= 1", 17, "constants with fewer digits"),
    ],
)
def test_a_comparison_of_whole_numbers_that_float32_cannot_decide_is_an_error(text, column, says):
    with pytest.raises(RequirementError, match=says) as caught:
        check_precision(parse(f"P>=0.5 [\n{text} ]"), WHOLE)
    assert caught.value.column == column


@pytest.mark.parametrize(
    "text",
    [
        "n < 2.99999999",  # as n < 3
        "n <= 3",
        "n <= 16777216",
        "0.1 * n <= 0.3",
        "n / m <= 0.1",
        "3 * mean(n) - 1 < 0.7",
        "x <= 2.99999999",  # not a whole number: rounded anyway
        "n + x / n <= 20000000.5",
        "n / m <= m / n",
    ],
)
def test_a_comparison_that_float32_decides_or_that_is_not_of_whole_numbers_passes(text):
    check_precision(parse_formula(text), WHOLE)


def test_the_whole_numbers_of_a_compiled_domain_are_known():
    domain = psyco.make("obstacle-run")
    for check in (make_monitor, lambda domain, requirement: constrained_optimum(domain, requirement)):
        with pytest.raises(RequirementError, match=r"it rounds 2\.99999999 to 3"):
            check(domain, parse("P>=0.5 [ G collisions <= 2.99999999 ]"))
    with pytest.raises(RequirementError, match=r"it rounds 2\.99999999 to 3"):
        c_monitor(parse("P>=0.5 [ G count(a) <= 2.99999999 ]"))
