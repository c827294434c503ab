"""Verification of recorded outcomes: the same tests as for sampled episodes."""

import numpy as np
import pytest

import psyco
from psyco._src.core.errors import RequirementError, RunError
from psyco._src.logic.requirement import outcome_requirement
from psyco._src.verification.base import CONTINUE, Counts, add_outcome
from psyco._src.verification.methods import METHODS, make_test

ONE = outcome_requirement("P>=0.5 & C>=0.9")


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ([], "no outcomes"),
        ([0, 1, 2], "index 2"),
        ([0.0, float("nan")], "index 1"),
        ([[1, 0]], "do not fit"),
        (["1"], "0 or 1"),
    ],
)
def test_arrays_that_hold_no_outcomes_are_refused(outcomes, words):
    with pytest.raises(RunError, match=words):
        psyco.verify_outcomes(outcomes, "P>=0.5 & C>=0.9")


def test_what_no_number_of_outcomes_can_show_is_refused():
    with pytest.raises(RequirementError, match="C>=1"):
        psyco.verify_outcomes([1], "P>=0.5 & C>=1")
    with pytest.raises(RunError, match="at least 1"):
        psyco.verify_outcomes([1], "P>=0.5", max_episodes=0)


@pytest.mark.parametrize(
    "text",
    ["P>=0.85 & C>=0.98", "P≥0.85 and C≥0.98", '"a": P<=0.1; P in [0.2,0.3] & C>=0.9', "Rmax=? [ C ]; P>0.5"],
)
def test_a_bound_may_stand_without_a_formula(text):
    assert all(str(c.formula) == '"satisfied"' for c in outcome_requirement(text).constraints)


def test_a_formula_that_is_there_stays():
    assert str(outcome_requirement("P>=0.85 [ G x > 1 ] & C>=0.98").constraints[0].formula) == "G (x > 1)"
    assert str(outcome_requirement("P>=0.85 (□ x > 1) and C≥0.98").constraints[0].formula) == "G (x > 1)"


@pytest.mark.parametrize("method", METHODS)
def test_a_long_stream_stops_where_single_outcomes_would(method):
    outcomes = np.random.default_rng(2).random(6000) < 0.88
    certificate = psyco.verify_outcomes(outcomes, "P>=0.85 & C>=0.98", method=method)
    test = make_test(method, ONE.constraints[0].__class__(
        ONE.constraints[0].formula, ">=", 0.85, 1.0, 0.98), max_episodes=6000)  # fmt: skip
    counts = Counts()
    for outcome in outcomes:
        counts = add_outcome(counts, bool(outcome))
        if test.decide(counts) != CONTINUE:
            break
    finding = certificate.findings[0]
    assert (finding.satisfied, finding.violated) == counts
    assert certificate.verdict.name == "SATISFIED"
    assert (finding.episodes < 6000) == test.sequential


def test_a_million_outcomes_at_the_boundary_are_looked_at_in_a_handful_of_calls(monkeypatch):
    from psyco._src.verification.anytime import Anytime

    calls = []
    decide = Anytime.decide
    monkeypatch.setattr(Anytime, "decide", lambda self, counts: calls.append(1) or decide(self, counts))
    outcomes = np.random.default_rng(0).random(10**6) < 0.85
    certificate = psyco.verify_outcomes(outcomes, "P>=0.85 & C>=0.98")
    assert certificate.episodes == 10**6 and certificate.verdict.name == "UNDECIDED"
    assert len(calls) < 50


# ---- expected values and questions ---------------------------------------------------------------------------------

COST = "R{cost}<=25 [ C ] within [0,100] & C>=0.9"
TWO_KINDS = f'"safe": P>=0.5 [ F a ] & C>=0.9; "cost": {COST}; "share": P=? [ F b ]'


def recorded(tmp_path, text, requirement, **settings):
    file = tmp_path / "recorded.csv"
    file.write_text(text)
    return psyco.verify_outcomes(file, requirement, **settings)


def test_numbers_answer_for_one_expected_value():
    values = np.random.default_rng(0).uniform(0, 30, 400)
    (finding,) = psyco.verify_outcomes(values, COST).findings
    assert (finding.verdict.name, finding.range) == ("SATISFIED", (0, 100))
    assert finding.mean == pytest.approx(values[: finding.episodes].mean())
    (answer,) = psyco.verify_outcomes(values, COST.replace("<=25", "=?"), width=8).answers
    assert answer.mean == pytest.approx(values[: answer.episodes].mean())
    assert answer.upper - answer.lower <= 8 and answer.episodes < 400


