"""verify, plan and exact on the command line: what is printed, and the exit status."""

import json

import jax
import pytest

import psyco
from psyco._src.policies.joint_network import joint_network_for
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for

pytestmark = pytest.mark.slow  # whole commands

SAFE = "P>=0.3 [ G (!caught | collisions <= 1) ] & C>=0.98"
DOMAIN = psyco.make("obstacle-run", grid=3, horizon=6)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    network = network_for(DOMAIN)
    for seed in (0, 1):
        policy = policy_for(DOMAIN, network, network.init(jax.random.key(seed)))
        policy.save(folder / f"policy{seed}.safetensors")
    certificate = psyco.verify(psyco.load_policy(folder / "policy0.safetensors"), DOMAIN, SAFE)
    (folder / "certificate.json").write_text(certificate.to_json())
    (folder / "dance.safetensors").write_bytes(_dance().to_bytes())
    return folder


def _dance():
    domain = psyco.make("particle-dance")
    network = network_for(domain)
    return policy_for(domain, network, network.init(jax.random.key(0)))


@pytest.mark.parametrize(("data", "status"), [("1\n" * 40, 0), ("0\n" * 40, 1), ("1\n0\n" * 3, 3)])
def test_outcomes_from_input_and_file_give_the_verdict_as_exit_status(cli, tmp_path, data, status):
    require = ("--require", "P>=0.85 & C>=0.98")
    assert cli("verify", "--outcomes", "-", *require, stdin=data)[0] == status
    file = tmp_path / "outcomes.csv"
    file.write_text(data)
    code, out, _ = cli("verify", "--outcomes", file, *require, "--json")
    assert code == status
    assert json.loads(out)["episodes"] <= 40


def test_traces_are_judged_by_the_formula(cli):
    data = "episode,x\n" + "".join(f"{i},{i % 2}\n" for i in range(200))
    code, out, _ = cli("verify", "--traces", "-", "--require", "P>=0.9 [ F x > 0 ]", stdin=data)
    assert code == 1 and "VIOLATED" in out


def test_a_certificate_is_written_and_repeated(cli, files, tmp_path):
    out = tmp_path / "again.json"
    code, _, err = cli("verify", files / "policy0.safetensors", "--require", SAFE, "--out", out)
    assert code == 0, err
    code, said, err = cli("verify", "--replay", out, files / "policy0.safetensors")
    assert code == 0, err
    assert "everything matches: SATISFIED" in said


