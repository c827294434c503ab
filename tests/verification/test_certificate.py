"""Certificates: completeness, detection of changes, replay, and the account of all looks."""

import dataclasses
import hashlib
import json
import random
import re

import jax
import jsonschema
import pytest

import psyco
from psyco._src.core.errors import RunError
from psyco._src.core.provenance import code_digest
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key
from psyco._src.verification.certificate import Certificate, certificate_schema
from psyco._src.verification.certificate_html import certificate_html
from psyco._src.verification.findings import Estimate, ShareEstimate
from psyco._src.verification.methods import METHODS
from psyco._src.verification.recertify import replay
from psyco._src.verification.verifier import certify_candidates, look_share

SAFE = "G (!caught | collisions <= 1)"  # one formula and one batch size nearly everywhere: compiled once
REQUIRE = f"P>=0.3 [ {SAFE} ] & C>=0.98"
DOMAIN = psyco.make("obstacle-run", grid=4, horizon=10)


def policy(seed=0):
    network = network_for(DOMAIN)
    return policy_for(DOMAIN, network, network.init(jax.random.key(seed)))


@pytest.fixture(scope="module")
def certificate():
    return psyco.verify(policy(), DOMAIN, REQUIRE, seed=5)


def signed(content):
    """Return the content of a certificate as text, with a valid checksum."""
    content = {key: value for key, value in content.items() if key != "checksum"}
    checksum = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({**content, "checksum": checksum}, indent=2) + "\n"


def forged(certificate, *path, to):
    """Return the text of the certificate with one value changed."""
    content = json.loads(certificate.to_json())
    place = content
    for key in path[:-1]:
        place = place[key]
    assert place[path[-1]] != to
    place[path[-1]] = to
    return signed(content)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "require",
    [
        REQUIRE,
        '"reach": P<=0.9 [ F target ] & C>=0.9; P in [0.1,0.95] [ G !caught ] & C>=0.8',
        "Rmax=? [ C ]",
    ],
)
def test_every_certificate_fits_the_schema_and_reads_back_equal(method, require):
    certificate = psyco.verify(policy(), DOMAIN, require, method=method, max_episodes=250)
    jsonschema.validate(json.loads(certificate.to_json()), certificate_schema())
    assert Certificate.from_json(certificate.to_json()) == certificate
    assert certificate.guarantee.statement in str(certificate)


def test_outcomes_have_certificates_too():
    certificate = psyco.verify_outcomes([1, 0, 1, 1], "P>=0.5 & C>=0.9")
    jsonschema.validate(json.loads(certificate.to_json()), certificate_schema())
    assert Certificate.from_json(certificate.to_json()) == certificate
    assert "recorded outcomes" in str(certificate)


def test_the_schema_itself_is_valid_and_strict(certificate):
    jsonschema.Draft202012Validator.check_schema(certificate_schema())
    content = json.loads(certificate.to_json()) | {"extra": 1}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, certificate_schema())


def test_it_holds_what_a_third_party_needs(certificate):
    content = json.loads(certificate.to_json())
    assert content["syntax_tree"]["constraints"][0]["formula"]["operator"] == "G"
    assert content["parameters"] == {"horizon": 10, "grid": 4}
    assert content["policy"] == policy().digest
    assert (content["seed"], content["stream"], content["seed_block"]) == (5, "verify", 0)
    assert content["versions"].keys() >= {"psyco", "jax", "numpy", "scipy", "python"}
    (finding,) = content["findings"]
    assert finding["satisfied"] + finding["violated"] == finding["episodes"] == content["episodes"]
    assert content["guarantee"]["kind"] == "anytime"
    assert content["guarantee"]["false_accept"] == pytest.approx(0.02)


def test_optional_fields_are_written_and_read_back(certificate):
    assert (certificate.horizon, certificate.code) == (10, code_digest(DOMAIN))
    assert len(certificate.code) == 64
    share = ShareEstimate(satisfied=7, lower=0.3, upper=0.9, interval_level=0.98)
    full = dataclasses.replace(
        certificate,
        policy_kind="name",
        policy_version="2.1",
        notes=("The seed is ignored.", "Twice."),
        estimate=Estimate(10, (share,), -3.0, 0.1),
    )
    jsonschema.validate(json.loads(full.to_json()), certificate_schema())
    assert Certificate.from_json(full.to_json()) == full
    assert "note: The seed is ignored." in str(full)
    assert "The seed is ignored." in certificate_html(full)
    for name in ("notes", "horizon", "estimate"):
        with pytest.raises(jsonschema.ValidationError, match=name):
            jsonschema.validate(
                {k: v for k, v in json.loads(full.to_json()).items() if k != name}, certificate_schema()
            )


