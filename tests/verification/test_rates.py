"""Rates, the mean total of an episode over its mean number of steps: tests and bounds keep their promises."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from psyco._src.core.errors import RangeError
from psyco._src.verification.base import ACCEPT, CONTINUE, REJECT, MeanTask, Verdict, WeightedSums
from psyco._src.verification.betting import BETS, WEIGHTS
from psyco._src.verification.estimation import MeanInterval, run_estimators
from psyco._src.verification.fixed_width import WidthMean, WidthShare, width_rule
from psyco._src.verification.methods import MEAN_METHODS, make_mean_test
from psyco._src.verification.tally import observed_value, run_tests

STEPS = 4
# Total and steps of an episode: long ones are worth more per step. E[total] / E[steps] is the rate.
KINDS = np.array([[0.0, 1.0], [3.0, 4.0], [1.0, 2.0]])


def task(delta=0.1, lo=0.0, hi=1.0, steps=STEPS, **bounds):
    return MeanTask(lo, hi, steps=steps, false_accept=delta, false_reject=delta, **bounds)


def run(method, what, pairs):
    (tally,) = run_tests([make_mean_test(method, what)], [[np.asarray(pairs)]], max_episodes=what.max_episodes)
    return tally


def evidence(counts, r, above):
    """Of the definition, for `counts` `[..., 3]` of the kinds of episodes: wealth of bets on sum(x - r) > 0, or < 0."""
    excess = KINDS[:, 0] - r * KINDS[:, 1]
    gain = excess / (STEPS * r) if above else -excess / (STEPS * (1 - r))
    return np.exp(counts @ np.log1p(np.multiply.outer(gain, BETS))) @ WEIGHTS


def decide(what, counts):
    accept, reject = True, 0.0
    for side in what.sides:
        accept &= evidence(counts, side.bound, side.at_least) >= 1 / what.false_accept
        reject += evidence(counts, side.bound, not side.at_least) / len(what.sides)
    return np.where(accept, ACCEPT, np.where(reject >= 1 / what.false_reject, REJECT, CONTINUE))


def chances(what, p, cap):
    """Return the exact probabilities of SATISFIED and VIOLATED within `cap` episodes, of kinds of probability `p`."""
    alive = np.zeros((cap + 1, cap + 1))
    alive[0, 0] = 1.0
    found = {ACCEPT: 0.0, REJECT: 0.0}
    for n in range(1, cap + 1):
        step = alive * p[2]
        step[1:] += alive[:-1] * p[0]
        step[:, 1:] += alive[:, :-1] * p[1]
        alive = step
        reached = np.nonzero(alive)
        codes = decide(what, np.stack([*reached, n - sum(reached)], -1))
        for code in found:
            found[code] += alive[reached][codes == code].sum()
        alive[reached] *= codes == CONTINUE
    return found[ACCEPT], found[REJECT]


def rate(p):
    return float(p @ KINDS[:, 0] / (p @ KINDS[:, 1]))


# ---- tests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [(0.5, 0.5, 0.0), (0.6, 0.1, 0.3)])
@pytest.mark.parametrize("sides", ["lower", "upper", "both"])
def test_on_the_bound_each_wrong_verdict_has_a_chance_of_at_most_delta(p, sides):
    p = np.array(p)
    r = rate(p)
    bounds = {"lower": {"lower": r}, "upper": {"upper": r}, "both": {"lower": r, "upper": r + 0.2}}[sides]
    satisfied, violated = chances(task(**bounds), p, cap=60)
    assert 0.005 < satisfied <= 0.1 + 1e-9 or sides == "both"
    assert violated <= 0.1 + 1e-9


def test_the_mean_of_the_averages_is_another_number_and_is_not_what_is_tested():
    """Half of the episodes have 0 in one step, half 3 in four: the average per episode is 3/8, per step 3/5."""
    p = np.array([0.5, 0.5, 0.0])
    assert rate(p) == pytest.approx(0.6)
    satisfied, violated = chances(task(lower=0.45), p, cap=80)
    assert satisfied > 0.5
    assert violated <= 0.1


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    bounds=st.sampled_from([{"lower": 0.4}, {"upper": 0.5}, {"lower": 0.3, "upper": 0.6}]),
)
def test_batches_stop_exactly_where_the_definition_does(seed, bounds):
    rng = np.random.default_rng(seed)
    kinds = rng.choice(3, size=200, p=rng.dirichlet(np.ones(3)))
    counts = np.cumsum(kinds[:, None] == np.arange(3), axis=0)
    what = task(**bounds)
    codes = decide(what, counts)
    end = int(np.argmax(codes != CONTINUE)) if codes.any() else 199
    found = run("anytime", what, KINDS[kinds])
    assert found.episodes == end + 1
    seen = KINDS[kinds[: end + 1]].sum(axis=0)
    assert observed_value(make_mean_test("anytime", what), found) == pytest.approx(seen[0] / seen[1])


@pytest.mark.parametrize("method", MEAN_METHODS)
def test_a_mean_is_the_rate_of_episodes_of_equal_length(method):
    values = np.random.default_rng(0).beta(2, 4, size=300)
    mean = MeanTask(0, 1, lower=0.3, false_accept=0.05, false_reject=0.05, max_episodes=300)
    equal = task(0.05, lower=0.3, steps=7, max_episodes=300)
    one = run(method, mean, values)
    other = run(method, equal, np.stack([7 * values, np.full(300, 7.0)], 1))
    assert (one.episodes, one.verdict) == (other.episodes, other.verdict)
    bounds = make_mean_test(method, mean).bounds(one.state, 0.02)
    assert make_mean_test(method, equal).bounds(other.state, 0.02) == pytest.approx(bounds, abs=1e-3)


@pytest.mark.parametrize("method", MEAN_METHODS)
def test_a_rate_and_its_negative_mirror_each_other(method):
    rng = np.random.default_rng(1)
    steps = rng.integers(1, 9, size=400).astype(float)
    pairs = np.stack([rng.binomial(steps.astype(int), 0.3), steps], 1)
    up = run(method, task(lower=0.2, steps=8, max_episodes=400), pairs)
    down = run(method, task(lo=-1.0, hi=0.0, upper=-0.2, steps=8, max_episodes=400), pairs * [-1, 1])
    assert up.verdict is down.verdict is Verdict.SATISFIED
    assert up.episodes == down.episodes


@pytest.mark.parametrize("bad", [(1.5, 1.0), (5.0, 5.0), (0.0, 0.0), (-0.1, 2.0), (np.nan, 2.0)])
def test_an_average_outside_of_its_range_is_an_error_and_so_is_an_episode_that_is_too_long(bad):
    with pytest.raises(RangeError, match="value 2 "), np.errstate(invalid="ignore"):
        run("anytime", task(lower=0.4), [(1.0, 2.0), (0.0, 1.0), bad])


def test_every_sequence_of_a_fixed_number_together_keeps_the_error():
    """All 2^11 sequences of two kinds of episodes, weighed by their chances where the rate is on the bound."""
    what = task(0.2, lower=0.6, max_episodes=11)
    wrong = dict.fromkeys(Verdict, 0.0)
    for kinds in itertools.product((0, 1), repeat=11):
        wrong[run("fixed", what, KINDS[list(kinds)]).verdict] += 1 / 2**11
    assert wrong[Verdict.SATISFIED] <= 0.2
    assert 0 < wrong[Verdict.VIOLATED] <= 0.2


# ---- bounds ---------------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), n=st.integers(1, 100), delta=st.sampled_from([0.2, 0.02]))
def test_a_rate_is_shown_exactly_when_its_bound_at_delta_is_reached(seed, n, delta):
    counts = np.bincount(np.random.default_rng(seed).choice(3, size=n), minlength=3)
    seen, _ = MeanInterval(task(2 * delta)).feed(np.repeat(KINDS, counts, axis=0))
    lower, upper = seen.bounds
    assert lower <= seen.mean + 1e-9 and seen.mean <= upper + 1e-9
    for r in (0.999 * lower, 1.001 * lower + 0.001, upper - 0.001, upper + 0.001):
        if 0 < r < 1:
            assert (evidence(counts, r, above=True) >= 1 / delta) == (r < lower)
            assert (evidence(counts, r, above=False) >= 1 / delta) == (r > upper)


def test_an_interval_that_ends_because_it_is_narrow_still_holds():
    """Fails by chance with probability at most 1e-6; fixed seed. Probability, mean and rate, each with its own end."""
    rng, wrong = np.random.default_rng(5), np.zeros(3)
    truth = (0.3, 0.25, 0.6)
    unit = MeanTask(0, 1, false_accept=0.1, false_reject=0.1)
    estimators = [WidthShare(unit, width_rule(0.1, 0.25, 600)), WidthMean(unit, 0.25), WidthMean(task(0.1), 0.25)]
    for _ in range(60):
        columns = [
            (rng.random(600) < 0.3).astype(float),
            rng.beta(0.5, 1.5, size=600),
            KINDS[rng.integers(0, 2, size=600)],
        ]
        for k, found in enumerate(run_estimators(estimators, [columns], max_episodes=600)):
            lower, upper = found.bounds
            assert upper - lower <= 0.25 and found.episodes < 600
            wrong[k] += not lower <= truth[k] <= upper
    assert (wrong <= stats.binom.isf(1e-6, 60, 0.1)).all()


@pytest.mark.parametrize("rate", [False, True])
def test_an_estimate_ends_at_the_first_check_at_which_it_is_narrow_however_values_are_batched(rate):
    rng = np.random.default_rng(0)
    values = KINDS[rng.integers(0, 2, size=2000)] if rate else rng.random(2000)
    what = task(0.05) if rate else MeanTask(0, 1, false_accept=0.05, false_reject=0.05)
    found = []
    for size in (2000, 37):
        batches = ([values[i : i + size]] for i in range(0, 2000, size))
        (estimate,) = run_estimators([WidthMean(what, 0.1)], batches, max_episodes=2000)
        found.append((estimate.episodes, estimate.mean, estimate.bounds))
    assert found[0] == found[1]
    episodes, mean, (lower, upper) = found[0]
    assert episodes < 2000 and upper - lower <= 0.1 and lower < mean < upper
    earlier, finished = WidthMean(what, 0.1).feed(values[: int(episodes / 1.02) - 1])
    assert not finished and earlier.bounds[1] - earlier.bounds[0] > 0.1


def test_without_a_width_all_episodes_count():
    what = MeanTask(0, 1, false_accept=0.05, false_reject=0.05)
    (whole,) = run_estimators([MeanInterval(what)], [[np.full(2000, 0.5)]], max_episodes=1500)
    assert whole.episodes == 1500


def test_nothing_is_known_before_the_first_episode():
    for method in MEAN_METHODS:
        test = make_mean_test(method, task(lower=0.5, max_episodes=5))
        assert test.bounds(test.init(), 0.05) == (0.0, 1.0)
    for estimator in (MeanInterval(task()), WidthMean(task(), 0.1), WidthShare(task(), width_rule(0.1, 0.5, 10))):
        assert estimator.bounds == (0.0, 1.0) and np.isnan(estimator.mean)
    assert MeanInterval(task()).sums == WeightedSums()