@pytest.mark.parametrize(
    ("change", "policy", "named"),
    [
        (lambda text: text.replace('"satisfied": ', '"satisfied": 1', 1), "policy0", "findings.0.satisfied"),
        (
            lambda text: text.replace("P>=0.3", "P>=0.4"),
            "policy0",
            "requirement, syntax_tree.constraints.0.lower",
        ),
        (lambda text: text, "policy1", "policy: the certificate is about"),
        (lambda text: text[: len(text) // 2], "policy0", "damaged"),
        (lambda text: text, "dance", "made for particle-dance"),
    ],
)
def test_a_changed_certificate_or_another_policy_is_an_error_that_names_it(cli, files, tmp_path, change, policy, named):
    file = tmp_path / "certificate.json"
    file.write_text(change((files / "certificate.json").read_text()))
    code, _, err = cli("verify", "--replay", file, files / f"{policy}.safetensors")
    assert code in (1, 2) and named in err and "Traceback" not in err
    assert (code == 1) == ("does not match" in err), "1: something differs; 2: it can't be repeated"


def test_an_estimate_is_added_from_further_episodes(cli, files):
    command = ("verify", files / "policy0.safetensors", "--require", SAFE, "--json")
    (_, plain, _), (code, out, err) = cli(*command), cli(*command, "--estimate", "250")
    assert code == 0, err
    assert json.loads(out)["estimate"]["episodes"] == 250
    assert json.loads(out)["findings"] == json.loads(plain)["findings"]


def test_a_retry_counts_the_looks(cli, files, tmp_path):
    first = tmp_path / "first.json"
    require = ("--require", SAFE.replace("0.98", "0.9999999999999"), "--max-episodes", "250")
    cli("verify", files / "policy0.safetensors", *require, "--retryable", "--out", first)
    code, out, err = cli("verify", files / "policy0.safetensors", *require, "--after", first, "--json")
    assert code in (0, 3), err
    assert len(json.loads(out)["looks"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("verify",), "nothing to verify"),
        (("verify", "--outcomes", "/nowhere", "--require", "P>=0.5"), "cannot read"),
        (("verify", "--outcomes", "-"), "--require"),
        (("verify", "--outcomes", "-", "--require", "P>=0.5"), "is empty"),
        (("verify", "--outcomes", "-", "--traces", "-", "--require", "P>=0.5"), "choose one"),
        (("verify", "x", "--outcomes", "-", "--require", "P>=0.5"), "leave out policy"),
        (("verify", "--outcomes", "-", "--require", "P>=0.5", "--domain", "x"), "leave out domain"),
        (("verify", "--outcomes", "-", "--require", "P>=0.5", "--estimate", "9"), "leave out estimate"),
        (("verify", "--replay", "x", "y", "--seed", "3"), "leave out seed"),
        (("verify", "--replay", "x"), "needs the policy"),
        (("plan", "P>=0.5", "--method", "majic"), "unknown verification method"),
        (("plan", "Rmax=? [ C ]"), "nothing to plan"),
        (("plan", "P>=0.5", "--p", "1.5"), "between 0 and 1"),
        (("plan", "P>=0.5", "--option", "indifference=0.1"), "options belong to one method"),
        (("plan", "P>=0.5 & C>=1"), "C>=1"),
        (("plan", "P>=0.5", "--max-episodes", "20", "--p", "0.5", "--out", "/nowhere/x.png"), "cannot write"),
    ],
)
def test_bad_input_gets_a_message_and_status_2(cli, arguments, words):
    code, _, err = cli(*arguments)
    assert code == 2 and words in err and "Traceback" not in err


def test_exact_refuses_what_it_cannot_enumerate(cli, files):
    code, _, err = cli("exact", files / "dance.safetensors", "--require", "P>=0.5 [ F distance < 1 ]")
    assert code == 2 and "no exact answers" in err


def test_plan_shows_the_known_figures_and_draws_them(cli, tmp_path):
    picture = tmp_path / "plan.png"
    arguments = ("plan", "P>=0.85 & C>=0.98", "--p", "0.9", "--p", "0.85", "--share", "1")
    code, out, err = cli(*arguments, "--max-episodes", "100", "--out", picture)
    assert code == 0, err
    assert all(method in out for method in ("anytime", "calibrated", "bayes", "sprt", "fixed"))
    assert picture.read_bytes().startswith(b"\x89PNG")
    code, out, err = cli(*arguments, "--max-episodes", "1000", "--method", "bayes", "--json")
    (content,) = json.loads(out)
    assert content["p"] == [0.85, 0.9]
    assert content["methods"]["bayes"]["satisfied"] == pytest.approx([0.147, 0.949], abs=5e-4)
    assert content["methods"]["bayes"]["needed"]["0.99"] == [None, 689]


def test_exact_prints_probability_return_and_optimum(cli, files):
    code, out, err = cli("exact", files / "policy0.safetensors", "--require", SAFE)
    assert code == 0, err
    assert "probability 0." in out and "optimum under the requirement -2." in out
    code, out, err = cli("exact", files / "policy0.safetensors", "--require", SAFE.replace("0.3", "0.999"), "--json")
    content = json.loads(out)
    assert (code, content["verdict"], content["optimum"]) == (1, "VIOLATED", None)


def test_exact_prints_expected_values_and_answers(cli, files):
    require = f"R{{caught}}<=9 [ C ]; {SAFE}; R{{caught}}=? [ S ]; Pmin=? [ F caught ]"
    code, out, err = cli("exact", files / "policy0.safetensors", "--require", "CVaR{caught}(0.9)<=9 [ C ]")
    assert code == 0, err
    assert "\n    CVaR " in out and "the optimum under a bound on CVaR is not computed" in out
    code, out, err = cli("exact", files / "policy0.safetensors", "--require", require)
    assert code == 0, err
    stated = [line for line in out.splitlines() if line.startswith("    ")]
    assert [line.split()[0] for line in stated[:2]] == ["expected", "probability"]
    code, out, err = cli("exact", files / "policy0.safetensors", "--require", require, "--json")
    content = json.loads(out)
    rate, least = content["answers"]
    assert (len(content["expected"]), len(content["probabilities"])) == (1, 1)
    assert stated[2:] == [f"    {rate:.9f}", f"    {least:.9f}"]
    assert 0 < rate < content["expected"][0]


@pytest.mark.extra("stormpy")
def test_exact_asks_storm_and_exports(cli, files, tmp_path):
    arguments = (
        "exact",
        files / "policy0.safetensors",
        "--require",
        SAFE,
        "--storm",
        "--export",
        tmp_path / "models",
    )
    code, out, err = cli(*arguments, "--json")
    assert code == 0, err
    content = json.loads(out)
    assert content["storm"]["probabilities"] == pytest.approx(content["probabilities"], abs=1e-9)
    assert content["storm"]["expected_return"] == pytest.approx(content["expected_return"], abs=1e-9)
    written = {path.name for path in (tmp_path / "models").iterdir()}
    assert written == {
        f"{model}.{s}" for model in ("chain", "mdp") for s in ["prism", "drn", "tra", "sta", "lab", "rew"]
    }


# ---- expected values and questions ---------------------------------------------------------------------------------

MIXED = f"{SAFE}; R{{caught}}<=3 [ C ] & C>=0.9; P=? [ F target ]"


def test_expected_values_are_verified_and_questions_answered(cli, files, tmp_path):
    out, policy = tmp_path / "mixed.json", files / "policy0.safetensors"
    code, said, err = cli("verify", policy, "--require", MIXED, "--width", 0.3, "--max-episodes", 500, "--out", out)
    assert code == 0, err
    assert "expected value between" in said and "P=? [ F target ] & C>=0.95\n    0." in said
    content = json.loads(out.read_text())
    assert [("mean" in f) for f in content["findings"]] == [False, True]
    assert content["answers"][0]["width"] == 0.3 and content["answers"][0]["episodes"] < 500
    assert cli("verify", "--replay", out, policy)[0] == 0
    code, _, err = cli("verify", "--replay", out, policy, "--width", 0.1)
    assert code == 2 and "width" in err


def test_questions_alone_have_no_verdict_and_no_bad_status(cli):
    code, said, _ = cli("verify", "--outcomes", "-", "--require", "P=?", stdin="1\n0\n1\n")
    assert code == 0 and said.startswith("ANSWERED: nothing was to be shown; the questions are answered")


def test_questions_of_different_units_have_a_width_each(cli):
    asked = ("verify", "--outcomes", "-", "--require", "P=?; R{cost}=? [ C ] within [0,10]", "--json")
    stdin = "1,5\n1,6\n" * 100
    code, said, _ = cli(*asked, "--width", 0.1, "--width", 4, stdin=stdin)
    assert code == 0 and [answer["width"] for answer in json.loads(said)["answers"]] == [0.1, 4.0]
    code, _, err = cli(*asked, "--width", 0.1, stdin=stdin)
    assert code == 2 and "2 questions have 1 width; only probabilities can share one" in err


def test_recorded_numbers_and_traces_on_the_command_line(cli):
    cost = ("--require", "R{cost}<=25 [ C ] within [0,100] & C>=0.9")
    assert cli("verify", "--outcomes", "-", *cost, stdin="3\n" * 200)[0] == 0
    assert cli("verify", "--outcomes", "-", *cost, stdin="90\n" * 200)[0] == 1
    code, _, err = cli("verify", "--outcomes", "-", *cost, stdin="3\n300\n")
    assert code == 2 and "line 2 of the input" in err
    traces = "episode,up\n" + "".join(f"{i},0\n{i},1\n" for i in range(60))
    share = ("--traces", "-", "--require", "S>=0.5 [ up ] & C>=0.9")
    assert cli("verify", *share, "--horizon", 3, stdin=traces)[0] == 0
    code, _, err = cli("verify", *share, stdin=traces)
    assert code == 2 and "--horizon N" in err


def test_an_expected_value_is_planned_by_simulation_and_said_to_be(cli):
    plan = ("plan", "R{cost}<=25 [ C ] within [0,1000]", "--max-episodes", 600, "--method", "anytime")
    code, said, _ = cli(*plan, "--mean", 10, "--mean", 40, "--spread", 5)
    assert code == 0
    assert "10 ✓" in said and "40 ✗" in said
    assert "Simulated with 400 streams of Beta-distributed values" in said
    code, said, _ = cli(*plan, "--mean", 10, "--spread", 5, "--json")
    (entry,) = json.loads(said)
    assert entry["mean"] == [10] and entry["note"].startswith("simulated")
    assert entry["methods"]["anytime"][0]["satisfied"] > 0.9
    code, _, err = cli(*plan)
    assert code == 2 and "--mean 10 --spread 3" in err
    code, _, err = cli(*plan, "--mean", 10, "--spread", 5, "--out", "plan.png")
    assert code == 2 and "leave out --out" in err


def test_a_comparison_gives_its_verdict_as_exit_status(cli, files):
    new, require = files / "policy0.safetensors", ("--require", SAFE)
    code, out, _ = cli("verify", new, "--against", new, *require, "--margin", "0.1")
    assert code == 0
    assert out.startswith("NOT WORSE")
    code, out, _ = cli(
        "verify", new, "--against", files / "policy1.safetensors", *require, "--max-episodes", 5, "--json"
    )
    assert code == 3
    assert json.loads(out)["verdict"] == "UNDECIDED"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--margin", "0.1"), "a margin belongs to --against"),
        (("--against", "POLICY", "--method", "bayes"), "leave out method"),
        (("--against", "dance.safetensors"), "particle-dance"),
        (("--against", "nowhere.safetensors"), "nowhere.safetensors"),
        (("--against", "POLICY", "--margin", "2"), "a margin is at least 0"),
    ],
)
def test_bad_comparisons(cli, files, arguments, message):
    policy = files / "policy0.safetensors"
    given = [policy if a == "POLICY" else files / a if str(a).endswith(".safetensors") else a for a in arguments]
    code, _, err = cli("verify", policy, "--require", SAFE, *given)
    assert code == 2
    assert message in err