def test_the_time_of_issue_can_be_fixed(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert psyco.verify_outcomes([1], "P>=0.5").issued == "1970-01-02T00:00:00Z"
    given = psyco.verify_outcomes([1], "P>=0.5", issued="2026-01-01T00:00:00Z")
    assert given.issued == "2026-01-01T00:00:00Z"


# ---- changes are found out -----------------------------------------------------------------------------------------


def test_a_changed_byte_is_noticed_wherever_it_is(certificate):
    text, rng = certificate.to_json(), random.Random(0)
    for at in rng.sample(range(len(text)), 300):
        other = rng.choice([c for c in "0123456789abcXYZ {}" if c != text[at]])
        with pytest.raises(RunError):
            Certificate.from_json(text[:at] + other + text[at + 1 :])


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "not json", '{"format": "psyco-certificate-9"}'])
def test_what_is_no_certificate_is_refused(text):
    with pytest.raises(RunError, match=r"not a PSyCo certificate|no JSON file|has format"):
        Certificate.from_json(text)


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("findings", 0, "satisfied"), "3", r"findings\[0\]\.satisfied: expected `int`"),
        (("findings", 0, "lower"), None, r"findings\[0\]\.lower"),
        (("findings", 0, "verdict"), "MAYBE", r"findings\[0\]\.verdict: expected one of SATISFIED"),
        (("looks", 0, "share"), True, r"looks\[0\]\.share"),
        (("looks",), [], "looks does not fit"),
        (("notes",), [1], r"notes\[0\]"),
        (("guarantee",), "sure", "guarantee: expected an object"),
        (("max_episodes",), None, "max_episodes does not fit"),
        (("mean_return",), None, "return_standard_error does not fit"),
        (("versions", "psyco"), 1, r"versions\.psyco"),
        (("surprise",), 1, "surprise: unknown field"),
    ],
)
def test_a_damaged_field_is_named(certificate, path, value, fault):
    content = json.loads(certificate.to_json()) | {"surprise": 0}
    if path != ("surprise",):
        del content["surprise"]
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(RunError, match=f"the certificate is damaged: {fault}"):
        Certificate.from_json(signed(content), strict=False)


def test_a_missing_field_is_named(certificate):
    content = json.loads(certificate.to_json())
    del content["findings"][0]["upper"]
    with pytest.raises(RunError, match=r"findings\[0\]\.upper: missing field"):
        Certificate.from_json(signed(content))


def test_a_repetition_matches(certificate):
    assert replay(certificate.to_json(), policy()).matches


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("findings", 0, "satisfied"), 3, "findings.0.satisfied"),
        (("looks", 0, "episodes"), 7, "looks.0.episodes"),
        (("verdict",), "VIOLATED", "verdict"),
        (("requirement",), f"Rmax=? [ C ];\n{REQUIRE.replace('0.3', '0.1')};", "findings.0.constraint"),
        (("findings", 0, "constraint"), "P>=0.9 [ F target ]", "findings.0.constraint"),
        (("mean_return",), 0.0, "mean_return"),
        (("guarantee", "false_accept"), 1e-6, "guarantee.false_accept"),
        (("seed",), 6, "seed"),
        (("max_episodes",), 3, "max_episodes"),
        (("method",), "bayes", "guarantee.kind"),
        (("parameters", "horizon"), 9, "mean_return"),
        (("share",), 0.5, "share"),
    ],
)
def test_a_forged_value_is_found_out_and_named_though_the_checksum_fits(certificate, path, value, named):
    differences = replay(forged(certificate, *path, to=value), policy()).differences
    assert any(each.startswith(named) for each in differences), differences


def test_another_policy_is_found_out(certificate):
    differences = replay(certificate.to_json(), policy(1)).differences
    assert differences[0].startswith("policy: the certificate is about sha256:")


def test_a_change_that_no_repetition_shows_is_still_a_change(certificate):
    text = certificate.to_json().replace(certificate.issued, "2020-01-01T00:00:00Z")
    assert [each.split(":")[0] for each in replay(text, policy()).differences] == ["checksum"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("requirement",), "nonsense"),
        (("method",), "magic"),
        (("seed_block",), 3),
        (("parameters",), {"grid": 0}),
    ],
)
def test_what_cannot_be_repeated_is_said(certificate, path, value):
    with pytest.raises(RunError, match="cannot be repeated"):
        replay(forged(certificate, *path, to=value), policy())


def test_a_policy_of_another_shape_is_refused(certificate):
    domain = psyco.make("particle-dance")
    network = network_for(domain)
    other = policy_for(domain, network, network.init(jax.random.key(0)))
    with pytest.raises(RunError, match="made for particle-dance"):
        replay(certificate.to_json(), other)


# ---- looks ---------------------------------------------------------------------------------------------------------


def test_no_episode_serves_two_purposes():
    keys = {
        tuple(jax.random.key_data(key).tolist())
        for stream in Stream
        for seed_block in range(3)
        for key in episode_keys(stream_key(7, stream, seed_block), 0, 20)
    }
    assert len(keys) == len(Stream) * 3 * 20


