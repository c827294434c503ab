"""Outcomes that somebody else has judged get the same tests."""

import numpy as np
import pytest

import psyco
from psyco._src.certify.outcomes import outcome_requirement
from psyco._src.errors import RequirementError, RunError
from psyco._src.smc.base import CONTINUE, init, update
from psyco._src.smc.methods import METHODS, make_test

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
