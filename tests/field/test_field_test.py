"""psyco.FieldTest turns outcomes into alarms; invalid outcomes and states are refused."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

import psyco
from psyco import RunError
from psyco._src.verification import betting
from psyco._src.verification.anytime import confidence_sequence
from psyco._src.verification.base import Counts, MeanTask

ONE = "P>=0.85 & C>=0.98"
TWO = '"safe": P>=0.85 [ G a ] & C>=0.98; "quick": P<=0.2 [ F b ] & C>=0.9'
COST = '"cost": R{x}<=25 [ C ] within [0,1000] & C>=0.95'


def stream(p, n, seed=0):
    return (np.random.default_rng(seed).random(n) < p).tolist()


def feed(test, outcomes):
    return [alarm for outcome in outcomes if (alarm := test.update(outcome)) is not None]


def test_a_drop_raises_an_alarm_and_its_end_is_noticed():
    test = psyco.FieldTest(ONE, false_alarm_every=10_000)
    assert feed(test, stream(0.92, 1000)) == []
    assert test.in_alarm == ()
    (alarm,) = feed(test, stream(0.6, 300))
    assert alarm.lost == test.in_alarm == ('P>=0.85 [ "satisfied" ] & C>=0.98',)
    assert 1000 < alarm.episode <= 1200
    assert "holds no longer: P>=0.85" in str(alarm)
    (again,) = feed(test, stream(0.97, 600))
    assert (again.lost, test.in_alarm) == ((), ())
    assert "holds again: P>=0.85" in str(again)
    assert test.episodes == 1900


def test_the_interval_is_the_confidence_sequence_since_the_last_alarm():
    test = psyco.FieldTest(ONE, 10_000)
    outcomes = stream(0.92, 500)
    assert feed(test, outcomes) == []
    expected = confidence_sequence(Counts(sum(outcomes), 500 - sum(outcomes)), 0.01)
    assert test.interval == pytest.approx(expected)
    bad = [False] * 30
    (alarm,) = feed(test, bad)
    after = 530 - alarm.episode
    assert test.interval == pytest.approx(confidence_sequence(Counts(0, after), 0.01))


def test_expected_values_and_rates_are_watched_too():
    rng = np.random.default_rng(0)
    cost = psyco.FieldTest(COST)
    assert feed(cost, rng.poisson(10, 1000).astype(float)) == []
    assert cost.interval.lower <= 10.0 <= cost.interval.upper <= 25.0
    (alarm,) = feed(cost, rng.poisson(40, 300).astype(float))
    assert alarm.lost == ("cost",)
    rate = psyco.FieldTest('"busy": R{x}<=0.5 [ S ] within [0,1]', 1000, horizon=20)
    steps = rng.integers(1, 21, 400)

    def pairs(p):
        return [(float(rng.binomial(n, p)), int(n)) for n in steps]

    assert feed(rate, pairs(0.4)) == []
    assert rate.interval.lower <= 0.4 <= rate.interval.upper
    assert feed(rate, pairs(0.8))[0].lost == ("busy",)


def test_the_interval_of_a_rate_holds_that_of_all_pairs_and_is_hardly_wider():
    rng, horizon = np.random.default_rng(0), 40
    steps = rng.integers(1, horizon + 1, 800)
    pairs = np.stack([steps * rng.uniform(2.0, 3.5, 800), steps], 1)
    test = psyco.FieldTest("R{x}<=5 [ S ] within [1,5] & C>=0.98", horizon=horizon)
    assert feed(test, [(float(total), int(n)) for total, n in pairs]) == []
    task = MeanTask(1.0, 5.0, steps=horizon, false_accept=0.01, false_reject=0.01)
    lower, upper = betting.confidence_sequence(task, betting.add_values(task, betting.ValueStats(), pairs), 0.01)
    ours = test.interval
    assert ours.lower <= lower < upper <= ours.upper
    assert ours.upper - ours.lower < 1.01 * (upper - lower)


def test_the_ranges_of_a_certificate_are_known():
    certificate = psyco.verify_outcomes([20.0] * 500, COST)
    bare = dataclasses.replace(certificate, requirement=certificate.requirement.replace(" within [0,1000]", ""))
    assert [each.value_range for each in psyco.FieldTest(bare).constraints] == [(0.0, 1000.0)]


def test_several_constraints_share_the_false_alarms_and_alarm_by_name():
    test = psyco.FieldTest(TWO, 5000)
    assert [side.average_run_length for each in test.constraints for side in each.detectors] == [
        10_000,
        10_000,
    ]
    assert [side.average_run_length for side in psyco.FieldTest("P in [0.2,0.4]", 5000).constraints[0].detectors] == [
        10_000,
        10_000,
    ]
    good, bad = {"safe": True, "quick": False}, {"quick": True, "safe": True}
    assert feed(test, [good] * 100) == []
    assert [alarm.lost for alarm in feed(test, [bad] * 20)] == [("quick",)]
    assert [alarm.lost for alarm in feed(test, [[False, True]] * 20)] == [("safe",)]
    assert test.in_alarm == ("safe", "quick")
    with pytest.raises(RunError, match="use intervals"):
        _ = test.interval
    assert len(test.intervals) == 2


def test_a_test_continues_from_its_state_unchanged():
    rng = np.random.default_rng(1)
    outcomes = [[bool(a), float(x)] for a, x in zip(rng.random(600) < 0.75, rng.uniform(0, 60, 600), strict=True)]
    requirement = f"P>=0.85 [ G a ]; {COST}"
    whole = psyco.FieldTest(requirement, 1000)
    alarms = feed(whole, outcomes)
    assert alarms
    piecewise, found = psyco.FieldTest(requirement, 1000), []
    for i in range(0, 600, 7):
        state = json.loads(json.dumps(piecewise.state))
        piecewise = psyco.FieldTest(requirement, state=state)
        found += feed(piecewise, outcomes[i : i + 7])
    assert found == alarms
    assert piecewise.state == whole.state


@pytest.mark.parametrize("requirement", [ONE, f"P>=0.85 [ G a ]; {COST}", "P in [0.4,0.6]"])
def test_episodes_may_be_counted_one_by_one_or_together(requirement):
    rng = np.random.default_rng(3)
    shares = np.repeat([0.9, 0.5, 0.95, 0.2], 200)
    columns = [rng.random(800) < shares, rng.uniform(0, 60, 800) * (2 - shares)]
    single, together = psyco.FieldTest(requirement, 200), psyco.FieldTest(requirement, 200)
    outcomes = [[bool(a), float(x)][: len(single.constraints)] for a, x in zip(*columns, strict=True)]
    alarms, found, at = feed(single, outcomes), [], 0
    while at < len(outcomes):
        count, alarm = together.count([together.check_outcome(outcome) for outcome in outcomes[at : at + 150]])
        found += [alarm] if alarm else []
        at += count
    assert found == alarms
    assert len(alarms) > 1
    assert together.state == single.state


def test_it_takes_certificates_and_requirements_as_objects_texts_and_files(tmp_path):
    certificate = psyco.verify_outcomes([True] * 300, ONE)
    file = tmp_path / "certificate.json"
    file.write_text(certificate.to_json())
    props = tmp_path / "a.props"
    props.write_text(ONE)
    requirement = psyco.parse(certificate.requirement)
    for promise in (certificate, certificate.to_json(), file, str(file), props, str(props), requirement, ONE):
        assert str(psyco.FieldTest(promise).requirement) == str(requirement)


@pytest.mark.parametrize(
    ("requirement", "outcome", "words"),
    [
        (ONE, 2, "0 or 1"),
        (ONE, None, "0 or 1"),
        (ONE, "1", "0 or 1"),
        (ONE, float("nan"), "0 or 1"),
        (ONE, [True, True], "1 constraints"),
        (TWO, True, "2 constraints"),
        (TWO, {"safe": True}, "an entry for each constraint, safe, quick; got safe"),
        (COST, True, "is a number"),
        (COST, 1001.0, "outside of its range"),
        (COST, float("nan"), "outside of its range"),
    ],
)
def test_an_invalid_outcome_is_refused_and_changes_nothing(requirement, outcome, words):
    test = psyco.FieldTest(requirement)
    before = test.state
    with pytest.raises(RunError, match=words):
        test.update(outcome)
    assert test.state == before


def test_the_state_of_another_test_is_refused():
    state = psyco.FieldTest(ONE, 1000).state
    (kept,) = state["constraints"]
    for promise, every, given, words in [
        ("P>=0.9 & C>=0.98", None, state, "another requirement"),
        (ONE, 2000, state, "every 1,000 episodes"),
        (ONE, None, state | {"format": "x"}, "format 'x'"),
        (ONE, None, state | {"episodes": "many"}, "damaged"),
        (ONE, None, state | {"constraints": []}, "damaged"),
        (ONE, None, {}, "format None"),
        (ONE, None, state | {"constraints": [kept | {"outcomes": [3, -1]}]}, ">= 0"),
        (
            ONE,
            None,
            state | {"constraints": [kept | {"detectors": [{"lost": True, "sums": [1]}]}]},
            "another detector",
        ),
    ]:
        with pytest.raises(RunError, match=words):
            psyco.FieldTest(promise, every, state=given)


@pytest.mark.parametrize(
    ("promise", "options", "words"),
    [
        (ONE, {"false_alarm_every": 0}, "1 to 1e"),
        (ONE, {"false_alarm_every": float("inf")}, "1 to 1e"),
        ("Rmax=? [ C ]", {}, "nothing to watch"),
        ("R{x}<=25 [ C ]", {}, "ranges="),
        ("R{x}<=25 [ C ]", {"ranges": [(0, 1), (0, 1)]}, "a range .* for each"),
        ("R{x}<=0.5 [ S ] within [0,1]", {}, "give horizon"),
        (3, {}, "neither a certificate nor a requirement"),
        ("missing.json", {}, "there is no file"),
    ],
)
def test_a_requirement_that_cannot_be_tested_is_refused(promise, options, words):
    with pytest.raises(psyco.PsycoError, match=words):
        psyco.FieldTest(promise, **options)


@pytest.mark.slow
def test_watching_outcomes_needs_no_jax():
    program = "import sys, psyco; psyco.FieldTest('P>=0.5').update(True); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
