import csv
import io
import math

import numpy as np
import pytest
from scipy import stats

from psyco._src.paper.claims import (
    Claim,
    ClaimEstimate,
    ClaimOutcome,
    Comparison,
    mean_of,
    posterior_of,
    to_csv,
    to_markdown,
)


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (0.1, 2.0, ClaimOutcome.HOLDS),
        (-2.0, -0.1, ClaimOutcome.FAILS),
        (-1.0, 0.0, ClaimOutcome.FAILS),
        (0.0, 0.0, ClaimOutcome.FAILS),  # the claim says more than 0, and it is exactly 0
        (-0.1, 0.1, ClaimOutcome.OPEN),
        (-math.inf, math.inf, ClaimOutcome.OPEN),
    ],
)
def test_a_claim_is_decided_only_where_the_whole_interval_agrees(low, high, outcome):
    estimate = ClaimEstimate((low + high) / 2 if math.isfinite(low) else 0.0, low, high)
    assert Comparison("difference", estimate, above=0).outcome is outcome


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(0.851, 0.859, ClaimOutcome.HOLDS), (0.849, 0.855, ClaimOutcome.OPEN), (0.855, 0.87, ClaimOutcome.OPEN),
     (0.8, 0.84, ClaimOutcome.FAILS), (0.87, 0.9, ClaimOutcome.FAILS)],
)  # fmt: skip
def test_closely_above_fails_below_and_far_above_alike(low, high, outcome):
    assert Comparison("share", ClaimEstimate(0.0, low, high), above=0.85, below=0.86).outcome is outcome


def test_a_claim_fails_with_its_worst_comparison_and_holds_only_with_all():
    good, bad, wide = (Comparison("x", ClaimEstimate(0, *i), above=0) for i in ((1, 2), (-2, -1), (-1, 1)))

    def outcome(*comparisons):
        return Claim("name", "4", "text", "statistic", comparisons, "seen").outcome

    assert outcome(good, good) is ClaimOutcome.HOLDS
    assert outcome(good, wide) is ClaimOutcome.OPEN
    assert outcome(good, wide, bad) is ClaimOutcome.FAILS


def test_the_interval_of_a_mean_is_students():
    x = np.random.default_rng(0).normal(-25, 3, 5)
    expected = stats.ttest_1samp(x, 0).confidence_interval(0.95)
    assert mean_of(x) == pytest.approx((x.mean(), expected.low, expected.high))


def test_the_interval_of_a_share_stays_within_0_and_1():
    estimate = mean_of([0.999, 0.895, 1.0, 1.0, 0.999], share=True)
    assert estimate.high == 1.0
    assert estimate.low == mean_of([0.999, 0.895, 1.0, 1.0, 0.999]).low


@pytest.mark.parametrize("values", [[], [1.0], [math.nan, 3.0], [math.nan, math.nan]])
def test_fewer_than_two_runs_decide_nothing(values):
    assert Comparison("x", mean_of(values), above=-1000).outcome is ClaimOutcome.OPEN


def test_runs_without_a_value_do_not_count():
    assert mean_of([1.0, math.nan, 2.0, 4.0]) == mean_of([1.0, 2.0, 4.0])


def test_the_interval_of_a_count_is_the_beta_posterior():
    estimate = posterior_of(50, 5000)
    assert estimate.value == 0.01
    assert stats.beta(51, 4951).cdf(estimate[1:]) == pytest.approx([0.025, 0.975])


def test_the_table_has_every_number_of_every_comparison():
    claim = Claim(
        "name",
        "4.1, Fig. 3",
        "a, b",
        "why",
        (Comparison("x", ClaimEstimate(1.5, 1, 2), above=0),),
        "what we see",
    )
    (row,) = csv.DictReader(io.StringIO(to_csv([claim])))
    assert row["text"] == "a, b"
    assert (row["value"], row["low"], row["high"], row["above"], row["below"]) == (
        "1.5",
        "1",
        "2",
        "0",
        "inf",
    )
    assert row["outcome"] == row["comparison outcome"] == "holds"


def test_the_quotable_table_has_one_row_per_claim():
    comparisons = (
        Comparison("x", ClaimEstimate(1.5, 1, 2), above=0),
        Comparison("y", ClaimEstimate(-1, -2, 3), above=0),
    )
    claim = Claim("name", "4.1, Fig. 3", "A claim.", "why", comparisons, "seen")
    assert to_markdown([claim]).splitlines()[2:] == [
        "| cannot be decided | A claim. | x: 1.50 [1.00, 2.00]; y: -1.00 [-2.00, 3.00] | 4.1, Fig. 3 |"
    ]
