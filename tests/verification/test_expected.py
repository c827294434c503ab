"""Expected values, rates and questions in certificates: tested, answered, written down, repeated."""

import dataclasses
import json
import re
from functools import cache

import jax
import jsonschema
import numpy as np
import pytest

import psyco
from psyco._src.core.errors import EpisodeError, RequirementError, RunError
from psyco._src.envs.value_bounds import ValueRange
from psyco._src.logic.parser import parse
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.episodes import Stream, concatenate_episodes, stream_key
from psyco._src.rollout.sampler import make_sampler
from psyco._src.verification.base import MeanTask
from psyco._src.verification.certificate import certificate_schema
from psyco._src.verification.certificate_html import certificate_html
from psyco._src.verification.episode_stream import EpisodeStream, episode_columns
from psyco._src.verification.methods import make_tests
from psyco._src.verification.recertify import replay
from tests.verification.test_certificate import signed

pytestmark = pytest.mark.slow  # compiles a few rollouts

DOMAIN = psyco.make("obstacle-run", grid=4, horizon=10)
# Two probabilities, an expected cost, a time until something, a rate; and three questions. Compiled once.
CONSTRAINTS = (
    'P>=0.3 [ G (!caught | collisions <= 1) ] & C>=0.98; "cost": R{caught}<=3 [ C ] & C>=0.9;'
    "P<=0.9 [ F target ] & C>=0.9; R{true} in [1,9.8] [ F target ] & C>=0.9; S<=0.5 [ caught ] & C>=0.9;"
)
QUESTIONS = "P=? [ F target ] & C>=0.999; R{caught}=? [ S ] & C>=0.999; R{true}=? [ F target ] & C>=0.999"
REQUIRE = CONSTRAINTS + QUESTIONS


@cache
def policy():
    network = network_for(DOMAIN)
    return policy_for(DOMAIN, network, network.init(jax.random.key(0)))


def verify(requirement=REQUIRE, **settings):
    return psyco.verify(policy(), DOMAIN, requirement, seed=5, max_episodes=settings.pop("most", 500), **settings)


@pytest.fixture(scope="module")
def certificate():
    return verify()


@pytest.fixture(scope="module")
def episodes():
    """Sample the first episodes of the same look in one batch."""
    requirement = parse(REQUIRE)
    sampler = make_sampler(DOMAIN, policy().network, requirement)
    source = EpisodeStream(sampler, policy().theta, stream_key(5, Stream.VERIFY), DOMAIN, requirement)
    return concatenate_episodes(list(source.sample(500)))


# ---- constraints ----------------------------------------------------------------------------------------------------


def test_a_mixed_requirement_is_tested_constraint_by_constraint_in_its_order(certificate, episodes):
    assert certificate.verdict.name == "SATISFIED"
    kinds = [f.estimand for f in certificate.findings]
    assert kinds == ["probability", "expected value", "probability", "expected value", "rate"]
    assert [f.constraint for f in certificate.findings] == list(map(str, parse(REQUIRE).constraints))
    _, cost, _, time, rate = (column[: f.episodes] for column, f in zip(
        episode_columns(parse(REQUIRE), episodes), certificate.findings, strict=False))  # fmt: skip
    found = certificate.findings
    assert found[1].mean == pytest.approx(cost.mean())
    assert found[3].mean == pytest.approx(time.mean())
    assert found[4].mean == pytest.approx(rate[:, 0].sum() / rate[:, 1].sum())
    for f in found:
        assert f.lower <= f.upper and 0 <= f.confidence <= 1
    assert [found[k].range for k in (1, 3, 4)] == [(0, 10), (0, 10), (0, 1)]


