"""Intervals of a width fixed beforehand: coverage, exactly and for every p; width; number of episodes."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import psyco
from psyco._src.verification.base import MeanTask
from psyco._src.verification.estimation import MeanInterval
from psyco._src.verification.fixed_width import WidthMean, WidthShare, has_width_rule, width_rule

CASES = [(0.05, 0.2, 1000), (0.3, 0.15, 1000), (0.05, 0.1, 77), (0.05, 0.3, 20)]  # the last two end at the maximum


def end_states(rule, p):
    """States (episodes, satisfied) at which the rule ends, with their probabilities at p `[P]`, by going forward."""
    p, ends, n = np.atleast_1d(p)[:, None], {}, 0
    alive = np.ones((len(p), 1))
    while alive.any():
        n += 1
        alive = np.pad(alive * (1 - p), ((0, 0), (0, 1))) + np.pad(alive * p, ((0, 0), (1, 0)))
        satisfied = np.arange(n + 1)
        stops = rule.stops(satisfied, np.full(n + 1, n))
        ends |= {(n, int(s)): alive[:, s] for s in satisfied[stops & (alive > 0).any(axis=0)]}
        alive = np.where(stops, 0.0, alive)
    return ends


@pytest.mark.parametrize(("delta", "width", "cap"), CASES)
def test_the_interval_holds_for_every_p(delta, width, cap):
    """Either side misses with at most half of the error where it is missed most; in between, by monotony, with less.

    The lower bound exceeds p if X is in a set at the upper end, whose probability grows with p while the set is the
    same. So it is largest just below a lower bound of some state.
    """
    rule = width_rule(delta, width, cap)
    states = sorted(end_states(rule, 0.5), key=lambda at: (at[1] / at[0], at[0] if 2 * at[1] < at[0] else -at[0]))
    intervals = np.array([rule.bounds(s, n) for n, s in states])
    assert (np.diff(intervals, axis=0) > -1e-12).all()  # in the order of the shares
    p = np.unique(intervals.round(12))[1:-1]  # 0 and 1 are no probabilities that can be missed
    chances = end_states(rule, p)
    by_state = np.stack([chances[at] for at in states])  # [S, P]
    assert by_state.sum(axis=0) == pytest.approx(np.ones(len(p)))
    too_high = np.where(intervals[:, :1] >= p - 1e-11, by_state, 0.0).sum(axis=0)
    too_low = np.where(intervals[:, 1:] <= p + 1e-11, by_state, 0.0).sum(axis=0)
    assert max(too_high.max(), too_low.max()) <= delta / 2 + 1e-9
    assert too_high.max() > 0.49 * delta  # hardly any of the error is left unused


def test_more_satisfied_episodes_never_lead_to_a_lower_end():
    rule, rng = width_rule(0.1, 0.15, 1000), np.random.default_rng(0)
    unit = MeanTask(0, 1, false_accept=0.1, false_reject=0.1)
    for _ in range(300):
        outcomes, extra, p = rng.random(1000), rng.random() ** 2, rng.random()
        low, high = (WidthShare(unit, rule).feed((outcomes < share) * 1.0)[0].bounds for share in (p, p + extra))
        assert low[0] <= high[0] and low[1] <= high[1]


@pytest.mark.parametrize(("delta", "width"), [(0.05, 0.2), (0.01, 0.05), (0.001, 0.1)])
def test_every_interval_is_as_narrow_as_asked(delta, width):
    rule = width_rule(delta, width, 10**6)
    states = zip(rule.episodes[::9], rule.rarer[::9], strict=True)
    widths = [np.diff(rule.bounds(int(k), int(n))) for n, k in states]
    assert np.max(widths) <= width
    assert np.median(widths) > 0.99 * width


def test_a_rule_takes_as_many_episodes_as_the_documentation_says():
    """A rule of Frey's kind took 1,687, 628, 369 and 192 in a trial; Clopper and Pearson's fixed number is 1,574."""
    rule, p = width_rule(0.05, 0.05, 10_000), np.array([0.5, 0.9, 0.95, 0.99, 1.0])
    narrow = rule.narrow_by(p)
    assert narrow[-1] == pytest.approx(np.ones(5))
    expected = (1 - narrow)[:-1].sum(axis=0)
    assert expected == pytest.approx([1573.3, 575.8, 323.0, 128.5, 72.0], abs=0.05)
    assert len(rule.limit) - 1 == 1574
    for i in (1, 3):
        assert expected[i] == pytest.approx(sum(n * chance[0] for (n, _), chance in end_states(rule, p[i]).items()))


def test_the_interval_does_not_depend_on_the_maximum_of_episodes():
    long, short = width_rule(0.05, 0.1, 1000), width_rule(0.05, 0.1, 120)
    ends = [(n, s) for n, s in end_states(short, 0.1) if n < 120]
    assert ends and all(long.bounds(s, n) == short.bounds(s, n) for n, s in ends)
    lower, upper = short.bounds(30, 120)  # one more than a fixed number of episodes, in the middle of the edge
    assert upper - lower > 0.1
    assert (lower, upper) == pytest.approx(stats.binomtest(30, 120).proportion_ci(0.95), abs=0.003)
    assert short.bounds(90, 120) == pytest.approx((1 - upper, 1 - lower))


def test_counts_stop_at_the_same_episode_however_they_are_batched():
    unit = MeanTask(0, 1, false_accept=0.05, false_reject=0.05)
    outcomes = (np.random.default_rng(1).random(500) < 0.9).astype(float)
    whole, finished = WidthShare(unit, width_rule(0.05, 0.1, 500)).feed(outcomes)
    estimate, used, done = WidthShare(unit, width_rule(0.05, 0.1, 500)), 0, False
    while not done:
        estimate, done = estimate.feed(outcomes[used : used + 1])
        used += 1
    assert finished and dataclasses.asdict(whole) | {"rule": 0} == dataclasses.asdict(estimate) | {"rule": 0}
    assert whole.mean == outcomes[:used].mean() and whole.bounds[0] < whole.mean < whole.bounds[1]


def test_bets_that_fit_the_width_need_less_than_half_of_the_episodes():
    """Of values 0 and 1 with equal chances, the most that values can vary."""
    unit = MeanTask(0, 1, false_accept=0.05, false_reject=0.05)
    values = (np.random.default_rng(0).random(3000) < 0.5).astype(float)
    found, finished = WidthMean(unit, 0.1).feed(values)
    anytime, _ = MeanInterval(unit).feed(values[: 2 * found.episodes])
    assert finished and np.diff(found.bounds) <= 0.1 < np.diff(anytime.bounds)


def test_a_narrow_width_is_answered_by_bets():
    assert has_width_rule(0.05, 0.01) and not has_width_rule(0.05, 0.005) and not has_width_rule(1e-9, 0.5)
    outcomes = [1, 0] * 200
    (wide,) = psyco.verify_outcomes(outcomes, "P=?", width=0.2).answers
    (narrow,) = psyco.verify_outcomes(outcomes, "P=?", width=0.002).answers
    (all_,) = psyco.verify_outcomes(outcomes, "P=?").answers
    assert [a.kind for a in (wide, narrow, all_)] == ["width", "anytime", "anytime"]
    assert wide.episodes < narrow.episodes == all_.episodes == 400
    assert "confidence interval, of a width fixed beforehand) after" in wide.summary
    assert "at all times; not yet as narrow as 0.002" in narrow.summary


def test_any_width_is_possible():
    for width in (0.999, 1.0, 50):
        (answer,) = psyco.verify_outcomes([1] * 9, "P=?", width=width).answers
        assert answer.upper - answer.lower <= min(width, 1) and answer.episodes < 9


def test_a_plan_predicts_the_episodes_of_an_answer():
    plan = psyco.plan("P=? & C>=0.95", width=0.05, share=1, p=[0.9, 0.99])
    (found,) = plan.to_json()
    assert found["episodes"] == pytest.approx([575.8, 128.5], abs=0.05)
    assert found["narrow"] == pytest.approx([1, 1]) and found["note"].startswith("exact")
    assert found["needed"]["0.99"] == [709, 228]
    assert "width 0.05" in str(plan) and "576" in str(plan) and "<td>576</td>" in plan._repr_html_()
    assert repr(plan) == '<Plan for P=? [ "satisfied" ] & C>=0.95: at most 10,000 episodes>'
    (short,) = psyco.plan("P=? & C>=0.95", width=0.05, share=1, p=[0.9, 1.0], max_episodes=600).to_json()
    assert 0.5 < short["narrow"][0] < 0.9 and short["needed"]["0.99"] == [None, 72]
    ends = end_states(width_rule(0.05, 0.05, 10_000), 0.9)
    assert short["episodes"] == pytest.approx([sum(min(n, 600) * chance[0] for (n, _), chance in ends.items()), 72])


def test_a_plan_of_an_answer_about_a_mean_is_simulated():
    both = "P>=0.5; R{cost}=? [ C ] within [0,2]"
    tested, found = psyco.plan(both, method="anytime", width=0.4, mean=[1.0], spread=0.2, max_episodes=200).to_json()
    assert tested["constraint"].startswith("P>=0.5") and found["note"].startswith("simulated with 100 streams")
    assert found["mean"] == [1.0] and found["narrow"] == [pytest.approx(1.0)] and 49.9 < found["episodes"][0] < 100
    (never,) = psyco.plan("P=?", width=0.004, p=[0.5], max_episodes=100).answers
    assert not never.exact and never.narrow[0] == 0.0 and never.episodes[0] == 100


@pytest.mark.parametrize(
    ("requirement", "settings", "message"),
    [
        ("P=?", {}, r"there is nothing to plan.*--width 0.05"),
        ("P>=0.5", {"width": 0.1}, r"a width is for questions \(P=\?\), and the requirement has none"),
        ("P=?", {"width": -1}, "width is how narrow"),
        ("P=?", {"width": 0.1, "p": [1.5]}, "a true probability lies between 0 and 1"),
        ("R{cost}=? [ C ] within [0,2]", {"width": 0.1}, "--mean 10 --spread 3"),
        (
            "R{cost}=? [ C ] within [0,2]; R{cost}<=1 [ C ] within [0,2]",
            {"width": 0.1, "mean": [1], "spread": 0},
            "one",
        ),
    ],
)
def test_a_plan_that_cannot_be_made_says_why(requirement, settings, message):
    with pytest.raises(psyco.RunError, match=message):
        psyco.plan(requirement, **settings)
