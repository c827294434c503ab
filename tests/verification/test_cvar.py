"""Tests of CVaR: error rates exact for few values and by simulation for many, and agreement with the definition."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import psyco
from psyco._src.core.errors import RequirementError, RunError
from psyco._src.verification.base import MeanTask, Verdict
from psyco._src.verification.cvar import GRID, BettingCVaR, CVaRInterval, gain_if_not_met
from psyco._src.verification.methods import CVAR_METHODS, make_mean_test
from psyco._src.verification.operating_characteristics import simulate
from psyco._src.verification.tally import observed_value, run_tests


def task(level=0.9, lo=0.0, hi=1.0, delta=0.05, **bounds):
    return MeanTask(lo, hi, cvar=level, false_accept=delta, false_reject=delta, **bounds)


def run(method, what, values, batch=None):
    values = np.asarray(values, float)
    batch = batch or len(values)
    batches = [[values[i : i + batch]] for i in range(0, len(values), batch)]
    (tally,) = run_tests([make_mean_test(method, what)], batches, max_episodes=len(values))
    return tally


def tail_mean(values, level, largest=True):
    """The definition: the mean of the worst values, of which the last one counts in part."""
    worst = sorted(values, reverse=largest)
    left, total, s = (1 - level) * len(worst), 0.0, (1 - level) * len(worst)
    for value in worst:
        total += value * min(left, 1.0)
        left = max(left - 1.0, 0.0)
    return total / s


# ---- error rates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["anytime", "fixed"])
def test_all_sequences_on_the_bound_together_keep_the_error(method):
    """x is 1 with probability 0.4, else 0: the mean of the worst 80% is 0.5. All 2^8 sequences, by their chances."""
    what = task(0.2, delta=0.2, upper=0.5, max_episodes=8)
    chance = dict.fromkeys(Verdict, 0.0)
    for values in itertools.product((0.0, 1.0), repeat=8):
        ones = sum(values)
        chance[run(method, what, values).verdict] += 0.4**ones * 0.6 ** (8 - ones)
    assert 0.001 < chance[Verdict.SATISFIED] <= 0.2
    assert 0.001 < chance[Verdict.VIOLATED] <= 0.2


@pytest.mark.parametrize(("mean", "spread"), [(0.25, 0.25), (0.05, np.sqrt(0.05 * 0.95))])
def test_values_on_the_bound_keep_the_error(mean, spread):
    """Fails by chance with probability at most 1e-6; fixed seed. Beta(1/2, 3/2), and values 0 and 1."""
    if spread**2 < mean * (1 - mean) - 1e-9:
        quantile = stats.beta.ppf(0.9, 0.5, 1.5)
        bound = float(mean * stats.beta.sf(quantile, 1.5, 1.5) / 0.1)
    else:
        bound = mean / 0.1
    test = make_mean_test("anytime", task(delta=0.1, upper=bound))
    found = simulate(test, mean=mean, spread=spread, max_episodes=300, streams=80)
    most = stats.binom.isf(1e-6, 80, 0.1) / 80
    assert found.satisfied <= most
    assert found.violated <= most
    assert found.satisfied + found.violated > 0.0


@given(st.floats(0, 1), st.floats(0.01, 0.99), st.integers(0, len(GRID) - 2), st.floats(0, 1), st.floats(0.01, 0.99))
def test_an_interval_of_thresholds_never_wins_more_than_one_of_them(x, b, cell, inside, rest):
    c = b * (GRID[cell] + inside * (GRID[cell + 1] - GRID[cell]))
    if b - c > 1e-9:
        by_definition = max(x - c, 0) / (rest * (b - c)) - 1
        assert gain_if_not_met(np.array([x]), rest, b)[cell, 0] <= by_definition + 1e-6 * (1 + abs(by_definition))


@pytest.mark.parametrize(("bound", "verdict"), [(0.55, "SATISFIED"), (0.2, "VIOLATED"), (0.31, "UNDECIDED")])
def test_off_the_bound_the_right_verdict_comes(bound, verdict):
    """The mean of the worst 10% of Beta(2, 10) is 0.39; that of all is 0.17."""
    values = np.random.default_rng(0).beta(2, 10, 150 if verdict == "UNDECIDED" else 1500)
    found = run("anytime", task(upper=bound), values)
    assert found.verdict.name == verdict


# ---- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", CVAR_METHODS)
@settings(max_examples=20)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=60), st.sampled_from([0.5, 0.75, 0.9]), st.booleans())
def test_what_was_observed_is_the_mean_of_the_worst_values(method, values, level, largest):
    bounds = {"upper": 9.99} if largest else {"lower": 0.01}
    what = task(level, hi=10.0, max_episodes=len(values), **bounds)
    test, tally = make_mean_test(method, what), run(method, what, values)
    seen = values[: tally.episodes]
    assert observed_value(test, tally) == pytest.approx(tail_mean(seen, level, largest), abs=1e-9)
    if (whole := round(len(seen) * (1 - level), 9)).is_integer():
        worst = np.sort(seen)[:: -1 if largest else 1][: int(whole)]
        assert observed_value(test, tally) == pytest.approx(worst.mean(), abs=1e-9)
    assert 0.0 <= test.belief(tally.state) <= 1.0


@pytest.mark.parametrize("method", CVAR_METHODS)
def test_batches_and_the_sign_of_the_values_change_nothing(method):
    values = np.random.default_rng(1).gamma(2.0, 2.0, 700).clip(0, 50)
    up, down = task(hi=50, upper=16.0, max_episodes=700), task(lo=-50, hi=0, lower=-16.0, max_episodes=700)
    one, many, mirrored = run(method, up, values), run(method, up, values, 13), run(method, down, -values)
    assert (one.verdict, one.episodes) == (many.verdict, many.episodes) == (mirrored.verdict, mirrored.episodes)
    assert one.verdict is Verdict.SATISFIED
    low, high = make_mean_test(method, up).bounds(one.state, 0.01)
    assert make_mean_test(method, up).bounds(many.state, 0.01) == (low, high)
    assert make_mean_test(method, down).bounds(mirrored.state, 0.01) == pytest.approx((-high, -low))


@pytest.mark.parametrize(("bound", "end"), [(0.6, 1), (0.25, 0)])
def test_an_interval_agrees_with_the_verdict(bound, end):
    what = task(upper=bound)
    found = run("anytime", what, np.random.default_rng(2).beta(2, 10, 2000))
    assert found.verdict is (Verdict.SATISFIED if end else Verdict.VIOLATED)
    bounds = BettingCVaR(what).bounds(found.state, 0.05)
    assert bounds[end] == pytest.approx(bound, abs=0.02)
    assert bounds[0] < tail_mean(np.concatenate(found.state.values), 0.9) < bounds[1]


def test_an_answer_stops_when_its_interval_is_narrow():
    values = np.random.default_rng(3).beta(5, 5, 4000)
    estimate, narrow = CVaRInterval(BettingCVaR(task()), 0.2).feed(values)
    assert narrow
    low, high = estimate.bounds
    assert high - low <= 0.2
    assert low < tail_mean(np.random.default_rng(4).beta(5, 5, 100_000), 0.9) < high
    assert estimate.episodes < 2000
    endless, narrow = CVaRInterval(BettingCVaR(task()), None).feed(values)
    assert not narrow
    assert endless.episodes == 4000


def test_a_bound_that_every_value_meets_is_accepted_at_once():
    assert run("anytime", task(hi=5.0, upper=5.0), [3.0]).verdict is Verdict.SATISFIED


# ---- certificates ---------------------------------------------------------------------------------------------------

BOUND = "CVaR{cost}(0.9)<=40 [ C ] within [0,100]"


def test_a_certificate_of_recorded_values_states_the_mean_of_the_worst_and_comes_back():
    cost = np.random.default_rng(5).binomial(100, 0.2, 2000).astype(float)
    shown = psyco.verify_outcomes(
        np.stack([cost] * 3, 1), f"{BOUND}; {BOUND.replace('<=40', '=?')}; R{{cost}}<=40 [ C ] within [0,100]"
    )
    assert shown.verdict is Verdict.SATISFIED
    finding, mean = shown.findings
    assert finding.cvar == 0.9
    assert finding.mean == pytest.approx(tail_mean(cost[: finding.episodes], 0.9))
    assert mean.cvar is None
    text = str(shown)
    assert f"SATISFIED after {finding.episodes} episodes: CVaR {finding.mean:.1f}" in text
    assert ", the mean of the worst 10%" in text
    assert "    CVaR between" in text
    assert shown.answers[0].mean == pytest.approx(tail_mean(cost, 0.9))
    assert psyco.Certificate.from_json(shown.to_json()) == shown


def test_traces_are_judged_by_the_values_of_their_episodes(tmp_path):
    cost = np.random.default_rng(6).integers(0, 3, (300, 3))
    rows = [f"{episode},{x}" for episode, states in enumerate(cost) for x in states]
    (tmp_path / "traces.csv").write_text("\n".join(["episode,cost", *rows]))
    require = "CVaR{cost}(0.8)<=3.95 [ C ] within [0,4]; CVaR{cost}(0.8)>=0.01 [ C ] within [0,4]"
    shown = psyco.verify_outcomes(tmp_path / "traces.csv", require, traces=True, horizon=2)
    total = cost[:, 1:].sum(axis=1)
    for finding, largest in zip(shown.findings, (True, False), strict=True):
        assert finding.mean == pytest.approx(tail_mean(total[: finding.episodes], 0.8, largest))


@pytest.mark.parametrize("largest", [True, False])
def test_a_plan_knows_the_cvar_of_the_values_that_it_simulates(largest):
    require = "CVaR{cost}(0.9)<=40 [ C ] within [0,100]" if largest else "CVaR{cost}(0.9)>=12 [ C ] within [0,100]"
    plan = psyco.plan(require, method="anytime", mean=[20.0], spread=5.0, max_episodes=40, share=1.0)
    (found,) = plan.characteristics[0]["anytime"]
    size = 0.2 * 0.8 / 0.05**2 - 1.0
    values = 100 * np.random.default_rng(0).beta(0.2 * size, 0.8 * size, 50_000)
    assert found.truth == pytest.approx(tail_mean(values, 0.9, largest), abs=0.2)
    assert plan.to_json()[0]["cvar"] == [found.truth]


def test_what_a_cvar_cannot_be_used_for_is_said():
    with pytest.raises(RequirementError, match="no range is known of cost"):
        psyco.verify_outcomes(np.ones((3, 1)), "CVaR{cost}(0.9)<=40 [ C ]")
    with pytest.raises(RunError, match="'sprt' tests probabilities only"):
        psyco.verify_outcomes(np.ones((3, 1)), BOUND, method="sprt")
    with pytest.raises(RunError, match="a CVaR is not watched"):
        psyco.FieldTest(BOUND)
