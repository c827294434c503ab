"""The tests keep their promises: error rates by exact dynamic programming, not by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from psyco._src.core.errors import RunError
from psyco._src.logic.parser import parse
from psyco._src.verification import fixed_sample
from psyco._src.verification.anytime import Anytime, log_evidence, lower_bound
from psyco._src.verification.base import ACCEPT, CONTINUE, REJECT, Counts, Task, Verdict, add_outcome
from psyco._src.verification.methods import METHODS, make_test, make_tests
from psyco._src.verification.operating_characteristics import operating_characteristics
from psyco._src.verification.tally import overall_verdict, run_tests

CAP = 300
ROUNDING = 1e-9
# Every method that bounds its error rate, a new one too; sprt does outside of its indifference region only.
SOUND = [name for name in METHODS if METHODS[name].error_rate and name != "sprt"]


def constraint(text="P>=0.85", confidence=0.98):
    return parse(f"{text} [ F a ] & C>={confidence}").constraints[0]


def characteristics(method, what, p, cap=CAP, **options):
    return operating_characteristics(make_test(method, what, max_episodes=cap, **options), p, cap)


# ---- error rates ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SOUND)
@pytest.mark.parametrize("c_req", [0.9, 0.98, 0.999])
@pytest.mark.parametrize("p_req", [0.5, 0.85, 0.9, 0.99])
def test_wrong_verdicts_are_at_most_one_minus_c_req_for_every_true_p(method, p_req, c_req):
    below = p_req * np.array([0.1, 0.5, 0.9, 0.98, 1.0])  # at the boundary either verdict is the wrong one
    above = p_req + (1 - p_req) * np.array([0.0, 0.05, 0.2, 0.5, 0.9, 1.0])
    seen = characteristics(method, constraint(f"P>={p_req}", c_req), np.r_[below, above])
    assert (seen.satisfied[: len(below)] <= 1 - c_req + ROUNDING).all()
    assert (seen.violated[len(below) :] <= 1 - c_req + ROUNDING).all()
    assert seen.satisfied[len(below) - 1] > 0 or p_req == 0.99  # not by never deciding


@pytest.mark.parametrize(
    ("p_req", "least", "anytime"),
    [(0.85, 25, 35), (0.99, 390, 562), (0.99999, 391_201, 564_659), (0.999999, 3_912_022, 5_646_612)],
)
def test_the_number_of_episodes_without_a_violation_has_a_closed_form(p_req, least, anytime):
    """If violations have probability 1 - p_req, n episodes show none with probability p_req^n: fewer can't suffice."""
    required = constraint(f"P>={p_req}")

    def accepts(method, n, maximum):
        decided = make_test(method, required, max_episodes=maximum).decide(Counts(np.array([n]), np.array([0])))
        return bool(decided[0] == ACCEPT)

    assert least == math.ceil(math.log(0.02) / math.log(p_req))
    assert accepts("fixed", least, least) and not accepts("fixed", least - 1, least - 1)

    def evidence(n):
        """∫ (1 + u (1/a - 1))^n du over [0, 1], a = p_req."""
        return -math.expm1((n + 1) * math.log(p_req)) / (n + 1) / (1 - p_req) / p_req**n

    assert evidence(anytime - 1) < 50 <= evidence(anytime)
    assert accepts("anytime", anytime, None) and not accepts("anytime", anytime - 1, None)


@pytest.mark.parametrize("method", SOUND)
@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("P<=0.2", [0.0, 0.1, 0.2], [0.2, 0.25, 0.6, 1.0]),
        ("P in [0.3,0.6]", [0.3, 0.35, 0.45, 0.59, 0.6], [0.0, 0.2, 0.3, 0.6, 0.7, 1.0]),
    ],
)
def test_upper_bounds_and_intervals_keep_the_error_too(method, text, inside, outside):
    seen = characteristics(method, constraint(text, 0.9), [*inside, *outside])
    assert (seen.violated[: len(inside)] <= 0.1 + ROUNDING).all()
    assert (seen.satisfied[len(inside) :] <= 0.1 + ROUNDING).all()
    assert seen.satisfied[: len(inside)].max() > 0.3
    assert seen.violated[len(inside) :].max() > 0.99


