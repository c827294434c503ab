import numpy as np
import pytest

from psyco._src.paper.curves import KINDS, Results
from psyco._src.paper.experiments import PARTICLE_DANCE, POPULATION
from tests.paper.made_up import episodes_of, metrics_of, results_of, run_of

SMALL = PARTICLE_DANCE.resized(episodes=10_140, repetitions=3)  # the last window is shorter than the others


@pytest.fixture(scope="module")
def episodes():
    return [episodes_of(np.random.default_rng(seed), SMALL.episodes // POPULATION, share=0.985) for seed in range(3)]


@pytest.fixture(scope="module")
def results(episodes):
    runs = [run_of(SMALL, 0)._replace(metrics=metrics_of(*e)) for e in episodes]
    return Results(SMALL, {"n_max = 1": runs})


def windows(values):
    """Single episodes [G, N] in the windows of SMALL."""
    flat = values.reshape(-1)
    return [flat[start : start + SMALL.window] for start in range(0, len(flat), SMALL.window)]


def test_a_curve_is_the_mean_of_the_single_episodes_of_each_window(results, episodes):
    curve = results.curve("n_max = 1", "return")
    expected = [[window.mean() for window in windows(returns)] for returns, _, _ in episodes]
    assert curve.values == pytest.approx(np.array(expected))
    assert curve.episodes[-1] == SMALL.episodes
    assert len(set(np.diff(curve.episodes))) == 2  # equal windows and one shorter one


@pytest.mark.parametrize("quantity", ["return", "cost"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_split_curve_is_the_mean_of_the_episodes_of_that_kind(results, episodes, quantity, kind):
    curve = results.split_curve("n_max = 1", quantity, kind)
    expected = []
    for returns, satisfied, cost in episodes:
        wanted = satisfied if kind == "satisfying" else ~satisfied
        values = np.where(wanted, returns if quantity == "return" else cost, np.nan)
        expected.append([w[~np.isnan(w)].mean() if (~np.isnan(w)).any() else np.nan for w in windows(values)])
    assert curve.values == pytest.approx(np.array(expected), nan_ok=True)
    assert kind == "satisfying" or np.isnan(curve.values).any()  # some windows have no violating episode


def test_the_share_so_far_counts_from_the_beginning(results, episodes):
    curve = results.share_so_far("n_max = 1")
    for values, (_, satisfied, _) in zip(curve.values, episodes, strict=True):
        flat = satisfied.reshape(-1)
        assert values == pytest.approx([flat[:count].mean() for count in curve.episodes])


def test_the_end_of_learning_is_the_last_episodes(results, episodes):
    last = [returns.reshape(-1)[-SMALL.final :].mean() for returns, _, _ in episodes]
    assert results.final("n_max = 1", "return") == pytest.approx(last)
    bad = [r.reshape(-1)[-SMALL.final :][~s.reshape(-1)[-SMALL.final :]].mean() for r, s, _ in episodes]
    assert results.final_split("n_max = 1", "return", "violating") == pytest.approx(bad)


def test_the_beginning_is_the_first_episodes(results, episodes):
    first = [satisfied.reshape(-1)[:100].mean() for _, satisfied, _ in episodes]
    assert results.over("n_max = 1", "satisfied", first=100) == pytest.approx(first)


def test_mean_and_deviation_are_over_the_repetitions_that_have_a_value(results):
    curve = results.split_curve("n_max = 1", "cost", "violating")
    for column, mean, deviation in zip(curve.values.T, curve.mean, curve.deviation, strict=True):
        present = column[~np.isnan(column)]
        assert mean == pytest.approx(present.mean() if len(present) else np.nan, nan_ok=True)
        assert deviation == pytest.approx(present.std(ddof=1) if len(present) > 1 else np.nan, nan_ok=True)


def test_verifications_stand_where_they_were_made():
    curve = results_of(SMALL, n_max1={"verified": (0.0, 1.0)}).verified("n_max = 1")
    assert curve.episodes.tolist() == list(range(200, SMALL.episodes + 1, 200))  # made_up verifies every 10 generations
    assert curve.values[0] == pytest.approx((curve.episodes / POPULATION - 1) / (SMALL.episodes / POPULATION - 1))