def test_recorded_episodes_are_sorted_by_their_beginning_and_need_an_end(cli, tmp_path):
    file = tmp_path / "recorded.csv"
    file.write_text("episode,a,terminated,index\n" + "".join(f"e{i},1,{int(i > 0)},{29 - i}\n" for i in range(30)))
    what = ("verify", "--traces", file, "--require", "P>=0.5 [ F a ] & C>=0.9")
    done = cli(*what)
    assert (done.status, "episode 'e0' is not terminated at its end" in done.err) == (2, True)
    done = cli(*what, "--cut", "violated")
    assert done.status == 0
    assert "in the order in which they began (index), with none left out" in done.out
    assert "indices 0 to 4 are missing" not in done.err
    file.write_text("index,outcome\n5,1\n6,1\n")
    what = ("verify", "--outcomes", file, "--require", "P>=0.5 & C>=0.9")
    assert "indices 0 to 4 are missing" in cli(*what).err
    assert cli(*what, "--first-index", 5).status == 3
    assert "leave out cut" in cli(*what, "--cut", "violated").err


def test_plan_predicts_the_episodes_of_an_answer_of_a_wanted_width(cli, tmp_path):
    asked = ("plan", "P=? & C>=0.95", "--share", 1)
    code, said, _ = cli(*asked, "--width", 0.2, "--p", 0.9, "--p", 1)
    assert code == 0 and "width 0.2, at most 10,000 episodes" in said
    assert "0.9     1.000   43" in said and "1       1.000   17" in said and "Exact, by dynamic programming." in said
    (found,) = json.loads(cli(*asked, "--width", 0.2, "--p", 1, "--json").out)
    assert (found["p"], found["episodes"], found["width"]) == ([1.0], [17.0], 0.2)
    code, _, err = cli(*asked)
    assert code == 2 and "--width 0.05" in err
    code, _, err = cli(*asked, "--width", 0.2, "--out", tmp_path / "plan.png")
    assert code == 2 and "--out draws the tests of constraints, and the requirement has none" in err