def test_episodes_that_never_get_there_are_counted_and_the_restart_is_part_of_the_statement(certificate, episodes):
    *_, time, rate = certificate.findings
    column = list(parse(REQUIRE).measured).index(parse(REQUIRE).constraints[3])
    assert time.unreached == int((~episodes.reached[: time.episodes, column]).sum()) > 0
    assert (rate.unreached, rate.restart) == (None, "whenever an episode ends, by itself or after 10 steps")
    for shown in (str(certificate), certificate_html(certificate)):
        assert f"{time.unreached} of them did not get there" in shown
        assert "starts again whenever an episode ends, by itself or after 10 steps" in shown


def test_the_error_is_shared_among_all_kinds_alike(certificate):
    deltas = [0.02, 0.1, 0.1, 0.1, 0.1]
    accept = [f.guarantee.false_accept for f in certificate.findings]
    reject = [f.guarantee.false_reject for f in certificate.findings]
    assert accept == pytest.approx(deltas)
    assert reject == pytest.approx([delta / 5 for delta in deltas])
    assert certificate.guarantee.false_accept == pytest.approx(0.1)
    assert certificate.guarantee.false_reject == pytest.approx(np.mean(deltas))
    assert "for cost, provided that no episode can have a value outside of [0, 10]" in certificate.guarantee.condition


def test_tests_stand_in_the_order_of_the_requirement_with_their_ranges():
    spans = [ValueRange(0, 7), ValueRange(-1, 1, 50)]
    tests = make_tests("anytime", parse("R{x}<=3 [ C ]; P>=0.5 [ F a ]; R{y}>=0 [ S ]"), value_ranges=spans, share=0.5)
    assert [isinstance(test.task, MeanTask) for test in tests] == [True, False, True]
    assert (tests[0].task.lo, tests[0].task.hi, tests[0].task.upper) == (0, 7, 3)
    assert (tests[2].task.lower, tests[2].task.steps) == (0, 50)
    assert [test.task.false_accept for test in tests] == pytest.approx([0.025] * 3)
    assert [test.task.false_reject for test in tests] == pytest.approx([0.025 / 3] * 3)


@pytest.mark.parametrize("method", ["calibrated", "sprt"])
def test_methods_for_probabilities_alone_are_refused_with_those_that_work(method):
    with pytest.raises(RunError, match=f"'{method}' tests probabilities only; .*: anytime, bayes, fixed"):
        verify(method=method)


@pytest.mark.parametrize("method", ["bayes", "fixed"])
def test_the_other_methods_judge_the_same_requirement(method):
    found = verify(method=method, most=250)
    jsonschema.validate(json.loads(found.to_json()), certificate_schema())
    assert found.guarantee.kind == {"bayes": "posterior", "fixed": "fixed"}[method]
    assert replay(found.to_json(), policy()).matches


@pytest.mark.parametrize(
    ("requirement", "says"),
    [
        ("R{distanc}<=3 [ C ]", "did you mean 'distance'"),
        ("R{1 / distance}<=3 [ C ]", "no range is known of 1 / distance"),
        ("R{caught}<=3 [ C ] & C>=1", "certainty"),
        ("R{caught}<=0 [ C ]", r"expected value is exactly 0, .* a little inside of \[0, 10\]"),
        ("R{caught} in [2,2] [ C ]", "exactly 2"),
        ("R{caught}>0 [ C ]", "leave it some room"),
        ("S<1 [ caught ]", "leave it some room"),
        ("Pmax=? [ F target ]", "psyco exact answers it"),
        ("R{caught}min=? [ C ]", "best of all controllers"),
        ("P=? [ F target ] & C>=1", "certainty"),
    ],
)
def test_what_cannot_be_shown_or_answered_is_refused_before_anything_runs(requirement, says):
    with pytest.raises(RequirementError, match=says):
        verify(requirement)


def test_an_episode_outside_of_its_range_ends_the_verification_with_its_seed_and_value():
    says = r"obstacle-run, episode with seed \d+, at step \d+: .* comes to -\d+, outside of its range \[-4, 0\]"
    with pytest.raises(EpisodeError, match=says):
        verify("R>=-3.9 [ C ] within [-4,0]")
    with pytest.raises(EpisodeError, match=says):
        verify("R=? [ C ] within [-4,0]")


