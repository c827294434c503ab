"""verify(): fresh episodes, three verdicts, and what cannot be shown is refused."""

import json

import jax
import numpy as np
import pytest

import psyco
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.verification.episode_stream import constraint_outcomes

pytestmark = pytest.mark.slow  # compiles many rollouts


@pytest.fixture(scope="module")
def walker():
    """Return an untrained policy of Obstacle Run."""
    domain = psyco.make("obstacle-run")
    network = network_for(domain)
    return policy_for(domain, network, network.init(jax.random.key(0))), domain


@pytest.mark.parametrize(
    ("require", "verdict"),
    [
        ("P>=0.5 [ G step <= 50 ] & C>=0.98", "SATISFIED"),
        ("P>=0.5 [ F step > 50 ] & C>=0.98", "VIOLATED"),
        ("P<=0.5 [ F step > 50 ] & C>=0.98", "SATISFIED"),
        ("P in [0.4,0.6] [ G step <= 50 ] & C>=0.98", "VIOLATED"),
        ("P>=0.97 [ G step <= 50 ] & C>=0.99999", "UNDECIDED"),
        ("P>=0.5 [ G step <= 50 ]; P>=0.5 [ F step > 50 ]", "VIOLATED"),
        ("P>=0.5 [ G step <= 50 ]; P>=0.97 [ G step <= 50 ] & C>=0.99999", "UNDECIDED"),
    ],
)
def test_verdicts(walker, require, verdict):
    certificate = psyco.verify(*walker, require, method="bayes", max_episodes=300, seed=3)
    assert certificate.verdict.name == verdict
    content = json.loads(certificate.to_json())
    assert content["verdict"] == verdict
    assert verdict in str(certificate)
    for finding in certificate.findings:
        assert finding.satisfied + finding.violated == finding.episodes <= 300
        assert 0 <= finding.lower <= finding.upper <= 1 and 0 <= finding.confidence <= 1


def test_a_certain_event_is_accepted_as_soon_as_the_posterior_allows(walker):
    """c_sat after n successes is 1 - p^(n+1): the first n with 1 - .85^(n+1) >= .98 is 24."""
    certificate = psyco.verify(*walker, "P>=0.85 [ G step <= 50 ] & C>=0.98", method="bayes")
    assert certificate.findings[0].episodes == 24 == int(np.ceil(np.log(0.02) / np.log(0.85))) - 1


def test_the_same_seed_gives_the_same_certificate_and_another_seed_other_episodes(walker):
    require = "P in [0.01,0.99] [ G !caught ] & C>=0.99999999"
    a, b, c = (psyco.verify(*walker, require, method="bayes", max_episodes=200, seed=s) for s in (1, 1, 2))
    assert a.findings == b.findings
    assert a.findings != c.findings


def test_warnings_about_the_requirement_are_notes_of_the_certificate_and_of_its_replay(walker):
    policy, domain = walker
    with pytest.warns(UserWarning, match="first state of an episode only"):
        certificate = psyco.verify(policy, domain, "P>=0.5 [ step <= 50 & !caught ] & C>=0.98", method="bayes")
    assert sum("first state of an episode only" in note for note in certificate.notes) == 1
    assert "first state of an episode only" in str(certificate)
    assert psyco.replay(certificate, policy, domain=domain).matches


def test_without_constraints_the_return_is_still_measured(walker):
    certificate = psyco.verify(*walker, "Rmax=? [ C ]", method="bayes", max_episodes=200)
    assert certificate.verdict.name == "SATISFIED" and certificate.episodes == 200
    assert certificate.mean_return < -1


@pytest.mark.parametrize(
    ("require", "message"),
    [
        ("P>=1 [ G step <= 50 ]", "leave it some room"),
        ("P<=0 [ F step > 50 ]", "leave it some room"),
        ("P>0 [ G step <= 50 ]", "leave it some room"),
        ("P<1 [ G step <= 50 ]", "leave it some room"),
        ("P>=0.9 [ G step <= 50 ] & C>=1", "certainty"),
        ("P>=0.9 [ G stp <= 50 ]", "did you mean"),
        ("P>=0.9 [ F<=51 caught ]", "horizon"),
    ],
)
def test_what_cannot_be_shown_is_refused(walker, require, message):
    with pytest.raises(psyco.RequirementError, match=message):
        psyco.verify(*walker, require)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "unknown verification method"),
        ({"max_episodes": 0}, "at least 1"),
        ({"seed": -1}, "a seed is a whole number"),
        ({"seed": 2**31}, "a seed is a whole number"),
        ({"execution": psyco.Execution(devices=99)}, "asked for 99 devices"),
    ],
)
def test_bad_arguments_are_refused(walker, options, message):
    with pytest.raises(psyco.RunError, match=message):
        psyco.verify(*walker, "P>=0.5 [ F caught ]", **options)


def test_demands_are_mapped_back_to_constraints():
    requirement = psyco.parse("P<=0.2 [ F a ]; P in [0.3,0.6] [ G b ]; P>=0.9 [ X c ]")
    truth = np.random.default_rng(0).uniform(size=(50, 3)) < 0.5
    columns = [truth[:, d.constraint] ^ d.negated for d in requirement.probability_bounds]
    assert len(columns) == 4
    assert (constraint_outcomes(requirement, np.stack(columns, axis=1)) == truth).all()


def test_looks_of_different_methods_do_not_share_one_error(walker):
    first = psyco.verify(*walker, "P>=0.5 [ F caught ]", method="bayes", max_episodes=1, share=0.5)
    with pytest.raises(psyco.RunError, match="one method"):
        psyco.verify(*walker, "P>=0.5 [ F caught ]", method="anytime", after=first)


def test_a_numpy_seed_is_a_seed(walker):
    certificate = psyco.verify(*walker, "P>=0.5 [ G step <= 50 ]", seed=np.int64(3))
    assert json.loads(certificate.to_json())["seed"] == 3
