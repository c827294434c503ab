"""psyco exploit: a learned best response, its certificate, its account, and learning against it."""

import json
import re

import jax
import pytest

import psyco
from psyco._src.core.errors import DomainError, RequirementError, RunError
from psyco._src.policies.joint_network import joint_network_for
from psyco._src.policies.serialization import policy_for

GAME = psyco.make("obstacle-run", opponent=True, grid=3, horizon=6)
REQUIREMENT = "P>=0.7 [ G (!caught | collisions <= 1) ] & C>=0.95"


def joint_policy(seed=1, domain=GAME):
    network = joint_network_for(domain, hidden=8, bias="learned", policies="separate")
    return policy_for(domain, network, network.init(jax.random.key(seed)))


def exploit(policy, **options):
    return psyco.exploit(policy, GAME, REQUIREMENT, **{"agent": "opponent", "seed": 3, "max_episodes": 2_000} | options)


@pytest.fixture(scope="module")
def found():
    return exploit(joint_policy(), episodes=6_000, exact=True)


@pytest.mark.more
def test_the_learned_response_comes_close_to_the_best_one_and_the_game_bounds_it(found):
    without, learned, worst, game = found.exact
    assert 0.95 * worst <= learned <= worst + 1e-9
    assert without < learned
    assert game <= worst  # no policy of the runner holds the opponent below that


@pytest.mark.more
def test_the_certificate_names_the_deviation_and_says_what_it_is_about(found):
    about = found.certificate.parameters["adversary"]
    assert about == {"agent": "opponent", "goal": "violation", "policy": found.adversary.digest}
    assert found.certificate.policy == joint_policy().digest
    assert "against the agent opponent, which deviates to make the requirement fail" in str(found)
    assert "another deviation may do more harm" in found.certificate.guarantee.statement
    (fixed,) = (note for note in found.certificate.notes if note.startswith("The statement is about"))
    assert fixed == (
        "The statement is about runner with this policy, together with the agent opponent, which deviates to make the "
        f"requirement fail (policy sha256:{found.adversary.digest[:16]}). All of these policies are fixed."
    )
    (finding,) = found.certificate.findings
    # The interval of the certificate misses with probability at most 10%; fixed seed.
    assert finding.lower <= 1.0 - found.exact.learned <= finding.upper
    content = json.loads(found.to_json())
    assert content["gain"]["pairs"] == 2000 and content["exact"]["game"] == found.exact.game


@pytest.mark.more
def test_the_joint_policy_with_the_deviating_agent_is_a_policy_of_its_own(found):
    joined, before = found.adversary, joint_policy()
    assert joined.agents == ("runner", "opponent") and joined.digest != before.digest
    assert joined.origin.endswith(f"from the joint policy sha256:{before.digest}")
    seen = jax.random.randint(jax.random.key(0), (40, 8), 0, 3)
    assert (joined(seen)[:, 0] == before(seen)[:, 0]).all()
    violated = 1.0 - psyco.exact(joined, GAME, REQUIREMENT).value.probabilities[0]
    assert violated == pytest.approx(found.exact.learned, abs=1e-9)


@pytest.mark.more
def test_a_certificate_against_a_deviation_is_repeated_with_its_file(found, tmp_path):
    found.adversary.save(tmp_path / "deviation.safetensors")
    where = {"domain": GAME, "adversary": tmp_path / "deviation.safetensors"}
    assert psyco.replay(found.certificate, joint_policy(), **where).matches
    again = exploit(joint_policy(), deviation=tmp_path / "deviation.safetensors")
    assert again.certificate.findings == found.certificate.findings
    with pytest.raises(RunError, match="psyco exploit POLICY --agent opponent --deviation FILE"):
        psyco.replay(found.certificate, joint_policy())


@pytest.mark.more
def test_deviations_of_one_agent_share_an_account_and_others_have_their_own(tmp_path):
    run = psyco.start(GAME, REQUIREMENT, tmp_path / "run", episodes=300, seed=0, learner="safe-es")
    given = {"deviation": joint_policy(), "max_episodes": 50}
    shares = [
        exploit(tmp_path / "run", **given | {"agent": agent}).certificate.looks[-1].share
        for agent in ("opponent", "opponent", "runner")
    ]
    assert shares == [pytest.approx(1 / 2), pytest.approx(1 / 6), pytest.approx(1 / 2)]
    assert run.certificate.policy == psyco.open_run(tmp_path / "run").policy.digest