# ---- questions ------------------------------------------------------------------------------------------------------


def test_questions_are_answered_from_all_episodes_of_the_look(certificate, episodes):
    share, rate, time = certificate.answers
    columns = episode_columns(parse(REQUIRE), episodes)[-3:]
    assert [a.episodes for a in certificate.answers] == [500] * 3
    assert share.mean == pytest.approx(columns[0].mean())
    assert rate.mean == pytest.approx(columns[1][:, 0].sum() / columns[1][:, 1].sum())
    assert time.unreached == int((~episodes.reached[:, -1]).sum())
    assert certificate.episodes < 500


def test_answers_agree_with_the_exact_ones(certificate):
    """Fails by chance with probability at most 0.003; fixed seed."""
    exact = psyco.exact(policy(), DOMAIN, QUESTIONS)
    for answer, truth in zip(certificate.answers, exact.answers, strict=True):
        assert answer.lower <= truth <= answer.upper
        assert answer.interval_level == pytest.approx(0.999)
    assert exact.verdict.name == "ANSWERED"


def test_sampling_ends_when_the_interval_is_as_narrow_as_asked():
    found = verify(width=[0.3, 0.2, 0.3])
    share, rate, time = found.answers
    assert [answer.kind for answer in found.answers] == ["width", "anytime", "anytime"]
    assert share.upper - share.lower <= 0.3 and rate.upper - rate.lower <= 0.2
    assert share.episodes < 500 and rate.episodes < 500
    assert time.episodes == 500 and "not yet as narrow as 0.3" in time.summary
    jsonschema.validate(json.loads(found.to_json()), certificate_schema())
    assert [answer.width for answer in found.answers] == [0.3, 0.2, 0.3]
    assert replay(found.to_json(), policy()).matches
    alone = verify("P=? [ F target ] & C>=0.9", width=0.3)
    assert alone.answers[0].episodes < 100 and replay(alone.to_json(), policy()).matches
    for bad in (0, -1, float("nan"), "wide"):
        for width in (bad, [0.3, bad, 0.3]):
            with pytest.raises(RunError, match="width is how narrow"):
                verify(width=width)


@pytest.mark.parametrize(
    ("requirement", "width"),
    [(None, 0.3), (None, [0.3, 0.3]), ("R{caught}=? [ C ]; R{caught}=? [ S ]", 0.3), ("P=? [ F caught ]", [0.3, 1])],
)
def test_questions_of_different_units_need_a_width_each(requirement, width):
    with pytest.raises(RunError, match=r"only probabilities can share one.*--width 0\.02 --width 1\.5"):
        verify(*filter(None, [requirement]), width=width)
    both = verify("P=? [ F target ] & C>=0.9; P=? [ F caught ] & C>=0.9", width=0.3)
    assert [answer.width for answer in both.answers] == [0.3, 0.3]


def test_questions_change_nothing_of_what_is_said_about_constraints(certificate):
    plain = verify(CONSTRAINTS)
    assert plain.answers == ()
    assert plain.findings == certificate.findings
    assert plain.looks == certificate.looks


def test_a_requirement_of_questions_only_has_no_verdict():
    found = verify(QUESTIONS)
    assert (found.verdict.name, found.findings) == ("ANSWERED", ())
    assert "nothing was to be shown; the questions are answered" in str(found)
    assert [a.episodes for a in found.answers] == [500] * 3
    jsonschema.validate(json.loads(found.to_json()), certificate_schema())
    assert replay(found.to_json(), policy()).matches