def test_outcomes_answer_for_one_probability():
    certificate = psyco.verify_outcomes([1, 0, 1, 1] * 50, "P=? & C>=0.9")
    (answer,) = certificate.answers
    assert (certificate.verdict.name, answer.mean, answer.episodes) == ("ANSWERED", 0.75, 200)
    assert answer.lower < 0.75 < answer.upper


def test_each_constraint_and_question_has_its_column_by_order_or_by_name(tmp_path):
    rows = [(i % 4 != 0, 10 + i % 7, i % 3 == 0) for i in range(300)]
    plain = "".join(f"{a:d},{x},{b:d}\n" for a, x, b in rows)
    named = "cost,share,note,safe\n" + "".join(f"{x},{b:d},-,{a:d}\n" for a, x, b in rows)
    one, other = (recorded(tmp_path, text, TWO_KINDS) for text in (plain, named))
    assert one.findings == other.findings and one.answers == other.answers
    assert one.outcomes == other.outcomes, "the same data, the same hash"
    assert one.verdict.name == "SATISFIED"
    assert one.answers[0].mean == pytest.approx(1 / 3)


@pytest.mark.parametrize("header", ["", "value\n", "total\n"])
def test_a_single_column_of_numbers_may_have_a_header(tmp_path, header):
    found = recorded(tmp_path, header + "3\n4.5\n1e1\n" * 30, COST)
    assert found.findings[0].mean == pytest.approx(17.5 / 3, rel=0.2)


@pytest.mark.parametrize(
    ("text", "requirement", "says"),
    [
        ("3\n4\n101\n5\n", COST, r"line 3 of .*: R{cost}<=25 .* is 101, outside of its range \[0, 100\]; correct"),
        ("value\n3\n-1\n", COST, "line 3 .* is -1, outside"),
        ("3\nmuch\n", COST, "line 2 .*: a value is a number; got 'much'"),
        ("3\nnan\n", COST, "line 2 .*: a value is a number; got 'nan'"),
        ("3\ntrue\n", COST, "line 2 .*: a value is a number; got 'true'"),
        ("cost\n3\n", COST, "neither values .* call one column value or total"),
        ("3\n4\n", "R{cost}<=25 [ C ]", "no range is known of cost"),
        ("3\n4\n", "R{cost > 1}<=25 [ C ]", "the largest length of an episode is unknown"),
        ("3\n4\n", "R{x}<=1 [ I=3 ]", r"no range is known of x.*\n.*\n.*\n.*within \[lo,hi\]"),
        ("3\n4\n", "R{x}<=1 [ S ] within [0,9]", "a rate needs the steps of every episode"),
        ("1,3\n", TWO_KINDS, "has 2 columns, the requirement 3"),
        ("2,3,1\n1,2,1\n", TWO_KINDS, "line 1 .*: an outcome is 0 or 1"),
        ("1\n", "Rmax=? [ C ]", "there is nothing to say of recorded episodes"),
        ("1\n", "Pmax=? [ F a ]", "best of all controllers"),
    ],
)  # fmt: skip
def test_what_is_no_value_is_named_with_its_line(tmp_path, text, requirement, says):
    with pytest.raises((RunError, RequirementError), match=says):
        recorded(tmp_path, text, requirement)


def test_values_in_an_array_are_checked_as_far_as_they_are_looked_at():
    with pytest.raises(RunError, match=r"value 1 .* is 101\.0, outside of the stated range \[0, 100\]"):
        psyco.verify_outcomes([3.0, 101.0], COST)
    with pytest.raises(RunError, match=r"a value of R.* is a number"):
        psyco.verify_outcomes(["3"], COST)
    enough = psyco.verify_outcomes(np.append(np.zeros(200), 101.0), COST)
    assert enough.verdict.name == "SATISFIED"


TRACES = "".join(f"{i},0,0,0\n{i},1,1,{i % 2}\n{i},2,1,0\n" for i in range(60))
HEADER = "episode,x,up,hit\n"