def test_a_test_of_a_fixed_size_decides_at_one_count_only():
    """It is asked after every episode, and its error holds at its size."""
    for method in (name for name in METHODS if not METHODS[name].sequential):
        test = make_test(method, constraint(), max_episodes=60)
        satisfied, violated = np.meshgrid(np.arange(91), np.arange(91))
        decided = np.asarray(test.decide(Counts(satisfied, violated))) != CONTINUE
        assert len({int(n) for n in (satisfied + violated)[decided] if n <= 60}) == 1, method


def test_a_plan_computes_the_tails_of_a_fixed_test_at_its_size_only(monkeypatch):
    """It took more than half of the time of `psyco plan` to compute them after every episode."""
    asked = []
    tail = fixed_sample._tail
    monkeypatch.setattr(fixed_sample, "_tail", lambda counts, p: asked.append(1) or tail(counts, p))
    test = make_test("fixed", constraint(), max_episodes=60)
    seen = operating_characteristics(test, [0.8, 0.95], 60)
    assert len(asked) == 2  # to accept, and to reject
    least = min(s for s in range(61) if test.decide(Counts(s, 60 - s)) == ACCEPT)
    np.testing.assert_allclose(seen.satisfied, stats.binom.sf(least - 1, 60, [0.8, 0.95]), atol=1e-12)


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_has_the_members_of_a_test(method):
    members = {"error_rate", "sequential", "open_ended", "task", "decide", "bounds", "guarantee"}
    assert not {name for name in members if not hasattr(make_test(method, constraint(), max_episodes=60), name)}


def test_sprt_keeps_the_error_outside_of_its_indifference_region():
    what = constraint("P>=0.85", 0.98)
    seen = characteristics("sprt", what, [0.5, 0.8, 0.85, 0.9, 0.99], indifference=0.05)
    assert (seen.satisfied[:2] <= 0.02).all()
    assert (seen.violated[3:] <= 0.02).all()
    assert seen.undecided[2] < 1  # inside either verdict may come


# From the ecosystem notes of the project: exact dynamic programming at p_req .85, c_req .98, cap 1000.
TABLE = {
    "bayes": {
        0.80: (0.010, 0.986, 0.005, 155),
        0.84: (0.072, 0.442, 0.486, 589),
        0.85: (0.147, 0.268, 0.585, 651),
        0.88: (0.807, 0.089, 0.104, 368),
        0.90: (0.949, 0.050, 0.001, 168),
        0.95: (0.991, 0.009, 0.000, 50),
    },
    "anytime": {
        0.80: (0.001, 0.769, 0.231, 610),
        0.84: (0.006, 0.026, 0.968, 973),
        0.85: (0.015, 0.012, 0.973, 976),
        0.88: (0.412, 0.004, 0.584, 800),
        0.90: (0.952, 0.002, 0.046, 421.5),
        0.95: (1.000, 0.000, 0.000, 90),
    },
    "calibrated": {0.90: (0.980, 0.002, 0.018, 367)},
}


@pytest.mark.parametrize("method", TABLE)
def test_the_known_operating_characteristics_come_out_to_three_digits(method):
    rows = TABLE[method]
    seen = characteristics(method, constraint(), list(rows), cap=1000)
    for i, expected in enumerate(rows.values()):
        found = (seen.satisfied[i], seen.violated[i], seen.undecided[i])
        assert found == pytest.approx(expected[:3], abs=0.00051)
        assert seen.episodes[i] == pytest.approx(expected[3], abs=0.51)