def test_the_chosen_candidate_is_answered_for_at_its_share_of_the_error():
    never = REQUIRE.replace("R{caught}<=3", "R{caught}<=0.001")
    failed = psyco.certify_candidates([policy()] * 2, DOMAIN, never, max_episodes=250, seed=5)
    assert failed.certificate.verdict.name == "VIOLATED"
    share = failed.certificate.looks[failed.chosen].share
    assert [a.interval_level for a in failed.certificate.answers] == pytest.approx([1 - share * 0.001] * 3)
    assert len({look.means for look in failed.certificate.looks}) == 2, "fresh episodes each"


# ---- the certificate ------------------------------------------------------------------------------------------------


def test_it_fits_the_schema_reads_back_equal_and_is_repeated(certificate):
    text = certificate.to_json()
    jsonschema.validate(json.loads(text), certificate_schema())
    assert psyco.Certificate.from_json(text) == certificate
    assert json.loads(text)["format"] == "psyco-certificate-1"
    found = replay(text, policy())
    assert found.matches, found.differences


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("findings", 1, "mean"), 0.0),
        (("findings", 1, "range"), [0, 9]),
        (("findings", 3, "unreached"), 0),
        (("findings", 4, "restart"), None),
        (("answers", 0, "upper"), 0.9),
        (("answers", 2, "unreached"), 0),
        (("looks", 0, "means", 1), 0.0),
    ],
)
def test_a_forged_number_is_found_out_and_named(certificate, path, value):
    content = json.loads(certificate.to_json())
    place = content
    for key in path[:-1]:
        place = place[key]
    assert place[path[-1]] != value
    place[path[-1]] = value
    found = replay(signed(content), policy())
    assert any(each.startswith(".".join(map(str, path))) for each in found.differences)


@pytest.mark.parametrize("path", [("findings", 1, "mean"), ("findings", 1, "range"), ("answers", 0, "mean")])
def test_a_damaged_number_is_an_error_of_ours(certificate, path):
    content = json.loads(certificate.to_json())
    content[path[0]][path[1]][path[2]] = "much"
    with pytest.raises(RunError, match="damaged"):
        psyco.Certificate.from_json(signed(content))


def test_text_and_page_show_means_rates_and_answers(certificate):
    for shown in (str(certificate), certificate_html(certificate)):
        for f in (*certificate.findings, *certificate.answers):
            assert f.interval in shown if hasattr(f, "interval") else f.summary in shown
    assert certificate_html(certificate).count("<svg") == 8


def test_small_rates_and_large_costs_have_digits_enough(certificate):
    f = certificate.findings[4]
    small = dataclasses.replace(f, mean=0.00012345, lower=0.0001, upper=0.00015)
    assert "between 0.0001000 and 0.0001500" in small.interval
    large = dataclasses.replace(f, mean=1e15, lower=1e15, upper=1e15 + 64)
    assert "between 1000000000000000.00 and 1000000000000064.00" in large.interval


def test_an_estimate_has_the_means_of_the_episodes_after_the_decision(certificate, episodes):
    whole = verify(estimate=200)
    estimate = whole.estimate
    assert re.search(r"  rate 0\.\d{3,} of S<=0.5", str(whole))
    first = certificate.episodes
    cost, rate = (episode_columns(parse(REQUIRE), episodes)[k][first : first + 200] for k in (1, 4))
    assert estimate.constraints[1].mean == pytest.approx(cost.mean())
    assert estimate.constraints[4].mean == pytest.approx(rate[:, 0].sum() / rate[:, 1].sum())
    assert estimate.constraints[1].lower <= estimate.constraints[1].mean <= estimate.constraints[1].upper
    assert estimate.constraints[0].satisfied <= 200


def test_looks_at_another_bound_or_range_are_about_another_claim():
    first = verify(CONSTRAINTS, share=0.5)
    assert len(verify(CONSTRAINTS, after=first).looks) == 2
    for other in (CONSTRAINTS.replace("<=3", "<=2"), CONSTRAINTS.replace("[ C ] &", "[ C ] within [0,20] &")):
        with pytest.raises(RunError, match="another requirement"):
            verify(other, after=first)
