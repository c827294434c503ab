"""Learned adversaries: how much of the exact worst case they reach, and what a certificate against one says."""

import dataclasses
import json

import jax
import pytest

import psyco
from psyco._src.core.errors import DomainError, RequirementError, RunError
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for

pytestmark = pytest.mark.slow  # learns, enumerates

SMALL = psyco.make("obstacle-run", grid=3, horizon=6)
REQUIREMENT = "P>=0.5 [ G (!caught | collisions <= 1) ] & C>=0.95"


def random_policy(domain, seed):
    network = network_for(domain)
    return policy_for(domain, network, network.init(jax.random.key(seed)))


@pytest.fixture(scope="module")
def attacked():
    return psyco.attack(
        random_policy(SMALL, 1), SMALL, REQUIREMENT, adversary=0.5, learner=psyco.Table(population=500),
        episodes=6_000, seed=3, exact=True,
    )  # fmt: skip


@pytest.mark.more
def test_a_learned_adversary_reaches_most_of_the_exact_worst_case(attacked):
    without, learned, worst, game = attacked.exact
    assert game <= worst
    assert without < 0.9 * worst
    assert 0.95 * worst <= learned <= worst + 1e-9


def test_fresh_episodes_agree_with_the_exact_probability_against_the_adversary(attacked):
    """Fails by chance with probability at most 5%, the error of the interval; fixed seed."""
    (finding,) = attacked.certificate.findings
    assert finding.lower <= 1.0 - attacked.exact.learned <= finding.upper


def test_the_certificate_names_the_adversary_and_cannot_be_mistaken(attacked):
    certificate, digest = attacked.certificate, attacked.adversary.digest
    assert certificate.parameters["adversary"] == {"kind": "draws", "size": 0.5, "policy": digest}
    statement = certificate.guarantee.statement
    assert f"chooses the random draw of a step with probability 0.5 (policy sha256:{digest[:16]})" in statement
    assert "another adversary of this kind and size may do more harm" in statement
    assert certificate.policy == random_policy(SMALL, 1).digest
    assert "against the worst" in str(attacked)
    opponent = f" against an adversary (draws 0.5, policy sha256:{digest[:16]})"
    assert str(certificate).startswith(f"{certificate.verdict.name}{opponent}: ")
    assert opponent in certificate.subject
    assert opponent in certificate._repr_html_()
    assert json.loads(attacked.to_json())["exact"]["worst"] == attacked.exact.worst


def test_the_certificate_is_replayed_in_the_domain_of_the_adversary(attacked):
    assert psyco.replay(attacked.certificate, random_policy(SMALL, 1), domain=attacked.domain).matches
    with pytest.raises(RunError, match=r"an adversary acts in this domain .*, whose policy is a file of its own"):
        psyco.replay(attacked.certificate, random_policy(SMALL, 1))
    assert psyco.replay(attacked.certificate, random_policy(SMALL, 1), adversary=attacked.adversary).matches
    with pytest.raises(RunError, match="the file of the adversary that a certificate is about"):
        psyco.replay(attacked.certificate, random_policy(SMALL, 1), adversary=0.5)


def test_a_learned_adversary_is_used_again_from_its_file_and_against_other_policies(attacked, tmp_path, cli):
    attacked.adversary.save(tmp_path / "adversary.safetensors")
    random_policy(SMALL, 1).save(tmp_path / "policy.safetensors")
    again = cli(
        "stress", str(tmp_path / "policy.safetensors"), "--adversary", str(tmp_path / "adversary.safetensors"),
        "--require", REQUIREMENT, "--seed", "3", "--json", "--out", tmp_path / "certificate.json",
    )  # fmt: skip
    found = psyco.Certificate.from_json((tmp_path / "certificate.json").read_text())
    assert json.loads(again.out)["certificate"] == json.loads(found.to_json())
    fixed = {"issued": "", "versions": {}}
    assert dataclasses.replace(found, **fixed) == dataclasses.replace(attacked.certificate, **fixed)
    other = psyco.attack(lambda obs: 0, SMALL, REQUIREMENT, adversary=attacked.adversary, max_episodes=500)
    assert other.certificate.parameters == attacked.certificate.parameters
    with pytest.raises(RunError, match="is no adversary"):
        psyco.attack(random_policy(SMALL, 1), SMALL, REQUIREMENT, adversary=random_policy(SMALL, 1))


@pytest.mark.more
def test_a_disturbed_observation_is_learned_too():
    domain = psyco.make("particle-dance", horizon=5)
    found = psyco.attack(
        random_policy(domain, 0), domain, "P>=0.5 [ G distance >= 0.1 ]", adversary="obs:0.1", episodes=200,
        max_episodes=200,
    )  # fmt: skip
    assert found.certificate.parameters["adversary"]["kind"] == "obs"
    assert "changes each number of an observation by at most 0.1" in found.certificate.guarantee.statement