def test_calibration_finds_the_known_thresholds():
    ((accept, reject),) = make_test("calibrated", constraint(), max_episodes=1000).thresholds
    assert accept == pytest.approx(0.99827, abs=5e-6)
    assert reject == pytest.approx(0.99939, abs=5e-6)


def test_a_clear_case_is_decided_soon():
    seen = characteristics("anytime", constraint(), [0.95, 0.5], cap=2000)
    assert seen.episodes[0] == pytest.approx(90, abs=0.5)
    assert seen.episodes[1] < 15


def test_the_dynamic_program_agrees_with_the_binomial_distribution():
    """`fixed` looks once, so its characteristics have a closed form."""
    what, p = constraint("P>=0.7", 0.95), np.array([0.6, 0.7, 0.8])
    seen = characteristics("fixed", what, p, cap=60)
    accepted = [s for s in range(61) if stats.binom.sf(s - 1, 60, 0.7) <= 0.05]
    rejected = [s for s in range(61) if stats.binom.cdf(s, 60, 0.7) <= 0.05]
    assert seen.satisfied == pytest.approx(sum(stats.binom.pmf(s, 60, p) for s in accepted), abs=1e-12)
    assert seen.violated == pytest.approx(sum(stats.binom.pmf(s, 60, p) for s in rejected), abs=1e-12)


# ---- sequential means sequential -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), p=st.sampled_from([0.3, 0.6, 0.75, 0.95]))
def test_batches_stop_exactly_where_single_outcomes_do(method, seed, p):
    outcomes = np.random.default_rng(seed).random(200) < p
    tests = [make_test(method, constraint("P>=0.7", 0.9), max_episodes=200)]
    (progress,) = run_tests(tests, [outcomes[:7, None], outcomes[7:, None]], max_episodes=200)
    counts, decision = Counts(), CONTINUE
    for outcome in outcomes:
        counts = add_outcome(counts, bool(outcome))
        decision = int(tests[0].decide(counts))
        if decision != CONTINUE:
            break
    assert progress.counts == counts
    assert progress.verdict.name == {ACCEPT: "SATISFIED", REJECT: "VIOLATED", CONTINUE: "UNDECIDED"}[decision]


@pytest.mark.parametrize("method", METHODS)
def test_outcomes_and_their_negation_mirror_each_other(method):
    s, v = (grid.ravel() for grid in np.mgrid[0:60, 0:60])
    one = make_test(method, constraint("P>=0.7", 0.9), max_episodes=60).decide(Counts(s, v))
    other = make_test(method, constraint("P<=0.3", 0.9), max_episodes=60).decide(Counts(v, s))
    assert (one == other).all()
    assert {ACCEPT, REJECT} <= set(one.tolist())


@pytest.mark.parametrize("method", METHODS)
def test_a_bound_that_asks_for_nothing_is_accepted(method):
    assert make_test(method, constraint("P>=0", 0.9), max_episodes=1).decide(Counts(0, 1)) == ACCEPT


# ---- numerics --------------------------------------------------------------------------------------------------------


def test_an_all_satisfying_stream_is_decided_as_soon_as_the_mathematics_allow():
    a = 0.999
    # With no violation the evidence has a closed form: (1 - a^(n+1)) / ((n+1) (1-a) a^n).
    needed = next(
        n for n in range(1, 20_000) if math.log1p(-(a ** (n + 1))) - math.log((n + 1) * (1 - a)) - n * math.log(a)
        >= -math.log1p(-0.98)
    )  # fmt: skip
    n = np.arange(1, 20_000)
    decided = make_test("anytime", constraint("P>=0.999", 0.98)).decide(Counts(n, 0 * n))
    assert n[np.argmax(decided == ACCEPT)] == needed
    assert (decided[needed - 1 :] == ACCEPT).all()


