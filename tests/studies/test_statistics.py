"""The statistics of studies against others: rliable 1.2.0 (Agarwal et al. 2021), closed forms, and coverage."""

import numpy as np
import pytest
from scipy import stats

from psyco._src.studies import statistics
from psyco._src.studies.statistics import IntervalEstimate

# Scores [runs, tasks]. What stands below about them was computed by rliable 1.2.0 with arch 7.2.0 and NumPy 2.4.6:
# its intervals and profiles need that arch, which cannot be imported beside the pandas that others here need.
A = np.array([[0.0, 2.3], [-0.27, 1.11], [-0.45, 1.01], [0.06, 3.34], [-0.49, 1.38], [0.49, 2.36], [0.11, 1.07],
              [-0.03, 2.7], [-1.34, 1.54]])  # fmt: skip
B = np.array([[-1.5, 0.21], [-1.44, 1.26], [-0.87, 1.77], [0.56, 1.31], [-2.12, 0.96], [0.35, 1.61], [-1.13, 1.02]])
TAUS = np.array([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0])


@pytest.mark.extra("rliable.metrics")
def test_the_formulas_are_those_of_rliable_itself() -> None:
    """`rliable.metrics` needs NumPy and SciPy alone; what needs arch is held to numbers below."""
    from rliable import metrics

    rng = np.random.default_rng(0)
    for runs, others, tasks in ((1, 1, 1), (3, 5, 1), (5, 5, 2), (10, 4, 3), (7, 20, 6)):
        ours = rng.normal(size=(runs, tasks)).round(1)  # with ties
        theirs = rng.normal(0.3, 1.0, size=(others, tasks)).round(1)
        assert statistics.iqm(ours.ravel()) == pytest.approx(metrics.aggregate_iqm(ours), abs=1e-12)
        found = statistics.improvement(list(ours.T), list(theirs.T)).value
        assert found == pytest.approx(metrics.probability_of_improvement(ours, theirs), abs=1e-12)


def test_interquartile_means_are_those_of_rliable() -> None:
    """metrics.aggregate_iqm."""
    assert statistics.iqm(A.ravel()) == pytest.approx(0.674, abs=1e-12)
    assert statistics.iqm(B.ravel()) == pytest.approx(0.295, abs=1e-12)
    assert statistics.iqm(A[:, 0]) == pytest.approx(-0.138, abs=1e-12)


def test_the_probability_of_improvement_is_that_of_rliable() -> None:
    """metrics.probability_of_improvement; its interval from 20,000 resamples is 0.5 to 0.8968."""
    found = statistics.improvement(list(A.T), list(B.T))
    assert found.value == pytest.approx(0.7142857142857142, abs=1e-12)
    assert found.lower == pytest.approx(0.5, abs=0.02)
    assert found.upper == pytest.approx(0.8968, abs=0.02)


def test_profiles_are_those_of_rliable() -> None:
    """library.create_performance_profile."""
    expected = {
        "A": [17 / 18, 12 / 18, 9 / 18, 9 / 18, 4 / 18, 1 / 18],
        "B": [10 / 14, 9 / 14, 7 / 14, 5 / 14, 0.0, 0.0],
    }
    assert statistics.performance_profile(A.ravel(), TAUS) == pytest.approx(expected["A"], abs=1e-12)
    assert statistics.performance_profile(B.ravel(), TAUS) == pytest.approx(expected["B"], abs=1e-12)


def test_stratified_bootstrap_intervals_are_close_to_those_of_rliable() -> None:
    """library.get_interval_estimates with 50,000 resamples: 0.493 to 1.023, and -0.236 to 0.776."""
    for scores, lower, upper in ((A, 0.493, 1.023), (B, -0.23625, 0.77625)):
        found = statistics.bootstrap(statistics.iqm, list(scores.T))
        assert (found.lower, found.upper) == pytest.approx((lower, upper), abs=0.04)


def test_the_same_runs_give_the_same_interval_in_any_call() -> None:
    first = statistics.bootstrap(statistics.median, list(A.T))
    assert first == statistics.bootstrap(statistics.median, list(A.T))
    assert first.lower <= first.value <= first.upper


@pytest.mark.parametrize(("successes", "runs"), [(0, 5), (3, 5), (5, 5), (17, 20)])
def test_the_interval_of_a_share_is_clopper_and_pearsons(successes: int, runs: int) -> None:
    """In its definition: each bound leaves 2.5% on its side, by the binomial distribution itself."""
    value, lower, upper = statistics.proportion(successes, runs)
    assert value == successes / runs
    if successes:
        assert stats.binom.sf(successes - 1, runs, lower) == pytest.approx(0.025)
    else:
        assert lower == 0.0
    if successes < runs:
        assert stats.binom.cdf(successes, runs, upper) == pytest.approx(0.025)
    else:
        assert upper == 1.0


def test_one_run_and_none_at_all() -> None:
    assert statistics.bootstrap(statistics.iqm, [np.array([3.0])]) == IntervalEstimate(3.0, 3.0, 3.0)
    for nothing in (statistics.proportion(0, 0), statistics.bootstrap(statistics.iqm, []),
                    statistics.improvement([], []), statistics.improvement([A[:0, 0]], [B[:, 0]])):  # fmt: skip
        assert all(np.isnan(nothing))


def test_a_run_beats_another_by_half_when_both_are_the_same() -> None:
    found = statistics.improvement([np.ones(4)], [np.ones(3)])
    assert found == IntervalEstimate(0.5, 0.5, 0.5)
    assert statistics.improvement_probability(np.array([2.0, 3.0]), np.array([1.0])) == 1.0


def test_a_band_is_the_interval_at_every_point() -> None:
    curves = np.stack([A[:, 0], np.full(9, 2.0)], axis=1)  # [N, T]
    value, lower, upper = statistics.bootstrap_band(statistics.iqm, curves)
    assert value == pytest.approx([-0.138, 2.0])
    assert lower[1] == upper[1] == 2.0 and lower[0] < value[0] < upper[0]


def test_bootstrap_intervals_cover_about_as_often_as_they_say() -> None:
    """20 normal runs, 300 studies: percentile intervals of the median cover somewhat below 95%, never below 85%.

    Were the coverage 0.92, fewer than 0.85 of 300 had probability 2e-5; the seed is fixed.
    """
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        found = statistics.bootstrap(statistics.iqm, [rng.normal(size=20)])
        covered += found.lower <= 0.0 <= found.upper
    assert covered >= 0.85 * 300


def test_luck_is_the_exact_rank_sum_test_of_scipy_also_with_ties() -> None:
    ours, theirs = A[:, 0], B[:, 0]
    exact = stats.mannwhitneyu(ours, theirs, alternative="greater", method="exact").pvalue
    assert statistics.rank_sum_p_value(list(ours), list(theirs)) == pytest.approx(exact, abs=1e-12)
    tied = [3.0, 1.0, 2.0, 2.0], [2.0, 1.0, 1.0, 0.0, 2.0]

    def better(x: np.ndarray, y: np.ndarray) -> float:
        return float((x[:, None] > y).sum() + 0.5 * (x[:, None] == y).sum())

    exact = stats.permutation_test(tied, better, alternative="greater", n_resamples=np.inf).pvalue
    assert statistics.rank_sum_p_value(*tied) == pytest.approx(exact, abs=1e-12)
    assert statistics.rank_sum_p_value([1.0] * 3, [1.0] * 3) == 1.0
    assert statistics.rank_sum_p_value([2, 3, 4], [1, 0, -1]) == pytest.approx(1 / 20)
