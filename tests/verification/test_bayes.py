"""Alg. BV: sequential to the episode, and its exact error rates are the known ones."""

import numpy as np
import pytest
from scipy import stats

import psyco
from psyco._src.verification.base import ACCEPT, REJECT, Counts, Verdict, add_outcome
from psyco._src.verification.bayes import posterior_mass
from psyco._src.verification.methods import make_test
from psyco._src.verification.tally import overall_verdict, run_tests


def constraint(text="P>=0.85 [ F true ] & C>=0.98"):
    return psyco.parse(text).constraints[0]


@pytest.mark.parametrize(
    ("bounds", "mass"),
    [
        ("P>=0.85", lambda b: b.sf(0.85)),
        ("P>0.85", lambda b: b.sf(0.85)),
        ("P<=0.2", lambda b: b.cdf(0.2)),
        ("P in [0.3,0.6]", lambda b: b.cdf(0.6) - b.cdf(0.3)),
    ],
)
def test_confidence_is_posterior_mass(bounds, mass):
    c = constraint(f"{bounds} [ F true ]")
    for s, v in [(0, 0), (1, 0), (0, 1), (17, 3), (450, 550), (100_000, 900_000)]:
        got = float(posterior_mass(Counts(s, v), c.lower, c.upper))
        assert got == pytest.approx(mass(stats.beta(s + 1, v + 1)), abs=1e-10)


def one_by_one(tests, outcomes, max_episodes):
    """Feed every undecided test episode by episode until the overall verdict is known: the definition."""
    counts, verdicts = [Counts() for _ in tests], [Verdict.UNDECIDED for _ in tests]
    for row in outcomes[:max_episodes]:
        for k, test in enumerate(tests):
            if verdicts[k] is Verdict.UNDECIDED:
                counts[k] = add_outcome(counts[k], bool(row[k]))
                code = int(test.decide(counts[k]))
                verdicts[k] = {ACCEPT: Verdict.SATISFIED, REJECT: Verdict.VIOLATED}.get(code, Verdict.UNDECIDED)
        if Verdict.VIOLATED in verdicts or Verdict.UNDECIDED not in verdicts:
            break
    return counts, verdicts


@pytest.mark.parametrize("batch", [1, 7, 64, 5000])
@pytest.mark.parametrize("seed", range(12))
def test_batches_stop_where_single_episodes_would(batch, seed):
    rng = np.random.default_rng(seed)
    texts = [
        "P>=0.85 [ F true ] & C>=0.98",
        "P<=0.3 [ F true ] & C>=0.9",
        "P in [0.4,0.6] [ F true ] & C>=0.95",
    ]
    tests = [make_test("bayes", constraint(text)) for text in texts[: 1 + seed % 3]]
    p = rng.choice([0.05, 0.3, 0.5, 0.85, 0.9, 0.97], size=len(tests))
    outcomes = rng.uniform(size=(1500, len(tests))) < p
    progress = run_tests(tests, (outcomes[i : i + batch] for i in range(0, 1500, batch)), max_episodes=1000)
    counts, verdicts = one_by_one(tests, outcomes, 1000)
    assert [p.counts for p in progress] == counts
    assert [p.verdict for p in progress] == verdicts
    assert overall_verdict(progress).name in ("SATISFIED", "VIOLATED", "UNDECIDED")


def operating_characteristics(test, p, cap):
    """Exact probabilities of accept, reject, undecided and expected episodes, by forward dynamic programming."""
    alive = np.zeros(cap + 1)
    alive[0] = 1.0
    accept = reject = expected = 0.0
    for n in range(1, cap + 1):
        expected += alive.sum()
        s = np.arange(cap + 1)
        alive = alive * (1 - p) + np.concatenate([[0.0], alive[:-1]]) * p
        codes = test.decide(Counts(s[: n + 1], n - s[: n + 1]))
        accept += alive[: n + 1][codes == ACCEPT].sum()
        reject += alive[: n + 1][codes == REJECT].sum()
        alive[: n + 1][codes != 0] = 0.0
    return accept, reject, alive.sum(), expected


@pytest.mark.parametrize(
    ("p", "known"),
    [
        (0.80, (0.010, 0.986, 0.005, 155)),
        (0.84, (0.072, 0.442, 0.486, 589)),
        (0.85, (0.147, 0.268, 0.585, 651)),
        (0.88, (0.807, 0.089, 0.104, 368)),
        (0.90, (0.949, 0.050, 0.001, 168)),
        (0.95, (0.991, 0.009, 0.000, 50)),
    ],
)
def test_the_papers_test_has_its_known_error_rates(p, known):
    accept, reject, undecided, episodes = operating_characteristics(make_test("bayes", constraint()), p, 1000)
    assert (accept, reject, undecided) == pytest.approx(known[:3], abs=6e-4)
    assert episodes == pytest.approx(known[3], abs=0.6)


def test_bounds_are_the_central_credible_interval():
    low, high = make_test("bayes", constraint()).bounds(Counts(90, 10), 0.01)
    assert (low, high) == pytest.approx(stats.beta(91, 11).ppf([0.01, 0.99]), abs=1e-9)


def test_a_prior_must_be_a_prior():
    with pytest.raises(psyco.RunError, match="Beta prior"):
        make_test("bayes", constraint(), prior=(0.0, 1.0))
    assert float(posterior_mass(Counts(0, 0), 0.5, 1.0, (3.0, 1.0))) == pytest.approx(stats.beta(3, 1).sf(0.5))