@pytest.mark.parametrize("p_req", [0.001, 0.5, 0.85, 0.999])
def test_a_billion_episodes_neither_overflow_nor_lose_the_sign(p_req):
    n = 10**9
    test = make_test("anytime", constraint(f"P>={p_req}", 0.98))
    wide = 10 * math.sqrt(n * p_req * (1 - p_req))
    for shift, expected in ((wide, ACCEPT), (0, CONTINUE), (-wide, REJECT)):
        s = round(n * p_req + shift)
        assert test.decide(Counts(s, n - s)) == expected
    assert test.decide(Counts(n, 0)) == ACCEPT
    assert test.decide(Counts(0, n)) == REJECT
    # Laplace's approximation of the integral, exact to many digits here.
    s = round(n * p_req + wide)
    share = s / n
    kl = s * math.log(share / p_req) + (n - s) * math.log((1 - share) / (1 - p_req))
    laplace = kl + 0.5 * math.log(2 * math.pi * share * (1 - share) / n) - math.log(1 - p_req)
    assert float(log_evidence(Counts(s, n - s), p_req)) == pytest.approx(laplace, abs=1e-3)


def test_the_evidence_is_the_integral_it_claims_to_be():
    from scipy import integrate

    for s, v, a in [(3, 2, 0.4), (20, 1, 0.85), (0, 5, 0.3), (7, 0, 0.99)]:
        value, _ = integrate.quad(lambda q: (q / a) ** s * ((1 - q) / (1 - a)) ** v / (1 - a), a, 1)  # noqa: B023
        assert float(log_evidence(Counts(s, v), a)) == pytest.approx(math.log(value), abs=1e-8)


@given(s=st.integers(0, 2000), v=st.integers(0, 2000), delta=st.sampled_from([0.1, 0.02, 0.001]))
def test_the_lower_bound_solves_its_equation_and_brackets_the_share(s, v, delta):
    bound = lower_bound(Counts(s, v), delta)
    if s == 0:
        assert bound == 0
    else:
        assert 0 < bound <= s / (s + v)
        assert float(log_evidence(Counts(s, v), bound)) == pytest.approx(-math.log(delta), abs=1e-5)


@given(s=st.integers(0, 400), v=st.integers(0, 100), p_req=st.sampled_from([0.3, 0.85, 0.99]))
def test_anytime_accepts_exactly_when_its_lower_bound_reaches_the_requirement(s, v, p_req):
    test = make_test("anytime", constraint(f"P>={p_req}", 0.98))
    lower, upper = test.bounds(Counts(s, v), 0.02)
    decision = test.decide(Counts(s, v))
    if abs(lower - p_req) > 1e-9 and abs(upper - p_req) > 1e-9:
        assert (decision == ACCEPT) == (lower > p_req)
        assert (decision == REJECT) == (upper < p_req)


@given(st.integers(0, 60), st.integers(0, 60), st.floats(0.02, 0.97), st.floats(0.001, 0.02))
def test_evidence_falls_as_more_is_claimed(s, v, a, more):
    assert log_evidence(Counts(s, v), a + more) <= log_evidence(Counts(s, v), a) + 1e-9


@pytest.mark.parametrize("delta", [0.1, 0.01])
def test_fixed_gives_the_clopper_pearson_interval(delta):
    test = make_test("fixed", constraint("P>=0.5", 1 - delta), max_episodes=40)
    for s in (0, 1, 25, 40):
        expected = stats.binomtest(s, 40).proportion_ci(1 - 2 * delta, method="exact")
        assert test.bounds(Counts(s, 40 - s), delta) == pytest.approx((expected.low, expected.high), abs=1e-9)


# ---- several constraints -------------------------------------------------------------------------------------------


def test_accepting_is_not_split_and_rejecting_is():
    requirement = parse("P>=0.8 [ F a ] & C>=0.98; P>=0.6 [ F b ] & C>=0.9")
    for method, split in (("anytime", 2), ("calibrated", 2), ("sprt", 2), ("fixed", 2), ("bayes", 1)):
        tests = make_tests(method, requirement, max_episodes=100)
        assert [t.task.false_accept for t in tests] == pytest.approx([0.02, 0.1])
        assert [t.task.false_reject for t in tests] == pytest.approx([0.02 / split, 0.1 / split])


