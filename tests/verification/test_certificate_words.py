"""What a certificate says is true, and no more than that: joint promises, intervals, printed numbers, advice."""

import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import psyco
from psyco._src.core.errors import RunError
from psyco._src.logic.parser import parse
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.episodes import Stream, stream_key
from psyco._src.rollout.sampler import make_sampler
from psyco._src.runs.select import remark
from psyco._src.verification.base import Counts
from psyco._src.verification.certificate_html import certificate_html
from psyco._src.verification.episode_stream import COMPILED_BATCH_SIZES, sample_episodes
from psyco._src.verification.methods import METHODS, make_tests
from psyco._src.verification.operating_characteristics import operating_characteristics
from psyco._src.verification.recertify import replay
from psyco._src.verification.rounding import confidence_percent, percent, rounded_down, rounded_up
from tests.environments import Walk

CAP = 400
TWO = parse('"first": P>=0.85 [ F a ] & C>=0.98; "second": P>=0.6 [ F b ] & C>=0.9')
REQUIRE = "P>=0.3 [ G (!caught | collisions <= 1) ] & C>=0.98"
CLOSE = REQUIRE.replace("0.3", "0.87").replace("0.98", "0.9999999")
OBSTACLES = psyco.make("obstacle-run", grid=4, horizon=10)


@cache
def policy(domain):
    network = network_for(domain)
    return policy_for(domain, network, network.init(jax.random.key(0)))


def verify(domain=OBSTACLES, requirement=REQUIRE, **settings):
    return psyco.verify(policy(domain), domain, requirement, seed=5, **settings)


# ---- several constraints -------------------------------------------------------------------------------------------


def joint_promise(method):
    return psyco.verify_outcomes(np.ones((CAP, 2), bool), TWO, method=method, max_episodes=CAP).guarantee


def joint_chances(method, pairs, cap=CAP):
    """Of SATISFIED and of VIOLATED for independent outcomes, exactly: all are accepted, or any is rejected."""
    tests = make_tests(method, TWO, max_episodes=CAP)
    each = [operating_characteristics(t, p, cap) for t, p in zip(tests, zip(*pairs, strict=True), strict=True)]
    return np.prod([e.satisfied for e in each], axis=0), 1 - np.prod([1 - e.violated for e in each], axis=0)


FAILING = [(0.849, 0.99), (0.83, 0.99), (0.99, 0.58), (0.83, 0.58)]
HOLDING = [(0.85, 0.6), (0.99, 0.6), (0.87, 0.62)]


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].error_rate])
def test_what_is_promised_of_two_constraints_is_kept(method):
    """Exactly, without simulation, also where one constraint just fails and the other surely holds."""
    promise = joint_promise(method)
    assert (promise.false_accept, promise.false_reject) == pytest.approx((0.1, 0.06))
    satisfied, violated = joint_chances(method, FAILING + HOLDING)
    promised = np.ones(len(satisfied), bool)
    if method == "sprt":  # but where one of them lies less than 0.02 from what is required
        promised[[0, 4, 5]] = False
    assert (satisfied[:4] <= promise.false_accept)[promised[:4]].all()
    assert (violated[4:] <= promise.false_reject)[promised[4:]].all()


def test_nothing_is_promised_where_the_ratio_test_is_indifferent():
    satisfied, _ = joint_chances("sprt", FAILING[:1], 2000)
    promise = joint_promise("sprt")
    assert satisfied > 2 * promise.false_accept, "so a promise without a condition would be false"
    for region in ("for first, unless a true probability lies between 0.83 and 0.87",
                   "for second, unless a true probability lies between 0.58 and 0.62"):  # fmt: skip
        assert region in promise.condition and region in promise.statement


@pytest.mark.parametrize(("method", "condition"), [("fixed", "exactly 400"), ("calibrated", "at most 400")])
def test_the_number_of_episodes_stays_a_condition_of_the_joint_promise(method, condition):
    promise = joint_promise(method)
    assert promise.condition.count(f"with {condition} episodes") == 1, "once, since it is the same for both"
    assert promise.condition in promise.statement


def test_an_anytime_promise_has_no_condition():
    assert joint_promise("anytime").condition is None