def test_shares_of_all_looks_sum_to_one():
    assert sum(look_share(i) for i in range(1, 100_000)) == pytest.approx(1, abs=1e-4)
    for m in (1, 2, 7):
        assert sum(look_share(i, of=m) for i in range(1, m + 1)) == pytest.approx(1)


def test_candidates_are_tried_in_order_on_fresh_episodes_and_all_looks_are_listed():
    candidates = [policy(0), policy(0), policy(0)]
    settings = {"method": "fixed", "max_episodes": 250}
    impossible = psyco.certify_candidates(candidates, DOMAIN, f"P>=0.99 [ {SAFE} ] & C>=0.9", **settings)
    looks = impossible.certificate.looks
    assert [look.seed_block for look in looks] == [0, 1, 2]
    assert sum(look.share for look in looks) == pytest.approx(1)
    assert impossible.certificate.seed_block == impossible.chosen
    assert impossible.certificate.verdict.name == "VIOLATED"
    assert "3 looks" in str(impossible.certificate)
    # The same policy with the same seed: only fresh episodes can make a difference.
    assert len({look.satisfied for look in looks}) == 3
    assert replay(impossible.certificate.to_json(), policy()).matches


def test_the_first_candidate_that_passes_is_certified_at_its_share_of_the_error():
    first = psyco.certify_candidates([policy(0), policy(1)], DOMAIN, f"P>=0.2 [ {SAFE} ] & C>=0.9")
    assert first.chosen == 0 and len(first.certificate.looks) == 1
    assert first.certificate.findings[0].guarantee.false_accept == pytest.approx(0.1 * 0.75)
    assert first.certificate.guarantee.false_accept == pytest.approx(0.1)
    assert first.certificate.guarantee.false_reject == pytest.approx(0.1)
    with pytest.raises(RunError, match="no candidate"):
        psyco.certify_candidates([], DOMAIN, REQUIRE)


def test_a_retry_is_accounted_for():
    require = f"P in [0.1,0.99] [ {SAFE} ] & C>=0.9999999"
    first = psyco.verify(policy(), DOMAIN, require, max_episodes=250, share=look_share(1))
    second = psyco.verify(policy(), DOMAIN, require, max_episodes=250, after=first)
    assert [look.share for look in second.looks] == pytest.approx([1 / 2, 1 / 6])
    assert [look.seed_block for look in second.looks] == [0, 1]
    assert "2 looks" in second.guarantee.statement
    assert second.guarantee.false_accept == pytest.approx(1e-7)
    assert replay(second.to_json(), policy()).matches


@pytest.mark.parametrize("width", [None, 0.4])
def test_a_test_that_was_ended_for_futility_is_repeated_beside_a_question(width):
    require = f"P>=0.9 [ {SAFE} ] & C>=0.98; P=? [ {SAFE} ]"
    settings = {"max_episodes": 250, "min_accept_probability": 0.9, "width": width}
    found = certify_candidates([policy()], DOMAIN, psyco.parse(require), **settings).certificate
    assert (found.verdict.name, found.episodes < 250) == ("UNDECIDED", True)
    assert (found.answers[0].episodes == 250) == (width is None)
    assert replay(found.to_json(), policy()).differences == ()
    lie = json.loads(found.to_json())
    lie["answers"][0]["episodes"] = 251
    differences = replay(signed(lie), policy()).differences
    assert [each.split(":")[0] for each in differences] == ["answers.0.episodes"]


def test_an_error_that_is_used_up_cannot_be_used_again():
    first = psyco.verify(policy(), DOMAIN, REQUIRE)
    with pytest.raises(RunError, match="--retryable"):
        psyco.verify(policy(), DOMAIN, REQUIRE, after=first)
    with pytest.raises(RunError, match="another requirement"):
        psyco.verify(policy(), DOMAIN, f"P>=0.4 [ {SAFE} ]", after=first)
    with pytest.raises(RunError, match="above 0 and at most 1"):
        psyco.verify(policy(), DOMAIN, REQUIRE, share=0.0)


# ---- pages ---------------------------------------------------------------------------------------------------------


def test_the_page_is_self_contained_and_shows_verdict_bounds_and_guarantee(certificate):
    page = certificate_html(certificate)
    assert certificate.verdict.name in page and certificate.guarantee.statement in page
    assert policy().digest in page
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page)
    assert set(re.findall(r"var\((--\w+)\)", page)) <= set(re.findall(r"(--\w+):", page)), "its own colours"


def test_text_from_outside_is_escaped():
    nasty = '"<script>alert(1)</script>": P>=0.5 [ F a ] & C>=0.9'
    page = certificate_html(psyco.verify_outcomes([1, 1, 0], nasty))
    assert "<script" not in page and "&lt;script&gt;" in page