def test_the_verdict_about_all_constraints_is_wrong_at_most_as_often_as_permitted():
    """Two constraints with independent outcomes, both at the boundary, where errors are most frequent; exactly.

    The false ones are accepted independently, the true ones rejected independently, so products of single
    characteristics bound the joint ones: stopping early only keeps further decisions from being made.
    """
    requirement = parse("P>=0.8 [ F a ] & C>=0.9; P>=0.6 [ F b ] & C>=0.9")
    tests = make_tests("calibrated", requirement, max_episodes=300)  # the method that uses its error up
    one, other = (
        operating_characteristics(t, [c.lower], 300) for t, c in zip(tests, requirement.constraints, strict=True)
    )
    false_reject = 1 - (1 - one.violated) * (1 - other.violated)
    assert 0.05 < false_reject <= 0.1
    # The first fails (at its boundary), the second surely holds: all hinges on the first, at its full error.
    assert 0.05 < one.satisfied <= 0.1


def test_all_hold_only_if_each_is_accepted_and_one_rejection_ends_it():
    tests = make_tests("anytime", parse("P>=0.5 [ F a ] & C>=0.9; P>=0.5 [ F b ] & C>=0.9"))
    good, bad = np.ones(100, bool), np.zeros(100, bool)
    both = run_tests(tests, [np.stack([good, good], 1)], max_episodes=100)
    assert overall_verdict(both) is Verdict.SATISFIED
    mixed = run_tests(tests, [np.stack([good, bad], 1)], max_episodes=100)
    assert overall_verdict(mixed) is Verdict.VIOLATED
    assert mixed[0].episodes <= mixed[1].episodes < 100  # no one is fed beyond the end


# ---- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("anytme", {}, "did you mean 'anytime'"),
        ("sprt", {"indiference": 0.1}, "did you mean 'indifference'"),
        ("sprt", {"indifference": 0.7}, "between 0 and 0.5"),
        ("sprt", {"indifference": "wide"}, "between 0 and 0.5"),
        ("bayes", {"prior": (0, 1)}, "positive numbers"),
        ("bayes", {"prior": 3}, "positive numbers"),
        ("anytime", {"prior": (1, 1)}, "has none"),
        ("fixed", {}, "max_episodes"),
        ("calibrated", {}, "anytime"),
    ],
)
def test_wrong_methods_and_options_are_named(method, options, words):
    with pytest.raises(RunError, match=words):
        make_test(method, constraint(), **options)


def test_a_cap_too_large_to_calibrate_for_is_refused():
    with pytest.raises(RunError, match="20,000"):
        make_test("calibrated", constraint(), max_episodes=10**6)


def test_a_prior_shifts_the_paper_s_test():
    believer = make_test("bayes", constraint(), prior=[99, 1])
    assert believer.prior == (99.0, 1.0)
    assert believer.decide(Counts(1, 0)) == ACCEPT
    assert make_test("bayes", constraint()).decide(Counts(1, 0)) == CONTINUE


@pytest.mark.parametrize("method", METHODS)
def test_every_guarantee_says_what_it_promises(method):
    guarantee = make_test(method, constraint(), max_episodes=100).guarantee
    assert len(guarantee.statement.split()) > 20
    promised = (guarantee.false_accept, guarantee.false_reject)
    assert promised == ((None, None) if method == "bayes" else pytest.approx((0.02, 0.02)))
    if method != "bayes":
        assert "2%" in guarantee.statement


def test_a_task_without_any_bound_has_no_sides():
    assert Task(constraint("P>=0"), 0.1, 0.1).sides == ()
    assert Anytime(Task(constraint("P in [0.2,0.4]"), 0.1, 0.1)).task.sides[1].p_req == 0.6
