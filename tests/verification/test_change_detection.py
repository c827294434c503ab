"""The e-detector: exact small cases, average run length to a false alarm, and detection delay."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from psyco._src.verification.change_detection import Detector, DetectorState


def mixed(detector, values):
    """M after these values, by the definition: for every bet and every start, the product of what is won from there."""
    total = 0.0
    for u, w in zip(detector.bets, detector._weights, strict=True):
        room = detector.hi - detector.bound if detector.at_least else detector.bound - detector.lo
        sign = 1.0 if detector.at_least else -1.0
        won = [1.0 + u * sign * (detector.bound - x) / room for x in values]
        total += w * sum(np.prod(won[start:]) for start in range(len(values)))
    return total


def after(detector, values):
    sums = np.zeros(len(detector.bets))
    for value in values:
        sums = detector.update_sums(sums, value)
    return sums


@pytest.mark.parametrize("at_least", [True, False])
def test_the_sums_are_those_of_evidence_started_at_every_time(at_least):
    detector = Detector(-1.0, 3.0, 0.5, at_least, 1000.0)
    values = [0.3, 3.0, -1.0, 0.5, 2.2]
    assert after(detector, values).sum() == pytest.approx(mixed(detector, values), rel=1e-12)


def test_for_outcomes_a_bet_is_a_likelihood_ratio():
    detector = Detector(0.0, 1.0, 0.85, True, 10_000.0)
    q = (1.0 - detector.bets) * 0.85
    assert np.allclose(after(detector, [1]), detector._weights * q / 0.85)
    assert np.allclose(after(detector, [0]), detector._weights * (1.0 - q) / 0.15)


@pytest.mark.parametrize(
    ("bound", "at_least", "chances"),
    [
        (Fraction(3, 4), True, {0: Fraction(1, 4), 4: Fraction(3, 4)}),
        (Fraction(3, 4), False, {0: Fraction(1, 4), 4: Fraction(3, 4)}),
        (Fraction(1, 2), True, {0: Fraction(1, 3), 2: Fraction(1, 3), 4: Fraction(1, 3)}),
    ],
)
def test_at_the_bound_the_evidence_grows_by_one_per_value(bound, at_least, chances):
    """Exactly, over all paths: that is all that the rate of false alarms needs. Values are 0, 2 or 4."""
    detector = Detector(0.0, 4.0, float(4 * bound), at_least, 100.0)
    for n in (1, 2, 5):
        mean = sum(
            float(np.prod([chances[x] for x in path])) * after(detector, path).sum()
            for path in product(chances, repeat=n)
        )
        assert mean == pytest.approx(n, rel=1e-12)


def first_alarms(detector, draw, runs, steps):
    """When each of so many streams first raises an alarm; `steps` where none does."""
    sums, ends = np.zeros((runs, len(detector.bets))), np.full(runs, steps)
    left = np.arange(runs)
    for step in range(1, steps):
        sums = detector.update_sums(sums, draw(len(left)))
        alarm = sums.sum(axis=1) >= detector.average_run_length
        ends[left[alarm]] = step
        left, sums = left[~alarm], sums[~alarm]
    return ends


@pytest.mark.parametrize(("bound", "at_least"), [(0.85, True), (0.3, False)])
def test_false_alarms_at_the_bound_come_on_average_at_most_once_in_n(bound, at_least):
    """Fail by chance with probability below 1e-6.

    The standard deviation of the time to an alarm is about its mean, 1.3 N: the mean of 1,000 times is off by 6% with
    that probability. Streams are cut after 10 N, which only makes the mean smaller.
    """
    rng = np.random.default_rng(0)
    detector = Detector(0.0, 1.0, bound, at_least, 100.0)
    ends = first_alarms(detector, lambda n: rng.random(n) < bound, runs=1000, steps=1000)
    assert ends.mean() >= 100.0
    assert ends.mean() <= 200.0, "and are not much rarer: delays would be longer than they need to be"


def test_a_drop_is_found_soon():
    """Fail by chance with probability below 1e-6.

    For a drop to .70, with N = 10,000 at .85, the median is about 80 (`python -m benchmarks deployment`); that of 300
    streams is off by 15 with that probability.
    """
    rng = np.random.default_rng(0)
    detector = Detector(0.0, 1.0, 0.85, True, 10_000.0)
    ends = first_alarms(detector, lambda n: rng.random(n) < 0.7, runs=300, steps=400)
    assert np.median(ends) <= 95


def test_after_an_alarm_it_waits_for_recovery_and_then_starts_afresh():
    detector = Detector(0.0, 1.0, 0.85, True, 1000.0)
    standing, turns = detector.init(), []
    for episode, outcome in enumerate([True] * 50 + [False] * 20 + [True] * 200 + [False] * 20):
        before, (standing, _) = standing, detector.update(standing, [float(outcome)])
        if before.lost != standing.lost:
            turns.append(episode)
            assert not standing.sums.any()
    assert len(turns) == 3
    assert 50 <= turns[0] < 60 and 70 < turns[1] < 270 <= turns[2] < 280
    assert turns[2] - 270 == turns[0] - 50, "the past before the recovery is forgotten; good outcomes leave no trace"
    assert standing.lost


@pytest.mark.parametrize("every", [2.0, 10.0, 1000.0])
@pytest.mark.parametrize(
    ("bound", "at_least", "good", "bad"),
    [(1.0, True, 1.0, 0.0), (0.0, False, 0.0, 1.0), (1 - 1e-9, True, 1, 0)],
)
def test_at_the_end_of_the_range_one_value_tells_all_and_good_ones_never_raise_an_alarm(
    bound, at_least, good, bad, every
):
    detector = Detector(0.0, 1.0, bound, at_least, every)  # P>=1, P<=0
    standing = detector.init()
    for _ in range(5000):
        standing, _ = detector.update(standing, [good])
        assert not standing.lost
    assert detector.update(standing, [bad])[0].lost


def test_bets_reach_from_changes_that_can_be_found_to_the_largest():
    detector = Detector(0.0, 1.0, 0.999, True, 100_000.0)
    assert detector.bets[0] < 0.002, "from .999 to .997"
    assert detector.bets[-1] > 0.999
    assert len(Detector(0.0, 1.0, 0.001, True, 10.0).bets) > 10
    assert isinstance(detector.init(), DetectorState)


@pytest.mark.parametrize("values", [(0.0, 1.0), (0.0, 0.4, 1.0)])
def test_values_may_come_one_by_one_or_together(values):
    rng = np.random.default_rng(0)
    detector, stream = Detector(0.0, 1.0, 0.6, True, 50.0), [float(x) for x in rng.choice(values, 500)]
    single, changes, together, at = detector.init(), [], detector.init(), 0
    while at < len(stream):
        together, count = detector.update(together, stream[at : at + 37])
        for value in stream[at : at + count]:
            before, (single, taken) = single, detector.update(single, [value])
            changes += [before.lost != single.lost]
            assert taken == 1
        assert not any(changes[at : at + count - 1])
        at += count
        assert single.lost == together.lost
        assert (single.sums == together.sums).all()
    assert any(changes)
