"""Outcomes and signals recorded elsewhere: every format is read, everything malformed is named."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import psyco
from psyco._src.certify.outcomes import outcome_requirement, read_outcomes, read_traces
from psyco._src.errors import PsycoError, RequirementError, RunError
from psyco._src.smc.base import CONTINUE, init, update
from psyco._src.smc.methods import METHODS, make_test
from psyco._src.spec.parse import parse

ONE = outcome_requirement("P>=0.5 & C>=0.9")
TWO = parse('"left": P>=0.5 [ F a ]; "right": P>=0.5 [ F b ]')


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"1\n0\n1\n", [1, 0, 1]),
        (b"1\r\n0\r\n1", [1, 0, 1]),
        (b"true\nFalse\n\n1.0\n", [1, 0, 1]),
        (b"outcome\n1\n0\n1\n", [1, 0, 1]),
        (b"\xef\xbb\xbfsatisfied\n1\n0\n1\n", [1, 0, 1]),
        (b"episode,satisfied,reward\n0,1,2.5\n1,0,nan\n2,1,3\n", [1, 0, 1]),
    ],
)
def test_one_column_is_read(data, expected):
    assert read_outcomes(data, ONE, origin="x").tolist() == [[bool(x)] for x in expected]


def test_columns_are_matched_by_name_or_order():
    assert read_outcomes(b"1,0\n1,1\n", TWO, origin="x").tolist() == [[True, False], [True, True]]
    assert read_outcomes(b"right,left\n1,0\n1,1\n", TWO, origin="x").tolist() == [[False, True], [True, True]]
    assert read_outcomes(b"n,right,left\n1,1,0\n", TWO, origin="x").tolist() == [[False, True]]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b" \n \n", "empty"),
        (b"1\n2\n", "line 2 of x: an outcome is 0 or 1, true or false; got '2'"),
        (b"1\nnan\n", "line 2 .* got 'nan'"),
        (b"nan\n", "line 1"),
        (b"nan\n1\n0\n", "line 1"),
        (b"2\n1\n0\n", "line 1"),
        (b",\n", "no values"),
        (b"1\n0,1\n", "line 2 of x has 2 cells"),
        (b"1,0\n0,1\n", "2 columns"),
        (b"a,b,c\n1,0,1\n", "which of them"),
        (b"\xff\xfe1\n", "UTF-8"),
        (b"satisfied\n", "header"),
        (b'"1\n0', "line"),
    ],
)
def test_malformed_outcomes_are_named(data, words):
    with pytest.raises(RunError, match=words):
        read_outcomes(data, ONE, origin="x")


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
    counts = init()
    for outcome in outcomes:
        counts = update(counts, bool(outcome))
        if test.decide(counts) != CONTINUE:
            break
    finding = certificate.findings[0]
    assert (finding.satisfied, finding.violated) == counts
    assert certificate.verdict.name == "SATISFIED"
    assert finding.episodes == 6000 if method == "fixed" else finding.episodes < 6000


def test_a_million_outcomes_at_the_boundary_are_looked_at_in_a_handful_of_calls(monkeypatch):
    from psyco._src.smc.anytime import Anytime

    calls = []
    decide = Anytime.decide
    monkeypatch.setattr(Anytime, "decide", lambda self, counts: calls.append(1) or decide(self, counts))
    outcomes = np.random.default_rng(0).random(10**6) < 0.85
    certificate = psyco.verify_outcomes(outcomes, "P>=0.85 & C>=0.98")
    assert certificate.episodes == 10**6 and certificate.verdict.name == "UNDECIDED"
    assert len(calls) < 50


# ---- traces ----------------------------------------------------------------------------------------------------------

CSV = b"""episode,x,safe,obs[0],obs[1],note
7,1,true,0,1,hello
7,2,true,1,1,
9,5,false,2,1,
7,3,true,0,1,
9,5,true,2,1,
"""


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("G safe", [True, False]),
        ("F x >= 5", [False, True]),
        ('F ("end" & step = 2)', [True, False]),
        ("G obs[1] = 1", [True, True]),
        ("X (obs[0] = 1)", [True, False]),
        ('X X (x = 3 & "end")', [True, False]),
    ],
)
def test_formulas_are_judged_on_recorded_signals(formula, expected):
    requirement = parse(f"P>=0.5 [ {formula} ]")
    assert read_traces(CSV, requirement, origin="x")[:, 0].tolist() == expected


def test_json_lines_are_read_with_vectors_and_returns():
    rows = [
        {"episode": "a", "reward": 0, "obs": [1, 2]},
        {"episode": "a", "reward": -2, "obs": [1, 3]},
        {"episode": "b", "reward": 0, "obs": [1, 2]},
    ]
    data = "\n".join(map(json.dumps, rows)).encode()
    requirement = parse('P>=0.5 [ F ("end" & return <= -2) ]; P>=0.5 [ G obs[1] >= 2 ]')
    assert read_traces(data, requirement, origin="x").tolist() == [[True, True], [False, True]]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=6))
def test_traces_are_judged_as_single_paths_are(episodes):
    formula = "F (x >= 2 & X (x <= 1)) | G x = 1"
    lines = [f"{i},{x}" for i, path in enumerate(episodes) for x in path]
    found = read_traces("\n".join(["episode,x", *lines]).encode(), parse(f"P>=0.5 [ {formula} ]"), origin="x")
    assert found[:, 0].tolist() == [psyco.check_path(formula, {"x": path}).satisfied for path in episodes]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"x\n1\n", "no 'episode' column"),
        (b"episode,x\n", "no rows"),
        (b"episode,x\n1\n", "line 2 of file has 1 cells"),
        (b"episode,x\n1,nan\n", "x is no number in row 1"),
        (b"episode,x\n1,inf\n", "x is no number"),
        (b"episode,y\n1,2\n", "unknown signal 'x'"),
        (b"episode,x\n1,two\n", "unknown signal 'x'"),
        (b'{"episode": 1, "x": 2}\n{"episode": 1}\n', "line 2 of file should be an object"),
        (b'{"episode": 1, "x"\n', "line 1 of file is not JSON"),
        (b'{"episode": 1, "x": [1,2]}\n{"episode": 1, "x": [1]}\n', "differ in length"),
        (b"episode,x[1]\n1,2\n", r"x\[0\] to x\[0\]"),
    ],
)
def test_malformed_traces_are_named(data, words):
    with pytest.raises(PsycoError, match=words):
        read_traces(data, parse("P>=0.5 [ G x >= 1 ]"), origin="file")
