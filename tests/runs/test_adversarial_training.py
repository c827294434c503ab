"""Policies that learn against their adversaries: the exact worst case falls, and certificates name the adversaries."""

import json
import re
from types import SimpleNamespace

import jax
import pytest

import psyco
from psyco._src.core.errors import RunError
from psyco._src.envs.variants import Disturbance
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.runs.adversarial_training import AdversarialTraining, Pair, TrainingRound, _choose

pytestmark = pytest.mark.slow  # learns, enumerates

SMALL = psyco.make("obstacle-run", grid=3, horizon=6)
REQUIREMENT = "P>=0.7 [ G (!caught | collisions <= 1) ] & C>=0.95"


def random_policy(domain, seed):
    network = network_for(domain, bias="learned")
    return policy_for(domain, network, network.init(jax.random.key(seed)))


@pytest.fixture(scope="module")
def trained():
    return psyco.train_against(
        random_policy(SMALL, 1), SMALL, REQUIREMENT, adversary=0.5, rounds=1, learner="table",
        episodes=4_000, policy_learner="safe-es", policy_episodes=4_000, seed=3, exact=True, max_episodes=2_000,
    )  # fmt: skip


@pytest.mark.more
def test_the_exact_worst_case_falls(trained):
    before, after = trained.rounds[0].exact, trained.rounds[-1].exact
    assert trained.chosen == 1
    assert after.worst < 0.8 * before.worst
    assert before.game == after.game <= after.worst  # no policy does better against its worst adversary


@pytest.mark.more
def test_shares_of_violations_agree_with_exact_probabilities(trained):
    """Each of two intervals misses with probability at most 5%; fixed seed."""
    for number, each in enumerate(trained.rounds):
        low, high = each.against[number].interval
        assert low <= each.exact.learned <= high


@pytest.mark.more
def test_a_certificate_per_adversary_and_one_permitted_error(trained):
    assert [c.parameters["adversary"]["policy"] for c in trained.certificates] == [
        each.adversary.digest for each in trained.rounds
    ]
    assert {c.policy for c in trained.certificates} == {trained.policy.digest}
    assert [c.looks[0].share for c in trained.certificates] == [0.5, 0.5]
    content = json.loads(trained.to_json())
    assert content["verdict"] == trained.verdict.name
    assert len(content["rounds"][0]["against"]) == 2
    text = str(trained)
    assert text.startswith(f"{trained.verdict.name} against ")
    assert "Other adversaries of this kind and size may do more harm" in text
    assert re.search(r"round 1: .* against the worst \(the best policy: 0\.\d+; exploitability: 0\.\d+\)", text)


@pytest.mark.more
def test_the_policy_belongs_to_the_domain_without_an_adversary(trained):
    assert trained.policy.domain == "obstacle-run"
    assert "adversary" not in trained.policy.parameters
    trained.policy.check(SMALL)


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        ("SATISFIED SATISFIED", "SATISFIED against each of 2 adversaries: "),
        ("SATISFIED VIOLATED", "VIOLATED against at least one of 2 adversaries: "),
        ("UNDECIDED SATISFIED", "UNDECIDED against at least one of 2 adversaries: "),
    ],
)
def test_the_first_line_says_whether_the_verdict_is_about_all_adversaries_or_one(verdicts, words):
    policy = random_policy(SMALL, 0)
    rounds = tuple(TrainingRound(policy, policy, (pair(0.1, -4.0), pair(0.2, -4.0)), None) for _ in range(2))
    certificates = tuple(
        SimpleNamespace(verdict=psyco.Verdict[name], findings=(), episodes=10) for name in verdicts.split()
    )
    assert str(AdversarialTraining(rounds, 0, certificates, Disturbance("draws", 0.5))).startswith(words)


def pair(violation, mean_return, share=None):
    return Pair(round(1000 * violation), 1000, (1.0 - violation if share is None else share,), mean_return)


def test_of_policies_that_meet_the_bounds_the_one_with_the_best_return_is_chosen_else_the_safest():
    requirement = psyco.parse(REQUIREMENT)
    risky = [pair(0.1, -1.0), pair(0.4, -1.0)]  # it fails against the second adversary
    safe, slow = [pair(0.2, -2.0), pair(0.1, -3.0)], [pair(0.0, -5.0), pair(0.0, -5.0)]
    assert _choose([risky, safe, slow], requirement) == 1
    assert _choose([risky, [pair(0.35, -9.0), pair(0.0, -9.0)]], requirement) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"adversary": random_policy(SMALL, 0)}, "is no adversary"),
        ({"adversary": 0.2, "rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"adversary": 0.2, "policy": lambda obs: 0}, "a PSyCo policy learns against adversaries"),
    ],
)
def test_bad_input_is_an_error_with_a_remedy(arguments, words):
    policy = arguments.pop("policy", random_policy(SMALL, 1))
    with pytest.raises(RunError, match=words):
        psyco.train_against(policy, SMALL, REQUIREMENT, **arguments)


def test_the_command_refuses_options_of_another_mode(tmp_path, cli):
    random_policy(SMALL, 1).save(tmp_path / "policy.safetensors")
    command = ["stress", str(tmp_path / "policy.safetensors"), "--require", REQUIREMENT]
    failed = cli(*command, "--adversary", "0.2", "--policy-episodes", "10")
    assert failed.status == 2
    assert "these belong to --train-against: leave out policy_episodes" in failed.err
    assert "these belong to --adversary: leave out train_against" in cli(*command, "--train-against", "2").err


@pytest.mark.more
def test_the_command_does_the_same_and_writes_policy_adversary_and_certificates(trained, tmp_path, cli):
    random_policy(SMALL, 1).save(tmp_path / "policy.safetensors")
    done = cli(
        "stress", str(tmp_path / "policy.safetensors"), "--require", REQUIREMENT, "--adversary", "0.5",
        "--train-against", "1", "--learner", "table", "--episodes", "4000", "--policy-learner", "safe-es",
        "--policy-episodes", "4000", "--max-episodes", "2000", "--seed", "3",
        "--save-policy", tmp_path / "hardened.safetensors",
        "--save", tmp_path / "adversary.safetensors", "--out", tmp_path / "hardened.json",
    )  # fmt: skip
    content = json.loads((tmp_path / "hardened.json").read_text())
    assert done.status == {"SATISFIED": 0, "VIOLATED": 1, "UNDECIDED": 3}[trained.verdict.name], done.err
    assert psyco.load_policy(tmp_path / "hardened.safetensors").digest == content["policy"] == trained.policy.digest
    adversary = psyco.load_policy(tmp_path / "adversary.safetensors").digest
    assert content["rounds"][content["chosen"]]["adversary"] == adversary