def test_beliefs_have_the_level_of_their_own_constraint():
    promise = joint_promise("bayes")
    assert (promise.false_accept, promise.false_reject) == (None, None)
    assert "98% for first, 90% for second" in promise.statement


# ---- intervals and printed numbers ---------------------------------------------------------------------------------


def test_both_bounds_hold_together_at_the_stated_level():
    """Exactly: over all outcomes of 40 episodes; one-sided bounds at the same level miss up to 1.8 times as often."""
    findings = [
        psyco.verify_outcomes([1] * s + [0] * (40 - s), "P>=0.5 & C>=0.9", method="fixed").findings[0]
        for s in range(41)
    ]
    assert all(f.interval_level == pytest.approx(0.9) for f in findings)
    for p in np.linspace(0.02, 0.98, 97):
        missed = [s for s, f in enumerate(findings) if not f.lower <= p <= f.upper]
        assert stats.binom.pmf(missed, 40, p).sum() <= 1 - findings[0].interval_level


@pytest.mark.parametrize("method", METHODS)
def test_half_of_the_error_goes_to_either_bound(method):
    finding = psyco.verify_outcomes([1] * 30 + [0] * 5, "P>=0.5 & C>=0.9", method=method, max_episodes=35).findings[0]
    (test,) = make_tests(method, parse("P>=0.5 [ F a ] & C>=0.9"), max_episodes=35)
    counts = Counts(finding.satisfied, finding.violated)
    assert (finding.lower, finding.upper) == pytest.approx(test.bounds(counts, 0.05))
    assert ("90% credible interval" if method == "bayes" else "90% confidence interval") in finding.interval


@given(st.floats(0, 1))
def test_a_bound_is_never_printed_inside_of_itself(p):
    below, above = float(rounded_down(p)), float(rounded_up(p))
    assert below <= p <= above and above - below <= 1.01e-4


@given(st.floats(1e-9, 1))
def test_an_error_rate_is_never_printed_too_small(rate):
    shown = float(percent(rate).removesuffix("%")) / 100
    assert rate * (1 - 1e-6) <= shown <= rate * 1.011
    assert float(confidence_percent(1 - rate).removesuffix("%")) / 100 <= 1 - rate * (1 - 1e-6) + 1e-15


def test_numbers_are_printed_as_people_write_them():
    assert [percent(rate) for rate in (1 - 0.98, 0.02 * 2 / 3, 0.5, 1e-7)] == [
        "2%",
        "1.34%",
        "50%",
        "0.00001%",
    ]
    assert [confidence_percent(c) for c in (0.98, 1 - 0.02 * 2 / 3, 0.5)] == ["98%", "98.66%", "50%"]


def test_text_and_page_show_the_interval_outward():
    for satisfied in range(20, 40):
        certificate = psyco.verify_outcomes([1] * satisfied + [0], "P>=0.99 & C>=0.9")
        (finding,) = certificate.findings
        for shown in (str(certificate), certificate_html(certificate), remark(certificate)):
            for low, high in re.findall(r"between ([\d.]+) and ([\d.]+)", shown) or pytest.fail(shown):
                assert float(low) <= finding.lower < finding.upper <= float(high)


def test_the_block_shows_horizon_and_parameters():
    assert "\n  episodes of at most 10 steps, grid=4\n" in str(verify())


# ---- what may be done about UNDECIDED ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_advice_is_what_the_method_permits(method):
    certificate = verify(requirement=CLOSE, method=method, max_episodes=COMPILED_BATCH_SIZES[-1])
    assert certificate.verdict.name == "UNDECIDED"
    permitted = method in ("anytime", "sprt", "bayes")
    for shown in (str(certificate), certificate_html(certificate), remark(certificate)):
        assert ("aise the maximum number" in shown) == permitted
        assert ("would void" in shown) == (not permitted)


