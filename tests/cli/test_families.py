"""--vary, a share of environments and stress on the command line."""

import json

import jax
import pytest

import psyco
from psyco._src.cli.common import read_vary
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for

pytestmark = pytest.mark.slow  # whole commands

DOMAIN = psyco.make("obstacle-run", grid=3, horizon=6)
SAFE = "G (!caught | collisions <= 3)"


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    file = tmp_path_factory.mktemp("policy") / "policy.safetensors"
    network = network_for(DOMAIN)
    policy_for(DOMAIN, network, network.init(jax.random.key(0))).save(file)
    return file


def test_verify_takes_a_family(cli, policy):
    require = f"P>=0.3 in 80% of environments [ {SAFE} ] & C>=0.9"
    said = cli("verify", policy, "--vary", "grid=3,4", "--require", require)
    assert said.status == 0, said.err
    assert "share of environments between" in said.out
    assert "drawn from the family grid 3,4" in said.out
    found = json.loads(cli("verify", policy, "--vary", "grid=3,4", "--require", require, "--json").out)
    assert found["parameters"]["vary"] == {"grid": "3,4"}


def test_stress_prints_the_worst_and_writes_a_map(cli, policy, tmp_path):
    page = tmp_path / "worst.html"
    options = ("--vary", "grid=3..5", "--search-episodes", 300, "--out", page)
    said = cli("stress", policy, *options, "--require", f"P>=0.3 [ {SAFE} ] & C>=0.9")
    assert said.status == 0, said.err
    assert "in the worst environment that was found: grid=" in said.out
    assert "nothing is said about them" in said.out
    assert "Map of the family" in page.read_text()


BAD = {
    "empty range": ("grid=5..3", "grid: the range 5..3 is empty"),
    "unknown": ("gird=3..5", "did you mean 'grid'"),
    "horizon": ("horizon=3..5", "the horizon cannot vary"),
    "no values": ("grid", "expected NAME=VALUES or a CSV file"),
    "no file": ("nothing.csv", "nothing.csv"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_bad_families_are_refused(cli, policy, text, message):
    said = cli("verify", policy, "--vary", text, "--require", f"P>=0.3 [ {SAFE} ]")
    assert said.status == 2
    assert message in said.err
    assert "Traceback" not in said.err


def test_a_single_environment_has_no_share(cli, policy):
    said = cli("verify", policy, "--require", f"P>=0.3 in 80% of environments [ {SAFE} ]")
    assert said.status == 2
    assert "--vary max_speed=0.08..0.12" in said.err


def test_plan_shows_environments_and_episodes(cli):
    said = cli("plan", "P>=0.5 in 80% of environments & C>=0.9", "--p", 0.9, "--share", 1)
    assert said.status == 0
    assert "environments" in said.out
    assert "hopeless" in said.out


def test_a_run_remembers_its_family(cli, tmp_path):
    folder = tmp_path / "run"
    said = cli(
        "synthesize", "obstacle-run", "--set", "grid=3", "--horizon", 6, "--vary", "grid=3,4", "--episodes", 60,
        "--option", "max_episodes=200", "--learner", "snes", "--out", folder,
        "--require", f"P>=0.3 [ {SAFE} ] & C>=0.9",
    )  # fmt: skip
    assert said.status in (0, 1, 3), said.err
    run = psyco.open_run(folder)
    assert run.config.parameters["vary"] == {"grid": "3,4"}
    assert run.certificate.parameters["vary"] == {"grid": "3,4"}
    assert "drawn from the family grid 3,4" in run.certificate.guarantee.statement
    psyco.report(folder)


@pytest.mark.more
def test_a_run_for_the_worst_environments_observes_its_parameters(cli, tmp_path):
    folder = tmp_path / "run"
    said = cli(
        "synthesize", "particle-dance", "--horizon", 5, "--vary", "max_speed=0.08..0.12", "--observe-parameters",
        "--robust", "cvar:0.2", "--episodes", 60, "--option", "max_episodes=200", "--learner", "snes", "--out", folder,
        "--require", "P>=0.3 [ G distance >= 0.1 ] & C>=0.9",
    )  # fmt: skip
    assert said.status in (0, 1, 3), said.err
    run = psyco.open_run(folder)
    assert run.config.settings.robust == "cvar:0.2"
    assert run.config.parameters["observe_parameters"] is True
    assert run.policy.network.inputs == 9
    assert "whose parameters the policy observes" in str(run.certificate)
    assert cli("verify", folder, "--vary", "max_speed=0.05..0.2").status in (0, 1, 3)  # another range, as trained
    for options in (["none"], ["d_min=0.1..0.12"]):
        refused = cli("verify", folder, "--vary", *options)
        assert refused.status == 2
        assert "observe" in refused.err
    told = cli("export", folder, "--c", tmp_path / "c")
    assert "then these parameters of the environment: max_speed" in told.out


ROBUST = {
    "single": (["--robust", "worst"], "is a single environment"),
    "word": (["--robust", "median", "--vary", "grid=3,4"], "write mean, cvar:0.1"),
    "nothing": (["--observe-parameters"], "nothing varies in obstacle-run"),
}


@pytest.mark.parametrize(("options", "message"), ROBUST.values(), ids=ROBUST)
def test_learning_for_environments_needs_a_family(cli, tmp_path, options, message):
    said = cli("synthesize", "obstacle-run", "--require", f"P>=0.3 [ {SAFE} ]", "--out", tmp_path / "run", *options)
    assert said.status == 2
    assert message in said.err
    assert "Traceback" not in said.err


def test_no_family_and_a_family_are_refused_together():
    for given in (["none", "grid=3,4"], ["grid=3,4", "none"]):
        with pytest.raises(psyco.RunError, match="--vary none is a single environment"):
            read_vary(given)