@pytest.mark.more
def test_a_deviation_for_return_raises_the_return():
    found = exploit(joint_policy(), agent="runner", goal="return", episodes=4_000, exact=True)
    assert found.gain.lower > 0  # of a random policy; it misses with probability 2.5%, fixed seed
    assert found.gain.after == pytest.approx(found.gain.before + found.gain.difference)
    # Nobody has to step more than the distance to the target, on average 2, and who starts there steps once.
    assert found.gain.best == pytest.approx(-(2 + 1 / 9), abs=1e-9)
    # 2,000 returns with a standard deviation below 1.3: it fails by chance with probability below 1e-6.
    assert found.gain.after <= found.gain.best + 0.15
    assert re.search(r"team's return -\d\.\d+ instead of -\d\.\d+: a difference of \+", str(found))


@pytest.mark.more
def test_the_exploitability_falls_where_all_learn_in_turn():
    trained = psyco.train_against(
        joint_policy(), GAME, REQUIREMENT, agent="opponent", rounds=1, episodes=4_000, policy_learner="ppo",
        policy_episodes=6_000, seed=3, exact=True, max_episodes=1_000,
    )  # fmt: skip
    before, after = (each.exact for each in trained.rounds)
    assert after.worst < before.worst
    assert before.game == after.game <= after.worst
    assert [c.parameters["adversary"]["agent"] for c in trained.certificates] == ["opponent", "opponent"]
    assert trained.policy.agents == GAME.agents and "adversary" not in trained.policy.parameters
    assert "Other deviations may do more harm: psyco exploit learns further ones" in str(trained)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agent": "oponent"}, r"no agent 'oponent' \(did you mean 'opponent'\?\)"),
        ({"goal": "gain"}, "an agent deviates for violation or return, got 'gain'"),
        ({"policy": lambda obs: dict.fromkeys(obs, 0)}, "a best response is learned against a PSyCo policy"),
        ({"deviation": lambda obs: 0}, "a deviation is a joint PSyCo policy"),
        (
            {"deviation": joint_policy(1).agent("runner")},
            "with one agent; obstacle-run has the agents runner, opponent",
        ),
        ({"requirement": "P>=0.7 [ G opponent.action = 0 ]"}, "the requirement names opponent.action"),
        ({"requirement": "R{reward}>=-5 [ C ]"}, "an adversary makes a formula fail"),
    ],
)
def test_bad_input_is_an_error_with_a_remedy(options, words):
    policy, requirement = options.pop("policy", joint_policy()), options.pop("requirement", REQUIREMENT)
    with pytest.raises((RunError, RequirementError), match=words):
        psyco.exploit(policy, GAME, requirement, **{"agent": "opponent"} | options)


def test_a_run_of_one_agent_has_no_agent_that_could_deviate():
    with pytest.raises(
        DomainError, match="particle-dance has one agent, and an agent deviates where there are several"
    ):
        psyco.exploit(lambda obs: [0.0, 0.0], "particle-dance", "P>=0.7 [ G distance >= 0.1 ]", agent="agent_0")


@pytest.mark.parametrize("arguments", [{}, {"adversary": 0.2, "agent": "opponent"}])
def test_learning_in_turn_is_against_an_adversary_or_an_agent(arguments):
    with pytest.raises(RunError, match="give one of adversary and agent"):
        psyco.train_against(joint_policy(), GAME, REQUIREMENT, **arguments)


def test_the_command_refuses_what_it_would_ignore(tmp_path, cli):
    joint_policy().save(tmp_path / "joint.safetensors")
    command = ["exploit", tmp_path / "joint.safetensors", "--require", REQUIREMENT]
    failed = cli(*command, "--agent", "oponent")
    assert failed.status == 2 and "did you mean 'opponent'?" in failed.err
    assert "--agent" in cli(*command).err and cli(*command).status == 2
    own = [*command, "--agent", "opponent"]
    assert "these belong to --train-against: leave out policy_episodes" in cli(*own, "--policy-episodes", "9").err
    assert "leave out goal" in cli(*own, "--train-against", "2", "--for", "return").err
    given = cli(*own, "--deviation", tmp_path / "joint.safetensors", "--episodes", "9")
    assert "a given deviation is not learned: leave out episodes" in given.err


@pytest.mark.more
def test_the_command_learns_the_same_and_writes_the_joint_policy_with_the_deviation(found, tmp_path, cli):
    joint_policy().save(tmp_path / "joint.safetensors")
    saved, out = tmp_path / "deviation.safetensors", tmp_path / "deviation.json"
    command = ["exploit", tmp_path / "joint.safetensors", "--require", REQUIREMENT, "--agent", "opponent"]
    budget = ["--episodes", "6000", "--max-episodes", "2000", "--seed", "3"]
    done = cli(*command, *budget, "--save", saved, "--out", out, "--json")
    assert done.status in (0, 1, 3)
    assert out.read_text() == done.out
    content = json.loads(done.out)
    assert content["adversary"]["policy"] == psyco.load_policy(saved).digest == found.adversary.digest
    assert cli("verify", saved, "--require", REQUIREMENT, "--max-episodes", "200").status in (0, 1, 3)