@pytest.mark.parametrize(
    ("policy", "requirement", "adversary", "error", "words"),
    [
        ("particle-dance", REQUIREMENT, 0.2, RunError, "was made for particle-dance"),
        (lambda obs: 0, REQUIREMENT, 0.2, RunError, "learned against a PSyCo policy"),
        (None, "R{caught}<=5 [ C ]", 0.2, RequirementError, "no constraint P>=p"),
        (None, "P in [0.2,0.9] [ G !caught ]", 0.2, RequirementError, "bounds a probability on both sides"),
        (None, "P>=0.5 [ G action <= 3 ]", 0.2, RequirementError, "names action"),
        (None, "P>=0.5 [ G obs[0] <= 3 ]", "obs:0.1", RequirementError, "names obs"),
        (None, REQUIREMENT, "action:0.1", DomainError, "no continuous actions"),
    ],
)
def test_bad_input_is_an_error_with_a_remedy(policy, requirement, adversary, error, words):
    if not callable(policy):
        policy = random_policy(SMALL if policy is None else psyco.make(policy), 1)
    with pytest.raises(error, match=words):
        psyco.attack(policy, SMALL, requirement, adversary=adversary)


def test_the_command_refuses_a_family_and_an_adversary_at_once(tmp_path, cli):
    random_policy(SMALL, 1).save(tmp_path / "policy.safetensors")
    command = ["stress", str(tmp_path / "policy.safetensors"), "--require", REQUIREMENT]
    failed = cli(*command, "--adversary", "0.2", "--vary", "grid=3..5")
    assert failed.status == 2
    assert "choose one of --vary and --adversary" in failed.err
    assert "these belong to --adversary: leave out exact" in cli(*command, "--vary", "grid=3..5", "--exact").err
    assert "at most 1" in cli(*command, "--adversary", "1.5").err


@pytest.mark.parametrize(
    "option", ["--out certificate.json", "--save policy.safetensors", "--out certificates/0001.json"]
)
def test_the_command_overwrites_no_file_of_a_run(option, tmp_path, cli):
    (tmp_path / "config.toml").touch()
    random_policy(SMALL, 1).save(tmp_path / "policy.safetensors")
    option, name = option.split()
    command = ["stress", str(tmp_path / "policy.safetensors"), "--require", REQUIREMENT, option, tmp_path / name]
    failed = cli(*command, "--adversary", "0.2")
    assert failed.status == 2
    assert "is a file of the run in this folder" in failed.err
    if option == "--out":
        assert "is a file of the run in this folder" in cli(*command, "--vary", "grid=3..5").err


@pytest.mark.more
def test_a_look_against_an_adversary_is_entered_in_the_account_of_a_run_and_is_no_certificate_of_it(attacked, tmp_path):
    small = psyco.Settings(max_episodes=100, candidates=1, verify_every=0)
    run = psyco.start(SMALL, REQUIREMENT, tmp_path / "run", episodes=60, settings=small)
    before = (run.folder / "certificate.json").read_bytes()
    found = psyco.attack(run, adversary=attacked.adversary, max_episodes=100).certificate
    assert found.seed_block > run.certificate.seed_block  # fresh episodes
    assert len(found.looks) == 1  # another statement, with a permitted error of its own
    assert (run.folder / "certificate.json").read_bytes() == before
    assert (run.folder / "certificates" / f"{found.seed_block + 1:04}.json").read_text() == found.to_json()
    assert psyco.open_run(run.folder).certificate == run.certificate
    assert not psyco.open_run(run.folder).problems


@pytest.mark.more
def test_adversaries_of_one_kind_and_size_share_the_permitted_error_of_a_run_and_are_replayed(attacked, tmp_path, cli):
    small = psyco.Settings(max_episodes=100, candidates=1, verify_every=0)
    run = psyco.start(SMALL, REQUIREMENT, tmp_path / "run", episodes=60, settings=small)
    other = dataclasses.replace(attacked.adversary, theta=-attacked.adversary.theta)
    first = psyco.attack(run, adversary=attacked.adversary, max_episodes=50).certificate
    second = psyco.attack(run, adversary=other, max_episodes=50).certificate
    assert first.parameters["adversary"]["policy"] != second.parameters["adversary"]["policy"]
    assert [look.share for look in second.looks] == [1 / 2, 1 / 6]
    assert "There were 2 looks" in second.guarantee.statement
    other.save(tmp_path / "adversary.safetensors")
    (tmp_path / "second.json").write_text(second.to_json())
    command = ["verify", "--replay", tmp_path / "second.json", run.folder]
    replayed = cli(*command, "--adversary", tmp_path / "adversary.safetensors")
    assert replayed.status == 0
    assert "look 1, which may have been against another adversary" in replayed.out
    attacked.adversary.save(tmp_path / "adversary.safetensors")
    assert cli(*command, "--adversary", tmp_path / "adversary.safetensors").status == 1
    assert "an adversary acts in this domain" in cli(*command).err
    refused = cli("verify", run.folder, "--adversary", tmp_path / "adversary.safetensors")
    assert "psyco stress POLICY --adversary FILE verifies against an adversary" in refused.err