def _team(seed, agents=2):
    domain = psyco.make("particle-dance", agents=agents, horizon=4)
    network = joint_network_for(domain, hidden=4, bias="learned")
    return policy_for(domain, network, network.init(jax.random.key(seed)))


def test_cross_play_prints_the_matrix_and_writes_its_page(cli, tmp_path):
    for seed in (1, 2):
        _team(seed).save(tmp_path / f"team{seed}.safetensors")
    teams = [tmp_path / f"team{seed}.safetensors" for seed in (1, 2)]
    page, require = tmp_path / "page.html", "P>=0.5 [ G (distance >= 0) ] & C>=0.9"
    code, out, err = cli("crossplay", *teams, "--require", require, "--episodes", 50, "--out", page)
    assert code == 0, err
    assert "with partners of another: 2 of 2 SATISFIED" in out and out.count("SATISFIED 1.0000, between") == 4
    assert "team1.safetensors" in page.read_text() and f"page: {page}" in out
    code, out, _ = cli("crossplay", *teams, "--require", "P<=0.5 [ G (distance >= 0) ]", "--episodes", 50, "--json")
    assert code == 1 and json.loads(out)["verdict"] == "VIOLATED"
    assert cli("crossplay", *teams, "--require", "P>=0.99 [ G (distance >= 0) ]", "--episodes", 50)[0] == 3


def test_cross_play_refuses_what_does_not_play_together(cli, tmp_path):
    one, fewer, alone = tmp_path / "one.safetensors", tmp_path / "fewer.safetensors", tmp_path / "alone.safetensors"
    _team(1).save(one)
    _team(1, agents=3).save(fewer)
    alone.write_bytes(_dance().to_bytes())
    require = ("--require", "P>=0.5 [ G (distance >= 0.01) ]")
    for words, arguments in {
        "cross-play needs two policies or more": (one, *require),
        "in one domain. Name it with domain (--domain)": (one, fewer, *require),
        "particle-dance has one agent": (alone, alone, *require),
        "no agent or group 'agent_7'": (one, "python:math:sin", "--agent", "agent_7", *require),
        "give one with requirement (--require)": (one, "python:math:sin"),
    }.items():
        code, _, err = cli("crossplay", *arguments)
        assert code == 2 and words in " ".join(err.split()), (arguments, err)