@pytest.mark.parametrize("method", ["fixed", "calibrated"])
def test_a_further_look_is_advised_only_where_error_is_left_for_it(method):
    settings = {"requirement": CLOSE, "method": method, "max_episodes": COMPILED_BATCH_SIZES[-1]}
    assert "--retryable" in verify(**settings).advice
    assert "50% of the permitted error is left" in verify(**settings, share=0.5).advice
    recorded = psyco.verify_outcomes([1, 0], "P>=0.5 & C>=0.98", method=method)
    assert "--" not in recorded.advice, "there is no policy to sample"


@pytest.mark.parametrize("method", ["anytime", "sprt"])
def test_following_the_advice_voids_nothing(method):
    """Going on from 400 to 1,200 episodes, exactly, where the first constraint fails by all of the indifference."""
    test, _ = make_tests(method, TWO, max_episodes=CAP)
    assert operating_characteristics(test, [0.83], 3 * CAP).satisfied <= 0.02


# ---- the estimate --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domain", "requirement", "count"),
    [
        (OBSTACLES, REQUIRE, COMPILED_BATCH_SIZES[-1] + 50),
        (psyco.make(Walk, horizon=5), "P>=0.2 [ G (obs[0] <= 0) ] & C>=0.9", 70),
    ],
)
def test_an_estimate_is_of_the_episodes_after_the_decision_and_changes_nothing_else(domain, requirement, count):
    plain = verify(domain, requirement)
    certificate = verify(domain, requirement, estimate=count)
    estimate = certificate.estimate
    assert (certificate.findings, certificate.looks) == (plain.findings, plain.looks)
    # The same stream, all of it at once.
    whole = verify(domain, requirement, method="fixed", max_episodes=plain.episodes + count)
    assert whole.findings[0].satisfied == plain.findings[0].satisfied + estimate.constraints[0].satisfied
    total = whole.mean_return * whole.episodes - plain.mean_return * plain.episodes
    assert estimate.mean_return == pytest.approx(total / count, rel=1e-5)
    confidence = parse(requirement).constraints[0].confidence
    expected = stats.binomtest(estimate.constraints[0].satisfied, count).proportion_ci(confidence)
    assert (estimate.constraints[0].lower, estimate.constraints[0].upper) == pytest.approx(
        (expected.low, expected.high)
    )


def test_an_estimate_is_shown_and_repeated():
    certificate = verify(estimate=COMPILED_BATCH_SIZES[-1])
    assert "estimate from 250 further episodes" in str(certificate)
    assert "estimate from 250 further episodes" in certificate_html(certificate)
    assert replay(certificate.to_json(), policy(OBSTACLES)).matches
    text = certificate.to_json().replace('"episodes": 250', '"episodes": 251')
    assert any(each.startswith("estimate.") for each in replay(text, policy(OBSTACLES)).differences)
    with pytest.raises(RunError, match="estimate"):
        verify(estimate=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_test_that_chose_its_end_says_that_its_share_is_biased(method):
    biased = "biased by where the test stopped"
    assert (biased in str(verify(method=method, max_episodes=COMPILED_BATCH_SIZES[-1]))) == METHODS[method].sequential
    assert biased not in str(
        verify(method=method, max_episodes=COMPILED_BATCH_SIZES[-1], estimate=COMPILED_BATCH_SIZES[-1])
    )
    recorded = psyco.verify_outcomes([1, 0], "P>=0.5", method=method)
    assert (biased in str(recorded)) == METHODS[method].sequential and "--estimate" not in str(recorded)


@pytest.mark.parametrize("count", [1, 25, 26, COMPILED_BATCH_SIZES[-1] + 50])
def test_so_many_episodes_are_made_as_were_asked_for(count):
    """Whatever the sizes of compiled batches, the same ones, of which the first are known."""
    made = policy(OBSTACLES)
    sampler = make_sampler(OBSTACLES, made.network, parse(REQUIRE))
    theta, key = jnp.asarray(made.theta), stream_key(0, Stream.CERTIFY)
    found = np.concatenate([each.returns for each in sample_episodes(sampler, theta, key, count)])
    later = np.concatenate([each.returns for each in sample_episodes(sampler, theta, key, 30, first=count)])
    whole = np.concatenate([each.returns for each in sample_episodes(sampler, theta, key, count + 30)])
    np.testing.assert_array_equal(np.concatenate([found, later]), whole)