def test_traces_have_expected_values_rates_and_answers(tmp_path):
    requirement = (
        "P>=0.9 [ F up = 1 ] & C>=0.9; R{x}<=4 [ C ] within [0,5] & C>=0.9; S>=0.5 [ up ] & C>=0.9;"
        "R{true}=? [ F hit = 1 ]; R{x}=? [ S ] within [0,5]; P=? [ F hit = 1 ]"
    )
    found = recorded(tmp_path, HEADER + TRACES, requirement, traces=True, horizon=4)
    assert found.verdict.name == "SATISFIED"
    assert [f.mean for f in found.findings[1:]] == [3, 1]
    waiting, rate, share = found.answers
    assert (waiting.mean, waiting.unreached) == (1.5, 30)
    assert (rate.mean, rate.restart) == (1.5, "whenever an episode ends, by itself or after 4 steps")
    assert share.mean == 0.5


@pytest.mark.parametrize(
    ("text", "requirement", "horizon", "says"),
    [
        (TRACES, "R{x}<=4 [ C ] within [0,2]", None, r"line 2 of .* is 3, outside of its range \[0, 2\]"),
        (
            TRACES,
            "R{x}<=4 [ S ] within [0,1]",
            4,
            r"line 2 of .* has on average 1\.5, outside of its range \[0, 1\]",
        ),
        (TRACES, "S>=0.5 [ up ]", None, "the largest length of an episode is unknown"),
        (TRACES, "S>=0.5 [ up ]", 1, "line 2 of .* has 2 steps, and yet none should have more than 1"),
        (TRACES + "z,0,0,0\n", "S>=0.5 [ up ]", 4, "line 182 of .*: the episode has no step"),
        (TRACES, "R{x}<=4 [ C ]", 4, "no range is known of x"),
    ],
)
def test_what_traces_do_not_show_is_named(tmp_path, text, requirement, horizon, says):
    with pytest.raises((RunError, RequirementError), match=says):
        recorded(tmp_path, HEADER + text, requirement, traces=True, horizon=horizon)


def test_a_horizon_is_for_traces():
    with pytest.raises(RunError, match="horizon is the longest episode of traces"):
        psyco.verify_outcomes([1], "P>=0.5", horizon=4)


@pytest.mark.parametrize("horizon", [0, 2.5, "x", True])
def test_a_horizon_is_a_whole_number_of_steps(tmp_path, horizon):
    with pytest.raises(RunError, match="horizon must be a whole number of at least 1, got "):
        recorded(tmp_path, "episode,hit\n0,false\n0,true\n", "R{hit}=? [ S ]", traces=True, horizon=horizon)


@pytest.mark.parametrize("within", ["[0,1e300]", "[-1e308,1e308]", "[0,1e-290]"])
def test_a_range_whose_square_is_no_number_is_refused(within):
    with pytest.raises(RunError, match=r"no narrower than 1e-100 and no wider than 1e\+100, got .* another unit"):
        psyco.verify_outcomes([0.0] * 9, f"R{{cost}}>=1e-295 [ C ] within {within}")


def test_what_questions_have_looked_at_counts_as_looked_at():
    asked = psyco.verify_outcomes([1.0, 3.0] * 50, "R{cost}=? [ C ] within [0,9]")
    assert "100 of 100 recorded outcomes" in str(asked)
    assert "not looked at" not in str(asked)
    assert repr(asked).startswith("<Certificate ANSWERED after 100 episodes")
    assert "confidence interval, at all times, if no value can lie outside of [0, 9])" in str(asked)
    assert "nothing to be wrong about" not in str(asked)
    decided = psyco.verify_outcomes([[1, 0], [1, 1]] * 50, "P>=0.5; P=?", width=0.05)
    assert decided.findings[0].episodes == 7
    assert "100 of 100 recorded outcomes" in str(decided)


def test_advice_on_a_missing_length_of_episodes_is_of_use(tmp_path):
    text = "episode,hit\n0,false\n0,true\n"
    with pytest.raises(RequirementError, match="horizon=N") as rate:
        recorded(tmp_path, text, "R{hit}=? [ S ]", traces=True)
    assert "within" not in str(rate.value)  # it would not help
    with pytest.raises(RequirementError, match=r"horizon=N.*within"):
        recorded(tmp_path, text, "R{hit}=? [ C ]", traces=True)


def test_a_bound_that_nothing_can_show_is_refused_without_an_infinite_range():
    with pytest.raises(RequirementError, match=r"a little inside of \[0, 1\]"):
        psyco.verify_outcomes([0.5] * 9, "R{cost} in [0.5,0.5] [ C ] within [0,1]")
