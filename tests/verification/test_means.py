"""Error rates and bounds of the tests of means: exact for few values, by simulation for many."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from psyco._src.core.errors import RangeError, RunError
from psyco._src.logic.parser import parse
from psyco._src.verification.anytime import confidence_sequence
from psyco._src.verification.base import (
    ACCEPT,
    CONTINUE,
    REJECT,
    Counts,
    MeanTask,
    Task,
    Verdict,
    WeightedSums,
)
from psyco._src.verification.bayes import mean_belief
from psyco._src.verification.betting import BETS, CELLS, WEIGHTS, ValueStats, grid_points, log_evidence
from psyco._src.verification.fixed_sample import bets_for_sample, log_wealth
from psyco._src.verification.methods import MEAN_METHODS, make_mean_test, make_test
from psyco._src.verification.operating_characteristics import simulate
from psyco._src.verification.tally import run_tests

ROUNDING = 1e-9
VERDICTS = {ACCEPT: Verdict.SATISFIED, REJECT: Verdict.VIOLATED, CONTINUE: Verdict.UNDECIDED}


def task(lo=0.0, hi=1.0, delta=0.05, **bounds):
    return MeanTask(lo, hi, false_accept=delta, false_reject=delta, **bounds)


def run(method, what, values, batch=None, **options):
    values = np.asarray(values, float)
    batch = batch or max(len(values), 1)
    batches = (values[i : i + batch, None] for i in range(0, len(values), batch))
    (tally,) = run_tests([make_mean_test(method, what, **options)], batches, max_episodes=what.max_episodes)
    return tally


def evidence(points, counts, m, lo, hi, above):
    """E(m) of the definition for `counts` `[..., P]` of values at `points` `[P]`."""
    points = np.asarray(points, float)
    gain = (points - m) / (m - lo) if above else (m - points) / (hi - m)
    return np.exp(counts @ np.log1p(np.multiply.outer(gain, BETS))) @ WEIGHTS


def decide(what, points, counts):
    """Return the decisions of the anytime test for `counts` `[..., P]`, by its definition."""

    def shown(m, above):
        return evidence(points, counts, m, what.lo, what.hi, above)

    accept, reject = True, 0.0
    for side in what.sides:
        accept &= shown(side.bound, side.at_least) >= 1 / what.false_accept
        reject += shown(side.bound, not side.at_least) / len(what.sides)
    return np.where(accept, ACCEPT, np.where(reject >= 1 / what.false_reject, REJECT, CONTINUE))


def chances(what, points, p, cap):
    """Return the exact probabilities of SATISFIED and VIOLATED within `cap` values at `points` of probability `p`."""
    alive = np.zeros((cap + 1, cap + 1))  # by the numbers of values at the first and the second point
    alive[0, 0] = 1.0
    found = {ACCEPT: 0.0, REJECT: 0.0}
    for n in range(1, cap + 1):
        step = alive * p[2]
        step[1:] += alive[:-1] * p[0]
        step[:, 1:] += alive[:, :-1] * p[1]
        alive = step
        reached = np.nonzero(alive)
        codes = decide(what, points, np.stack([*reached, n - sum(reached)], -1))
        for code in found:
            found[code] += alive[reached][codes == code].sum()
        alive[reached] *= codes == CONTINUE
    return found[ACCEPT], found[REJECT]


# ---- error rates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "p", "bounds"),  # on the bound or just beyond: there a wrong verdict is most likely
    [
        ((0.0, 1.0, 0.5), (0.5, 0.5, 0.0), {"lower": 0.5}),
        ((0.0, 1.0, 0.5), (0.7, 0.3, 0.0), {"lower": 0.3}),
        ((0.0, 1.0, 0.4), (0.5, 0.3, 0.2), {"lower": 0.38}),
        ((0.1, 0.9, 0.5), (0.2, 0.3, 0.5), {"upper": 0.55}),
        ((0.0, 1.0, 0.1), (0.0, 0.05, 0.95), {"upper": 0.145}),
        ((0.0, 1.0, 0.5), (0.25, 0.25, 0.5), {"lower": 0.4, "upper": 0.5}),
    ],
)
def test_on_the_bound_each_wrong_verdict_has_a_chance_of_at_most_delta(points, p, bounds):
    satisfied, violated = chances(task(delta=0.1, **bounds), points, p, cap=60)
    assert satisfied <= 0.1 + ROUNDING
    assert violated <= 0.1 + ROUNDING
    assert max(satisfied, violated) > 0.01  # not by never deciding


@pytest.mark.parametrize(
    ("bounds", "p", "right"),
    [
        ({"lower": 0.5}, (0.6, 0.2, 0.2), REJECT),
        ({"lower": 0.5}, (0.2, 0.6, 0.2), ACCEPT),
        ({"upper": 0.6}, (0.1, 0.8, 0.1), REJECT),
        ({"lower": 0.2, "upper": 0.9}, (0.3, 0.3, 0.4), ACCEPT),
        ({"lower": 0.2, "upper": 0.4}, (0.1, 0.7, 0.2), REJECT),
    ],
)
def test_off_the_bound_the_right_verdict_comes_and_the_wrong_one_keeps_its_rate(bounds, p, right):
    satisfied, violated = chances(task(delta=0.1, **bounds), (0.0, 1.0, 0.5), p, cap=60)
    good, bad = (satisfied, violated) if right == ACCEPT else (violated, satisfied)
    assert good > 0.8
    assert bad <= 0.1 + ROUNDING


@pytest.mark.parametrize("bounds", [{"lower": 0.25}, {"upper": 0.25}, {"lower": 0.25, "upper": 0.6}])
def test_continuous_values_on_the_bound_keep_the_error_too(bounds):
    """Fails by chance with probability at most 1e-6; fixed seed. Beta(1/2, 3/2) has mean 1/4."""
    found = simulate(
        make_mean_test("anytime", task(delta=0.1, **bounds)),
        mean=0.25, spread=0.25, max_episodes=400, streams=400,
    )  # fmt: skip
    most = stats.binom.isf(1e-6, 400, 0.1) / 400
    assert found.satisfied <= most
    assert found.violated <= most
    assert found.satisfied + found.violated > 0.02


def test_every_sequence_of_a_fixed_number_together_keeps_the_error():
    """All 2^11 sequences of two values, weighed by their chances where the mean is on the bound."""
    what = task(delta=0.2, lower=0.5, max_episodes=11)
    wrong = {Verdict.SATISFIED: 0, Verdict.VIOLATED: 0, Verdict.UNDECIDED: 0}
    for values in itertools.product((0.2, 0.8), repeat=11):
        wrong[run("fixed", what, values).verdict] += 1 / 2**11
    assert 0 < wrong[Verdict.SATISFIED] <= 0.2
    assert 0 < wrong[Verdict.VIOLATED] <= 0.2


# ---- sequential means sequential ------------------------------------------------------------------------------------

POINTS = (0.0, 1.0, 2.5, 10.0)


@pytest.mark.parametrize("bounds", [{"lower": 2.0}, {"upper": 3.0}, {"lower": 1.0, "upper": 4.0}])
@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), batch=st.sampled_from([1, 7, 300]))
def test_batches_stop_exactly_where_the_definition_does(bounds, seed, batch):
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(POINTS), size=300, p=rng.dirichlet(np.ones(len(POINTS))))
    what = task(0, 10, **bounds)
    found = run("anytime", what, np.asarray(POINTS)[chosen], batch)
    counts = np.cumsum(chosen[:, None] == np.arange(len(POINTS)), axis=0)
    codes = decide(what, POINTS, counts)
    end = int(np.argmax(codes != CONTINUE)) if codes.any() else 299
    assert found.episodes == end + 1
    assert found.verdict is VERDICTS[int(codes[end])]
    assert what.mean(found.sums) == pytest.approx(np.mean(np.asarray(POINTS)[chosen[: end + 1]]))


@pytest.mark.parametrize("method", MEAN_METHODS)
def test_what_is_kept_does_not_depend_on_batches(method):
    values = np.random.default_rng(0).beta(2, 4, size=900)
    what = task(lower=0.33, max_episodes=900)
    test = make_mean_test(method, what)
    one, many = (run(method, what, values, batch) for batch in (900, 13))
    assert (one.sums, one.verdict) == (many.sums, many.verdict)
    assert test.bounds(one.state, 0.01) == test.bounds(many.state, 0.01)


@pytest.mark.parametrize("method", MEAN_METHODS)
def test_a_mean_and_its_negative_mirror_each_other(method):
    values = np.random.default_rng(1).gamma(2.0, 2.0, size=400).clip(0, 50)
    up = run(method, task(0, 50, lower=3.0, max_episodes=400), values)
    down = run(method, task(-50, 0, upper=-3.0, max_episodes=400), -values)
    assert up.verdict is down.verdict is Verdict.SATISFIED
    assert up.episodes == down.episodes


@pytest.mark.parametrize("method", MEAN_METHODS)
def test_a_bound_that_every_mean_meets_is_accepted_at_once(method):
    found = run(method, task(0, 5, lower=0, upper=5, max_episodes=1), [3.0])
    assert (found.verdict, found.episodes) == (Verdict.SATISFIED, 1)


def test_probabilities_and_means_are_judged_side_by_side_and_a_violation_ends_both():
    constraint = parse("P>=0.5 [ F a ] & C>=0.95").constraints[0]
    tests = [make_test("anytime", constraint), make_mean_test("anytime", task(0, 100, upper=50))]
    rng = np.random.default_rng(0)
    bad, value = rng.random(500) < 0.2, rng.uniform(30, 60, 500)
    seen = run_tests(tests, [np.stack([bad, value], 1)], max_episodes=500)
    alone = run_tests(tests[:1], [bad[:, None]], max_episodes=500)
    assert seen[0] == alone[0]
    assert (seen[0].verdict, seen[1].verdict) == (Verdict.VIOLATED, Verdict.UNDECIDED)
    assert seen[1].episodes == seen[0].episodes == pytest.approx(seen[1].state.stats.grid.sum())


# ---- values outside of the range ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [10.5, -0.1, math.nan, math.inf])
@pytest.mark.parametrize("method", MEAN_METHODS)
def test_a_value_outside_of_the_range_is_an_error_with_its_position(method, bad):
    values = [5.0, 4.9, 5.1, bad, 5.0]
    with pytest.raises(RangeError, match=r"value 3 .* outside of the stated range \[0, 10\]") as error:
        run(method, task(0, 10, lower=4.9, max_episodes=100), values, batch=2)
    assert error.value.position == 3
    assert isinstance(error.value, ValueError)


def test_what_comes_after_the_end_is_not_looked_at():
    good = np.full(50, 9.0)
    stop = run("anytime", task(0, 10, lower=2.0), good).episodes
    again = run("anytime", task(0, 10, lower=2.0), np.append(good[:stop], 11.0))
    assert (again.episodes, again.verdict) == (stop, Verdict.SATISFIED)


def test_a_wrong_range_ends_the_whole_also_after_that_constraint_was_decided():
    tests = [make_mean_test("anytime", task(0, 10, lower=bound)) for bound in (2.0, 8.9)]
    values = np.full((60, 2), 9.0)
    values[59, 0] = 11.0
    with pytest.raises(RangeError, match="value 59"):
        run_tests(tests, [values], max_episodes=None)


# ---- bounds ---------------------------------------------------------------------------------------------------------


@given(s=st.integers(0, 400), v=st.integers(1, 100))
def test_for_values_0_and_1_the_bounds_are_those_of_a_probability(s, v):
    grid = np.zeros(CELLS + 1)
    grid[[0, -1]] = v, s
    state = make_mean_test("anytime", task(lower=0.5)).init()._replace(stats=ValueStats(grid))
    found = make_mean_test("anytime", task(lower=0.5)).bounds(state, 0.02)
    assert found == pytest.approx(confidence_sequence(Counts(s, v), 0.02), abs=2e-4)


def test_for_values_0_and_1_the_test_is_that_of_a_probability():
    constraint = parse("P>=0.85 [ F a ] & C>=0.98").constraints[0]
    rng = np.random.default_rng(0)
    for p in (0.5, 0.8, 0.95, 0.99):
        outcomes = rng.random((2000, 1)) < p
        (known,) = run_tests([make_test("anytime", constraint)], [outcomes], max_episodes=2000)
        found = run("anytime", task(delta=0.02, lower=0.85), outcomes[:, 0])
        assert (found.verdict, found.episodes) == (known.verdict, known.episodes)


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), q=st.floats(0.05, 0.95))
def test_the_grid_claims_less_than_the_values_but_by_less_than_a_cell(seed, q):
    values = np.random.default_rng(seed).beta(2, 5, size=200)
    points = grid_points(run("anytime", task(lower=0.5, delta=1e-300), values).state.stats.grid)
    for seen, x, m in ((points, values, q), (points.mirrored, 1 - values, 1 - q)):
        direct = np.log(np.exp(np.log1p(np.multiply.outer(x / m - 1, BETS)).sum(axis=0)) @ WEIGHTS)
        assert log_evidence(seen, m) <= direct + ROUNDING * abs(direct)
        assert log_evidence(seen, m - 1 / CELLS) >= direct


@settings(max_examples=30)
@given(
    seed=st.integers(0, 1000), n=st.integers(1, 120), delta=st.sampled_from([0.2, 0.02]),
    method=st.sampled_from(["anytime", "fixed"]),
)  # fmt: skip
def test_a_mean_is_shown_exactly_when_its_bound_at_delta_is_reached(seed, n, delta, method):
    values = np.random.default_rng(seed).choice(POINTS, size=n)
    # No verdict before the end: the bounds on the way are those of a test that cannot decide.
    wait = task(0, 10, delta=1e-300, lower=5.0, max_episodes=n)
    lower, upper = make_mean_test(method, wait).bounds(run(method, wait, values).state, delta)
    mean = values.mean()
    assert lower <= mean + ROUNDING and mean <= upper + ROUNDING
    for m in (0.999 * lower, 1.001 * lower + 0.001, upper - 0.001, upper + 0.001):
        if 0 < m < 10:
            what = task(0, 10, delta=delta, lower=m, max_episodes=n)
            if method == "fixed":
                shown = run(method, what, values).verdict
            else:
                counts = (values[:, None] == np.asarray(POINTS)).sum(axis=0)
                shown = VERDICTS[int(decide(what, POINTS, counts))]
            assert (shown is Verdict.SATISFIED) == (m < lower)
            assert (shown is Verdict.VIOLATED) == (m > upper)


def test_bounds_hold_at_all_times_at_once():
    """Fails by chance with probability at most 1e-6; fixed seed. Streams are looked at again and again."""
    rng, wrong = np.random.default_rng(3), 0
    test = make_mean_test("anytime", task(delta=1e-300, lower=0.9))
    for _ in range(60):
        state, missed = test.init(), False
        for batch in (5, 15, 40, 100):
            state, _, _ = test.feed(state, rng.beta(0.3, 0.9, size=batch))
            lower, upper = test.bounds(state, 0.1)
            missed |= not lower <= 0.25 <= upper
        wrong += missed
    assert wrong <= stats.binom.isf(1e-6, 60, 0.2)


def test_no_value_no_knowledge():
    for method in MEAN_METHODS:
        test = make_mean_test(method, task(-3, 7, lower=0, max_episodes=5))
        assert test.bounds(test.init(), 0.05) == (-3, 7)


# ---- speed of decision ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "known"),  # episodes of a prototype with 128 bets, at limit 25, range [0, 1000], delta 0.05
    [
        (lambda rng, n: rng.poisson(10, n), 340),
        (lambda rng, n: rng.poisson(20, n), 1020),
        (lambda rng, n: rng.poisson(24, n), 5000),
        (lambda rng, n: 100 * (rng.random(n) < 0.1), 340),
    ],
)
def test_as_few_episodes_as_known_to_be_possible(draw, known):
    rng, what = np.random.default_rng(0), task(0, 1000, upper=25)
    ends = [run("anytime", what, draw(rng, 2 * known)) for _ in range(31)]
    assert {end.verdict for end in ends} <= {Verdict.SATISFIED, Verdict.UNDECIDED}
    assert np.median([end.episodes for end in ends]) <= known


def test_a_long_stream_neither_overflows_nor_grows_what_is_kept():
    what = task(0, 1e6, lower=1.0, upper=9e5)  # so wide that one value may multiply wealth by a million
    values = np.random.default_rng(0).choice([0.0, 1e6], size=60_000, p=[0.1, 0.9])
    test = make_mean_test("anytime", what)
    with np.errstate(all="raise", under="ignore"):
        found = run("anytime", what, values)
        lower, upper = test.bounds(found.state, 0.01)
    assert np.isfinite(found.state.bets).all() and found.state.bets.shape == test.init().bets.shape
    assert found.state.exponent.max() > 10_000
    assert lower < 9e5 < upper


def test_a_single_value_below_refutes_a_mean_at_the_end_of_the_range():
    found = run("anytime", task(lower=1.0), [1.0, 1.0, 0.999, 1.0])
    assert (found.verdict, found.episodes) == (Verdict.VIOLATED, 3)


# ---- a fixed number, and belief -------------------------------------------------------------------------------------


def test_a_fixed_number_is_judged_once_at_its_end():
    values, what = np.full(300, 10.0), task(0, 1000, upper=25, max_episodes=300)
    assert run("fixed", what, values[:299], batch=50).verdict is Verdict.UNDECIDED
    assert run("fixed", what, values, batch=50).verdict is Verdict.SATISFIED
    test = make_mean_test("fixed", what)
    state, used, decision = test.feed(test.init(), np.full(400, 10.0))
    assert (used, decision) == (300, ACCEPT)
    assert test.feed(state, values)[1:] == (0, CONTINUE)
    with pytest.raises(RunError, match="give max_episodes"):
        make_mean_test("fixed", task(upper=0.5))


def test_the_bets_of_a_fixed_number_know_the_past_only():
    values, q, delta = np.random.default_rng(0).beta(4, 3, size=40), 0.4, 0.1
    wealth, most = 0.0, 0.0
    seen, deviations, variance = 0.5, 0.25, 0.25
    for t, x in enumerate(values, start=1):
        bet = min(math.sqrt(2 * math.log(1 / delta) / (40 * variance)), 0.9 / q)
        wealth += math.log(1 + bet * (x - q))
        most = max(most, wealth)
        seen += x
        deviations += (x - seen / (t + 1)) ** 2
        variance = deviations / (t + 1)
    bets = bets_for_sample(values, np.ones(40), delta)
    assert log_wealth(values, np.ones(40), bets, q) == pytest.approx(most)
    assert most > 1


def test_belief_is_students_t_with_the_largest_variance_as_one_value():
    values = np.array([3.0, 1.0, 4.0, 1.0, 5.0])
    what = task(0, 10, lower=2.0, upper=6.0)
    test, state = (
        make_mean_test("bayes", what),
        WeightedSums(5, 5, values.sum(), (values**2).sum(), values.sum(), 5),
    )
    scale = math.sqrt((25.0 + ((values - values.mean()) ** 2).sum()) / 5 / 5)
    t = stats.t(5, values.mean(), scale)
    assert float(mean_belief(what, state)) == pytest.approx(t.cdf(6) - t.cdf(2))
    assert test.bounds(state, 0.1) == pytest.approx(t.ppf([0.1, 0.9]))
    assert test.guarantee.false_accept is None


def test_a_few_equal_values_do_not_make_belief_certain():
    what = task(0, 1000, upper=25)
    assert run("bayes", what, np.zeros(20)).verdict is Verdict.UNDECIDED
    assert run("bayes", what, np.zeros(60)).verdict is Verdict.SATISFIED
    assert run("bayes", what, np.zeros(60), prior=20).verdict is Verdict.UNDECIDED


# ---- plans ----------------------------------------------------------------------------------------------------------


def test_a_plan_by_simulation_agrees_with_the_exact_chances():
    """Fails by chance with probability at most 1e-5; fixed seed. The largest spread leaves 0 and 1 only."""
    what = task(delta=0.1, lower=0.5)
    found = simulate(make_mean_test("anytime", what), mean=0.6, spread=math.sqrt(0.24), max_episodes=60)
    satisfied, violated = chances(what, (0.0, 1.0, 0.5), (0.4, 0.6, 0.0), cap=60)
    for seen, exact in ((found.satisfied, satisfied), (found.violated, violated)):
        assert abs(seen - exact) <= 4.9 * math.sqrt(exact * (1 - exact) / found.streams)
    assert found.satisfied + found.violated + found.undecided == pytest.approx(1)
    assert "simulated with 400 streams" in found.note


def test_a_plan_is_repeatable_and_knows_values_without_spread():
    test = make_mean_test("anytime", task(0, 1000, upper=25))
    plans = [simulate(test, mean=10, spread=3, max_episodes=500, streams=20, seed=s) for s in (1, 1)]
    assert plans[0] == plans[1]
    exact = simulate(test, mean=10, spread=0, max_episodes=500, streams=3)
    assert exact.median_episodes == run("anytime", test.task, np.full(500, 10.0)).episodes
    assert simulate(test, mean=25, spread=3, max_episodes=9, streams=3).median_episodes == math.inf


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"lo": 1.0, "hi": 1.0}, r"the smaller one first; got \[1, 1\]"),
        ({"lo": 0.0, "hi": math.inf}, "finite"),
        ({"upper": -1.0}, r"no mean of values in \[0, 1\] lies between"),
        ({"lower": 1.5}, "no mean"),
        ({"lower": 0.6, "upper": 0.4}, "no mean"),
        ({"lower": math.nan}, "no mean"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(RunError, match=words):
        task(**arguments)


def test_methods_that_know_no_means_and_options_that_are_none_are_named():
    with pytest.raises(
        RunError,
        match="'sprt' tests probabilities only; for expected values there are: anytime, bayes, fixed",
    ):
        make_mean_test("sprt", task(lower=0.5))
    with pytest.raises(RunError, match="anytime has no option 'prior'"):
        make_mean_test("anytime", task(lower=0.5), prior=1)
    with pytest.raises(RunError, match="positive number of values, got 0"):
        make_mean_test("bayes", task(lower=0.5), prior=0)
    with pytest.raises(RunError, match="deviation is at most"):
        simulate(make_mean_test("anytime", task(lower=0.5)), mean=0.5, spread=0.6, max_episodes=10)
    with pytest.raises(RunError, match="at least 1"):
        simulate(make_mean_test("anytime", task(lower=0.5)), mean=0.5, spread=0.1, max_episodes=0)


@pytest.mark.parametrize("method", ["anytime", "fixed"])
def test_the_guarantee_names_the_range_as_its_condition(method):
    guarantee = make_mean_test(method, task(0, 1000, upper=25, delta=0.02, max_episodes=100)).guarantee
    assert "[0, 1000]" in guarantee.condition and guarantee.condition in guarantee.statement
    assert (guarantee.false_accept, guarantee.false_reject) == (0.02, 0.02)
    assert guarantee.kind == method


def test_todays_task_has_no_range():
    """A value in a column of outcomes is no mean: 0 and 1 stay outcomes."""
    constraint = parse("P>=0.5 [ F a ] & C>=0.95").constraints[0]
    assert isinstance(make_test("anytime", constraint).task, Task)
    (found,) = run_tests([make_test("anytime", constraint)], [np.ones((9, 1))], max_episodes=9)
    assert found.counts == Counts(found.episodes, 0)
