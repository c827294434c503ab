"""PSyCo(m, φ): a run is a function of its settings, and what it returns belongs together."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

import psyco
from tests.making import flat, learned, make_settings, prepared

DANCE = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"


def synthesized(requirement):
    return psyco.synthesize(
        psyco.make("particle-dance"),
        requirement,
        learner="snes",
        episodes=3010,
        seed=1,
        settings=psyco.Settings(bias="one", method="bayes", candidates=1),
    )


@pytest.fixture(scope="module")
def result():
    return synthesized(DANCE)


def test_metrics_have_one_row_per_generation_and_verifications_every_1000_episodes(result):
    metrics = result.metrics
    assert metrics.rows == 151  # 3010 episodes, rounded up to whole generations
    assert metrics["episodes"].tolist() == list(range(20, 3021, 20))
    verified = np.flatnonzero(~np.isnan(metrics["verified_confidence"]))
    assert metrics["episodes"][verified].tolist() == [1000, 2000, 3000, 3020]
    assert set(metrics["verdict"][verified]) <= {"SATISFIED", "VIOLATED", "UNDECIDED"}
    share = metrics["satisfied"]
    split = share * np.nan_to_num(metrics["return_satisfying"]) + (1 - share) * np.nan_to_num(
        metrics["return_violating"]
    )
    np.testing.assert_allclose(split, metrics["return"], rtol=1e-4)
    assert np.nanmax(metrics["cost_satisfying"]) == 0 and np.nanmin(metrics["cost_violating"]) >= 1


def test_csv_holds_the_table(result):
    rows = list(csv.DictReader(io.StringIO(result.metrics.to_csv())))
    assert len(rows) == result.metrics.rows and list(rows[0]) == list(result.metrics)
    assert float(rows[7]["return"]) == pytest.approx(result.metrics["return"][7], rel=1e-6)


def test_the_certificate_is_about_the_policy(result):
    certificate = result.certificate
    assert certificate.policy == result.policy.digest
    assert psyco.replay(certificate, result.policy).matches


@pytest.mark.more
def test_a_count_leads_to_the_bytes_that_the_domains_own_counter_leads_to(result):
    """The paper's counter is 0 at the start, also where agent and particle start in a collision."""
    counted = synthesized(DANCE.replace("collisions", "count(step > 0 & distance < 0.1)"))
    assert counted.policy.theta.tobytes() == result.policy.theta.tobytes()
    (own,), (other,) = result.certificate.findings, counted.certificate.findings
    assert replace(other, constraint=own.constraint) == own


def test_learning_helps(result):
    """The last 500 episodes return far more than the first 500 (about -45 against -80)."""
    assert result.metrics["return"][-25:].mean() > result.metrics["return"][:25].mean() + 10


@pytest.mark.more
def test_several_constraints_have_columns_of_their_own():
    run = psyco.synthesize(
        psyco.make("obstacle-run"),
        f'{psyco.make("obstacle-run").requirement}; P in [0.1,0.99] [ F "target" ]',
        learner="snes",
        episodes=400,
        settings=psyco.Settings(method="bayes", verify_every=0),
    )
    assert {"c_sat[0]", "c_sat[2]", "satisfied[1]", "cost[2]"} <= set(run.metrics)
    lowest = np.minimum.reduce([run.metrics[f"c_sat[{i}]"] for i in range(3)])
    assert (run.metrics["c_sat"] == lowest).all()
    assert np.isnan(run.metrics["verified_confidence"]).all()
    assert len(run.certificate.findings) == 2


@pytest.mark.more
def test_a_run_without_constraints_goes_on_after_its_last_segment():
    problem = prepared(
        psyco.make("obstacle-run"), "Rmax=? [ C ]",
        episodes=44, verify_every=22, until_satisfied=True, population=20, checks=2,
    )  # fmt: skip
    first, second = learned(problem).reached
    assert [each.generation for each in learned(problem, first).reached] == [second.generation]


def test_a_seed_may_come_from_numpy():
    assert type(make_settings(seed=np.int64(3)).seed) is int


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"episodes": 0}, "episodes must be"),
        ({"episodes": 1.5}, "episodes must be"),
        ({"verify_every": -2}, "verify_every must be"),
        ({"bias": "two"}, "unknown bias 'two'"),
        ({"hidden": 0}, "hidden must be"),
        ({"seed": "x"}, "a seed is"),
        ({"learner": "sness"}, "did you mean 'snes'"),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(settings, message):
    with pytest.raises(psyco.RunError, match=message):
        psyco.synthesize(psyco.make("particle-dance"), DANCE, **flat(**settings))
